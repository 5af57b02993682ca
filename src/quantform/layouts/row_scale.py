"""`row_scale_v1`: a plane of FP8 codes, then a plane of BF16 multipliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantform._sizes import align_up
from quantform.formats import Format, RowScaledWords, Words
from quantform.formats.checks import words_of
from quantform.formats.rows import RowWords
from quantform.layouts.faults import Piece
from quantform.layouts.layout import (
    PLANE_ALIGNMENT,
    Payload,
    Plane,
    ReadInto,
    RowPlaneLayout,
    as_matrix,
    scaled_windows,
)

__all__ = ["RowScaleLayout"]


class RowScaleLayout(RowPlaneLayout):
    """Row-major codes, zeros to the next multiple of 256, one little-endian multiplier a row."""

    name = "row_scale_v1"
    formats = ("fp8_e4m3fn_row_bf16",)

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks other than 2, empty matrices and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        return record, as_matrix(shape)

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:  # noqa: ARG002
        """The codes, then the multipliers."""
        rows, columns = shape
        return Plane(0, columns), Plane(align_up(rows * columns, PLANE_ALIGNMENT), 2)

    def pack(self, words: Words) -> Payload:
        """Place codes and multipliers."""
        record, shape = self.check(words.format, words.shape)
        record.validate(words)
        words = words_of(record, words, RowScaledWords)
        payload = np.zeros(self.encoded_size(record, shape), np.uint8)
        payload[: words.codes.size].reshape(shape)[...] = words.codes
        payload[-2 * shape[0] :].view("<u2")[...] = words.scales
        return payload

    def row_words(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowWords:  # noqa: ARG002
        """Both planes."""
        codes, scales = self.planes(format, shape)
        end = shape[0] * codes.row_bytes
        return RowWords(
            format.name, shape[1], data[:end].reshape(shape), None, data[scales.offset :].reshape(shape[0], 2)
        )

    def _offset_of(self, format: Format, shape: tuple[int, ...], part: str, row: int, index: int) -> int:
        codes, scales = self.planes(format, shape)
        return row * codes.row_bytes + index if part == "codes" else scales.offset + 2 * row

    def _windows(self, read: ReadInto, format: Format, shape: tuple[int, ...], row: int) -> Iterator[Piece]:
        return scaled_windows(self, read, format, shape, row)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowScaledWords:  # noqa: ARG002
        """The codes are a view of the payload."""
        codes, scales = self.planes(format, shape)
        words = data[scales.offset :].view("<u2").astype(np.uint16)
        return RowScaledWords(format, shape, data[: shape[0] * codes.row_bytes].reshape(shape), words)
