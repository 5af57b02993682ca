"""Pages of zeros in tensors, as broken downloads leave them, are remarked upon in every kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import gguf_builder as gb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform.verify.zeros import PAGE_BYTES, ZeroPages

PAGES = 12
SIZE = PAGES * PAGE_BYTES


def observed(data: np.ndarray, cuts: list[int]) -> ZeroPages:
    zeros = ZeroPages()
    for begin, end in zip([0, *cuts], [*cuts, data.size], strict=True):
        zeros(begin, data[begin:end])
    return zeros


def test_whole_pages_are_counted() -> None:
    data = np.ones(SIZE, np.uint8)
    data[PAGE_BYTES - 1 : 3 * PAGE_BYTES + 5] = 0
    data[7 * PAGE_BYTES : 8 * PAGE_BYTES] = 0
    zeros = observed(data, [])
    assert (zeros.first, zeros.count) == (PAGE_BYTES, 3 * PAGE_BYTES)
    assert observed(data, [5 * PAGE_BYTES]) == zeros


@pytest.mark.parametrize("at", [0, 1, PAGE_BYTES // 2, PAGE_BYTES - 1])
def test_one_other_byte_makes_a_page_no_page_of_zeros(at: int) -> None:
    data = np.zeros(PAGE_BYTES, np.uint8)
    assert observed(data, []).count == PAGE_BYTES
    data[at] = 1
    assert observed(data, []).first is None


def test_pieces_of_any_length_show_what_spans_two_pages_of_one() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        data = rng.integers(1, 256, SIZE).astype(np.uint8)
        cut, begin = (int(rng.integers(SIZE - 2 * PAGE_BYTES)) for _ in range(2))
        data[begin : begin + 4 * PAGE_BYTES] = 0  # so that one side of the cut has two pages of it
        zeros = observed(data, [cut])
        assert zeros.first is not None
        assert begin <= zeros.first < begin + 4 * PAGE_BYTES
        assert zeros.count <= data.size - np.count_nonzero(data)


def test_holes_count_as_what_they_are() -> None:
    zeros = ZeroPages()
    zeros.passed(1 << 40, 1 << 41)
    zeros(0, np.zeros(PAGE_BYTES, np.uint8))
    assert (zeros.first, zeros.count) == (0, (1 << 40) + PAGE_BYTES)


def payload() -> bytes:
    """Values that are legal and finite as blocks and as numbers, and not zero."""
    return np.full(SIZE // 4, 1.5, "<f4").tobytes()


def _gguf(path: Path, data: bytes) -> Path:
    path.write_bytes(
        gb.build([gb.tensor("w", (SIZE // 4,), gb.F32, data=data), gb.tensor("v", (8,), gb.F32, data=bytes(32))])
    )
    return path


def _safetensors(path: Path, data: bytes) -> Path:
    path.write_bytes(sb.build({"w": ("F32", (SIZE // 4,), data)}))
    return path


def _onnx(path: Path, data: bytes) -> Path:
    return ob.write(path, ob.model(initializers=[ob.raw("w", TensorProto.FLOAT, (SIZE // 4,), data)]))


def _ninfer(path: Path, data: bytes) -> Path:
    qf.convert(_gguf(path.with_suffix(".gguf"), data), path)
    return path


@pytest.mark.parametrize(
    ("suffix", "make"),
    [("gguf", _gguf), ("safetensors", _safetensors), ("onnx", _onnx), ("ninfer", _ninfer)],
    ids=["gguf", "safetensors", "onnx", "ninfer"],
)
def test_every_kind_of_file_is_looked_at(tmp_path: Path, suffix: str, make: Callable[[Path, bytes], Path]) -> None:
    path = make(tmp_path / f"m.{suffix}", payload())
    assert not qf.verify(path, deep=True).remarks
    data = bytearray(payload())
    data[4 * PAGE_BYTES : 7 * PAGE_BYTES] = bytes(3 * PAGE_BYTES)
    path = make(tmp_path / f"z.{suffix}", bytes(data))
    report = qf.verify(path, deep=True)
    assert report.ok
    (remark,) = report.remarks
    assert (remark.rule, remark.object.removeprefix("weight/")) == ("zeros", "w")
    assert "12.3 kB are zeros" in remark.problem
    if remark.offset is not None:
        raw = path.read_bytes()
        assert raw[remark.offset : remark.offset + 3 * PAGE_BYTES] == bytes(3 * PAGE_BYTES)
    assert (remark.offset is None) == (suffix == "onnx")
