"""Files that claim terabytes of which nothing is stored: verified from what there is."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gguf_builder as gb
import ninfer_builder as nb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform._files import HOLE_BYTES, MappedFile
from quantform.errors import ChangedFileError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat, RowScaledFormat
from quantform.layouts import LAYOUTS, Layout
from quantform.packed import PROFILES, Profile, nonfinite_scales, nonfinite_values, undefined_scales
from quantform.packed.linear import LINEAR, Linear
from quantform.sources.onnx_file import SCALAR_TYPES
from quantform.sources.safetensors_header import TYPE_BITS
from quantform.verify import RULES, Report
from quantform.verify.reading import ValueCounter
from words_maker import PAIR_IDS, PAIRS

TERABYTE = 1 << 40
MOST = 512 << 20
"""What may be read of a file."""


@pytest.fixture(autouse=True)
def _little_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reads more than it may fails, instead of taking hours."""
    total = 0
    read_into, view = MappedFile.read_into, MappedFile.view

    def count(size: int) -> None:
        nonlocal total
        total += size
        assert total < MOST, "too much is read"

    def counted_read(self: MappedFile, offset: int, out: np.ndarray) -> None:
        count(out.nbytes)
        read_into(self, offset, out)

    def counted_view(self: MappedFile, offset: int, size: int) -> np.ndarray:
        if size < TERABYTE // 2:  # a view of everything touches nothing
            count(size)
        return view(self, offset, size)

    monkeypatch.setattr(MappedFile, "read_into", counted_read)
    monkeypatch.setattr(MappedFile, "view", counted_view)


