"""Bodies of the K-quants and IQ4_XS.

A local scale has at most eight bits and the block's eleven, so that their product is exact, also divided by the power
of two that a masked code is too large by.
"""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto

from quantform.onnx.lowering.body import Array, Body, Maker, by_plane, contributions, masks
from quantform.onnx.lowering.legacy import NIBBLES
from quantform.packed.codebooks import IQ4

__all__ = ["BODIES"]

_SIXTEENTH = np.array([1, 1 / 16], np.float32)
_SIGNED = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
_QUARTERS = np.array([1, 1 / 4, 1 / 16, 1 / 64], np.float32)


def q2_k(b: Body) -> str:
    """`D(M(M(d, a), v), M(dmin, m))`: 2 halves, 4 planes, 2 groups, 16 values."""
    scales, q, halves = b.blocks(16, 64, 4)
    weight = np.stack((np.tile(_QUARTERS, 2), np.full(8, 1 / 16))).reshape(2, 2, 4, 1, 1)
    local = b.weighted(b.reshape(scales, 1, 2, 4, 2, 1), masks(4, 2, 1, 1, 1, 1), weight)
    both = b.multiply(local, b.half(b.reshape(halves, 2, 1, 1, 1, 2)))
    scale, minimum = b.split(both, 1, 1, axis=1)
    codes = b.floats(b.masked(b.reshape(q, 1, 2, 1, 2, 16), masks(2, 4, 1, 1)))
    return b.subtract(b.multiply(codes, scale), minimum)


@functools.cache
def _q3_k_scales() -> Array:
    """`s * 4^-p`, groups of plane p, from 12 bytes; `s` is four low bits, two high bits, less 32."""
    members = []
    for k in range(16):
        shrink = 4.0 ** -(k // 2 % 4)
        members += [(k % 8, k, 0xF0 if k >= 8 else 0x0F, shrink), (8 + k % 4, k, 3 << 2 * (k // 4), 16 * shrink)]
    table = contributions(members, 2, 4, 2, 1, dtype=np.float32)
    table[0] -= 32 * _QUARTERS.reshape(4, 1, 1)
    return table


def q3_k(b: Body) -> str:
    """`M(M(d, s), v - 4 (1 - h))`: 2 halves, 4 planes, 2 groups, 16 values."""
    mask, q, scales, d = b.blocks(32, 64, 12, 2)
    local = b.summed(b.cast(scales, TensorProto.INT64), _q3_k_scales())
    scale = b.multiply(local, b.reshape(b.half(d), 1, 1, 1, 1))
    codes = b.floats(b.masked(b.reshape(q, 2, 1, 2, 16), masks(2, 4, 1, 1)))
    # plane p of half h has bit 4 h + p of the mask; where it is clear, 4 * 4^p goes off
    plane = np.arange(8).reshape(2, 4, 1, 1)
    clear = b.op("BitwiseNot", b.reshape(mask, 1, 1, 2, 16))
    four = b.weighted(clear, masks(1, 2, 4, 1, 1), 4 * 4.0 ** (plane % 4) / 2.0**plane)
    return b.multiply(b.subtract(codes, four), scale)


@functools.cache
def _scales_minima() -> Array:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes; scales of a second plane are divided by 16."""
    members = []
    for first, nibble in ((0, 0x0F), (4, 0xF0)):
        for k in range(8):
            shrink = 1 / 16 if first == 0 and k % 2 else 1
            number = k + 2 * first
            if k < 4:
                members.append((first + k, number, 0x3F, shrink))
            else:
                members += [(4 + k, number, nibble, shrink), (first + k - 4, number, 0xC0, 16 * shrink)]
    return contributions(members, 2, 4, 2, 1, dtype=np.float32)


def _affine(b: Body, halves: str, scales: str, codes: str) -> str:
    """`D(M(M(d, a), v), M(dmin, m))` for codes `[n, 1, 4, 2, 32]`, those of the second plane 16 times too large."""
    local = b.summed(b.cast(scales, TensorProto.INT64), _scales_minima())
    both = b.multiply(local, b.half(b.reshape(halves, 2, 1, 1, 2)))
    scale, minimum = b.split(both, 1, 1, axis=1)
    return b.subtract(b.multiply(codes, scale), minimum)


def q4_k(b: Body) -> str:
    """4 pairs, 2 planes, 32 values."""
    halves, scales, q = b.blocks(4, 12, 128)
    codes = b.floats(b.masked(b.reshape(q, 1, 4, 1, 32), NIBBLES))
    return _affine(b, halves, scales, codes)


def q5_k(b: Body) -> str:
    """As Q4_K with fifth bits: plane p of pair i has bit 2 i + p of `high`."""
    halves, scales, high, q = b.blocks(4, 12, 32, 128)
    low = b.floats(b.masked(b.reshape(q, 1, 4, 1, 32), NIBBLES))
    weight = 16 * np.tile([1.0, 16.0], 4) / 2.0 ** np.arange(8)
    fifth = b.weighted(b.reshape(high, 1, 1, 1, 32), masks(1, 4, 2, 1), weight.reshape(4, 2, 1))
    return _affine(b, halves, scales, b.add(low, fifth))


def q6_k(b: Body) -> str:
    """`M(M(d, s), v - 32)`: 2 halves, 2 planes of `low`, 2 runs, 2 groups, 16 values."""
    low, high, scales, d = b.blocks(128, 64, 16, 2, rank=6)
    local = b.lookup(_SIGNED, b.reshape(scales, 2, 2, 2, 2, 1))
    shrunk = b.multiply(local, _SIXTEENTH.reshape(2, 1, 1, 1))
    scale = b.multiply(shrunk, b.half(d))
    lower = b.floats(b.masked(b.reshape(low, 2, 1, 2, 2, 16), masks(4, 2, 1, 1, 1)))
    # plane p and run r of `low` go with plane 2 p + r of `high`
    upper = b.weighted(b.reshape(high, 2, 1, 1, 2, 16), masks(2, 2, 2, 1, 1), np.array([16.0, 4.0]).reshape(2, 1, 1))
    codes = b.subtract(b.add(lower, upper), np.array([32, 512], np.float32).reshape(2, 1, 1, 1))
    return b.multiply(codes, scale)


@functools.cache
def _iq4_xs_scales() -> Array:
    """Eight scales of four low and two high bits, less 32, from the high ones' two bytes and the low ones' four."""
    members = []
    for k in range(8):
        members += [(2 + k // 2, k, 0xF0 if k % 2 else 0x0F, 1), (k // 4, k, 3 << 2 * (k % 4), 16)]
    table = contributions(members, 8, dtype=np.float32)
    table[0] -= 32
    return table


def iq4_xs(b: Body) -> str:
    """`M(M(d, s), IQ4[v])`: 8 groups, 2 planes, 16 values."""
    d, scales, q = b.blocks(2, 6, 128)
    local = b.summed(b.cast(scales, TensorProto.INT64), _iq4_xs_scales())
    scale = b.multiply(local, b.half(d))
    values = b.lookup(by_plane(IQ4), b.masked(b.reshape(q, 8, 1, 16), NIBBLES))
    return b.multiply(values, b.reshape(scale, 8, 1, 1))


BODIES: dict[str, Maker] = {f"gguf:{maker.__name__}": maker for maker in (q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs)}
