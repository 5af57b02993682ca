"""Block floating point: MXFP4 and NVFP4 blocks of E2M1 codes.

Both multiply doubled E2M1 values by half the scale, so that the largest scales stay finite in binary32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import planes
from quantform.packed.codebooks import FP4
from quantform.packed.profiles import Profile, block

__all__ = ["E4M3_HALVES", "E8M0_HALVES", "PROFILES"]

F32 = npt.NDArray[np.float32]


def _e8m0_halves() -> F32:
    """Half of 2^(e - 127) for every exponent byte; the two smallest are subnormal."""
    bits = np.maximum(np.arange(256, dtype=np.int64) - 1, 0).astype(np.uint32) << 23
    bits[0], bits[1] = 0x00200000, 0x00400000
    return bits.view(np.float32)


def _e4m3_halves() -> F32:
    """Half of the unsigned E4M3 value for every scale byte.

    Bit 7 is no part of the number; the bytes 0 and 127 are zero, but 128 and 255 are read like any other.
    """
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    halves = np.where(exponent == 0, mantissa * 2.0**-10, (1 + mantissa / 8) * 2.0 ** (exponent - 8.0))
    halves[[0, 127]] = 0
    return halves.astype(np.float32)


E8M0_HALVES = _e8m0_halves()
E4M3_HALVES = _e4m3_halves()


def decode_mxfp4(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, V[v])`, 32 values under one E8M0 exponent."""
    half: F32 = E8M0_HALVES[blocks["exponent"]]
    return half[:, None] * FP4[planes(blocks["q"], 4, 16)]


def decode_nvfp4(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, V[v])`, four groups of 16 values with a scale each."""
    half: F32 = E4M3_HALVES[blocks["scales"]]
    values = FP4[planes(blocks["q"], 4, 8)].reshape(len(blocks), 4, 16)
    return (half[:, :, None] * values).reshape(len(blocks), 64)


PROFILES = (
    Profile("gguf:mxfp4", "MXFP4", 39, 32, block(("exponent", "u1"), ("q", "u1", 16)), decode_mxfp4),
    Profile("gguf:nvfp4", "NVFP4", 40, 64, block(("scales", "u1", 4), ("q", "u1", 32)), decode_nvfp4),
)