def sparse(path: Path, head: bytes, size: int, *stored: tuple[int, bytes]) -> Path:
    """A file of `size` bytes that begins with `head` and has what is `stored` at offsets from its end."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
        for at, data in stored:
            file.seek(at)
            file.write(data)
    return path


def verified(path: Path, nbytes: int = TERABYTE) -> Report:
    report = qf.verify(path, deep=True)
    assert report.checked["bytes"] >= nbytes
    return report


def remarked(report: Report) -> dict[str, int]:
    """The rules of remarks and how often each is broken; that there are zeros is said of every hole."""
    return {rule: count for rule, count in report.broken.items() if RULES[rule].remark and rule != "zeros"}


# --- what holes are ---------------------------------------------------------------------------------------------------


def test_large_holes_are_left_out_and_small_ones_are_not(tmp_path: Path) -> None:
    hole = 4 * HOLE_BYTES
    path = sparse(tmp_path / "f", b"a", 8 * hole, (hole + 4096, b"b"), (hole + 65536, b"c"), (5 * hole, b"d" * 4096))
    with MappedFile(path) as file:
        spans = list(file.stored_spans(0, file.size))
        assert [first for first, _ in spans] == [0, hole + 4096, 5 * hole]
        assert all(last - first <= 65536 for first, last in spans)
        assert list(file.stored_spans(5 * hole + 1, 5 * hole + 3)) == [(5 * hole + 1, 5 * hole + 3)]
        assert list(file.stored_spans(6 * hole, 8 * hole)) == []
        assert list(file.stored_spans(7, 7)) == []


@pytest.mark.parametrize("missing", [True, False], ids=["unknown to the system", "unknown to the file system"])
def test_everything_counts_as_stored_where_nobody_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    path = sparse(tmp_path / "f", b"", 8 * HOLE_BYTES)
    if missing:
        monkeypatch.delattr(os, "SEEK_DATA")
        monkeypatch.delattr(os, "SEEK_HOLE")
    else:
        monkeypatch.setattr(os, "lseek", _refuse)
    with MappedFile(path) as file:
        assert list(file.stored_spans(5, file.size)) == [(5, file.size)]


def _refuse(*_: int) -> int:
    raise OSError(22, "Invalid argument")


def test_a_file_that_became_shorter_has_no_holes_at_its_end(tmp_path: Path) -> None:
    path = sparse(tmp_path / "f", b"a", 8 * HOLE_BYTES)
    with MappedFile(path) as file:
        os.truncate(path, 4096)
        with pytest.raises(ChangedFileError, match="became shorter"):
            list(file.stored_spans(0, file.size))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda one: one.name)
def test_blocks_of_zeros_are_finite(profile: Profile) -> None:
    payload = np.zeros(profile.bytes, np.uint8)
    for count in (nonfinite_scales, nonfinite_values, undefined_scales):
        assert count(payload, profile) == 0


def test_zeros_are_finite_numbers() -> None:
    for record in FORMATS.values():
        if isinstance(record, DirectFormat):
            counter = ValueCounter(record.scalar)
            counter(0, np.zeros(64, np.uint8))
            assert not counter.counts


# --- GGUF -------------------------------------------------------------------------------------------------------------

SMALL = gb.tensor("w", (8,), gb.F32, np.ones(8, np.float32).tobytes())


@pytest.mark.parametrize("stored", [(), ((TERABYTE // 2, b"x" * 4096),)], ids=["nothing", "something"])
def test_bytes_behind_the_last_tensor_are_one_remark(tmp_path: Path, stored: tuple[tuple[int, bytes], ...]) -> None:
    head = gb.build([SMALL])
    path = sparse(tmp_path / "m.gguf", head + b"junk", TERABYTE, *stored)
    report = verified(path, TERABYTE - len(head))
    assert report.ok, report.findings
    (remark,) = report.remarks
    assert (remark.rule, remark.offset) == ("unused", len(head))
    assert f"{TERABYTE - len(head)} bytes" in remark.problem
    assert f"4 of the first {64 << 20} not zero" in remark.problem
    assert "1.1 TB passed over" in report.notes[-1]


def test_bytes_between_tensors_are_one_remark(tmp_path: Path) -> None:
    far = gb.tensor("v", (8,), gb.F32, offset=TERABYTE)
    head = gb.build([SMALL, far])
    start = len(gb.build([SMALL])) + len(head)  # no less than where data begin
    report = verified(sparse(tmp_path / "m.gguf", head[:start], TERABYTE + start))
    assert report.ok, report.findings
    assert {one.rule for one in report.remarks} == {"unused"}


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", [gb.F32, gb.F16, gb.Q4_K, gb.Q8_0, 250], ids=str)
def test_tensors_of_holes(tmp_path: Path, kind: int, big_endian: bool) -> None:
    rows, columns = 1 << 20, 1 << 20
    values, size = gguf.GGML_QUANT_SIZES.get(kind, (1, 1))  # type: ignore[call-overload]
    total = rows * columns // values * size
    head = gb.build([gb.tensor("w", (rows, columns), kind)], big_endian=big_endian)
    report = verified(sparse(tmp_path / "m.gguf", head, len(head) + total), total)
    assert report.ok == (kind != 250), report.findings
    assert not remarked(report)


def test_what_is_stored_in_a_hole_is_found(tmp_path: Path) -> None:
    head = gb.build([gb.tensor("w", (1 << 20, 1 << 18), gb.F32)])
    at = len(head) + TERABYTE // 2
    word = np.array([np.inf, np.nan], "<f4").tobytes()
    report = verified(sparse(tmp_path / "m.gguf", head, len(head) + TERABYTE, (at, word)))
    assert remarked(report) == {"nonfinite-value": 2}


def _with_value(kind: int, data: bytes) -> bytes:
    """A GGUF header of one key, whose value follows."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + data


VALUES = {
    "a text": (8, struct.pack("<Q", TERABYTE)),
    "booleans": (9, struct.pack("<IQ", 7, TERABYTE)),
    "numbers": (9, struct.pack("<IQ", 0, TERABYTE)),
    "texts": (9, struct.pack("<IQQ", 8, 2, 3) + b"abc" + struct.pack("<Q", TERABYTE)),
    "texts in an array": (9, struct.pack("<IQIQQ", 9, 1, 8, 1, TERABYTE)),
}


