"""Ternary blocks TQ1_0 and TQ2_0: a scale times -1, 0 or +1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import planes
from quantform.packed.profiles import Profile, block

__all__ = ["PROFILES"]

F32 = npt.NDArray[np.float32]
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def trits(data: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """`count` base-3 digits of each byte, most significant first, all bytes' first digits first.

    A byte holds its digits as a fraction of 256: multiplying by a power of three drops the leading digits over the top
    of the byte (the product wraps), and three times the rest carries the next digit into bit 8 and up.
    """
    wrapped = data[:, None, :] * _POWERS[:count]
    return (wrapped.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(data), -1)


def decode_tq1_0(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, digit - 1)` with five digits a byte, and four in each byte of `high`."""
    q = blocks["q"]
    digits = np.concatenate((trits(q[:, :32], 5), trits(q[:, 32:], 5), trits(blocks["high"], 4)), axis=1)
    return blocks["d"].astype(np.float32)[:, None] * (digits.astype(np.float32) - 1)


def decode_tq2_0(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, v - 1)` with two bits a value; the code 3 stands for +2."""
    return blocks["d"].astype(np.float32)[:, None] * (planes(blocks["q"], 2, 32).astype(np.float32) - 1)


PROFILES = (
    Profile("gguf:tq1_0", "TQ1_0", 34, 256, block(("q", "u1", 48), ("high", "u1", 4), ("d", "<f2")), decode_tq1_0),
    Profile("gguf:tq2_0", "TQ2_0", 35, 256, block(("q", "u1", 64), ("d", "<f2")), decode_tq2_0),
)
