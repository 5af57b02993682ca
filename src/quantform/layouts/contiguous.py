"""`contiguous_le_v1`: one little-endian word after another, in C order, without header or padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantform._rows import matrix_shape
from quantform._sizes import as_shape
from quantform.formats import FORMATS, DirectFormat, DirectWords, Format, Words
from quantform.formats.checks import words_of
from quantform.layouts.faults import Faults, read_through
from quantform.layouts.layout import Payload, Plane, ReadInto, RowPlaneLayout, record_as

__all__ = ["ContiguousLayout"]


class ContiguousLayout(RowPlaneLayout):
    """Direct formats of rank 0 to 16; shape `[]` is one word."""

    name = "contiguous_le_v1"
    formats = tuple(record.name for record in FORMATS.values() if isinstance(record, DirectFormat))

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks above 16 and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        return record, as_shape(shape, maximum_rank=16)

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """One plane of words."""
        return (Plane(0, matrix_shape(shape)[1] * record_as(format, DirectFormat).scalar.nbytes),)

    def faults(
        self,
        read: ReadInto,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
        *,
        limit: int = 1,  # noqa: ARG002
    ) -> Iterator[Faults]:
        """None: every word is legal; that they can all be read is what there is to check."""
        record, dimensions = self.check(format, shape, divisors)
        for _ in read_through(read, 0, self.encoded_size(record, dimensions)):
            yield from ()

    def pack(self, words: Words) -> Payload:
        """The words as little-endian bytes, without a copy where they are that already."""
        record, _ = self.check(words.format, words.shape)
        record.validate(words)
        direct = words_of(record, words, DirectWords)
        stored = np.ascontiguousarray(direct.words, record_as(record, DirectFormat).scalar.stored_dtype)
        return stored.reshape(-1).view(np.uint8)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> DirectWords:  # noqa: ARG002
        scalar = record_as(format, DirectFormat).scalar
        words = data.view(scalar.stored_dtype)
        if not (words.flags.aligned and words.dtype.isnative):
            words = words.astype(scalar.word_dtype)
        return DirectWords(format, shape, words.view(scalar.word_dtype).reshape(shape))
