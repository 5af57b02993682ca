"""Bodies of the conventional formats and IQ4_NL."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantform.onnx.lowering.body import Array, Body, Maker, by_plane, contributions, masks, rows
from quantform.packed.codebooks import IQ4

__all__ = ["BODIES", "NIBBLES"]

NIBBLES = masks(4, 2, 1)
_FIFTH = rows(1, [0, 16], np.uint8)


# Of a binary32 number's four bytes: the mantissa, and its nine highest bits.
_PARTS = contributions(
    [(0, 0, 0xFF, 1), (1, 0, 0xFF, 256), (2, 0, 0x7F, 65536), (2, 1, 0x80, 1), (3, 1, 0xFF, 2)], 2, dtype=np.float32
)


def _binary32() -> tuple[Array, Array, Array]:
    """`unit`, `implicit` and `special` of every sign and exponent, the nine highest bits of a number."""
    exponent, sign = np.arange(512) & 255, np.where(np.arange(512) < 256, 1.0, -1.0)
    last = exponent == 255
    unit = np.where(last, -np.inf, np.ldexp(1.0, np.maximum(exponent, 1) - 150)) * sign
    implicit = np.where(last, -0.5, np.where(exponent > 0, 2.0**23, 0.0))
    special = np.where(last, np.inf * sign, -0.0)
    return unit.astype(np.float32), implicit.astype(np.float32), special.astype(np.float32)


def _nibbles(b: Body, q: str) -> str:
    """The 32 codes of bytes `[n, 1, 16]`: uint8 `[n, 2, 16]`."""
    return b.planes(q, 4, 2, 1)


def _plus(b: Body, value: str, least: int) -> str:
    """`value + least` in binary32."""
    return b.add(b.floats(value), np.array(least, np.float32))


def q4_0(b: Body) -> str:
    """`M(d, v - 8)`."""
    d, q = b.blocks(2, 16, rank=3)
    return b.multiply(_plus(b, _nibbles(b, q), -8), b.half(d))


def iq4_nl(b: Body) -> str:
    """`M(d, IQ4[v])`."""
    d, q = b.blocks(2, 16, rank=3)
    return b.multiply(b.lookup(by_plane(IQ4), b.masked(q, NIBBLES)), b.half(d))


def q4_1(b: Body) -> str:
    """`A(M(d, v), m)`."""
    d, m, q = b.blocks(2, 2, 16, rank=3)
    return b.add(b.multiply(b.floats(_nibbles(b, q)), b.half(d)), b.half(m))


def _five_bits(b: Body, high: str, q: str) -> str:
    """Codes with the fifth bits from a mask."""
    fifth = b.reshape(b.lookup(_FIFTH, high), 2, 16)
    codes: str = b.op("BitwiseOr", _nibbles(b, q), fifth)
    return codes


def q5_0(b: Body) -> str:
    """`M(d, v - 16)`."""
    d, high, q = b.blocks(2, 4, 16, rank=3)
    return b.multiply(_plus(b, _five_bits(b, high, q), -16), b.half(d))


def q5_1(b: Body) -> str:
    """`A(M(d, v), m)`."""
    d, m, high, q = b.blocks(2, 2, 4, 16, rank=3)
    return b.add(b.multiply(b.floats(_five_bits(b, high, q)), b.half(d)), b.half(m))


def _signed(b: Body, q: str) -> str:
    """Bytes as signed numbers: the sign bit turned, and what it stands for taken off."""
    return _plus(b, b.op("BitwiseXor", q, np.array(128, np.uint8)), -128)


def q8_0(b: Body) -> str:
    """`M(d, q)`."""
    d, q = b.blocks(2, 32)
    return b.multiply(_signed(b, q), b.half(d))


def q8_1(b: Body) -> str:
    """`M(d, q)`; the cached sum does not enter."""
    d, _, q = b.blocks(2, 2, 32)
    return b.multiply(_signed(b, q), b.half(d))


def q8_k(b: Body) -> str:
    """`M(d, q)`, where `d` is binary32; the cached sums do not enter.

    A binary32 number is `unit * (mantissa + implicit) + special`, each rounding exact. Infinity is
    `-inf * (0 - 0.5) + inf`, and with any other mantissa that is NaN.
    """
    d, q, _ = b.blocks(4, 256, 32)
    parts = b.summed(b.cast(d, TensorProto.INT64), _PARTS)
    mantissa, top = b.split(parts, 1, 1, axis=1)
    units, implicit, special = _binary32()
    index = b.cast(top, TensorProto.INT32)
    unit, one, rest = (b.gather(table, index) for table in (units, implicit, special))
    d = b.add(b.multiply(unit, b.add(mantissa, one)), rest)
    return b.multiply(_signed(b, q), d)


def q1_0(b: Body) -> str:
    """`d` or `-d`."""
    d, q = b.blocks(2, 16, rank=3)
    return b.multiply(b.lookup(rows(1, [-1, 1]), b.reshape(q, 16)), b.half(d))


def q2_0(b: Body) -> str:
    """`M(d, v - 1)`."""
    d, q = b.blocks(2, 16, rank=3)
    return b.multiply(b.lookup(rows(2, np.arange(4) - 1), b.reshape(q, 16)), b.half(d))


BODIES: dict[str, Maker] = {
    f"gguf:{maker.__name__}": maker for maker in (q4_0, q4_1, q5_0, q5_1, q8_0, q8_1, q8_k, iq4_nl, q1_0, q2_0)
}
