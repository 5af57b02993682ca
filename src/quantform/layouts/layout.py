"""What a storage layout is: an exact map between the words of one tensor and the bytes of one payload."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from quantform._native import kernels, thread_limit
from quantform._outputs import check_output, empty_output
from quantform._rows import ChosenRows, Rows, as_rows, matrix_shape, runs
from quantform._sizes import as_shape, fits_u64
from quantform._spans import moved, units_of
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, Format, Words
from quantform.formats.checks import Tally
from quantform.formats.rows import RowWords, all_legal, decode_rows
from quantform.layouts.faults import (
    CHECKED_BYTES,
    WINDOW_COLUMNS,
    Fault,
    Faults,
    Piece,
    SparseReader,
    byte_faults,
)

__all__ = [
    "PLANE_ALIGNMENT",
    "Layout",
    "Payload",
    "Plane",
    "ReadInto",
    "RowPlaneLayout",
    "as_count",
    "as_matrix",
    "reader_of",
    "record_as",
    "scaled_windows",
]

F = TypeVar("F", bound=Format)

Payload = npt.NDArray[np.uint8]
ReadInto = Callable[[int, npt.NDArray[np.uint8]], None]
"""Fills the whole array with the payload's bytes from an offset on."""

PLANE_ALIGNMENT = 256
"""What the first byte of a plane is a multiple of, where a layout has several."""

# Values decoded at a time without kernels: few enough for the caches, and many enough to hide the loop's own cost.
_DECODED_VALUES = 1 << 18


@dataclass(frozen=True, slots=True)
class Plane:
    """One part of a payload in which every row has its own span, rows in order.

    Attributes:
        offset: First byte in the payload.
        row_bytes: Bytes a row; the plane is `rows * row_bytes` long.
    """

    offset: int
    row_bytes: int


def reader_of(payload: Payload) -> ReadInto:
    """Reads a payload that is in memory."""

    def read(offset: int, out: npt.NDArray[np.uint8]) -> None:
        out[...] = payload[offset : offset + out.size]

    return read


def record_as(format: Format, kind: type[F]) -> F:
    """`format` itself, as a record of the kind that a layout places.

    Raises:
        ArgumentError: It is of another kind, whatever its name says.
    """
    if not isinstance(format, kind):
        raise ArgumentError(f"format {format.name} is not described as {kind.__name__}", found=type(format).__name__)
    return format


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """A shape `[N, K]`, both positive.

    Raises:
        ArgumentError: It is another.
    """
    dimensions = as_shape(shape, minimum_rank=2, maximum_rank=2)
    if 0 in dimensions:
        raise ArgumentError(
            "a dimension of the matrix is zero", expected="[N, K], both positive", found=list(dimensions)
        )
    return dimensions[0], dimensions[1]


def as_count(divisors: int) -> int:
    """The number of divisors, an integer of at least 1.

    Raises:
        ArgumentError: It is not.
    """
    try:
        count = 0 if isinstance(divisors, bool) else operator.index(divisors)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(
            "divisors is not a number of divisors", expected="an integer of at least 1", found=repr(divisors)
        )
    return count


