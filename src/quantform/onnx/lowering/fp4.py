"""Bodies of block floating point."""

from __future__ import annotations

from quantform.onnx.lowering.body import Body, Maker, by_plane
from quantform.onnx.lowering.legacy import NIBBLES
from quantform.packed.codebooks import FP4
from quantform.packed.fp4 import E4M3_HALVES, E8M0_HALVES

__all__ = ["BODIES"]


def mxfp4(b: Body) -> str:
    """`M(d, V[v])`: 2 planes, 16 values."""
    exponent, q = b.blocks(1, 16, rank=3)
    return b.multiply(b.lookup(by_plane(FP4), b.masked(q, NIBBLES)), b.lookup(E8M0_HALVES, exponent))


def nvfp4(b: Body) -> str:
    """`M(d, V[v])`: 4 groups, 2 planes, 8 values."""
    scales, q = b.blocks(4, 32)
    codes = b.masked(b.reshape(q, 4, 1, 8), NIBBLES)
    return b.multiply(b.lookup(by_plane(FP4), codes), b.lookup(E4M3_HALVES, b.reshape(scales, 4, 1, 1)))


BODIES: dict[str, Maker] = {f"gguf:{maker.__name__}": maker for maker in (mxfp4, nvfp4)}
