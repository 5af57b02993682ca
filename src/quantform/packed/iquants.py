"""The grid formats IQ2, IQ3 and IQ1: eight groups of 32 values, each of four lanes of eight.

A lane's values are rows of a codebook. IQ2 and IQ3 multiply by the scale and then by a sign; IQ1 adds a shift of an
eighth to the row before it multiplies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import fields, signs
from quantform.packed.codebooks import codebook
from quantform.packed.profiles import Profile, block

__all__ = ["PROFILES"]

F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[Any]


def _column(d: Ints) -> F32:
    """The block scales widened exactly, `[n, 1]`, against `[n, groups]` local scales."""
    return d.astype(np.float32)[:, None]


def _per_lane(local: Ints) -> Ints:
    """Local scales of 4, 8 or 16 values a block, repeated for its 32 lanes."""
    return np.repeat(local, 32 // local.shape[1], axis=1)


def _signed(scale: F32, values: F32, sign: F32) -> F32:
    """`M(M(c, v), s)`: scales of `[n, 32]` lanes, values and signs `[n, 32, 8]`."""
    result = scale[:, :, None] * values
    result *= sign
    return result.reshape(len(result), 256)


def _half_step(blocks: Ints, local: Ints, factor: float) -> F32:
    """`M(M(d, 0.5 + t), factor)` for every lane."""
    scale = _column(blocks["d"]) * (local.astype(np.float32) + np.float32(0.5))
    return _per_lane(scale * np.float32(factor))


def _words32(data: Ints) -> Ints:
    """Bytes or 16-bit words of each block as little-endian 32-bit words."""
    return np.ascontiguousarray(data).view("<u4").astype(np.uint32, copy=False)


def decode_iq2_xxs(blocks: Ints) -> F32:
    """Four grid indices, four 7-bit signs and a 4-bit scale in 64 bits a group."""
    words = _words32(blocks["q"])
    index = fields(words[:, 0::2], 8, 4).reshape(len(blocks), 32)
    aux = words[:, 1::2]
    sign = signs(fields(aux, 7, 4).reshape(len(blocks), 32), parity=True)
    return _signed(_half_step(blocks, aux >> 28, 0.25), codebook("iq2xxs_grid")[index], sign)


def decode_iq2_xs(blocks: Ints) -> F32:
    """A 9-bit grid index and seven signs in 16 bits a lane, a scale nibble for two lanes."""
    words = blocks["q"].astype(np.uint16, copy=False)
    local = fields(blocks["scales"], 4, 2).reshape(len(blocks), 16)
    sign = signs(words >> 9, parity=True)
    return _signed(_half_step(blocks, local, 0.25), codebook("iq2xs_grid")[words & 511], sign)


def decode_iq2_s(blocks: Ints) -> F32:
    """10-bit grid indices, explicit signs, a scale nibble for two lanes."""
    index = blocks["q"][:, :32] | fields(blocks["high"], 2, 4).reshape(len(blocks), 32).astype(np.uint16) << 8
    local = fields(blocks["scales"], 4, 2).reshape(len(blocks), 16)
    return _signed(_half_step(blocks, local, 0.25), codebook("iq2s_grid")[index], signs(blocks["q"][:, 32:]))


def decode_iq3_xxs(blocks: Ints) -> F32:
    """Two 4-value grid rows a lane; seven signs a lane and a 4-bit scale a group in trailing words."""
    aux = _words32(blocks["q"][:, 64:])
    values = codebook("iq3xxs_grid")[blocks["q"][:, :64]].reshape(len(blocks), 32, 8)
    sign = signs(fields(aux, 7, 4).reshape(len(blocks), 32), parity=True)
    return _signed(_half_step(blocks, aux >> 28, 0.5), values, sign)


def decode_iq3_s(blocks: Ints) -> F32:
    """Two 9-bit 4-value grid rows a lane, explicit signs, odd scales."""
    index = blocks["q"] | fields(blocks["high"], 1, 8).reshape(len(blocks), 64).astype(np.uint16) << 8
    values = codebook("iq3s_grid")[index].reshape(len(blocks), 32, 8)
    local = fields(blocks["scales"], 4, 2).reshape(len(blocks), 8)
    scale = _column(blocks["d"]) * (2 * local + 1).astype(np.float32)
    return _signed(_per_lane(scale), values, signs(blocks["signs"]))


def _shifted(d: F32, local: Ints, index: Ints, negative: Ints) -> F32:
    """`M(M(d, 2 t + 1), A(v, delta))`: local scales of any count, grid indices and shift bits `[n, 32]`."""
    scale = _per_lane(d * (2 * local + 1).astype(np.float32))
    delta = np.where(negative, np.float32(-0.125), np.float32(0.125))
    values = codebook("iq1s_grid")[index] + delta[:, :, None]
    return (scale[:, :, None] * values).reshape(len(index), 256)


def decode_iq1_s(blocks: Ints) -> F32:
    """11-bit grid indices; scale and shift of a group in one 16-bit word."""
    high = blocks["high"].astype(np.uint16, copy=False)
    index = blocks["q"] | fields(high, 3, 4).reshape(len(blocks), 32) << 8
    return _shifted(_column(blocks["d"]), high >> 12 & 7, index, _per_lane(high >> 15))


def decode_iq1_m(blocks: Ints) -> F32:
    """As IQ1_S with scales for 16 values and a shift a lane; the block scale lies in the tops of four words."""
    words = np.ascontiguousarray(blocks["scales"]).view("<u2").astype(np.uint16, copy=False)
    bits = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(bits, axis=1).view(np.float16)
    high = fields(blocks["high"], 4, 2).reshape(len(blocks), 32)
    index = blocks["q"] | (high & 7).astype(np.uint16) << 8
    local = fields(words, 3, 4).reshape(len(blocks), 16)
    return _shifted(_column(d), local, index, high >> 3)


PROFILES = (
    Profile("gguf:iq2_xxs", "IQ2_XXS", 16, 256, block(("d", "<f2"), ("q", "<u2", 32)), decode_iq2_xxs),
    Profile(
        "gguf:iq2_xs", "IQ2_XS", 17, 256, block(("d", "<f2"), ("q", "<u2", 32), ("scales", "u1", 8)), decode_iq2_xs
    ),
    Profile("gguf:iq3_xxs", "IQ3_XXS", 18, 256, block(("d", "<f2"), ("q", "u1", 96)), decode_iq3_xxs),
    Profile("gguf:iq1_s", "IQ1_S", 19, 256, block(("d", "<f2"), ("q", "u1", 32), ("high", "<u2", 8)), decode_iq1_s),
    Profile(
        "gguf:iq3_s",
        "IQ3_S",
        21,
        256,
        block(("d", "<f2"), ("q", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)),
        decode_iq3_s,
    ),
    Profile(
        "gguf:iq2_s",
        "IQ2_S",
        22,
        256,
        block(("d", "<f2"), ("q", "u1", 64), ("high", "u1", 8), ("scales", "u1", 8)),
        decode_iq2_s,
    ),
    Profile(
        "gguf:iq1_m", "IQ1_M", 29, 256, block(("q", "u1", 32), ("high", "u1", 16), ("scales", "u1", 8)), decode_iq1_m
    ),
)
