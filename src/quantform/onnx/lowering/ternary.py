"""Bodies of the ternary blocks."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantform.onnx.lowering.body import Body, Maker

__all__ = ["BODIES"]


def tq1_0(b: Body) -> str:
    """`M(d, digit - 1)`: five digits of 32 bytes, then of 16, four of the last 4, first digits first."""
    q, d = b.blocks(52, 2)
    sections = ((0, 32, 5), (32, 16, 5), (48, 4, 4))
    places = [(start + j, p) for start, width, count in sections for p in range(count) for j in range(width)]
    byte, place = np.array(places).T
    # the digits of all bytes, one table for each place
    digits = ((np.arange(256) * 3 ** np.arange(5)[:, None] & 255) * 3 >> 8).astype(np.float32) - 1
    index = b.cast(b.op("Gather", q, byte, axis=1), TensorProto.INT32)
    values = b.gather(digits.reshape(-1), b.add(index, (256 * place).astype(np.int32)))
    return b.multiply(values, b.half(d))


def tq2_0(b: Body) -> str:
    """`M(d, v - 1)`: 2 halves, 4 planes, 32 values."""
    q, d = b.blocks(64, 2, rank=4)
    codes = b.floats(b.planes(b.reshape(q, 2, 1, 32), 2, 4, 1))
    return b.multiply(b.subtract(codes, np.array(1, np.float32)), b.half(d))


BODIES: dict[str, Maker] = {f"gguf:{maker.__name__}": maker for maker in (tq1_0, tq2_0)}