@pytest.mark.parametrize("value", VALUES)
def test_metadata_of_holes(tmp_path: Path, value: str) -> None:
    head = _with_value(*VALUES[value])
    path = tmp_path / "m.gguf"
    assert qf.verify(sparse(path, head, len(head) + TERABYTE), deep=True).ok
    for at in (0, TERABYTE // 2, TERABYTE - 1):
        report = qf.verify(sparse(path, head, len(head) + TERABYTE, (len(head) + at, b"\xc3")), deep=True)
        assert [one.rule for one in report.findings] == ([] if value == "numbers" else ["metadata"])
        assert all(f"byte {len(head) + at}:" in one.problem or "text" in value for one in report.findings)
    report = qf.verify(sparse(path, head, len(head) + TERABYTE, (len(head) + 9, "ä".encode())), deep=True)
    assert report.ok == (value != "booleans")


def test_long_texts_are_read_in_pieces_and_misplaced_bytes_are_named(tmp_path: Path) -> None:
    texts = ["ä" * 400_000, "b" * 700_000, "", "€" * 900_000]
    path = tmp_path / "m.gguf"
    whole = gb.build([], {"k": gb.typed("string", texts), "t": "ö" * 5_000_000})
    path.write_bytes(whole)
    assert qf.verify(path, deep=True).ok
    for text in (*filter(None, texts), "ö" * 5_000_000):
        at = whole.index(text.encode()) + len(text.encode()) // 2
        at -= (at - whole.index(text.encode())) % len(text[0].encode())
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        (finding,) = qf.verify(path, deep=True).findings
        assert (finding.rule, f"byte {at}" in finding.problem) == ("metadata", True), finding


# --- artifacts --------------------------------------------------------------------------------------------------------


def artifact(path: Path, objects: list[dict[str, Any]], payload_bytes: int, *stored: tuple[int, bytes]) -> Path:
    directory = nb.small_directory() | {
        "objects": objects,
        "components": {"text": {"config": {}}},
        "bindings": {one["id"]: {"object": one["id"]} for one in objects if one["kind"] == "tensor"},
        "uses": [],
        "files": [{"path": None, "payload_bytes": payload_bytes}],
    }
    head = nb.Artifact(directory, b"").entry()
    return sparse(path, head, len(head) + payload_bytes, *((len(head) + at, data) for at, data in stored))


@pytest.mark.parametrize("columns", [1 << 16, 1 << 21], ids=["rows", "windows"])
@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_objects_of_holes(tmp_path: Path, layout: Layout, record: Format, columns: int) -> None:
    shape = ((1 << 41) // columns, columns)
    nbytes = layout.encoded_size(record, shape)
    planned = nb.tensor("w", shape, record.name, layout.name, 0, nbytes)
    divisor = (nbytes - 4, np.float32(2).tobytes())
    stored = [divisor] if record.name == "nvfp4" else []
    if record.name == "nvfp4":
        planned["divisors"] = 1
    report = verified(artifact(tmp_path / "m.ninfer", [planned], nbytes, *stored), nbytes)
    assert report.ok, report.findings
    if isinstance(record, (DirectFormat, GgufFormat)):
        return
    spans = layout.spans(record, shape, shape[0] // 2, shape[0] // 2 + 128)
    if isinstance(record, RowScaledFormat):
        rule, at, word = "code", spans[0][0], b"\x7f"
    else:
        rule, at, word = "scale", spans[1 if record.name == "nvfp4" else -1][0], b"\xff\xff"
    report = verified(artifact(tmp_path / "m.ninfer", [planned], nbytes, *stored, (at, word)), nbytes)
    (finding, *_) = report.findings
    assert (finding.rule, finding.row) == (rule, shape[0] // 2)


@pytest.mark.parametrize("columns", [100, 130, 64, 1])
def test_padded_rows_of_zeros_are_passed_over_where_they_are_legal(tmp_path: Path, columns: int) -> None:
    for name in ("q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16", "t2_g128_fp16"):
        record = FORMATS[name]
        layout = LAYOUTS[record.default_layout]
        shape = ((1 << 41) // 128, columns)
        nbytes = layout.encoded_size(record, shape)
        planned = nb.tensor("w", shape, name, layout.name, 0, nbytes)
        assert verified(artifact(tmp_path / "m.ninfer", [planned], nbytes), nbytes).ok


def test_padding_that_zeros_are_not_is_found(tmp_path: Path) -> None:
    """In `q2_g64_fp16` the code zero is the word 1, so that rows of holes have wrong padding."""
    record, shape = FORMATS["q2_g64_fp16"], (1 << 16, 100)
    layout = LAYOUTS[record.default_layout]
    nbytes = layout.encoded_size(record, shape)
    report = qf.verify(
        artifact(tmp_path / "m.ninfer", [nb.tensor("w", shape, record.name, layout.name, 0, nbytes)], nbytes), deep=True
    )
    assert report.broken["padding"] == 7 * shape[0]


def test_resources_and_gaps_of_holes(tmp_path: Path) -> None:
    objects = [
        nb.resource("chat", 0, TERABYTE),
        nb.tensor("w", [4], "fp32", "contiguous_le_v1", 2 * TERABYTE, 16),
    ]
    path = tmp_path / "m.ninfer"
    report = verified(artifact(path, objects, 3 * TERABYTE), 3 * TERABYTE)
    assert report.ok, report.findings
    report = verified(artifact(path, objects, 3 * TERABYTE, (5 * TERABYTE // 2, b"x")), 3 * TERABYTE)
    assert [one.rule for one in report.findings] == ["gap"]


# --- safetensors ------------------------------------------------------------------------------------------------------


def model(path: Path, tensors: Iterable[tuple[str, str, list[int], int]], *stored: tuple[int, bytes]) -> Path:
    """A file of tensors by name, type, shape and bytes; what is stored counts from the data."""
    header, at = {}, 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = sb.entry(dtype, shape, at, at + nbytes)
        at += nbytes
    head = sb.raw(header)
    return sparse(path, head, len(head) + at, *((len(head) + offset, data) for offset, data in stored))


@pytest.mark.parametrize("dtype", TYPE_BITS)
def test_plain_tensors_of_holes(tmp_path: Path, dtype: str) -> None:
    shape = [1 << 20, 1 << 20]
    nbytes = (1 << 40) * TYPE_BITS[dtype] // 8
    report = verified(model(tmp_path / "m.safetensors", [("w", dtype, shape, nbytes)]), nbytes)
    assert report.ok, report.findings


def weight(**parts: tuple[str, list[int], int]) -> list[tuple[str, str, list[int], int]]:
    """The tensors of a module `p`."""
    return [(f"p.{name}", *part) for name, part in parts.items()]


ROWS, COLUMNS = 1 << 20, 1 << 20
CODES = ROWS * COLUMNS
ONE = np.float32(1).tobytes()
BLOCK_CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
WEIGHTS: dict[str, tuple[list[tuple[str, str, list[int], int]], Any, list[tuple[int, bytes]]]] = {
    "one scale": (
        weight(weight=("F8_E4M3", [ROWS, COLUMNS], CODES), weight_scale=("F32", [1], 4)),
        None,
        [(CODES, ONE)],
    ),
    "a scale a row": (
        weight(weight=("F8_E4M3", [ROWS, COLUMNS], CODES), weight_scale=("F32", [ROWS, 1], ROWS * 4)),
        None,
        [(CODES, ONE * ROWS)],
    ),
    "a scale an expert": (
        weight(weight=("F8_E4M3", [1 << 10, ROWS >> 10, COLUMNS], CODES), weight_scale=("F32", [1 << 10], 4 << 10)),
        None,
        [(CODES, ONE * (1 << 10))],
    ),
    "blocks": (
        weight(
            weight=("F8_E4M3", [ROWS, COLUMNS], CODES),
            weight_scale_inv=("F32", [ROWS // 128, COLUMNS // 128], CODES >> 12),
        ),
        BLOCK_CONFIG,
        [],
    ),
    "MXFP4": (
        weight(weight_packed=("U8", [ROWS, COLUMNS], CODES), weight_scale=("U8", [ROWS, COLUMNS // 16], CODES // 16)),
        None,
        [],
    ),
    "NVFP4": (
        weight(
            weight_packed=("U8", [ROWS, COLUMNS], CODES),
            weight_scale=("F8_E4M3", [ROWS, COLUMNS // 8], CODES // 8),
            weight_global_scale=("F32", [1], 4),
        ),
        None,
        [(CODES * 9 // 8, ONE)],
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_quantized_weights_of_holes(tmp_path: Path, name: str) -> None:
    tensors, config, stored = WEIGHTS[name]
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    model(tmp_path / "model.safetensors", tensors, *stored)
    report = verified(tmp_path, CODES)
    assert report.ok, report.findings
    assert report.checked["bytes"] == sum(nbytes for *_, nbytes in tensors)
    if tensors[0][1] == "F8_E4M3":
        model(tmp_path / "model.safetensors", tensors, *stored, (CODES // 2 + 64 * COLUMNS + 9999, b"\x7f"))
        (finding,) = verified(tmp_path, CODES).findings
        assert finding.rule == "code"


def test_divisors_of_holes_are_wrong_and_counted(tmp_path: Path) -> None:
    """A bank of matrices without rows has a divisor for each."""
    experts = 1 << 36
    tensors = weight(
        weight_packed=("U8", [experts, 0, 8], 0),
        weight_scale=("F8_E4M3", [experts, 0, 1], 0),
        weight_global_scale=("F32", [experts], 4 * experts),
    )
    model(tmp_path / "model.safetensors", tensors)
    report = verified(tmp_path, 4 * experts)
    assert (report.total, report.broken["divisor"]) == (experts, experts)


# --- ONNX -------------------------------------------------------------------------------------------------------------


def external(path: Path, nbytes: int, made: onnx.ModelProto, *stored: tuple[int, bytes]) -> Path:
    sparse(path.parent / "data", b"", nbytes, *stored)
    return ob.write(path, made)


@pytest.mark.parametrize("scalar", SCALAR_TYPES)
def test_external_data_of_holes(tmp_path: Path, scalar: str) -> None:
    kind = SCALAR_TYPES[scalar]
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(scalar) or 8 * np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize
    nbytes = (1 << 37) * bits
    proto = ob.external("w", kind, (1 << 20, 1 << 20), location="data", offset=4096)
    made = ob.model([], [proto])
    made.ir_version = 13
    report = verified(external(tmp_path / "m.onnx", 4096 + nbytes, made), nbytes)
    assert not remarked(report)
    assert not [one for one in report.findings if one.rule != "onnx"]


def test_packed_external_data_of_holes(tmp_path: Path) -> None:
    shape = (1 << 20, 1 << 21)
    nbytes = shape[0] * shape[1] // 32 * 18
    proto = ob.external("x", TensorProto.UINT8, (nbytes,), location="data")
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, shape)
    made = ob.model([ob.packed_node("x", "w", "gguf:q4_0", shape)], [proto], [output])
    path = tmp_path / "m.onnx"
    assert not remarked(verified(external(path, nbytes, made), nbytes))
    at = nbytes // 36 * 18
    report = verified(external(path, nbytes, made, (at, np.float16(np.inf).tobytes())), nbytes)
    assert list(remarked(report)) == ["nonfinite-scale", "nonfinite-value"]


@pytest.mark.parametrize(
    "linear", [one for one in LINEAR.values() if not one.zero_point], ids=lambda one: one.profile.name
)
def test_codes_and_scales_of_holes(tmp_path: Path, linear: Linear) -> None:
    """What is stored of one part is looked at beside the others' holes; zero points would be in the model itself."""
    values, count = linear.profile.values, 1 << 36
    source, path = tmp_path / "m.gguf", tmp_path / "m.onnx"
    source.write_bytes(gb.build([gb.tensor("w", (1, values), linear.profile.ggml_type, bytes(linear.profile.bytes))]))
    qf.convert(source, path, data="inline", qdq=True)
    made = onnx.load(path)
    places, at = {}, 0
    for proto in made.graph.initializer:
        part = proto.name.rpartition(".")[2]
        if part == "shape":
            proto.CopyFrom(numpy_helper.from_array(np.array([count, values]), proto.name))
            continue
        size = linear.code_bytes * count if part == "codes" else 2 * count
        proto.dims[0] = count
        proto.ClearField("raw_data")
        proto.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "data", "offset": at, "length": size}.items():
            proto.external_data.add(key=key, value=str(value))
        places[part], at = at, at + size
    for part in ("scales", "minima") if linear.affine else ("scales",):
        middle = (places[part] + count, np.float16(np.nan).tobytes())
        report = verified(external(path, at, made, middle), linear.profile.bytes * count)
        assert remarked(report) == {"nonfinite-scale": 1, "nonfinite-value": values}
