"""`contiguous_le_v1`: one little-endian word after another, in C order, without header or padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._sizes import as_shape
from quantform.errors import ArgumentError
from quantform.formats import DirectFormat, DirectWords, Format, Words
from quantform.layouts.layout import Payload, Plane, RowPlaneLayout

__all__ = ["ContiguousLayout"]


class ContiguousLayout(RowPlaneLayout):
    """Direct formats of rank 0 to 16; shape `[]` is one word."""

    name = "contiguous_le_v1"
    formats = ("bf16", "fp32", "int32")

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks above 16 and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        return record, as_shape(shape, maximum_rank=16)

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """One plane of words."""
        return (Plane(0, matrix_shape(shape)[1] * _direct(format).scalar.nbytes),)

    def pack(self, words: Words) -> Payload:
        """The words as little-endian bytes."""
        record, _ = self.check(words.format, words.shape)
        record.validate(words)
        if not isinstance(words, DirectWords):
            raise ArgumentError(f"layout {self.name} takes DirectWords", found=type(words).__name__)
        stored = np.ascontiguousarray(words.words, _direct(record).scalar.stored_dtype)
        return stored.reshape(-1).view(np.uint8)

    def unpack(
        self,
        payload: npt.ArrayLike,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
    ) -> DirectWords:
        """The words, a view of the payload on little-endian machines where it is aligned."""
        record, dimensions = self.check(format, shape, divisors)
        scalar = _direct(record).scalar
        data = self._sized(payload, record, dimensions)
        words = np.ascontiguousarray(data).view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)
        return DirectWords(record, dimensions, words.reshape(dimensions))


def _direct(format: Format) -> DirectFormat:
    if not isinstance(format, DirectFormat):
        raise ArgumentError("not a direct format", found=format.name)
    return format
