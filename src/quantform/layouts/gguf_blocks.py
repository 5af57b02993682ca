"""`gguf_blocks_v1`: rows in order, each its blocks in order, every block as a little-endian GGUF file has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy.typing as npt

from quantform._rows import ChosenRows, matrix_shape
from quantform._sizes import as_shape
from quantform.formats import FORMATS, BlockWords, Format, GgufFormat, Words
from quantform.formats.checks import words_of
from quantform.layouts.faults import Faults, read_through
from quantform.layouts.layout import Payload, Plane, ReadInto, RowPlaneLayout, record_as
from quantform.packed import dequantize_rows

__all__ = ["GgufBlocksLayout"]


class GgufBlocksLayout(RowPlaneLayout):
    """The `gguf_*` formats as `[N, K]` with K a multiple of the block's values; a row is a plain byte span."""

    name = "gguf_blocks_v1"
    formats = tuple(record.name for record in FORMATS.values() if isinstance(record, GgufFormat))

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks other than 2, partial blocks and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        dimensions = as_shape(shape, minimum_rank=2, maximum_rank=2)
        record_as(record, GgufFormat).row_bytes(dimensions[1])
        return record, dimensions

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """One plane of blocks."""
        return (Plane(0, record_as(format, GgufFormat).row_bytes(matrix_shape(shape)[1])),)

    def faults(
        self,
        read: ReadInto,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
        *,
        limit: int = 1,  # noqa: ARG002
    ) -> Iterator[Faults]:
        """None: every block is legal; they are read as whole blocks."""
        record, dimensions = self.check(format, shape, divisors)
        unit = record_as(record, GgufFormat).profile.bytes
        for _ in read_through(read, 0, self.encoded_size(record, dimensions), unit):
            yield from ()

    def pack(self, words: Words) -> Payload:
        """The blocks as they are, without a copy."""
        record, _ = self.check(words.format, words.shape)
        record.validate(words)
        return words_of(record, words, BlockWords).blocks.reshape(-1)

    def _decode(
        self,
        data: Payload,
        format: Format,
        shape: tuple[int, ...],
        divisors: int,  # noqa: ARG002
        rows: ChosenRows,
        out: npt.NDArray[Any],
        threads: int | None,
    ) -> None:
        dequantize_rows(data.reshape(shape[0], -1), record_as(format, GgufFormat).profile, rows, out, threads)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> BlockWords:  # noqa: ARG002
        """The blocks, a view of the payload."""
        return BlockWords(format, shape, data.reshape(shape[0], record_as(format, GgufFormat).row_bytes(shape[1])))
