"""Bodies of the grid formats: a row of a grid for each lane of eight values, or two rows of four."""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto

from quantform.onnx.lowering.body import Array, Body, Maker, contributions, rows
from quantform.packed.bits import signs
from quantform.packed.codebooks import codebook

__all__ = ["BODIES"]

_INT64 = TensorProto.INT64


@functools.cache
def _explicit(*shape: int) -> Array:
    """The eight signs in each byte, of `shape` a row."""
    return signs(np.arange(256)).reshape(256, *shape)


@functools.cache
def _completed(*shape: int) -> Array:
    """The eight signs of each seven bits, of `shape` a row."""
    return signs(np.arange(128), parity=True).reshape(128, *shape)


def _half_steps(factor: float) -> Array:
    """`factor * (0.5 + t)` for nibbles t; a block's scale times that is exact."""
    return (factor * (0.5 + np.arange(16))).astype(np.float32)


# In the 32 bits of a group: the sign indices of four lanes, 7 bits each, and a nibble.
_AUX = contributions(
    [
        (0, 0, 0x7F, 1),
        (0, 1, 0x80, 1),
        (1, 1, 0x3F, 2),
        (1, 2, 0xC0, 1),
        (2, 2, 0x1F, 4),
        (2, 3, 0xE0, 1),
        (3, 3, 0x0F, 8),
        (3, 4, 0xF0, 1),
    ],
    5,
)


def _with_aux(b: Body, d: str, aux: str, factor: float, values: str, *row: int) -> str:
    """`M(M(c, v), s)` of values `[n, 8, 4, *row]`, from the groups' words `[n, 8, 4]` and the scale `[n, 1, 1]`."""
    sign, local = b.split(b.summed(aux, _AUX), 4, 1, axis=2)
    scale = b.multiply(b.gather(_half_steps(factor), local), d)
    scaled = b.multiply(values, b.reshape(scale, 8, 1, *[1] * len(row)))
    return b.multiply(scaled, b.gather(_completed(*row), sign))


def iq2_xxs(b: Body) -> str:
    """8 groups, 4 lanes, 8 values; four indices and a word of signs and scale a group."""
    d, q = b.blocks(2, 64, rank=3, kind=_INT64)
    index, aux = b.split(b.reshape(q, 8, 8), 4, 4, axis=2)
    return _with_aux(b, b.half_at(d), aux, 0.25, b.gather(codebook("iq2xxs_grid"), index), 8)


def iq3_xxs(b: Body) -> str:
    """8 groups, 4 lanes, 2 rows of 4 values; the words of signs and scales at the end."""
    d, q, aux = b.blocks(2, 64, 32, rank=3, kind=_INT64)
    values = b.gather(codebook("iq3xxs_grid"), b.reshape(q, 8, 4, 2))
    return _with_aux(b, b.half_at(d), b.reshape(aux, 8, 4), 0.5, values, 2, 4)


def _nibble_scales(b: Body, d: str, scales: str, values: Array, *shape: int) -> str:
    """`M(d, values[t])` for both nibbles of each byte, `[n, *shape]`; `d` has the rank of that."""
    return b.multiply(b.reshape(b.gather(rows(4, values), scales), *shape), d)


def iq2_xs(b: Body) -> str:
    """16 pairs, 2 lanes, 8 values; the upper byte of a word is its signs and the ninth bit of its index."""
    d, q, scales = b.blocks(2, 64, 8, rank=4, kind=_INT64)
    words = b.reshape(q, 16, 2, 2)
    by_byte = codebook("iq2xs_grid").reshape(2, 256, 8).swapaxes(0, 1)
    values = b.op("GatherND", by_byte, b.masked(words, np.array([0xFF, 0x01])))
    sign = b.gather(np.repeat(_completed(8), 2, axis=0), b.op("Gather", words, np.array(1), axis=3))
    scaled = b.multiply(values, _nibble_scales(b, b.half_at(d), scales, _half_steps(0.25), 16, 1, 1))
    return b.multiply(scaled, sign)


def _indexed(b: Body, grid: Array, low: str, high: str, width: int, *shape: int) -> str:
    """Rows by indices whose low bytes are `low`, and whose high bits are the fields of `width` bits in `high`."""
    upper = b.reshape(b.gather(rows(width, 256 * np.arange(1 << width), np.int64), high), *shape)
    return b.gather(grid, b.add(low, upper))


