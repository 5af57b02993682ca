"""Numbers that are the same everywhere and for ever: SplitMix64, seeded by a name.

Output `i` of a stream (from 1 on) is `mix(seed + i * 0x9E3779B97F4A7C15)` modulo 2^64, where `mix(z)` is

    z = (z xor (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z xor (z >> 27)) * 0x94D049BB133111EB
    z xor (z >> 31)

and the seed of a name is the 64-bit FNV-1a hash of its UTF-8 bytes. Nothing else enters, so that a program in any
language can make the same numbers.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "PlainRandom"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


class Numbers(Protocol):
    """What makers of words draw from; NumPy's generators are such."""

    def integers(self, low: int, high: int, size: Any, /) -> npt.NDArray[np.int64]:  # noqa: ANN401 - as NumPy's
        """Integers from `low` to `high - 1`, both of at most 63 bits."""

    def random(self, size: Any, /) -> npt.NDArray[np.float64]:  # noqa: ANN401
        """Numbers from 0 to 1."""


class PlainRandom:
    """A stream of numbers.

    Args:
        name: What it is for; equal names give equal streams.
    """

    def __init__(self, name: str) -> None:
        seed = 0xCBF29CE484222325
        for byte in name.encode():
            seed = (seed ^ byte) * 0x100000001B3 & _MASK
        self._state = np.array(seed, np.uint64)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The next outputs."""
        with np.errstate(over="ignore"):
            z = self._state + _STEP * np.arange(1, count + 1, dtype=np.uint64)
            self._state = self._state + _STEP * np.uint64(count)
            z = (z ^ (z >> np.uint64(30))) * _FIRST
            z = (z ^ (z >> np.uint64(27))) * _SECOND
        mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
        return mixed

    def integers(self, low: int, high: int, size: Any, /) -> npt.NDArray[np.int64]:  # noqa: ANN401 - as NumPy's
        """Each `low` plus an output modulo `high - low`."""
        count = int(np.prod(size, dtype=np.int64))
        drawn = self.words(count) % np.uint64(high - low)
        return (drawn.astype(np.int64) + low).reshape(size)

    def random(self, size: Any, /) -> npt.NDArray[np.float64]:  # noqa: ANN401
        """Each the upper 53 bits of an output, as a fraction."""
        count = int(np.prod(size, dtype=np.int64))
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(size)
