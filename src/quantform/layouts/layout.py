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
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, Format, Words
from quantform.formats.rows import RowWords, all_legal, decode_rows

__all__ = [
    "CHECKED_BYTES",
    "PLANE_ALIGNMENT",
    "Layout",
    "PaddingFault",
    "Payload",
    "Plane",
    "ReadInto",
    "RowPlaneLayout",
    "as_count",
    "as_matrix",
    "reader_of",
    "record_as",
]

F = TypeVar("F", bound=Format)

Payload = npt.NDArray[np.uint8]
ReadInto = Callable[[int, npt.NDArray[np.uint8]], None]
"""Fills the whole array with the payload's bytes from an offset on."""

PLANE_ALIGNMENT = 256
"""What the first byte of a plane is a multiple of, where a layout has several."""

CHECKED_BYTES = 1 << 20
"""Bytes checked at a time: they stay in the second-level cache between reading and checking."""

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


@dataclass(frozen=True, slots=True)
class PaddingFault:
    """Padding of one kind that is not what the layout writes. The words can be read all the same.

    Attributes:
        kind: Which padding it is: `"gap between planes"`, `"codes past the last column"`, ...
        offset: The first wrong byte in the payload.
        expected: What canonical padding has there.
        found: What is there.
        count: How many bytes of this padding are wrong.
    """

    kind: str
    offset: int
    expected: int
    found: int
    count: int

    def __str__(self) -> str:
        number = "the only one" if self.count == 1 else f"the first of {self.count}"
        return (
            f"byte {self.offset} of the payload, {self.kind}: "
            f"expected 0x{self.expected:02X}, found 0x{self.found:02X}, {number}"
        )


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
        size = self.encoded_size(format, shape, divisors)
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

    def check_words(self, read: ReadInto, format: str | Format, shape: Sequence[int], divisors: int = 1) -> None:
        """Check every word of a stored tensor, reading each byte once, a few rows at a time; see `Format.validate`.

        Args:
            read: Fills an array with the payload's bytes.
            format: The tensor's format.
            shape: The tensor's shape.
            divisors: The tensor's number of divisors.

        Raises:
            WordsError: A word is not legal; names the first bad place among the rows read together.
        """
        record, dimensions = self.check(format, shape, divisors)
        count = matrix_shape(dimensions)[0]
        step = self._rows_together(record, dimensions)
        for first in range(0, count, step):
            self._check_rows(read, record, dimensions, divisors, slice(first, min(first + step, count)))

    def check_padding(
        self, read: ReadInto, format: str | Format, shape: Sequence[int], divisors: int = 1
    ) -> tuple[PaddingFault, ...]:
        """What is wrong with the padding of a stored tensor, one fault for each kind of padding; none if canonical.

        Args:
            read: Fills an array with the payload's bytes.
            format: The tensor's format.
            shape: The tensor's shape.
            divisors: The tensor's number of divisors.
        """
        record, dimensions = self.check(format, shape, divisors)
        faults: dict[str, PaddingFault] = {}
        for fault in self._padding_faults(read, record, dimensions):
            first = faults.get(fault.kind, fault)
            count = fault.count + (first.count if fault.kind in faults else 0)
            faults[fault.kind] = PaddingFault(first.kind, first.offset, first.expected, first.found, count)
        return tuple(faults.values())

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

    def _check_rows(self, read: ReadInto, format: Format, shape: tuple[int, ...], divisors: int, rows: slice) -> None:
        self.words_of_rows(read, format, shape, rows, divisors).validate(rows.start)

    @abstractmethod
    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:
        """Bytes of a checked tensor."""

    @abstractmethod
    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> Words:
        """The words in a contiguous payload of a checked tensor, or of one without rows."""

    def _padding_faults(
        self,
        read: ReadInto,  # noqa: ARG002
        format: Format,  # noqa: ARG002
        shape: tuple[int, ...],  # noqa: ARG002
    ) -> Iterator[PaddingFault]:
        """The faults of a checked tensor, by kind and then by rising offset; this layout pads nothing."""
        yield from ()

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

    def _check_rows(self, read: ReadInto, format: Format, shape: tuple[int, ...], divisors: int, rows: slice) -> None:
        """By the compiled kernels on the rows' payload; where they say no, the words say why."""
        payload = self.take_rows(read, format, shape, rows)
        taken = rows.stop - rows.start, matrix_shape(shape)[1]
        if not all_legal(self.row_words(payload, format, taken, divisors)):
            self._unpack(payload, format, taken, divisors).validate(rows.start)

    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:  # noqa: ARG002
        last = self.planes(format, shape)[-1]
        return last.offset + matrix_shape(shape)[0] * last.row_bytes

    def _padding_faults(self, read: ReadInto, format: Format, shape: tuple[int, ...]) -> Iterator[PaddingFault]:
        """The gaps between the planes."""
        for offset, count in self._gaps(format, shape):
            if count:
                gap = np.empty(count, np.uint8)
                read(offset, gap)
                wrong = np.flatnonzero(gap)
                if wrong.size:
                    first = int(wrong[0])
                    yield PaddingFault("the gap between planes", offset + first, 0, int(gap[first]), wrong.size)

    def _gaps(self, format: Format, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        rows = matrix_shape(shape)[0]
        end = 0
        for plane in self.planes(format, shape):
            yield end, plane.offset - end
            end = plane.offset + rows * plane.row_bytes
