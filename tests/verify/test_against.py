"""Tensors beside those of another file: the same ones differ in nothing, and of a difference its place is told."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import quantized_weights as qw
import safetensors_builder as sb
from quantform.packed import PROFILES
from quantform.sources import NinferSource
from quantform.verify import Finding, Report
from reader_files import FILES, data_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
TYPES = {"float8_e4m3fn": "F8_E4M3", "bfloat16": "BF16", "float8_e8m0fnu": "F8_E8M0"}
RNG = np.random.default_rng(9)


def codes(rows: int, columns: int) -> np.ndarray:
    return RNG.integers(1, 0x7F, (rows, columns), np.uint8).view(ml_dtypes.float8_e4m3fn)


def scales(rows: int, columns: int = 1) -> np.ndarray:
    return RNG.uniform(0.5, 1, (rows, columns)).astype(np.float32)


def packed(rows: int, columns: int, **numbers: float) -> dict[str, np.ndarray]:
    return {
        "p.weight_packed" if "weight_global_scale" in numbers else "p.weight": RNG.integers(
            0, 256, (rows, columns // 2), np.uint8
        ),
        "p.weight_scale": codes(rows, columns // 16),
        **{f"p.{name}": qw.f32([value]) for name, value in numbers.items()},
    }


GPTQ = {
    "p.qweight": RNG.integers(0, 99, (8, 32), np.int32),
    "p.qzeros": RNG.integers(0, 99, (2, 4), np.int32),
    "p.scales": RNG.random((2, 32)).astype(np.float16),
    "p.g_idx": np.arange(64, dtype=np.int32),
}
MODELOPT = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}

CHECKPOINTS: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({"w": scales(4, 32), "i": np.arange(3), "none": np.zeros((0, 4), np.float32)}, None),
    "FP8 channel": ({"p.weight": codes(4, 64), "p.weight_scale": scales(4)}, qw.FP8_CHANNEL),
    "FP8 tensor": (
        {"p.weight": codes(4, 64), "p.weight_scale": qw.f32([0.3]), "p.input_scale": qw.f32([0.7])},
        qw.FP8_TENSOR,
    ),
    "FP8 bank": (
        {"p.weight": codes(8, 64).reshape(2, 4, 64), "p.weight_scale": scales(2, 4)[..., None]},
        qw.FP8_CHANNEL,
    ),
    "FP8 block": ({"p.weight": codes(130, 200), "p.weight_scale_inv": scales(2, 2)}, qw.BLOCKS),
    "FP8 group": ({"p.weight": codes(4, 6), "p.weight_scale": scales(4, 2)}, qw.FP8_GROUP_3),
    "INT8": ({"p.weight": RNG.integers(-9, 9, (4, 32), np.int8), "p.weight_scale": scales(4)}, qw.INT8),
    "MXFP4": (
        {
            "p.weight_packed": RNG.integers(0, 256, (4, 32), np.uint8),
            "p.weight_scale": RNG.integers(100, 140, (4, 2), np.uint8),
        },
        qw.MXFP4,
    ),
    "NVFP4": (packed(128, 64, weight_global_scale=2.5, input_global_scale=1.5), qw.NVFP4),
    "NVFP4 of ModelOpt": (packed(128, 64, weight_scale_2=0.25, input_scale=0.125), MODELOPT),
    "GPTQ": (GPTQ, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}),
    "a code under a zero scale": ({"p.weight": codes(2, 32), "p.weight_scale": qw.f32([[0], [1]])}, qw.FP8_CHANNEL),
    "a scale beyond BF16": (
        {"p.weight": codes(2, 32), "p.weight_scale": qw.f32([[3.4028235e38], [1]])},
        qw.FP8_CHANNEL,
    ),
    "a scale that is missing": ({"p.weight": codes(2, 32)}, qw.FP8_CHANNEL),
}


def model(directory: Path, tensors: dict[str, Any], config: Any = None) -> Path:
    directory.mkdir()
    stored = {
        name: (TYPES[one.dtype.name], one.shape, one.tobytes()) if one.dtype.name in TYPES else one
        for name, one in tensors.items()
    }
    return sb.model(directory, stored, config)


def flipped(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def against(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.rule == "against"]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_is_itself(tmp_path: Path, kind: str) -> None:
    path = model(tmp_path / "m", *CHECKPOINTS[kind])
    report = qf.verify(path, against=path)
    assert report.findings == qf.verify(path).findings
    assert not report.errors
    if report.ok:
        count = len(CHECKPOINTS[kind][0])
        assert f"{count} of {count} tensors have equal bytes" in report.notes


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_each_bit_of_a_checkpoint_counts(tmp_path: Path, kind: str) -> None:
    """Every tensor of the file: low halves of scales that words would round, and scales of activations too."""
    original = model(tmp_path / "o", *CHECKPOINTS[kind])
    path = tmp_path / "m"
    shutil.copytree(original, path)
    file = path / "model.safetensors"
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    with qf.sources.SafetensorsSource(path) as source:
        tensors = dict(source)
    for name, tensor in tensors.items():
        for at in {0, tensor.nbytes // 2, tensor.nbytes - 1} if tensor.nbytes else ():
            place = tensor.offset + at
            assert place >= begin
            flipped(file, place, 0x04)
            (finding,) = against(qf.verify(path, against=original))
            assert (finding.object, finding.file, finding.offset) == (name, str(file), place)
            assert (finding.expected, finding.found) == (f"0x{data[place]:02X}", f"0x{data[place] ^ 4:02X}")
            file.write_bytes(data)


def test_tensors_that_one_checkpoint_lacks(tmp_path: Path) -> None:
    tensors, config = CHECKPOINTS["FP8 tensor"]
    whole = model(tmp_path / "whole", tensors, config)
    for name in tensors:
        part = model(tmp_path / name, {one: value for one, value in tensors.items() if one != name}, config)
        assert (name, f"missing; {whole} has it") in [
            (one.object, one.problem) for one in against(qf.verify(part, against=whole))
        ]
        assert (name, f"not in {part}") in [
            (one.object, one.problem) for one in against(qf.verify(whole, against=part))
        ]


@pytest.mark.parametrize("kind", ["FP8 channel", "FP8 tensor", "FP8 block", "NVFP4", "NVFP4 of ModelOpt"])
def test_a_quantized_checkpoint_beside_the_values(tmp_path: Path, kind: str) -> None:
    """Another form of the weight has errors; scales of activations belong to the form."""
    path = model(tmp_path / "m", *CHECKPOINTS[kind])
    with qf.open(path) as source:
        values = source["p.weight"].decode()
    other = model(tmp_path / "o", {"p.weight": values})
    for one, two in ((path, other), (other, path)):
        report = qf.verify(one, against=two, max_error=1e-6)
        assert report.ok, report.findings
        assert [(error.name, error.differing) for error in report.errors] == [("p.weight", 0)]
        assert not any("method" in note for note in report.notes)


@pytest.mark.parametrize("kind", ["FP8 channel", "FP8 tensor", "FP8 bank", "NVFP4", "NVFP4 of ModelOpt"])
@pytest.mark.parametrize("reverse", [False, True], ids=["artifact", "checkpoint"])
def test_the_word_that_differs(tmp_path: Path, kind: str, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever side is the artifact: the byte of the file that is verified, and which word that is."""
    module = importlib.import_module("quantform.verify.words")
    monkeypatch.setattr(module, "_PIECE", 1)
    monkeypatch.setattr(module, "_TILE_ROWS", 2 if kind.startswith("FP8") else 128)
    original, path = model(tmp_path / "o", *CHECKPOINTS[kind]), tmp_path / "m.ninfer"
    qf.convert(original, path)
    with NinferSource(path) as source:
        record, tensor = source.artifact.record(source["p.weight"].objects[0]), source["p.weight"]
        _, start = source.artifact.locate(record.offset)
        sound = tensor.words()
    shares = {"codes": sound.codes.size, "scales": sound.scales.size}  # type: ignore[attr-defined]
    data = path.read_bytes()
    for at in RNG.choice(record.nbytes, 40, replace=False).tolist():
        flipped(path, start + at, 0x02)
        with NinferSource(path) as source:
            changed = source["p.weight"].words()
        parts = [one for one in shares if not np.array_equal(getattr(sound, one), getattr(changed, one))]
        pair = (original, path) if reverse else (path, original)
        findings = against(qf.verify(pair[0], against=pair[1]))
        if findings and "legal" not in findings[0].problem and parts:
            (finding,) = findings
            assert finding.problem.startswith(f"a {parts[0][:-1]} differs")
            assert (finding.object, finding.count) == ("p.weight", 1)
            assert finding.row is not None
            if not reverse:
                assert (finding.file, finding.offset) == (str(path), start + at)
            if parts == ["codes"]:
                assert finding.column is not None
                values, want = (words.decode().reshape(-1, 64) for words in (changed, sound))
                rows, columns = np.nonzero(values.view(np.uint32) != want.view(np.uint32))
                assert (finding.row, finding.column) == (rows[0], columns[0])
        path.write_bytes(data)


