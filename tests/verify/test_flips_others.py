"""A single changed bit anywhere in a GGUF, safetensors or ONNX file is found, or changes only what may be anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import onnx
import pytest
import safetensors
from onnx import TensorProto

import gguf_builder as gb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from gguf_legality import is_legal, tensors_of
from quantform.errors import QuantformError
from quantform.verify import Report

SCALARS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F64": ("<u8", 0x7FF << 52)}


def flips(path: Path, first: int, end: int, count: int, seed: int) -> Iterator[tuple[int, bytes, Report]]:
    """Where a bit was changed, the file's bytes then, and what verification says; the file is put back."""
    original = path.read_bytes()
    rng = np.random.default_rng(seed)
    for at in rng.integers(first, end, count).tolist():
        changed = bytearray(original)
        changed[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(changed)
        yield at, bytes(changed), qf.verify(path, deep=True)
    path.write_bytes(original)


# --- GGUF -------------------------------------------------------------------------------------------------------------


def gguf_tensors() -> list[gb.GGUFTensorSpec]:
    """Random blocks of every profile, and random numbers of every type."""
    rng, tensors = np.random.default_rng(4), []
    for profile in qf.profiles():
        data = rng.bytes(3 * profile.bytes)
        tensors.append(gb.tensor(profile.name, (3, profile.values), profile.ggml_type, data))
    for name, (kind, _) in SCALARS.items():
        data = rng.bytes(150 * int(kind[2]))
        tensors.append(gb.tensor(name, (30, 5), gguf.GGMLQuantizationType[name], data))
    return tensors


def counted(report: Report, name: str, rule: str) -> int:
    return sum(one.count for one in report.remarks if one.object == name and one.rule == rule)


def test_each_changed_bit_of_gguf_is_found_or_legal(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    metadata = {"general.name": "toy", "flags": [True, False], "names": ["a", "bc"], "n": gb.typed("uint64", 7)}
    path.write_bytes(gb.build(gguf_tensors(), metadata, alignment=64))
    end, places = tensors_of(path.read_bytes())
    for at, data, report in flips(path, 0, end, 300, 1):
        assert report.ok <= is_legal(data), f"byte {at}"
    used = set(range(end)).union(*(range(one.first, one.end) for one in places))
    gaps = sorted(set(range(path.stat().st_size)) - used)
    for gap in gaps[::7]:
        ((at, _, report),) = flips(path, gap, gap + 1, 1, gap)
        (finding,) = report.findings
        assert (finding.rule, finding.file, finding.offset) == ("padding", str(path), at)
    for at, _, report in flips(path, places[0].first, path.stat().st_size, 100, 2):
        assert report.ok != (at in gaps)


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    """Random blocks have some: as many as another decoder finds, and as NumPy finds among plain numbers."""
    path = tmp_path / "m.gguf"
    tensors = gguf_tensors()
    path.write_bytes(gb.build(tensors))
    report = qf.verify(path, deep=True)
    assert report.ok
    seen = 0
    for spec in tensors:
        name = str(spec.name)
        if name in SCALARS:
            kind, mask = SCALARS[name]
            words = np.frombuffer(spec.data, kind)
            expected = int(np.count_nonzero((words & words.dtype.type(mask)) == mask))
        else:
            with qf.open(path) as source, np.errstate(all="ignore"):
                expected = int(np.count_nonzero(~np.isfinite(source[name].decode("float32"))))
        assert counted(report, name, "nonfinite-value") == expected, name
        seen += expected
    assert seen > 0


# --- safetensors ------------------------------------------------------------------------------------------------------


def checkpoint(directory: Path) -> Path:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 0x7F, (4, 32), np.uint8)
    return sb.model(
        directory,
        {
            "a.weight": sb.f8(codes.tolist()),
            "a.weight_scale": rng.random((4, 1), np.float32),
            "b.weight_packed": rng.integers(0, 256, (4, 32), np.uint8),
            "b.weight_scale": sb.f8(rng.integers(0, 0x7F, (4, 4), np.uint8).tolist()),
            "b.weight_global_scale": np.array([2], np.float32),
            "c.weight": rng.random((4, 8)).astype(np.float16),
        },
    )


LEGAL: dict[str, Callable[[bytes], bool]] = {
    "a.weight": lambda data: not np.any((np.frombuffer(data, np.uint8) & 0x7F) == 0x7F),
    "a.weight_scale": lambda data: bool(np.all(np.frombuffer(data, "<u4") < 0x7F800000)),
    "b.weight_scale": lambda data: bool(np.all(np.frombuffer(data, np.uint8) < 0x7F)),
    "b.weight_global_scale": lambda data: 0 < np.frombuffer(data, "<u4")[0] < 0x7F800000,
}


def test_each_changed_bit_of_safetensors_is_found_or_legal(tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / "model.safetensors"
    report = qf.verify(tmp_path, deep=True)
    assert report.ok, report.findings
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    for at, data, report in flips(path, 0, start, 300, 1):
        if report.ok:
            try:
                safetensors.deserialize(data)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - of its own kind
                pytest.fail(f"byte {at}: {error}")
    found = 0
    for at, data, report in flips(path, start, path.stat().st_size, 600, 2):
        tensors = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
        legal = all(LEGAL[name](entry["data"]) for name, entry in tensors if name in LEGAL)
        assert report.ok == legal, f"byte {at}: {report.findings}"
        if not legal:
            (finding,) = report.findings
            assert finding.offset is not None
            assert finding.file == str(path)
            assert finding.offset <= at < finding.offset + 4
            found += 1
    assert found > 4


def test_types_and_forms_that_are_not_decoded_are_remarks(tmp_path: Path) -> None:
    packed = np.zeros((4, 4), np.int32)
    weights: dict[str, np.ndarray | sb.Stored] = {
        "c": ("C64", (2,), np.full(4, np.nan, np.float32).tobytes()),
        "p.qweight": packed,
        "p.qzeros": packed,
        "p.scales": np.ones((1, 4), np.float16),
    }
    sb.model(tmp_path, weights, {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    for deep in (False, True):
        report = qf.verify(tmp_path, deep=deep)
        assert report.ok, report.findings
        assert {(one.rule, one.object) for one in report.remarks} == {("undecoded", "c"), ("undecoded", "p.weight")}
    assert report.checked["bytes"] == 16 + 64 + 64 + 8


@pytest.mark.parametrize("dtype", ["F128", "weird type"])
def test_types_that_the_format_does_not_have_are_findings(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(sb.build({"x": (dtype, (1,), bytes(16))}))
    (finding,) = qf.verify(path, deep=True).findings
    assert (finding.rule, finding.object, finding.found) == ("structure", "x", repr(dtype))


def test_plain_values_of_checkpoints_are_counted(tmp_path: Path) -> None:
    half = np.array([[1, np.inf], [np.nan, 2]], np.float16)
    values: dict[str, Any] = {
        "h": half,
        "d": half.astype(np.float64),
        "e": sb.f8([[0x7F, 0xFF, 0x7E]]),
        "i": np.array([0x7C00], np.int32),
    }
    sb.model(tmp_path, values)
    report = qf.verify(tmp_path, deep=True)
    assert report.ok
    assert {one.object: one.count for one in report.remarks} == {"h": 2, "d": 2, "e": 2}
    assert report.total_remarks == 6


# --- ONNX -------------------------------------------------------------------------------------------------------------


def test_each_changed_bit_of_onnx_is_found_or_legal(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    plain = rng.random((4, 8)).astype(ml_dtypes.bfloat16)
    made = ob.model(
        [ob.packed_node("w.packed", "w", "gguf:q4_0", (4, 32))],
        [
            ob.raw("w.packed", TensorProto.UINT8, [72], rng.bytes(72)),
            ob.raw("b", TensorProto.BFLOAT16, [4, 8], plain.tobytes()),
        ],
        [onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 32))],
    )
    path = ob.write(tmp_path / "m.onnx", made)
    assert qf.verify(path, deep=True).ok
    for at, data, report in flips(path, 0, path.stat().st_size, 300, 1):
        if report.ok:
            found = onnx.load_model_from_string(data)
            for proto in found.graph.initializer:
                assert len(proto.raw_data) == np.prod(proto.dims) * (
                    2 if proto.data_type == TensorProto.BFLOAT16 else 1
                ), at


def test_external_data_may_be_any_words(tmp_path: Path) -> None:
    data = np.zeros(16, "<f4")
    data[[3, 7]] = np.inf, np.nan
    (tmp_path / "data").write_bytes(bytes(8) + data.tobytes())
    made = ob.model([], [ob.external("x", TensorProto.FLOAT, [4, 4], location="data", offset=8, length=64)])
    path = ob.write(tmp_path / "m.onnx", made)
    report = qf.verify(path, deep=True)
    assert [(one.object, one.rule, one.count) for one in report.remarks] == [("x", "nonfinite-value", 2)]
    (tmp_path / "data").write_bytes(bytes(60))
    assert [one.rule for one in qf.verify(path, deep=True).findings] == ["structure"]


def test_an_open_error_is_a_finding_and_a_missing_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (finding,) = qf.verify(tmp_path / "m.gguf").findings
    assert finding.rule == "open"
    with pytest.raises(QuantformError, match="no such file"):
        qf.verify(tmp_path / "n.gguf")
