"""What a storage layout is: an exact map between the words of one tensor and the bytes of one payload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows, matrix_shape, runs
from quantform._sizes import fits_u64
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, Format, Words

__all__ = ["Layout", "Payload", "Plane", "ReadInto"]

Payload = npt.NDArray[np.uint8]
ReadInto = Callable[[int, npt.NDArray[np.uint8]], None]
"""Fills the whole array with the payload's bytes from an offset on."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One part of a payload in which every row has its own span, rows in order.

    Attributes:
        offset: First byte in the payload.
        row_bytes: Bytes a row; the plane is `rows * row_bytes` long.
    """

    offset: int
    row_bytes: int


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
    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:
        """Bytes of a checked tensor."""

    @abstractmethod
    def pack(self, words: Words) -> Payload:
        """The payload of `words`, padding included, uint8 `[encoded_size]`."""

    @abstractmethod
    def unpack(
        self,
        payload: npt.ArrayLike,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
    ) -> Words:
        """The words in `payload`, without copying where the layout allows it.

        Raises:
            ArgumentError: The payload is not as long as the layout computes.
        """

    def _known(self, format: str | Format) -> Format:
        record = FORMATS[format] if isinstance(format, str) else format
        if record.name not in self.formats:
            raise ArgumentError(
                f"layout {self.name} does not accept format {record.name}", expected=" or ".join(self.formats)
            )
        return record

    def _no_divisors(self, divisors: int) -> None:
        if divisors != 1:
            raise ArgumentError(f"layout {self.name} has no divisors", expected=1, found=divisors)

    def _sized(self, payload: npt.ArrayLike, format: Format, shape: tuple[int, ...], divisors: int = 1) -> Payload:
        data = np.asarray(payload)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ArgumentError("payload is not a vector of bytes", expected="uint8 [n]", found=f"{data.dtype} {data.shape}")
        size = self.encoded_size(format, shape, divisors)
        if data.size != size:
            raise ArgumentError(
                f"payload of {format} {list(shape)} in {self.name} has the wrong length",
                expected=f"{size} bytes",
                found=f"{data.size} bytes",
            )
        return data


class RowPlaneLayout(Layout):
    """A layout in which each row is one span in each of a few planes, so that rows are read without repacking."""

    @abstractmethod
    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """The planes of a checked tensor, by rising offset; bytes between and after them are zeros."""

    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:  # noqa: ARG002
        last = self.planes(format, shape)[-1]
        return last.offset + matrix_shape(shape)[0] * last.row_bytes

    def take_rows(self, read: ReadInto, format: str | Format, shape: Sequence[int], rows: Rows) -> Payload:
        """The payload of a matrix made of some rows of another: whole spans, copied plane by plane.

        Args:
            read: Fills an array with the source payload's bytes; only the spans of the rows asked for are read.
            format: The tensor's format.
            shape: The source tensor's shape `[..., K]`.
            rows: Which rows; order and repeats are kept.

        Returns:
            The payload of shape `[len(rows), K]`.
        """
        record, dimensions = self.check(format, shape)
        count, columns = matrix_shape(dimensions)
        chosen = as_rows(rows, count)
        taken = (len(chosen), columns)
        if not len(chosen):
            return np.zeros(0, np.uint8)
        result = np.zeros(self.encoded_size(record, taken), np.uint8)
        for source, target in zip(self.planes(record, dimensions), self.planes(record, taken), strict=True):
            if not source.row_bytes:
                continue
            at = target.offset
            for first, end in runs(chosen):
                size = (end - first) * source.row_bytes
                read(source.offset + first * source.row_bytes, result[at : at + size])
                at += size
        return result
