"""What is wrong with a stored payload: words that the format forbids, and padding that is not canonical."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._spans import Span, moved, units_of

__all__ = [
    "CHECKED_BYTES",
    "WINDOW_COLUMNS",
    "Fault",
    "Faults",
    "Piece",
    "SparseReader",
    "byte_faults",
    "read_through",
]

Bytes = npt.NDArray[np.uint8]

CHECKED_BYTES = 1 << 19
"""Bytes checked at a time: they stay in the second-level cache between reading and checking."""

WINDOW_COLUMNS = 1 << 19
"""Longer rows are checked in windows of as many columns, so that memory grows with no dimension."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One word of a payload, or a stretch of its bytes, that is not as it must be.

    Attributes:
        rule: The rule's short name: `"code"`, `"scale"`, `"zero-scale"`, `"divisor"`, `"padding"`, `"gap"`.
        problem: What is wrong, a phrase.
        offset: Its first byte in the payload.
        expected: What would be right, of bytes the first one.
        found: What is there, likewise.
        row: The row, counted through the flattened leading axes.
        group: The group of the row, where the format has groups.
        column: The column, of codes.
        divisor: Which divisor.
        count: How many bytes that are to be zeros or padding follow one another here; 1 for a word.
    """

    rule: str
    problem: str
    offset: int
    expected: str
    found: str
    row: int | None = None
    group: int | None = None
    column: int | None = None
    divisor: int | None = None
    count: int = 1

    @property
    def where(self) -> str:
        """`"row 3, group 1, column 70"`: as much of it as there is."""
        if self.divisor is not None:
            return f"divisor {self.divisor}, of rows from {self.row} on"
        parts = (("row", self.row), ("group", self.group), ("column", self.column))
        return ", ".join(f"{name} {number}" for name, number in parts if number is not None)


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one rule in one piece of a payload.

    Attributes:
        count: How many words or bytes there are.
        first: The first of them, no more than were asked for.
    """

    count: int
    first: tuple[Fault, ...]


class Piece(NamedTuple):
    """Some rows of a payload, or a window of the columns of one row, as a payload of its own.

    Attributes:
        payload: The bytes, laid out as those of a tensor of `shape`.
        shape: Its rows and columns.
        row: Its first row in the whole tensor.
        column: Its first column there.
    """

    payload: Bytes
    shape: tuple[int, int]
    row: int
    column: int = 0


@dataclass(frozen=True, slots=True)
class SparseReader:
    """Reads a payload, and knows which of it lies in holes of a file: zeros that take no space, terabytes of them.

    Whoever checks bytes of which zeros are always legal may leave them out, and then says so.

    Attributes:
        read: Fills an array with the payload's bytes from an offset on.
        stored: What there is between two offsets beside holes.
        passed: Is told where bytes begin and end that are not read because they are zeros.
    """

    read: Callable[[int, Bytes], None]
    stored: Callable[[int, int], Iterable[Span]]
    passed: Callable[[int, int], object]

    def __call__(self, offset: int, out: Bytes) -> None:
        """Read."""
        self.read(offset, out)


def read_through(
    read: Callable[[int, Bytes], None], begin: int, end: int, unit: int = 1
) -> Iterator[tuple[int, Bytes]]:
    """The bytes from `begin` to `end` in order, each read once, in pieces of whole units, without a reader's holes.

    Yields:
        The offset of a piece and its bytes, which are overwritten by the next one's.
    """
    step = max(1, CHECKED_BYTES // unit) * unit
    data = np.empty(min(step, end - begin), np.uint8)
    spans, passed = [(begin, end)], None
    if isinstance(read, SparseReader):
        units = units_of(moved(read.stored(begin, end), -begin), unit)
        spans = [(begin + first * unit, min(begin + last * unit, end)) for first, last in units]
        passed = read.passed
    at = begin
    for first, last in (*spans, (end, end)):
        if passed is not None and at < first:
            passed(at, first)
        for offset in range(first, last, step):
            piece = data[: last - offset]
            read(offset, piece)
            yield offset, piece
        at = last


def byte_faults(
    pieces: Iterable[tuple[int, Bytes]], problem: str, limit: int, rule: str = "padding"
) -> Iterator[Faults]:
    """The bytes that are not zero: each stretch of them is one fault, which counts them.

    Args:
        pieces: Offsets, and the bytes from there on, in order.
        problem: What is wrong with such a byte.
        limit: How many stretches of a piece are described.
        rule: The rule.
    """
    begun: Fault | None = None  # a stretch that may go on in the next piece
    for offset, data in pieces:
        wrong = np.flatnonzero(data) if data.any() else np.zeros(0, np.int64)
        starts = wrong[np.diff(wrong, prepend=-2) != 1]
        ends = wrong[np.diff(wrong, append=data.size + 1) != 1] + 1
        if begun is not None and starts.size and begun.offset + begun.count == offset + int(starts[0]):
            begun = replace(begun, count=begun.count + int(ends[0]))
            if ends[0] == data.size:
                continue
            starts, ends = starts[1:], ends[1:]
        if begun is not None:
            yield Faults(begun.count, (begun,))
            begun = None

        def fault(begin: int, end: int, offset: int = offset, data: Bytes = data) -> Fault:
            return Fault(rule, problem, offset + begin, "0x00", f"0x{int(data[begin]):02X}", count=end - begin)

        if ends.size and ends[-1] == data.size:
            begun = fault(int(starts[-1]), data.size)
            starts, ends = starts[:-1], ends[:-1]
        if starts.size:
            some = zip(starts[:limit].tolist(), ends[:limit].tolist(), strict=True)
            yield Faults(int((ends - starts).sum()), tuple(fault(begin, end) for begin, end in some))
    if begun is not None:
        yield Faults(begun.count, (begun,))