def iq2_s(b: Body) -> str:
    """16 pairs, 2 lanes, 8 values."""
    d, q, high, scales = b.blocks(2, 64, 8, 8, rank=5, kind=_INT64)
    low, explicit = b.split(b.reshape(q, 2, 16, 2), 1, 1, axis=1)
    values = _indexed(b, codebook("iq2s_grid"), low, high, 2, 1, 16, 2)
    scaled = b.multiply(values, _nibble_scales(b, b.half_at(d), scales, _half_steps(0.25), 1, 16, 1, 1))
    return b.multiply(scaled, b.gather(_explicit(8), explicit))


def iq3_s(b: Body) -> str:
    """8 groups, 4 lanes, 2 rows of 4 values."""
    d, q, high, explicit, scales = b.blocks(2, 64, 8, 32, 4, rank=5, kind=_INT64)
    values = _indexed(b, codebook("iq3s_grid"), b.reshape(q, 8, 4, 2), high, 1, 8, 4, 2)
    scaled = b.multiply(values, _nibble_scales(b, b.half_at(d), scales, 1 + 2 * np.arange(16), 8, 1, 1, 1))
    return b.multiply(scaled, b.gather(_explicit(2, 4), b.reshape(explicit, 8, 4)))


@functools.cache
def _shifted() -> Array:
    """The grid of IQ1 with an eighth added, then with an eighth taken: both are exact."""
    grid = codebook("iq1s_grid")
    return np.concatenate((grid + np.float32(0.125), grid - np.float32(0.125)))


# In the two bytes of a group: the high bits of four lanes' indices, 3 bits each, then a scale, then the shift's
# direction, which chooses the half of the grid.
_GROUP = contributions(
    [
        (0, 0, 0x07, 256),
        (0, 1, 0x38, 256),
        (0, 2, 0xC0, 256),
        (1, 2, 0x01, 1024),
        (1, 3, 0x0E, 256),
        *((1, lane, 0x80, 2048) for lane in range(4)),
        (1, 4, 0x70, 1),
    ],
    5,
)


def iq1_s(b: Body) -> str:
    """8 groups, 4 lanes, 8 values."""
    d, q, high = b.blocks(2, 32, 16, rank=3, kind=_INT64)
    upper, local = b.split(b.summed(b.reshape(high, 8, 2), _GROUP), 4, 1, axis=2)
    values = b.gather(_shifted(), b.add(b.reshape(q, 8, 4), upper))
    scale = b.multiply(b.gather(_odd(8), local), b.half_at(d))
    return b.multiply(values, b.reshape(scale, 8, 1, 1))


def _odd(count: int) -> Array:
    """`2 t + 1`."""
    return (1 + 2 * np.arange(count)).astype(np.float32)


# In the two bytes of a word: four scales of three bits. In the tops of the four words: the bytes of the block's scale.
_WORD = contributions([(0, 0, 0x07, 1), (0, 1, 0x38, 1), (0, 2, 0xC0, 1), (1, 2, 0x01, 4), (1, 3, 0x0E, 1)], 4)
_TOPS = contributions([(1, 0, 0xF0, 1), (3, 0, 0xF0, 16), (5, 1, 0xF0, 1), (7, 1, 0xF0, 16)], 2)


def iq1_m(b: Body) -> str:
    """16 pairs, 2 lanes, 8 values; a nibble is the high bits of an index and its shift."""
    q, high, scales = b.blocks(32, 16, 8, rank=3, kind=_INT64)
    local = b.gather(_odd(8), b.summed(b.reshape(scales, 4, 2), _WORD))
    scale = b.multiply(local, b.half_at(b.summed(scales, _TOPS)))
    values = _indexed(b, _shifted(), b.reshape(q, 16, 2), high, 4, 16, 2)
    return b.multiply(values, b.reshape(scale, 16, 1, 1))


BODIES: dict[str, Maker] = {
    f"gguf:{maker.__name__}": maker for maker in (iq2_xxs, iq2_xs, iq3_xxs, iq1_s, iq3_s, iq2_s, iq1_m)
}
