"""Words that decoders get wrong: the ends of every class of number, and those that round to other types at a tie."""

from __future__ import annotations

__all__ = ["BFLOAT16", "BINARY16", "BINARY16_FEW", "BINARY16_NONFINITE", "BINARY32", "BINARY32_NONFINITE", "INT32"]

BINARY16: tuple[int, ...] = (
    *(0x3C00, 0xBC00),  # 1 and -1
    *(0x0001, 0x8001, 0x03FF),  # the smallest and the largest subnormal
    0x0400,  # the smallest normal number
    *(0x7BFF, 0xFBFF),  # the largest
    *(0x3C04, 0x3C0C),  # ties on the way to bfloat16, to the even word below and above
    *(0xB555, 0x2E67),  # all bits of the fraction in use
)
"""Finite binary16 words that are not zero."""

BINARY16_FEW: tuple[int, ...] = (0x3C00, 0x8001, 0x03FF, 0xFBFF, 0x3C04, 0x3C0C, 0xB555)
"""Fewer of them, for large blocks."""

BINARY16_NONFINITE: tuple[int, ...] = (0x7C00, 0xFC00, 0x7FFF, 0xFFFF, 0x7C01)
"""Both infinities; quiet NaN of all ones, which adding to overflows; a signaling NaN."""

BINARY32: tuple[int, ...] = (
    *(0x3F800000, 0xBF800000),
    *(0x00000001, 0x80000001, 0x007FFFFF),
    0x00800000,
    *(0x7F7FFFFF, 0xFF7FFFFF),
    *(0x3F808000, 0x3F818000),
    *(0x3F801000, 0x3F803000),  # ties on the way to binary16
    *(0xBEAAAAAB, 0x3DCCCCCD),
)
"""Finite binary32 words that are not zero."""

BINARY32_NONFINITE: tuple[int, ...] = (0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001)
"""Both infinities; quiet NaN of all ones, which adding to overflows; a signaling NaN."""

BFLOAT16: tuple[int, ...] = (
    *(0x3F80, 0xBF80),
    *(0x0001, 0x8001, 0x007F),
    0x0080,
    *(0x7F7F, 0xFF7F),
    *(0x7F80, 0xFF80, 0x7FC0, 0x7FFF, 0xFFFF, 0xFF81),
    *(0x3300, 0xB3C0, 0x3301, 0x32FF),  # ties on the way to binary16's smallest numbers, and beside them
)
"""Bfloat16 words of every kind that are not zero."""

INT32: tuple[int, ...] = (
    *(0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000),
    *(0x01000001, 0x01000003, 0xFEFFFFFF, 0x01020304),  # beyond 24 bits
    *(0x01010001, 0x0102FFFF),  # ties on the way to bfloat16 once they are rounded to binary32
    *(257, 259, 2049, 0xFFFFF7FD),  # ties on the way to bfloat16 and binary16
    *(65504, 65519, 65520, 65535, 0xFFFF0010, 0xFFFF0011),  # the end of binary16
)
"""Integers of every kind, as words."""
