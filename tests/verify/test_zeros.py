"""Pages of zeros in tensors, as broken downloads leave them, are remarked upon in every kind of file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import gguf_builder as gb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import Format
from quantform.layouts import Layout
from quantform.verify.zeros import PAGE_BYTES, ZeroPages
from words_maker import PAIR_IDS, PAIRS, make_words

PAGES = 12
SIZE = PAGES * PAGE_BYTES


def observed(data: np.ndarray, begin: int, cuts: Iterable[int] = ()) -> ZeroPages:
    """What is seen of a tensor that begins at a byte of a file and is read in pieces, the last one first."""
    zeros = ZeroPages(lambda offset: (Path("file"), begin + offset))
    ends = sorted({0, data.size, *cuts})
    for first, last in itertools.pairwise(ends):
        zeros(first, data[first:last])
    return zeros


@pytest.mark.parametrize("begin", [0, 32, 96, PAGE_BYTES - 1, 7 * PAGE_BYTES + 256])
def test_each_lost_page_of_the_file_is_found(begin: int) -> None:
    """However the tensor lies in the file, and however it is read, if pieces of a plane follow one another."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        data = rng.integers(1, 256, SIZE).astype(np.uint8)
        first = -begin % PAGE_BYTES + int(rng.integers(PAGES - 1)) * PAGE_BYTES
        data[first : first + PAGE_BYTES] = 0
        zeros = observed(data, begin, rng.integers(0, SIZE, int(rng.integers(6))).tolist())
        assert (zeros.first, zeros.count) == (first, PAGE_BYTES)


def test_pages_are_counted_and_parts_of_pages_are_not() -> None:
    data = np.ones(SIZE, np.uint8)
    data[PAGE_BYTES - 1 : 3 * PAGE_BYTES + 5] = 0
    data[7 * PAGE_BYTES : 8 * PAGE_BYTES] = 0
    for cuts in ((), (5 * PAGE_BYTES,), range(0, SIZE, 1000)):
        zeros = observed(data, 0, cuts)
        assert (zeros.first, zeros.count) == (PAGE_BYTES, 3 * PAGE_BYTES)
    assert observed(data, 1).count == 2 * PAGE_BYTES  # the last of a stretch, and one that it shares with its neighbour
    assert observed(np.zeros(PAGE_BYTES, np.uint8), 1).first is None


@pytest.mark.parametrize("at", [0, 1, PAGE_BYTES // 2, PAGE_BYTES - 1])
@pytest.mark.parametrize("cuts", [(), (5,), (5, 6, 4000)], ids=str)
def test_one_other_byte_makes_a_page_no_page_of_zeros(at: int, cuts: tuple[int, ...]) -> None:
    data = np.zeros(PAGE_BYTES, np.uint8)
    assert observed(data, 0, cuts).count == PAGE_BYTES
    data[at] = 1
    assert observed(data, 0, cuts).first is None


def test_planes_that_are_read_in_turn() -> None:
    zeros, data = ZeroPages(lambda _: None), np.zeros(100, np.uint8)
    for row in range(PAGE_BYTES // 100 + 1):
        zeros(row * 100, data)
        zeros(SIZE + row * 100, data)
    assert (zeros.first, zeros.count) == (0, 2 * PAGE_BYTES)


def test_holes_count_as_what_they_are() -> None:
    zeros = ZeroPages(lambda _: None)
    zeros.passed(1 << 40, 1 << 41)
    zeros(0, np.zeros(PAGE_BYTES, np.uint8))
    assert (zeros.first, zeros.count) == (0, (1 << 40) + PAGE_BYTES)


def payload() -> bytes:
    """Words that are legal, finite and without zeros, as blocks and as numbers."""
    return np.full(SIZE // 4, 1.0 + 2.0**-7 + 2.0**-20, "<f4").tobytes()


def _gguf(path: Path) -> None:
    w = gb.tensor("w", (SIZE // 4,), gb.F32, data=payload())
    path.write_bytes(gb.build([gb.tensor("v", (8,), gb.F32, data=bytes(32)), w]))


def _safetensors(path: Path) -> None:
    path.write_bytes(sb.build({"w": ("F32", (SIZE // 4,), payload())}))


def _onnx(path: Path) -> None:
    path.write_bytes(bytes(64) + payload())
    made = ob.external("w", TensorProto.FLOAT, (SIZE // 4,), location=path.name, offset=64, length=SIZE)
    ob.write(path.with_suffix(".onnx"), ob.model(initializers=[made]))


def _ninfer(path: Path) -> None:
    _gguf(path.with_suffix(".gguf"))
    qf.convert(path.with_suffix(".gguf"), path)


def lose(path: Path, index: int, tensor: bytes) -> int:
    """Let a file forget the first page but `index` of those that lie in a tensor; gives where."""
    data = bytearray(path.read_bytes())
    at = data.index(tensor)
    at += -at % PAGE_BYTES + index * PAGE_BYTES
    data[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("index", [0, 5, PAGES - 2])
@pytest.mark.parametrize(
    ("name", "make", "opened"),
    [
        ("m.gguf", _gguf, "m.gguf"),
        ("m.safetensors", _safetensors, "m.safetensors"),
        ("m.data", _onnx, "m.onnx"),
        ("m.ninfer", _ninfer, "m.ninfer"),
    ],
    ids=["gguf", "safetensors", "onnx", "ninfer"],
)
def test_every_kind_of_file_is_looked_at(
    tmp_path: Path, name: str, make: Callable[[Path], None], opened: str, index: int
) -> None:
    make(tmp_path / name)
    assert not qf.verify(tmp_path / opened, deep=True).remarks
    at = lose(tmp_path / name, index, payload())
    report = qf.verify(tmp_path / opened, deep=True)
    assert report.ok
    (remark,) = report.remarks
    assert (remark.rule, remark.object.removeprefix("weight/"), remark.offset) == ("zeros", "w", at)
    assert remark.file == str(tmp_path / name)
    assert f"4.1 kB are zeros, whole pages of 4096 bytes, the first at byte {at} of {name}" in remark.problem


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_a_lost_page_of_any_object_is_told(tmp_path: Path, layout: Layout, record: Format) -> None:
    """Unless zeros are not legal there, and then that is a finding."""
    rng, path = np.random.default_rng(8), tmp_path / "m.ninfer"
    words = make_words(record, (256, 2048), rng)
    packed = layout.pack(words)
    planned = PlannedTensor(id="w", shape=words.shape, format=record.name, layout=layout.name, divisors=1)
    components, bindings = {"text": Component(config={})}, {"w": Binding(object="w")}
    with ArtifactWriter(path, components=components, objects=[planned], bindings=bindings) as writer:
        writer.write("w", 0, packed)
    before = qf.verify(path, deep=True)
    assert before.ok
    assert "zeros" not in before.broken
    whole = path.read_bytes()
    for index in range(0, packed.size // PAGE_BYTES - 1, 5):
        at = lose(path, index, packed.tobytes())
        report = qf.verify(path, deep=True)
        assert "zeros" in report.broken or not report.ok, at
        assert {one.offset for one in report.remarks if one.rule == "zeros"} <= {at}
        path.write_bytes(whole)
