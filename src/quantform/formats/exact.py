"""Changes of scalar type that lose nothing, on words.

An F16 tensor becomes `fp32` and comes back as the same F16 bits; whatever does not come back is not exact. NaN payloads
and quiet bits move by shifting, since the processor's own conversions set the quiet bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import Scalar, convert

__all__ = ["cast_words", "inexact"]

Words = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Binary:
    """Where an IEEE-like type has its fraction, exponent and sign."""

    fraction_bits: int
    width: int

    @property
    def infinity(self) -> int:
        return (1 << self.width - 1) - (1 << self.fraction_bits)


_BINARY = {
    "fp16": _Binary(10, 16),
    "bf16": _Binary(7, 16),
    "fp32": _Binary(23, 32),
    "fp64": _Binary(52, 64),
}


def cast_words(words: Words, source: Scalar, target: Scalar) -> Words:
    """The words of `target` nearest to those of `source`; NaN keep as much of their payload as fits.

    Args:
        words: Unsigned integers of the source's width.
        source: A floating-point or integer type.
        target: A type of the same kind.

    Returns:
        Unsigned integers of the target's width. Rounded where the target is narrower: see `inexact`.
    """
    if source == target:
        return words
    cast: Words = convert(words.view(source.dtype), target.dtype).view(target.word_dtype)
    if source.name not in _BINARY or target.name not in _BINARY:
        return cast
    have, want = _BINARY[source.name], _BINARY[target.name]
    magnitude = words & words.dtype.type((1 << have.width - 1) - 1)
    nan = magnitude > have.infinity
    if nan.any():
        cast = cast.copy()
        cast[nan] = _move_nan(words[nan], have, want)
    return cast


def _move_nan(words: Words, have: _Binary, want: _Binary) -> Words:
    wide = words.astype(np.uint64)
    sign = wide >> np.uint64(have.width - 1) << np.uint64(want.width - 1)
    fraction = wide & np.uint64((1 << have.fraction_bits) - 1)
    shift = want.fraction_bits - have.fraction_bits
    moved = fraction << np.uint64(shift) if shift >= 0 else fraction >> np.uint64(-shift)
    return (sign | np.uint64(want.infinity) | moved).astype(f"u{want.width // 8}")


def inexact(words: Words, source: Scalar, target: Scalar) -> npt.NDArray[np.intp]:
    """Flat positions of the words that `cast_words` cannot bring back, in rising order."""
    back = cast_words(cast_words(words, source, target), target, source)
    return np.flatnonzero((back != words).reshape(-1))