def test_every_word_that_differs_is_counted(tmp_path: Path) -> None:
    original, path = model(tmp_path / "o", *CHECKPOINTS["FP8 channel"]), tmp_path / "m.ninfer"
    qf.convert(original, path)
    with NinferSource(path) as source:
        _, start = source.artifact.locate(source.artifact.record("weight/p.weight").offset)
    for at in (70, 130, 131):
        flipped(path, start + at)
    (finding,) = against(qf.verify(path, against=original))
    assert (finding.row, finding.column, finding.offset, finding.count) == (1, 6, start + 70, 3)
    assert f"a code differs, and 2 others, row 1, column 6, byte {start + 70} of m.ninfer; expected" in finding.problem


def blocks(kind: str) -> gb.GGUFTensorSpec:
    profile = PROFILES[kind]
    return gb.tensor("w", (3, profile.values), profile.ggml_type, RNG.bytes(3 * profile.bytes))


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("kind", [*PROFILES, "F32", "F16", "I64"])
def test_the_byte_of_a_gguf_file(tmp_path: Path, kind: str, big_endian: bool) -> None:
    numbers = {"F32": (gb.F32, 4), "F16": (gb.F16, 2), "I64": (gb.I64, 8)}
    if kind in numbers:
        number, size = numbers[kind]
        tensor = gb.tensor("w", (3, 5), number, RNG.bytes(15 * size))
    else:
        tensor = blocks(kind)
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    data = gb.build([tensor], big_endian=big_endian)
    one.write_bytes(data)
    with qf.open(one) as source:
        begin, size = source["w"].offset, source["w"].nbytes
    for at in sorted({0, 1, size // 3, size - 1}):
        two.write_bytes(data)
        flipped(two, begin + at)
        (finding,) = qf.verify(two, against=one).findings
        assert (finding.file, finding.offset, finding.count) == (str(two), begin + at, 1)
        assert (finding.expected, finding.found) == (f"0x{data[begin + at]:02X}", f"0x{data[begin + at] ^ 1:02X}")
        if kind in numbers:
            assert (finding.row, finding.column) == divmod(at // numbers[kind][1], 5)
    two.write_bytes(data[:begin] + bytes(one ^ 255 for one in data[begin : begin + size]) + data[begin + size :])
    (finding,) = qf.verify(two, against=one).findings
    assert finding.count == size


@pytest.mark.parametrize("kind", FILES)
def test_the_byte_of_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "o").mkdir()
    one, two = FILES[kind](tmp_path / "o" / "m"), FILES[kind](tmp_path / "m")
    if kind == "ninfer":  # each has its own id
        shutil.copyfile(one, two)
    file = data_of(two)
    at = file.stat().st_size - 100
    flipped(file, at)
    (finding,) = qf.verify(two, against=one).findings
    assert (finding.rule, finding.object, finding.file, finding.offset) == ("against", "w", str(file), at)


# --- files that are not there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["verified", "compared with"])
def test_a_missing_part_is_one_finding(tmp_path: Path, side: str) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, max_file_bytes=20_000)
    shutil.copytree(tmp_path, tmp_path / "o")
    other = tmp_path / "o" / path.name
    lost = (path if side == "verified" else other).with_name("m.ninfer.part-0001")
    lost.unlink()
    for one in (EXAMPLE, other) if side == "verified" else (other,):
        report = qf.verify(path, against=one)
        assert [(finding.rule, finding.object) for finding in report.findings] == [
            ("files" if side == "verified" else "against", str(lost))
        ]
        assert not report.remarks
        assert any("tensors not compared: what they need is missing or wrong" in note for note in report.notes)


def test_resources_in_a_missing_part_are_no_further_findings(tmp_path: Path) -> None:
    source, path = tmp_path / "o.gguf", tmp_path / "m.ninfer"
    more = {"more": gb.typed("uint64", list(range(1200))), "tokenizer.chat_template": "x"}
    source.write_bytes(gb.build([gb.tensor("b", (4,), gb.F32, bytes(16))], more))
    qf.convert(source, path, max_file_bytes=8192)
    (tmp_path / "m.ninfer.part-0001").unlink()
    assert {one.rule for one in qf.verify(path, deep=True, against=source).findings} == {"files"}


def test_external_data_that_is_missing_is_one_finding(tmp_path: Path) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "o.onnx"
    for one in (path, other):
        qf.convert(EXAMPLE, one, data="copy")
    (tmp_path / "o.onnx.data").unlink()
    (finding,) = qf.verify(path, against=other).findings
    assert (finding.rule, finding.object) == ("against", str(tmp_path / "o.onnx.data"))
    report = qf.verify(other, against=path)
    assert {one.rule for one in report.findings} == {"structure"}
    assert "11 of 12 tensors not compared: what they need is missing or wrong" in report.notes


# --- what is said ----------------------------------------------------------------------------------------------------


def test_no_method_is_claimed_of_another_file(tmp_path: Path) -> None:
    """Blocks were imported, from wherever."""
    path, other = tmp_path / "m.ninfer", tmp_path / "o.gguf"
    qf.convert(EXAMPLE, path)
    with NinferSource(path) as source:
        values: dict[str, Callable[[], Any]] = {name: tensor.decode for name, tensor in source.items()}
        tensors = [
            gb.tensor(name, source[name].shape, gb.F32, np.asarray(decode(), "<f4").tobytes())
            for name, decode in values.items()
        ]
    other.write_bytes(gb.build(tensors))
    for report in (qf.verify(path, against=other), qf.verify(EXAMPLE, against=other)):
        assert {one.object for one in report.findings} <= {"blk.0.ffn_unused"}  # it has no elements
        assert report.errors
        assert not any("method" in note for note in report.notes)
        assert any(note.endswith("values as gguf_q4_k, and have errors") for note in report.notes) or (
            report.kind == "gguf"
        )
