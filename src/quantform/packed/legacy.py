"""Blocks of 32 to 128 values with one binary16 scale: the conventional formats and IQ4_NL.

Each product and sum below is one binary32 operation; integers become binary32 exactly before they are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import fields, planes
from quantform.packed.codebooks import IQ4
from quantform.packed.profiles import Profile, block

__all__ = ["PROFILES"]

F32 = npt.NDArray[np.float32]


def _scale(field: npt.NDArray[Any]) -> F32:
    """A binary16 field of every block, widened exactly, as a column."""
    return field.astype(np.float32)[:, None]


def _five_bits(blocks: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    high = fields(blocks["high"], 1, 8).reshape(len(blocks), 32)
    return planes(blocks["q"], 4, 16) | high << np.uint8(4)


def decode_q4_0(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, v - 8)`."""
    return _scale(blocks["d"]) * (planes(blocks["q"], 4, 16).astype(np.float32) - 8)


def decode_q4_1(blocks: npt.NDArray[Any]) -> F32:
    """`A(M(d, v), m)`."""
    return _scale(blocks["d"]) * planes(blocks["q"], 4, 16).astype(np.float32) + _scale(blocks["m"])


def decode_q5_0(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, v - 16)` with a fifth bit from the mask."""
    return _scale(blocks["d"]) * (_five_bits(blocks).astype(np.float32) - 16)


def decode_q5_1(blocks: npt.NDArray[Any]) -> F32:
    """`A(M(d, v), m)` with a fifth bit from the mask."""
    return _scale(blocks["d"]) * _five_bits(blocks).astype(np.float32) + _scale(blocks["m"])


def decode_q8(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, q)` for Q8_0, Q8_1 and Q8_K; cached sums do not enter."""
    return _scale(blocks["d"]) * blocks["q"].astype(np.float32)


def decode_iq4_nl(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, IQ4[v])`."""
    return _scale(blocks["d"]) * IQ4[planes(blocks["q"], 4, 16)]


def decode_q1_0(blocks: npt.NDArray[Any]) -> F32:
    """`d` where the bit is set, else `-d`."""
    d = _scale(blocks["d"])
    return np.where(fields(blocks["q"], 1, 8).reshape(len(blocks), 128), d, -d)


def decode_q2_0(blocks: npt.NDArray[Any]) -> F32:
    """`M(d, v - 1)`; all four codes are defined."""
    return _scale(blocks["d"]) * (planes(blocks["q"], 2, 1).astype(np.float32) - 1)


PROFILES = (
    Profile("gguf:q4_0", "Q4_0", 2, 32, block(("d", "<f2"), ("q", "u1", 16)), decode_q4_0),
    Profile("gguf:q4_1", "Q4_1", 3, 32, block(("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)), decode_q4_1),
    Profile("gguf:q5_0", "Q5_0", 6, 32, block(("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)), decode_q5_0),
    Profile(
        "gguf:q5_1",
        "Q5_1",
        7,
        32,
        block(("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)),
        decode_q5_1,
    ),
    Profile("gguf:q8_0", "Q8_0", 8, 32, block(("d", "<f2"), ("q", "i1", 32)), decode_q8),
    Profile("gguf:q8_1", "Q8_1", 9, 32, block(("d", "<f2"), ("s", "<f2"), ("q", "i1", 32)), decode_q8),
    Profile("gguf:q8_k", "Q8_K", 15, 256, block(("d", "<f4"), ("q", "i1", 256), ("sums", "<i2", 16)), decode_q8),
    Profile("gguf:iq4_nl", "IQ4_NL", 20, 32, block(("d", "<f2"), ("q", "u1", 16)), decode_iq4_nl),
    Profile("gguf:q1_0", "Q1_0", 41, 128, block(("d", "<f2"), ("q", "u1", 16)), decode_q1_0),
    Profile("gguf:q2_0", "Q2_0", 42, 64, block(("d", "<f2"), ("q", "u1", 16)), decode_q2_0),
)
