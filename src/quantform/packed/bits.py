"""Fields narrower than a byte, vectorized over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["fields", "planes", "signs"]

U8 = npt.NDArray[np.uint8]


def planes(data: U8, width: int, group: int) -> U8:
    """The specification's P(a, w, g) for each block.

    Each group of `group` bytes gives first the lowest `width` bits of all its bytes, then the next, up to the highest.

    Args:
        data: uint8 `[n, length]`.
        width: 1, 2 or 4 bits.
        group: Bytes a group; divides `length`.

    Returns:
        uint8 `[n, length * 8 / width]`.
    """
    blocks, length = data.shape
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    spread = data.reshape(blocks, length // group, 1, group) >> shifts
    spread &= np.uint8((1 << width) - 1)
    return spread.reshape(blocks, length * 8 // width)


def fields(words: npt.NDArray[Any], width: int, count: int) -> npt.NDArray[Any]:
    """`count` fields of `width` bits of each word, lowest first, on a new last axis."""
    shifts = np.arange(0, width * count, width, dtype=words.dtype)
    found: npt.NDArray[Any] = (words[..., None] >> shifts) & words.dtype.type((1 << width) - 1)
    return found


def _sign_table(*, parity: bool) -> npt.NDArray[np.float32]:
    value = np.arange(128 if parity else 256, dtype=np.uint8)
    if parity:
        value |= (np.bitwise_count(value) & 1) << 7
    bits = fields(value, 1, 8).astype(np.float32)
    return 1 - 2 * bits


_EXPLICIT = _sign_table(parity=False)
_PARITY = _sign_table(parity=True)


def signs(value: npt.NDArray[Any], *, parity: bool = False) -> npt.NDArray[np.float32]:
    """The eight signs +1 or -1 in `value`, on a new last axis.

    Args:
        value: Sign bits, lowest first.
        parity: There are only seven; the eighth makes the count of ones even.
    """
    chosen: npt.NDArray[np.float32] = (_PARITY if parity else _EXPLICIT)[value]
    return chosen
