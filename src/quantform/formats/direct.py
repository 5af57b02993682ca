"""Direct formats: one scalar word an element, no scale (Section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.errors import ArgumentError
from quantform.formats.record import Format
from quantform._scalars import SCALARS, Scalar, as_dtype, convert
from quantform.formats.words import DirectWords, Words

__all__ = ["DIRECT_FORMATS", "DirectFormat", "direct_format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFormat(Format):
    """Every word of the scalar's width is legal and keeps its bits: zeros' signs, infinities, NaN payloads."""

    scalar: Scalar

    def validate(self, words: Words) -> None:
        """Check the arrays; every word is legal."""
        self._words(words)

    def decode(self, words: Words, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The values in the scalar's own type (`dtype` None: the same bits) or converted once."""
        values = self._words(words).view(self.scalar.dtype)
        if dtype is None:
            return values
        wanted = as_dtype(dtype)
        if self.scalar.is_float and not np.issubdtype(wanted, np.inexact) and wanted.kind != "V":
            raise ArgumentError(
                f"{self.name} values do not become {wanted} by decoding", expected="a floating-point dtype"
            )
        return convert(values, wanted)

    def _words(self, words: Words) -> npt.NDArray[Any]:
        if not isinstance(words, DirectWords):
            raise ArgumentError(f"format {self.name} takes DirectWords", found=type(words).__name__)
        if words.words.dtype != self.scalar.word_dtype or words.words.shape != words.shape:
            raise ArgumentError(
                f"the words of {self.name} have the wrong type or shape",
                expected=f"{self.scalar.word_dtype} {list(words.shape)}",
                found=f"{words.words.dtype} {list(words.words.shape)}",
            )
        return words.words


def direct_format(scalar: Scalar) -> DirectFormat:
    """The direct format of any scalar type, also of those that no `.ninfer` name exists for."""
    return DirectFormat(
        name=scalar.name,
        category="direct",
        bits_per_weight=float(scalar.nbytes * 8),
        default_layout="contiguous_le_v1",
        section="3.1",
        scalar=scalar,
    )


DIRECT_FORMATS = tuple(direct_format(SCALARS[name]) for name in ("bf16", "fp32", "int32"))
