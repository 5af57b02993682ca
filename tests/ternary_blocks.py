"""Ternary blocks made from their digits, the way their releases make them: what the readers are tested with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def base3(digits: Sequence[int]) -> int:
    """The byte of five digits, most significant first; four digits leave the last one zero."""
    number = 0
    for digit in [*digits, 0][:5]:
        number = number * 3 + digit
    return (number * 256 + 242) // 243


def _trit_bytes(digits: Sequence[int], widths: Sequence[tuple[int, int]]) -> bytes:
    """Runs of `(bytes, digits a byte)`: the first digits of a run's bytes, then their second digits, and so on."""
    made, at = bytearray(), 0
    for width, count in widths:
        run = digits[at : at + width * count]
        made += bytes(base3([run[plane * width + byte] for plane in range(count)]) for byte in range(width))
        at += width * count
    assert at == len(digits)
    return bytes(made)


def ptq1_0(digits: Sequence[int], scale: int) -> bytes:
    """128 digits 0..2 and a binary16 word."""
    return _trit_bytes(digits, [(16, 5), (8, 5), (2, 4)]) + scale.to_bytes(2, "little")


def tq1_0(digits: Sequence[int], scale: int) -> bytes:
    """256 digits 0..2 and a binary16 word."""
    return _trit_bytes(digits, [(32, 5), (16, 5), (4, 4)]) + scale.to_bytes(2, "little")


def tq2_0(digits: Sequence[int], scale: int) -> bytes:
    """256 digits 0..3 and a binary16 word: two runs of 32 bytes, four planes each."""
    made = bytearray()
    for first in (0, 128):
        made += bytes(sum(digits[first + 32 * plane + byte] << 2 * plane for plane in range(4)) for byte in range(32))
    return bytes(made) + scale.to_bytes(2, "little")


def q2_0(digits: Sequence[int], scale: int) -> bytes:
    """64 digits 0..3 and a binary16 word; 128 of them make a PQ2_0 block."""
    packed = bytes(sum(digits[at + lane] << 2 * lane for lane in range(4)) for at in range(0, len(digits), 4))
    return scale.to_bytes(2, "little") + packed


pq2_0 = q2_0


def as_rows(*rows: Sequence[bytes]) -> np.ndarray:
    """uint8 `[rows, row_bytes]` of rows of blocks."""
    return np.stack([np.frombuffer(b"".join(row), np.uint8) for row in rows])
