"""Row-scaled FP8: E4M3FN codes, and one 16-bit multiplier a row (Section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, Scalar
from quantform._sizes import as_shape
from quantform.errors import ArgumentError
from quantform.formats.checks import Tally, hex_word, require_array, words_of
from quantform.formats.rows import RowWords, all_legal, as_row_bytes
from quantform.formats.small_floats import E4M3FN
from quantform.formats.tiled import FillTile, TiledFormat
from quantform.formats.tiles import tiles
from quantform.formats.words import RowScaledWords, Words

__all__ = ["FP8_ROW_FORMATS", "RowScaledFormat"]

_MAGNITUDE = 0x7F


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScaledFormat(TiledFormat):
    """Matrices `[N, K]`.

    Attributes:
        scale: The type of the row's multiplier, `bf16` or `fp16`.
        infinity: The word of the multiplier's positive infinity; the legal words are those below it.
    """

    scale: Scalar
    infinity: int

    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> tuple[Tally, ...]:
        """Codes that are NaN; scales with a sign or not finite; codes under zero scales that are no zero.

        See `Format.tallies`.
        """
        if all_legal(self.row_words(words)):
            return ()
        fp8 = self._checked(words)

        def code_at(row: int, column: int) -> tuple[str, str]:
            return f"row {first_row + row}, column {column}", hex_word(int(fp8.codes[row, column]), SCALARS["e4m3fn"])

        def scale_at(row: int, _: int) -> tuple[str, str]:
            return f"row {first_row + row}", hex_word(int(fp8.scales[row]), self.scale)

        nan = Tally(f"a code of {self.name} is NaN", "a finite E4M3FN word", code_at, limit=limit)
        illegal = Tally(
            f"a scale of {self.name} is not legal",
            f"a finite {self.scale.name} word without sign, 0x0000 to 0x{self.infinity - 1:04X}",
            scale_at,
            "scale",
            "scales",
            limit,
        )
        unscaled = Tally(
            f"a code of {self.name} under a zero scale is not zero", "0x00 or 0x80", code_at, "zero-scale", limit=limit
        )
        illegal.add((fp8.scales >= self.infinity)[:, None])
        zero = fp8.scales == 0
        for rows, columns in tiles(*fp8.codes.shape):
            magnitudes = fp8.codes[rows, columns] & _MAGNITUDE
            nan.add(magnitudes == _MAGNITUDE, rows.start, columns.start)
            if zero[rows].any():
                unscaled.add(zero[rows, None] & (magnitudes != 0), rows.start, columns.start)
        return nan, illegal, unscaled

    def row_words(self, words: Words) -> RowWords | None:
        """The codes as they are, and one scale a row."""
        fp8 = self._checked(words)
        codes, scales = as_row_bytes(fp8.codes), np.ascontiguousarray(fp8.scales).view(np.uint8).reshape(-1, 2)
        return None if codes is None else RowWords(self.name, words.shape[1], codes, None, scales)

    @property
    def _columns_together(self) -> int:
        return 1

    def _decoder(self, words: Words) -> FillTile:
        fp8 = self._checked(words)

        def fill(rows: slice, columns: slice, out: npt.NDArray[np.float32]) -> None:
            multipliers = fp8.scales[rows].view(self.scale.dtype).astype(np.float32)
            np.multiply(E4M3FN[fp8.codes[rows, columns]], multipliers[:, None], out=out)

        return fill

    def _checked(self, words: Words) -> RowScaledWords:
        fp8 = words_of(self, words, RowScaledWords)
        shape = as_shape(fp8.shape, minimum_rank=2, maximum_rank=2)
        if shape[1] == 0:
            raise ArgumentError(f"the last dimension of {self.name} is zero", expected="at least 1")
        require_array(self, "codes", fp8.codes, np.uint8, shape)
        require_array(self, "scales", fp8.scales, np.uint16, shape[:1])
        return fp8


def _format(scale: str, infinity: int, layout: str) -> RowScaledFormat:
    return RowScaledFormat(
        name=f"fp8_e4m3fn_row_{scale}",
        category="row-scaled",
        bits_per_weight=8.0,
        default_layout=layout,
        section="3.4",
        scale=SCALARS[scale],
        infinity=infinity,
    )


FP8_ROW_FORMATS = (
    _format("bf16", 0x7F80, "row_scale_v1"),
    _format("fp16", 0x7C00, "row_interleaved_v1"),
)
