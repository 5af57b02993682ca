"""Code words narrower than a byte: several lanes in each byte, the lowest lane in the lowest bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["pack_lanes", "unpack_lanes"]

Bytes = npt.NDArray[np.uint8]


def pack_lanes(words: Bytes, bits: int) -> Bytes:
    """Join the lanes of each row.

    Args:
        words: uint8 `[rows, lanes]`, each below `2**bits`; whole bytes of lanes.
        bits: 1, 2, 4 or 8.

    Returns:
        uint8 `[rows, lanes * bits / 8]`.
    """
    if bits == 8:
        return words
    if bits == 1:
        return np.packbits(words, axis=1, bitorder="little")
    lanes = words.reshape(len(words), -1, 8 // bits)
    packed = lanes[:, :, 0].copy()
    for lane in range(1, 8 // bits):
        packed |= lanes[:, :, lane] << (lane * bits)
    return packed


def unpack_lanes(packed: Bytes, bits: int) -> Bytes:
    """Split the bytes of each row into lanes: the inverse of `pack_lanes`."""
    if bits == 8:
        return packed
    if bits == 1:
        return np.unpackbits(packed, axis=1, bitorder="little")
    lanes = np.empty((*packed.shape, 8 // bits), np.uint8)
    for lane in range(8 // bits):
        np.right_shift(packed, lane * bits, out=lanes[:, :, lane])
    lanes &= (1 << bits) - 1
    return lanes.reshape(len(packed), packed.shape[1] * (8 // bits))
