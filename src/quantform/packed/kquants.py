"""The K-quants and IQ4_XS: blocks of 256 values whose groups of 16 or 32 have packed scales of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import fields, planes
from quantform.packed.codebooks import IQ4
from quantform.packed.profiles import Profile, block

__all__ = ["PROFILES"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def _scaled(d: npt.NDArray[Any], local: npt.NDArray[Any]) -> F32:
    """`M(d, local)` for each group: `[n]` and `[n, groups]` give `[n, groups, 1]`."""
    product: F32 = d.astype(np.float32)[:, None] * local.astype(np.float32)
    return product[:, :, None]


def _groups(values: npt.NDArray[Any], groups: int) -> F32:
    """Values `[n, 256]` as binary32 `[n, groups, 256 / groups]`."""
    return values.astype(np.float32).reshape(len(values), groups, 256 // groups)


def _flat(values: F32) -> F32:
    return values.reshape(len(values), 256)


def decode_q2_k(blocks: npt.NDArray[Any]) -> F32:
    """`D(M(M(d, scale), v), M(dmin, minimum))`, 16 values a group."""
    scale = _scaled(blocks["d"], blocks["scales"] & 15)
    minimum = _scaled(blocks["dmin"], blocks["scales"] >> 4)
    return _flat(scale * _groups(planes(blocks["q"], 2, 32), 16) - minimum)


def decode_q3_k(blocks: npt.NDArray[Any]) -> F32:
    """`M(M(d, s), v - 4 (1 - h))`, 16 values a group; a clear mask bit subtracts four."""
    low = planes(blocks["scales"][:, :8], 4, 8)
    high = planes(blocks["scales"][:, 8:], 2, 4)
    scales = (low | high << 4).astype(np.int8) - 32
    codes = (planes(blocks["q"], 2, 32) | planes(blocks["mask"], 1, 32) << 2).astype(np.int8) - 4
    return _flat(_scaled(blocks["d"], scales) * _groups(codes, 16))


def _scales_minima(packed: U8) -> tuple[U8, U8]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6) << 4), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 6) << 4), axis=1)
    return scales, minima


def _affine(blocks: npt.NDArray[Any], codes: U8) -> F32:
    scales, minima = _scales_minima(blocks["scales"])
    return _flat(_scaled(blocks["d"], scales) * _groups(codes, 8) - _scaled(blocks["dmin"], minima))


def decode_q4_k(blocks: npt.NDArray[Any]) -> F32:
    """`D(M(M(d, a), v), M(dmin, m))`, 32 values a group."""
    return _affine(blocks, planes(blocks["q"], 4, 32))


def decode_q5_k(blocks: npt.NDArray[Any]) -> F32:
    """As Q4_K with a fifth bit from `high`."""
    return _affine(blocks, planes(blocks["q"], 4, 32) | planes(blocks["high"], 1, 32) << np.uint8(4))


def decode_q6_k(blocks: npt.NDArray[Any]) -> F32:
    """`M(M(d, s), v - 32)`, signed scales, 16 values a group."""
    codes = (planes(blocks["low"], 4, 64) | planes(blocks["high"], 2, 32) << 4).astype(np.int8) - 32
    return _flat(_scaled(blocks["d"], blocks["scales"]) * _groups(codes, 16))


def decode_iq4_xs(blocks: npt.NDArray[Any]) -> F32:
    """`M(M(d, s), IQ4[v])`, signed 6-bit scales, 32 values a group."""
    low = fields(blocks["scales"], 4, 2).reshape(len(blocks), 8)
    high = fields(blocks["high"], 2, 8).astype(np.uint8)
    scales = (low | high << 4).astype(np.int8) - 32
    values = IQ4[planes(blocks["q"], 4, 16)].reshape(len(blocks), 8, 32)
    return _flat(_scaled(blocks["d"], scales) * values)


PROFILES = (
    Profile(
        "gguf:q2_k",
        "Q2_K",
        10,
        256,
        block(("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("dmin", "<f2")),
        decode_q2_k,
    ),
    Profile(
        "gguf:q3_k",
        "Q3_K",
        11,
        256,
        block(("mask", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")),
        decode_q3_k,
    ),
    Profile(
        "gguf:q4_k",
        "Q4_K",
        12,
        256,
        block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)),
        decode_q4_k,
    ),
    Profile(
        "gguf:q5_k",
        "Q5_K",
        13,
        256,
        block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)),
        decode_q5_k,
    ),
    Profile(
        "gguf:q6_k",
        "Q6_K",
        14,
        256,
        block(("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")),
        decode_q6_k,
    ),
    Profile(
        "gguf:iq4_xs",
        "IQ4_XS",
        23,
        256,
        block(("d", "<f2"), ("high", "<u2"), ("scales", "u1", 4), ("q", "u1", 128)),
        decode_iq4_xs,
    ),
)
