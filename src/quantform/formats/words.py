"""Words: the values that pass between stages.

Methods make words, layouts place them, formats say whether they are legal and what they are worth. Words are the bits
themselves, as unsigned integers or signed codes; nothing here rounds, reorders or canonicalizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from quantform.formats.record import Format

__all__ = ["BlockWords", "DirectWords", "GroupedWords", "Nvfp4Words", "RowScaledWords", "Words"]


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of one tensor.

    Attributes:
        format: The numeric format that gives them meaning.
        shape: The logical shape of the tensor, C order, last axis fastest.
    """

    format: Format
    shape: tuple[int, ...]

    def validate(self, first_row: int = 0) -> None:
        """Check that every word is legal in its format; see `Format.validate`."""
        self.format.validate(self, first_row)

    def decode(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The values, `shape`-d, converted once to `dtype`; see `Format.decode`."""
        return self.format.decode(self, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class DirectWords(Words):
    """One word an element.

    Attributes:
        words: Unsigned integers of the scalar's width, native byte order, in the logical shape.
    """

    words: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class BlockWords(Words):
    """ggml's blocks, byte for byte.

    Attributes:
        blocks: uint8 `[rows, row_bytes]`: whole rows of `K / B` consecutive blocks, fields little-endian.
    """

    blocks: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWords(Words):
    """Signed codes and one binary16 scale a group of the last axis.

    Attributes:
        codes: int8, the logical shape; Q2's are `u - 1`.
        scales: uint16 binary16 words, `[..., ceil(K / G)]`.
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Words(Words):
    """E2M1 codes, one E4M3FN scale word a group of 16, and binary32 divisors.

    Attributes:
        codes: uint8 `[N, K / 2]`, two codes a byte, the low nibble the smaller k.
        scales: uint8 E4M3FN words `[N, K / 16]`, natural order.
        divisors: uint32 binary32 words `[D]`; divisor i belongs to rows `i * N / D` to `(i + 1) * N / D`.
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8]
    divisors: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class RowScaledWords(Words):
    """E4M3FN codes and one 16-bit multiplier a row.

    Attributes:
        codes: uint8 E4M3FN words `[N, K]`.
        scales: uint16 words `[N]`, BF16 or binary16 as the format says.
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint16]
