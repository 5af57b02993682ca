"""`gguf_blocks_v1`: rows in order, each its blocks in order, every block as a little-endian GGUF file has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._sizes import as_shape
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, BlockWords, Format, GgufFormat, Words
from quantform.layouts.layout import Payload, Plane, RowPlaneLayout

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
        _blocks(record).row_bytes(dimensions[1])
        return record, dimensions

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """One plane of blocks."""
        return (Plane(0, _blocks(format).row_bytes(matrix_shape(shape)[1])),)

    def pack(self, words: Words) -> Payload:
        """The blocks as they are, without a copy."""
        record, _ = self.check(words.format, words.shape)
        record.validate(words)
        if not isinstance(words, BlockWords):
            raise ArgumentError(f"layout {self.name} takes BlockWords", found=type(words).__name__)
        return words.blocks.reshape(-1)

    def unpack(
        self,
        payload: npt.ArrayLike,
        format: str | Format,
        shape: Sequence[int],
        divisors: int = 1,
    ) -> BlockWords:
        """The blocks, a view of the payload."""
        record, dimensions = self.check(format, shape, divisors)
        data = self._sized(payload, record, dimensions)
        return BlockWords(
            record, dimensions, data.reshape(dimensions[0], _blocks(record).row_bytes(dimensions[1]))
        )


def _blocks(format: Format) -> GgufFormat:
    if not isinstance(format, GgufFormat):
        raise ArgumentError("not a block format", found=format.name)
    return format