class Layout(ABC):
    """One storage layout. It owns packing, order, padding and byte order, and never changes a word.

    Attributes:
        name: The closed canonical name.
        formats: Names of the formats it accepts; any other pair is refused.
        alignment: What an object's offset in a container is a multiple of.
    """

    name: str
    formats: tuple[str, ...]
    alignment: int = 256

    def encoded_size(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> int:
        """Exact bytes of the payload.

        Raises:
            ArgumentError: The layout does not hold this format, shape or number of divisors, or the size leaves U64.
        """
        record, dimensions = self.check(format, shape, divisors)
        return fits_u64(self._size(record, dimensions, divisors), f"payload size of {record} {list(dimensions)}")

    @abstractmethod
    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """The format's record and the shape as integers, once the layout is known to hold them."""

    @abstractmethod
    def pack(self, words: Words) -> Payload:
        """The payload of `words`, padding included, uint8 `[encoded_size]`.

        Raises:
            WordsError: A word is not legal in its format.
        """

    def unpack(
        self,
        payload: npt.ArrayLike,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
    ) -> Words:
        """The words in `payload`, without copying where the layout allows it; padding is not looked at.

        Raises:
            ArgumentError: The payload is not as long as the layout computes.
        """
        record, dimensions = self.check(format, shape, divisors)
        return self._unpack(self._whole(payload, record, dimensions, divisors), record, dimensions, divisors)

    def decode(
        self,
        payload: npt.ArrayLike,
        format: str | Format,
        shape: Sequence[int],
        dtype: npt.DTypeLike | None = None,
        *,
        rows: Rows | None = None,
        divisors: int = 1,
        out: npt.NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """The values in a payload, straight from its bytes: the same as those of `unpack`'s words.

        Args:
            payload: The bytes; they may be read-only and unaligned.
            format: The tensor's format.
            shape: The tensor's shape.
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`. None stands for the type that rounds nothing:
                the scalar's own in direct formats, else float32.
            rows: Which rows of the flattened leading axes, in any order, repeats allowed; None is all of them.
            divisors: The tensor's number of divisors.
            out: Where to put the values: a C-contiguous, writable array of the result's shape and type.
            threads: How many threads the compiled kernels may use; see `dequantize_packed`.

        Returns:
            The values in the tensor's shape, or `[len(rows), K]`.

        Raises:
            ArgumentError: The payload is not as long as the layout computes, a row is outside the tensor, or the type,
                `out` or `threads` is not such as it must be.
        """
        record, dimensions = self.check(format, shape, divisors)
        data = self._whole(payload, record, dimensions, divisors)
        wanted, limit = record.value_dtype(dtype), thread_limit(threads) or None
        count, columns = matrix_shape(dimensions)
        chosen = range(count) if rows is None else as_rows(rows, count)
        size = dimensions if rows is None else (len(chosen), columns)
        if out is None:
            out = empty_output(size, wanted)
        else:
            check_output(out, size, wanted, data, "the payload")
        if out.size:
            self._decode(data, record, dimensions, divisors, chosen, out.reshape(len(chosen), columns), limit)
        return out

    def _whole(
        self, payload: npt.ArrayLike, format: Format, shape: tuple[int, ...], divisors: int
    ) -> npt.NDArray[np.uint8]:
        """The bytes of the payload of a checked tensor, once they are known to be as many as they must be."""
        data = np.asarray(memoryview(payload) if isinstance(payload, bytes) else payload)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ArgumentError(
                "payload is not a vector of bytes", expected="uint8 [n]", found=f"{data.dtype} {list(data.shape)}"
            )
        size = self._size(format, shape, divisors)
        if data.size != size:
            raise ArgumentError(
                f"payload of {format} {list(shape)} in {self.name} has the wrong length",
                expected=f"{size} bytes",
                found=f"{data.size} bytes",
            )
        return np.ascontiguousarray(data)

    @abstractmethod
    def words_of_rows(
        self,
        read: ReadInto,
        format: str | Format,
        shape: Sequence[int],
        rows: Rows,
        divisors: int = 1,
    ) -> Words:
        """The words of some rows of a stored tensor, of shape `[len(rows), K]`; no other row's codes are read.

        Args:
            read: Fills an array with the payload's bytes.
            format: The tensor's format.
            shape: The stored tensor's shape `[..., K]`.
            rows: Which rows of the flattened leading axes; order and repeats are kept, and there may be none.
            divisors: The stored tensor's number of divisors.

        Raises:
            ArgumentError: The layout does not hold such a tensor, or a row is outside it.
        """

    @abstractmethod
    def place(self, words: Words, shape: Sequence[int], first: int, divisors: int = 1) -> Iterator[tuple[int, Payload]]:
        """Where the words of some consecutive rows go in the payload of a larger tensor.

        Pieces of all rows, whatever their order and cut, and zeros in `gaps` make the payload that `pack` gives for the
        whole tensor.

        Args:
            words: Legal words of shape `[n, K]`.
            shape: The whole tensor's shape `[..., K]`.
            first: The first of the rows among those of the flattened leading axes.
            divisors: The whole tensor's number of divisors.

        Yields:
            Offsets in the payload, and the bytes from there on.

        Raises:
            ArgumentError: The rows leave the tensor, or are not such as the layout places alone.
            WordsError: A word is not legal in its format.
        """

    @abstractmethod
    def spans(
        self, format: str | Format, shape: Sequence[int], first: int, end: int, divisors: int = 1
    ) -> tuple[tuple[int, int], ...]:
        """`(offset, bytes)` of what some consecutive rows take in the payload of a tensor: where `place` puts them.

        Args:
            format: The tensor's format.
            shape: The tensor's shape `[..., K]`.
            first: The first of the rows among those of the flattened leading axes.
            end: The row behind the last.
            divisors: The tensor's number of divisors.

        Raises:
            ArgumentError: The rows leave the tensor, or are not such as the layout places alone.
        """

    def gaps(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[tuple[int, int], ...]:
        """`(offset, bytes)` of the zeros that lie between the planes of a payload and belong to no row."""
        self.check(format, shape, divisors)
        return ()

    @abstractmethod
    def faults(
        self, read: ReadInto, format: str | Format, shape: Sequence[int], divisors: int = 1, *, limit: int = 1
    ) -> Iterator[Faults]:
        """Everything that format and layout forbid of a stored tensor, each byte read once, a bounded number at a time.

        Args:
            read: Fills an array with the payload's bytes. Of a `SparseReader`, what lies in holes is not read where
                zeros are legal; such a reader gives no other bytes than zeros there.
            format: The tensor's format.
            shape: The tensor's shape.
            divisors: The tensor's number of divisors.
            limit: How many faults of one rule in one piece are described; all are counted.

        Yields:
            The faults of one rule in one piece, pieces in the order in which they are read.
        """

    def row_words(
        self,
        data: Payload,  # noqa: ARG002
        format: Format,  # noqa: ARG002
        shape: tuple[int, ...],  # noqa: ARG002
        divisors: int,  # noqa: ARG002
    ) -> RowWords | None:
        """Where the words of a checked tensor lie in its payload, for the compiled kernels; None of other formats."""
        return None

    def _decode(
        self,
        data: Payload,
        format: Format,
        shape: tuple[int, ...],
        divisors: int,
        rows: ChosenRows,
        out: npt.NDArray[Any],
        threads: int | None,
    ) -> None:
        """Decode rows of a checked tensor, of which there are some, into `[len(rows), K]`."""
        words = self.row_words(data, format, shape, divisors) if kernels is not None else None
        if words is not None:
            decode_rows(words, rows, out, threads)
            return
        read, step = reader_of(data), max(1, _DECODED_VALUES // out.shape[1])
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            out[first : first + step] = self.words_of_rows(read, format, shape, some, divisors).decode(out.dtype)

    def _rows_together(self, format: Format, shape: tuple[int, ...]) -> int:
        """How many rows are checked together."""
        return max(1, CHECKED_BYTES * matrix_shape(shape)[0] // max(1, self._size(format, shape, 1)))

    @abstractmethod
    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:
        """Bytes of a checked tensor."""

    @abstractmethod
    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> Words:
        """The words in a contiguous payload of a checked tensor, or of one without rows."""

    def _placed(
        self, words: Words, shape: Sequence[int], first: int, divisors: int = 1
    ) -> tuple[Format, tuple[int, ...], int]:
        """The format's record, the whole tensor's shape and the end of the rows, once these are known to lie in it."""
        record, dimensions = self.check(words.format, shape, divisors)
        rows, columns = matrix_shape(dimensions)
        if len(words.shape) != 2 or words.shape[1] != columns or not 0 <= first <= first + words.shape[0] <= rows:
            raise ArgumentError(
                f"these are no rows of shape {list(dimensions)}",
                expected=f"words of shape [n, {columns}] within {rows} rows",
                found=f"{list(words.shape)} from row {first} on",
            )
        return record, dimensions, first + words.shape[0]

    def _inside(
        self, format: str | Format, shape: Sequence[int], first: int, end: int, divisors: int
    ) -> tuple[Format, tuple[int, ...]]:
        """The format's record and the tensor's shape, once the rows are known to lie in it."""
        record, dimensions = self.check(format, shape, divisors)
        rows = matrix_shape(dimensions)[0]
        if not 0 <= first <= end <= rows:
            raise ArgumentError(
                f"these are no rows of shape {list(dimensions)}", expected=f"rows within {rows}", found=(first, end)
            )
        return record, dimensions

    def _known(self, format: str | Format) -> Format:
        record = format if isinstance(format, Format) else FORMATS[format]
        if record.name not in self.formats:
            raise ArgumentError(
                f"layout {self.name} does not accept format {record.name}", expected=" or ".join(self.formats)
            )
        return record

    def _no_divisors(self, divisors: int) -> None:
        if as_count(divisors) != 1:
            raise ArgumentError(f"layout {self.name} has no divisors", expected=1, found=divisors)


class RowPlaneLayout(Layout):
    """A layout in which each row is one span in each of a few planes, so that rows are read without repacking."""

    @abstractmethod
    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """The planes of a checked tensor, by rising offset; bytes between them are zeros, and none follow."""

    def take_rows(self, read: ReadInto, format: str | Format, shape: Sequence[int], rows: Rows) -> Payload:
        """The payload of a matrix made of some rows of another: whole spans, copied plane by plane.

        Args:
            read: Fills an array with the source payload's bytes; only the spans of the rows asked for are read.
            format: The tensor's format.
            shape: The source tensor's shape `[..., K]`.
            rows: Which rows; order and repeats are kept.

        Returns:
            The payload of shape `[len(rows), K]`; no bytes for no rows.
        """
        record, dimensions = self.check(format, shape)
        count, columns = matrix_shape(dimensions)
        chosen = as_rows(rows, count)
        taken = (len(chosen), columns)
        if not len(chosen):
            return np.zeros(0, np.uint8)
        result = np.zeros(self.encoded_size(record, taken), np.uint8)
        for source, target in zip(self.planes(record, dimensions), self.planes(record, taken), strict=True):
            at = target.offset
            for first, end in runs(chosen):
                size = (end - first) * source.row_bytes
                read(source.offset + first * source.row_bytes, result[at : at + size])
                at += size
        return result

    def place(self, words: Words, shape: Sequence[int], first: int, divisors: int = 1) -> Iterator[tuple[int, Payload]]:
        """One span in each plane; any rows do."""
        record, dimensions, _ = self._placed(words, shape, first, divisors)
        packed = self.pack(words)
        for source, target in zip(self.planes(record, words.shape), self.planes(record, dimensions), strict=True):
            at = source.offset
            yield target.offset + first * target.row_bytes, packed[at : at + words.shape[0] * source.row_bytes]

    def spans(
        self, format: str | Format, shape: Sequence[int], first: int, end: int, divisors: int = 1
    ) -> tuple[tuple[int, int], ...]:
        """One span in each plane; any rows do."""
        record, dimensions = self._inside(format, shape, first, end, divisors)
        return tuple(
            (plane.offset + first * plane.row_bytes, (end - first) * plane.row_bytes)
            for plane in self.planes(record, dimensions)
        )

    def gaps(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[tuple[int, int], ...]:
        """What alignment leaves between the planes."""
        record, dimensions = self.check(format, shape, divisors)
        return tuple((offset, count) for offset, count in self._gaps(record, dimensions) if count)

    def words_of_rows(
        self,
        read: ReadInto,
        format: str | Format,
        shape: Sequence[int],
        rows: Rows,
        divisors: int = 1,
    ) -> Words:
        """The words in what `take_rows` gives."""
        record, dimensions = self.check(format, shape, divisors)
        count, columns = matrix_shape(dimensions)
        chosen = as_rows(rows, count)
        payload = self.take_rows(read, record, dimensions, chosen)
        return self._unpack(payload, record, (len(chosen), columns), divisors)

    def faults(
        self, read: ReadInto, format: str | Format, shape: Sequence[int], divisors: int = 1, *, limit: int = 1
    ) -> Iterator[Faults]:
        """By the compiled kernels on the payload of some rows; where they say no, the words say why."""
        record, dimensions = self.check(format, shape, divisors)
        for offset, count in self.gaps(record, dimensions):
            gap = np.empty(count, np.uint8)
            read(offset, gap)
            yield from byte_faults([(offset, gap)], "the gap between planes is not canonical", limit)
        for piece in self._pieces(read, record, dimensions):
            if not all_legal(self.row_words(piece.payload, record, piece.shape, 1)):
                for tally in record.tallies(self._unpack(piece.payload, record, piece.shape, 1), limit=limit):
                    again = piece.column and not hasattr(record, "group") and tally.part == "scales"
                    if tally.count and not again:  # a window of a row has the row's scale, as others before it
                        some = (self._fault(record, dimensions, piece, tally, *place) for place in tally.places)
                        yield Faults(tally.count, tuple(some))
            yield from self._row_padding(record, dimensions, piece, limit)

    def offset_of(self, format: str | Format, shape: Sequence[int], part: str, row: int, index: int) -> int:
        """The byte of a word in the payload.

        Args:
            format: The tensor's format.
            shape: The tensor's shape.
            part: `"codes"` or `"scales"`.
            row: The row.
            index: The column of a code (where codes are split, its lower part is meant), the group of a scale.
        """
        record, dimensions = self.check(format, shape)
        return self._offset_of(record, dimensions, part, row, index)

    def _offset_of(self, format: Format, shape: tuple[int, ...], part: str, row: int, index: int) -> int:
        raise NotImplementedError  # pragma: no cover - layouts without illegal words are not asked

    def _pieces(self, read: ReadInto, format: Format, shape: tuple[int, ...]) -> Iterator[Piece]:
        """The payload as pieces of some rows; where rows are long, of a window of one row."""
        columns, step = shape[-1], self._rows_together(format, shape)
        for begin, end in self._stored_rows(read, format, shape):
            if columns > WINDOW_COLUMNS:
                for row in range(begin, end):
                    yield from self._windows(read, format, shape, row)
                continue
            for first in range(begin, end, step):
                rows = slice(first, min(first + step, end))
                yield Piece(self.take_rows(read, format, shape, rows), (rows.stop - first, columns), first)

    def _stored_rows(self, read: ReadInto, format: Format, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """The rows that are looked at: all but those that lie in holes in each plane, where rows of zeros are legal."""
        count, columns = matrix_shape(shape)
        if not isinstance(read, SparseReader) or not self._zeros_are_legal(format, columns):
            yield 0, count
            return
        planes = [plane for plane in self.planes(format, shape) if plane.row_bytes]
        spans: list[tuple[int, int]] = []
        for plane in planes:
            found = read.stored(plane.offset, plane.offset + count * plane.row_bytes)
            spans.extend(units_of(moved(found, -plane.offset), plane.row_bytes))
        at = 0
        for first, end in (*units_of(spans, 1), (count, count)):
            for plane in planes if at < first else ():
                read.passed(plane.offset + at * plane.row_bytes, plane.offset + first * plane.row_bytes)
            if first < end:
                yield first, end
            at = end

    def _zeros_are_legal(self, format: Format, columns: int) -> bool:
        """Whether a row of zeros is: one with the same padding, since rows are whole units of 128 columns before it."""

        def zeros(_: int, out: npt.NDArray[np.uint8]) -> None:
            out[...] = 0

        return not any(self.faults(zeros, format, (1, (columns - 1) % 128 + 1)))

    def _windows(self, read: ReadInto, format: Format, shape: tuple[int, ...], row: int) -> Iterator[Piece]:
        raise NotImplementedError  # pragma: no cover - layouts of plain spans are read through instead

    def _row_padding(
        self,
        format: Format,  # noqa: ARG002
        shape: tuple[int, ...],  # noqa: ARG002
        piece: Piece,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> Iterator[Faults]:
        """The padding within the rows of a piece; this layout has none."""
        yield from ()

    def _fault(self, format: Format, shape: tuple[int, ...], piece: Piece, tally: Tally, row: int, index: int) -> Fault:
        """The fault at a place of a tally, as a place of the whole tensor."""
        found = tally.describe(row, index)[1]
        group = getattr(format, "group", None)
        row += piece.row
        column = None
        if tally.part == "codes":
            column = index = index + piece.column
            number = index // group if group else None
        else:
            index += piece.column // group if group else 0
            number = index if group else None
        offset = self._offset_of(format, shape, tally.part, row, index)
        return Fault(tally.rule, tally.problem, offset, tally.expected, found, row, number, column)

    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:  # noqa: ARG002
        last = self.planes(format, shape)[-1]
        return last.offset + matrix_shape(shape)[0] * last.row_bytes

    def _gaps(self, format: Format, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        rows = matrix_shape(shape)[0]
        end = 0
        for plane in self.planes(format, shape):
            yield end, plane.offset - end
            end = plane.offset + rows * plane.row_bytes


def scaled_windows(
    layout: RowPlaneLayout, read: ReadInto, format: Format, shape: tuple[int, ...], row: int
) -> Iterator[Piece]:
    """The windows of a row whose codes are one byte each, ahead of its one scale of two bytes; each has that scale."""
    scale = np.empty(2, np.uint8)
    read(layout.offset_of(format, shape, "scales", row, 0), scale)
    begin, columns = layout.offset_of(format, shape, "codes", row, 0), shape[1]
    for column in range(0, columns, WINDOW_COLUMNS):
        width = min(WINDOW_COLUMNS, columns - column)
        payload = np.zeros(layout.encoded_size(format, (1, width)), np.uint8)
        read(begin + column, payload[:width])
        payload[-2:] = scale
        yield Piece(payload, (1, width), row, column)
