"""Grouped integers: signed codes, and one binary16 multiplier a group of the last axis (Sections 3.2 and 4 to 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._scalars import SCALARS
from quantform._sizes import as_shape, ceil_div
from quantform.errors import ArgumentError
from quantform.formats.checks import Tally, hex_word, require_array, row_place, words_of
from quantform.formats.rows import RowWords, all_legal, as_row_bytes
from quantform.formats.tiled import FillTile, TiledFormat
from quantform.formats.tiles import tiles
from quantform.formats.words import GroupedWords, Words

__all__ = ["GROUPED_FORMATS", "GroupedFormat"]

Codes = npt.NDArray[np.int8]
Scales = npt.NDArray[np.uint16]

_EXPONENT, _NEGATIVE_ZERO = 0x7C00, 0x8000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedFormat(TiledFormat):
    """Tensors of rank 1 or more; the last axis falls into groups, and a group never crosses a row.

    Attributes:
        code_bits: Bits of a code word.
        group: Values under one scale; the last group of a row may have fewer.
        qmin: The smallest legal code.
        qmax: The largest legal code, and the reference encoder's divisor of the largest magnitude.
        code_offset: The code word is `(code + code_offset) mod 2**code_bits`.
        any_finite_scale: Whether negative zero is a legal scale and a zero scale leaves the codes free.
    """

    code_bits: int
    group: int
    qmin: int
    qmax: int
    code_offset: int
    any_finite_scale: bool

    def groups(self, columns: int) -> int:
        """Scales of a row of `columns` values."""
        return ceil_div(columns, self.group)

    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> tuple[Tally, ...]:
        """Codes outside `qmin .. qmax`; scales that are infinite, NaN or negative zero; codes under zero scales.

        `any_finite_scale` lifts the last two. See `Format.tallies`.
        """
        if all_legal(self.row_words(words)):
            return ()
        codes, scales = self._matrices(words)
        # Some rows of a tensor are a matrix; a whole tensor of any rank has leading coordinates.
        shape = (first_row + codes.shape[0], words.shape[-1]) if first_row else words.shape

        def code_at(row: int, column: int) -> tuple[str, str]:
            code = int(codes[row, column])
            place = self._place(shape, first_row + row, column // self.group, column)
            return place, f"{code} (int8 word 0x{code & 0xFF:02X})"

        def scale_at(row: int, group: int) -> tuple[str, str]:
            return self._place(shape, first_row + row, group), hex_word(int(scales[row, group]), SCALARS["fp16"])

        outside = Tally(f"a code of {self.name} is out of range", f"{self.qmin} to {self.qmax}", code_at, limit=limit)
        illegal = Tally(
            f"a scale of {self.name} is not legal",
            "a finite binary16 word" if self.any_finite_scale else "a finite binary16 word, and no negative zero",
            scale_at,
            "scale",
            "scales",
            limit,
        )
        unscaled = Tally(
            f"a code of {self.name} under a zero scale is not zero", "0", code_at, "zero-scale", limit=limit
        )
        for rows, columns in tiles(codes.shape[0], codes.shape[1], self.group):
            tile = codes[rows, columns]
            outside.add((tile < self.qmin) | (tile > self.qmax), rows.start, columns.start)
            some = self._scales_of(columns)
            multipliers = scales[rows, some]
            bad = (multipliers & _EXPONENT) == _EXPONENT
            if not self.any_finite_scale:
                bad |= multipliers == _NEGATIVE_ZERO
                zero = multipliers == 0
                if zero.any():
                    under = np.repeat(zero, self.group, axis=1)[:, : tile.shape[1]]
                    unscaled.add(under & (tile != 0), rows.start, columns.start)
            illegal.add(bad, rows.start, some.start)
        return outside, illegal, unscaled

    def row_words(self, words: Words) -> RowWords | None:
        """Codes of one byte, and their scales."""
        matrices = self._matrices(words)
        codes, scales = as_row_bytes(matrices[0]), as_row_bytes(matrices[1])
        if codes is None or scales is None:
            return None
        return RowWords(f"{self.name} bytes", words.shape[-1], codes, None, scales)

    @property
    def _columns_together(self) -> int:
        return self.group

    def _decoder(self, words: Words) -> FillTile:
        codes, scales = self._matrices(words)

        def fill(rows: slice, columns: slice, out: npt.NDArray[np.float32]) -> None:
            multipliers = scales[rows, self._scales_of(columns)].view(np.float16).astype(np.float32)
            count = (columns.stop - columns.start) // self.group
            whole = count * self.group
            out[...] = codes[rows, columns]
            groups = out[:, :whole].reshape(len(out), count, self.group)  # a view, as splitting an axis always is
            groups *= multipliers[:, :count, None]
            out[:, whole:] *= multipliers[:, count:]

        return fill

    def _scales_of(self, columns: slice) -> slice:
        return slice(columns.start // self.group, self.groups(columns.stop))

    def _place(self, shape: tuple[int, ...], row: int, group: int, column: int | None = None) -> str:
        parts = [row_place(shape, row)] if len(shape) > 1 else []
        parts.append(f"group {group}")
        if column is not None:
            parts.append(f"column {column}")
        return ", ".join(parts)

    def _matrices(self, words: Words) -> tuple[Codes, Scales]:
        grouped = words_of(self, words, GroupedWords)
        shape = as_shape(grouped.shape, minimum_rank=1)
        if shape[-1] == 0:
            raise ArgumentError(f"the last dimension of {self.name} is zero", expected="at least 1")
        rows, columns = matrix_shape(shape)
        scales_shape = (*shape[:-1], self.groups(columns))
        require_array(self, "codes", grouped.codes, np.int8, shape)
        require_array(self, "scales", grouped.scales, np.uint16, scales_shape)
        return grouped.codes.reshape(rows, columns), grouped.scales.reshape(rows, scales_shape[-1])


def _format(
    name: str,
    code_bits: int,
    group: int,
    qmin: int,
    qmax: int,
    *,
    section: str = "5",
    code_offset: int = 0,
    any_finite_scale: bool = False,
) -> GroupedFormat:
    return GroupedFormat(
        name=name,
        category="grouped",
        bits_per_weight=code_bits + 16 / group,
        default_layout="row_split_k128_v1",
        section=section,
        code_bits=code_bits,
        group=group,
        qmin=qmin,
        qmax=qmax,
        code_offset=code_offset,
        any_finite_scale=any_finite_scale,
    )


GROUPED_FORMATS = (
    _format("q2_g64_fp16", 2, 64, -1, 2, code_offset=1, any_finite_scale=True),
    _format("q4_g64_fp16", 4, 64, -8, 7),
    _format("q5_g64_fp16", 5, 64, -16, 15),
    _format("q6_g64_fp16", 6, 64, -32, 31),
    _format("q8_g32_fp16", 8, 32, -127, 127),
    _format("t2_g128_fp16", 2, 128, -1, 1),
)
