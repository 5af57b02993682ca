"""Direct formats: one scalar word an element, no scale (Section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, Scalar, as_dtype, convert, output_dtype
from quantform.formats.checks import Tally, require_array, words_of
from quantform.formats.record import Format
from quantform.formats.words import DirectWords, Words

__all__ = ["DIRECT_FORMATS", "DirectFormat", "direct_format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFormat(Format):
    """Every word of the scalar's width is legal and keeps its bits: zeros' signs, infinities, NaN payloads."""

    scalar: Scalar

    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> tuple[Tally, ...]:  # noqa: ARG002
        """No rules: the arrays are checked, and every word is legal."""
        self._words(words)
        return ()

    def value_dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        """The scalar's own type, which is what None stands for, or an output type."""
        if dtype is None or as_dtype(dtype) == self.scalar.dtype:
            return self.scalar.dtype
        return output_dtype(dtype, "dtype")

    def decode(self, words: Words, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The values in the scalar's own type (`dtype` None: the same bits) or converted once to an output type."""
        values: npt.NDArray[Any] = self._words(words).view(self.scalar.dtype)
        return convert(values, self.value_dtype(dtype))

    def _words(self, words: Words) -> npt.NDArray[Any]:
        direct = words_of(self, words, DirectWords)
        require_array(self, "words", direct.words, self.scalar.word_dtype, direct.shape)
        return direct.words


def direct_format(scalar: Scalar) -> DirectFormat:
    """The direct format of any scalar type, also of those that no `.ninfer` name exists for."""
    return DirectFormat(
        name=scalar.name,
        category="direct",
        bits_per_weight=float(scalar.bits),
        default_layout="contiguous_le_v1",
        section="3.1",
        scalar=scalar,
    )


DIRECT_FORMATS = tuple(direct_format(SCALARS[name]) for name in ("bf16", "fp32", "int32"))
