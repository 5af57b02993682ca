"""`row_interleaved_v1`: each row its FP8 codes and at once its binary16 multiplier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quantform.formats import Format, RowScaledWords, Words
from quantform.formats.checks import words_of
from quantform.formats.rows import RowWords
from quantform.layouts.faults import Piece
from quantform.layouts.layout import Payload, Plane, ReadInto, RowPlaneLayout, as_matrix, scaled_windows

__all__ = ["RowInterleavedLayout"]


class RowInterleavedLayout(RowPlaneLayout):
    """Records of K + 2 bytes, the multiplier little-endian; no padding anywhere."""

    name = "row_interleaved_v1"
    formats = ("fp8_e4m3fn_row_fp16",)

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks other than 2, empty matrices and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        return record, as_matrix(shape)

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:  # noqa: ARG002
        """One plane of records."""
        return (Plane(0, shape[1] + 2),)

    def pack(self, words: Words) -> Payload:
        """Place codes and multipliers."""
        record, shape = self.check(words.format, words.shape)
        record.validate(words)
        words = words_of(record, words, RowScaledWords)
        payload = np.empty(self.encoded_size(record, shape), np.uint8)
        records = payload.reshape(shape[0], -1)
        records[:, :-2] = words.codes
        records[:, -2:] = words.scales.astype("<u2").reshape(-1, 1).view(np.uint8)
        return payload

    def row_words(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowWords:  # noqa: ARG002
        """Codes and multipliers of the records."""
        records = data.reshape(shape[0], shape[1] + 2)
        return RowWords(format.name, shape[1], records[:, :-2], None, records[:, -2:])

    def _offset_of(self, format: Format, shape: tuple[int, ...], part: str, row: int, index: int) -> int:  # noqa: ARG002
        return row * (shape[1] + 2) + (index if part == "codes" else shape[1])

    def _windows(self, read: ReadInto, format: Format, shape: tuple[int, ...], row: int) -> Iterator[Piece]:
        return scaled_windows(self, read, format, shape, row)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowScaledWords:  # noqa: ARG002
        """The codes are a view of the payload, with the multipliers between the rows."""
        records = data.reshape(shape[0], shape[1] + 2)
        scales = np.ascontiguousarray(records[:, -2:]).view("<u2").reshape(-1).astype(np.uint16)
        return RowScaledWords(format, shape, records[:, :-2], scales)
