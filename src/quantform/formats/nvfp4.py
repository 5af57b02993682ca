"""`nvfp4`: E2M1 codes, one E4M3FN scale a group of 16, and binary32 divisors of the source matrices (Section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._scalars import SCALARS
from quantform._sizes import as_shape
from quantform.errors import ArgumentError
from quantform.formats.checks import Tally, hex_word, require_array, words_of
from quantform.formats.rows import RowWords, as_row_bytes, none_above
from quantform.formats.small_floats import E2M1, E4M3FN
from quantform.formats.tiled import FillTile, TiledFormat
from quantform.formats.tiles import tiles
from quantform.formats.words import Nvfp4Words, Words

__all__ = ["NVFP4", "Nvfp4Format"]

_LARGEST_SCALE = 0x7E
_LARGEST_DIVISOR = 0x7F7FFFFF

# The two values of every code byte, the low nibble's first, as one 8-byte item: one look-up decodes both.
_PAIRS = np.stack([np.tile(E2M1, 16), np.repeat(E2M1, 16)], axis=1).view(np.uint64).reshape(256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4Format(TiledFormat):
    """Matrices `[N, K]` of whole groups; N is a multiple of the number of divisors.

    Attributes:
        group: Values under one scale.
    """

    group: int

    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> tuple[Tally, ...]:
        """Scales with their sign bit set or NaN; divisors that are not finite and positive. See `Format.tallies`."""
        fp4 = self._checked(words)
        if self.are_legal(fp4.scales, fp4.divisors):
            return ()
        rows = words.shape[0]

        def scale_at(row: int, group: int) -> tuple[str, str]:
            return f"row {first_row + row}, group {group}", hex_word(int(fp4.scales[row, group]), SCALARS["e4m3fn"])

        def divisor_at(_: int, divisor: int) -> tuple[str, str]:
            share = rows // fp4.divisors.size
            place = (
                f"divisor {divisor}, of rows {first_row + divisor * share} to {first_row + (divisor + 1) * share - 1}"
            )
            return place, hex_word(int(fp4.divisors[divisor]), SCALARS["fp32"])

        scales, divisors = self.scale_tally(scale_at, limit), self.divisor_tally(divisor_at, limit)
        for some, columns in tiles(*fp4.scales.shape):
            scales.add(self.illegal_scales(fp4.scales[some, columns]), some.start, columns.start)
        divisors.add(self.illegal_divisors(fp4.divisors)[None, :])
        return scales, divisors

    def scale_tally(self, describe: Callable[[int, int], tuple[str, str]], limit: int = 1) -> Tally:
        """The rule of scales, which nothing breaks yet."""
        expected = "a finite E4M3FN word without sign, 0x00 to 0x7E"
        return Tally(f"a scale of {self.name} is not legal", expected, describe, "scale", "scales", limit)

    def divisor_tally(self, describe: Callable[[int, int], tuple[str, str]], limit: int = 1) -> Tally:
        """The rule of divisors, which nothing breaks yet."""
        expected = "a finite positive binary32 word"
        return Tally(f"a divisor of {self.name} is not legal", expected, describe, "divisor", "divisors", limit)

    def illegal_scales(self, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which scale words break their rule."""
        illegal: npt.NDArray[np.bool_] = words > _LARGEST_SCALE
        return illegal

    def illegal_divisors(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which divisor words break their rule."""
        illegal: npt.NDArray[np.bool_] = (words == 0) | (words > _LARGEST_DIVISOR)
        return illegal

    def are_legal(self, scales: npt.NDArray[np.uint8], divisors: npt.NDArray[np.uint32]) -> bool:
        """Whether all these words are legal, in whatever order; False also where there are no compiled kernels."""
        return none_above(scales, _LARGEST_SCALE) and not self.illegal_divisors(divisors).any()

    def row_words(self, words: Words) -> RowWords | None:
        """The words as they are, scales in natural order."""
        fp4 = self._checked(words)
        codes, scales = map(as_row_bytes, (fp4.codes, fp4.scales))
        if codes is None or scales is None:
            return None
        divisors = np.ascontiguousarray(fp4.divisors).view(np.float32)
        return RowWords(self.name, words.shape[1], codes, None, scales, divisors=divisors)

    @property
    def _columns_together(self) -> int:
        return self.group

    def _decoder(self, words: Words) -> FillTile:
        fp4 = self._checked(words)
        share = words.shape[0] // max(1, fp4.divisors.size)
        divisors = fp4.divisors.view(np.float32)

        def fill(rows: slice, columns: slice, out: npt.NDArray[np.float32]) -> None:
            codes = fp4.codes[rows, columns.start // 2 : columns.stop // 2]
            scales = E4M3FN[fp4.scales[rows, columns.start // self.group : columns.stop // self.group]]
            values = _PAIRS[np.ascontiguousarray(codes)].view(np.float32).reshape(*scales.shape, self.group)
            # A code has 2 significant bits and a scale has 4: their product is exact, and only the division rounds.
            values *= scales[:, :, None]
            divisor = divisors[np.arange(rows.start, rows.stop) // share]
            np.divide(values.reshape(out.shape), divisor[:, None], out=out)

        return fill

    def _checked(self, words: Words) -> Nvfp4Words:
        fp4 = words_of(self, words, Nvfp4Words)
        shape = as_shape(fp4.shape, minimum_rank=2, maximum_rank=2)
        rows, columns = matrix_shape(shape)
        if columns == 0 or columns % self.group:
            raise ArgumentError(
                f"a row of {self.name} is not whole groups", expected=f"a multiple of {self.group}", found=columns
            )
        require_array(self, "codes", fp4.codes, np.uint8, (rows, columns // 2))
        require_array(self, "scales", fp4.scales, np.uint8, (rows, columns // self.group))
        count = fp4.divisors.size if isinstance(fp4.divisors, np.ndarray) else 1
        require_array(self, "divisors", fp4.divisors, np.uint32, (count,))
        if count == 0 or rows % count:
            raise ArgumentError(
                f"the divisors of {self.name} do not share the rows evenly",
                expected=f"a divisor of {rows}",
                found=count,
            )
        return fp4


NVFP4 = Nvfp4Format(
    name="nvfp4",
    category="block-scaled",
    bits_per_weight=4 + 8 / 16,
    default_layout="block_scale_k16_m128x4_v1",
    section="3.3",
    group=16,
)
