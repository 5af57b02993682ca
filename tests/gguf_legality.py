"""Whether a little-endian GGUF file is what the format allows, decided apart from the package."""

from __future__ import annotations

import struct
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import gguf

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}

# Values and bytes of a block; the package does not have the newest types.
_SIZES = {41: (128, 18), 42: (64, 18), **{int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}}


class BrokenError(Exception):
    """The file is not legal."""


class Placed(NamedTuple):
    """A tensor's bytes."""

    first: int
    end: int
    name: str


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def bytes(self, count: int) -> bytes:
        need(self.at + count <= len(self.data), "the file ends")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, format: str) -> Any:
        return struct.unpack("<" + format, self.bytes(struct.calcsize("<" + format)))[0]

    def count(self) -> int:
        count: int = self.number("Q")
        need(count <= len(self.data), "a count")
        return count

    def text(self) -> str:
        try:
            return self.bytes(self.count()).decode()
        except UnicodeDecodeError:
            raise BrokenError("a text") from None

    def value(self, kind: int) -> Any:
        if kind == 8:
            return self.text()
        if kind == 9:
            inner = self.number("I")
            return [self.value(inner) for _ in range(self.count())]
        need(kind in _NUMBERS, "a type")
        number = self.number(_NUMBERS[kind])
        need(kind != 7 or number in {0, 1}, "a boolean")
        return number


def need(holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def tensors_of(data: bytes) -> tuple[int, list[Placed]]:
    """The end of the header, and the tensors in the order of their bytes; raises `BrokenError`."""
    reader = _Reader(data)
    need(reader.bytes(4) == b"GGUF" and reader.number("I") in {2, 3}, "magic")
    tensors, pairs = reader.count(), reader.count()
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.text()
        need(key not in metadata, "a key twice")
        metadata[key] = reader.value(reader.number("I"))
    found = []
    for _ in range(tensors):
        name, rank = reader.text(), reader.number("I")
        need(rank <= 4, "a rank")
        found.append((name, [reader.number("Q") for _ in range(rank)], reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    need(len({name for name, *_ in found}) == len(found), "a name twice")
    start = reader.at + -reader.at % alignment
    placed = sorted(_placed(*info, start, alignment, len(data)) for info in found)
    _check_between(data, reader.at, placed, alignment)
    return reader.at, placed


def _placed(name: str, shape: list[int], kind: int, offset: int, start: int, alignment: int, size: int) -> Placed:
    need(kind in _SIZES, "a type")
    values, block = _SIZES[kind]
    need((shape[0] if shape else 1) % values == 0 and offset % alignment == 0, "a place")
    end = start + offset + prod(shape) // values * block
    need(end <= size, "the file ends")
    return Placed(start + offset, end, name)


def _check_between(data: bytes, at: int, placed: list[Placed], alignment: int) -> None:
    """Nothing overlaps, and up to the next multiple of the alignment there are zeros."""
    whole = [Placed(0, at, ""), *(one for one in placed if one.end > one.first), Placed(len(data), len(data), "")]
    for before, after in pairwise(whole):
        need(before.end <= after.first, "an overlap")
        need(not any(data[before.end : min(after.first, before.end + -before.end % alignment)]), "padding")


def is_legal(data: bytes) -> bool:
    """Whether there is nothing to complain of."""
    try:
        tensors_of(data)
    except BrokenError:
        return False
    return True
