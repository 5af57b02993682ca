"""The `.ninfer` words and layouts one number and one bit at a time, written from the texts and from nothing else.

Values are pairs of a sign and an exact magnitude, so that zeros keep their sign. Only legal words are given to it.
"""

from __future__ import annotations

from fractions import Fraction

Value = tuple[int, Fraction]


def align(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def ieee(word: int, exponent_bits: int, fraction_bits: int) -> Value:
    """A finite number of an IEEE-like type (Section 3.1)."""
    fraction = word & (1 << fraction_bits) - 1
    exponent = word >> fraction_bits & (1 << exponent_bits) - 1
    sign = word >> fraction_bits + exponent_bits
    bias = (1 << exponent_bits - 1) - 1
    if exponent:
        fraction += 1 << fraction_bits
    return sign, fraction * Fraction(2) ** (max(exponent, 1) - bias - fraction_bits)


def bf16(word: int) -> Value:
    return ieee(word, 8, 7)


def fp16(word: int) -> Value:
    return ieee(word, 5, 10)


def fp32(word: int) -> Value:
    return ieee(word, 8, 23)


def e2m1(word: int) -> Value:
    return word >> 3, Fraction((0, 1, 2, 3, 4, 6, 8, 12)[word & 7], 2)


def e4m3fn(word: int) -> Value:
    """The four rows of Section 3.3; NaN is nobody's business here."""
    sign, e, m = word >> 7, word >> 3 & 15, word & 7
    if e == 0:
        return sign, m * Fraction(1, 2**9)
    return sign, (1 + Fraction(m, 8)) * Fraction(2) ** (e - 7)


def binary32(value: Value) -> int:
    """The word of the nearest binary32 number, ties to even."""
    sign, magnitude = value
    if magnitude == 0:
        return sign << 31
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, -126)
    steps = magnitude / Fraction(2) ** (exponent - 23)
    whole = steps.numerator // steps.denominator
    rest = steps - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    return sign << 31 | min((exponent + 126 << 23) + whole, 0x7F800000)


def times(a: Value, b: Value) -> Value:
    return a[0] ^ b[0], a[1] * b[1]


def grouped_value(code: int, scale: int) -> int:
    """Section 6.2. A code is a number, and the number zero has no sign."""
    return binary32(times(fp16(scale), (int(code < 0), Fraction(abs(code)))))


def nvfp4_value(code: int, scale: int, divisor: int) -> int:
    sign, magnitude = times(e2m1(code), e4m3fn(scale))
    return binary32((sign, magnitude / fp32(divisor)[1]))


def fp8_value(code: int, scale: Value) -> int:
    return binary32(times(e4m3fn(code), scale))


# name: code bits, group, base bytes a group, high bytes a group, what is added to a code before it is stored
ROW_SPLIT = {
    "q2_g64_fp16": (2, 64, 16, 0, 1),
    "q4_g64_fp16": (4, 64, 32, 0, 0),
    "q5_g64_fp16": (5, 64, 32, 8, 0),
    "q6_g64_fp16": (6, 64, 32, 16, 0),
    "q8_g32_fp16": (8, 32, 32, 0, 0),
    "t2_g128_fp16": (2, 128, 32, 0, 0),
}


def row_split(name: str, codes: list[list[int]], scales: list[list[int]]) -> bytes:
    bits, group, base, high, added = ROW_SPLIT[name]
    rows, columns = len(codes), len(codes[0])
    groups_per_row = align(columns, 128) // group
    high_offset = align(rows * groups_per_row * base, 256)
    scale_offset = high_offset + align(rows * groups_per_row * high, 256)
    payload = bytearray(scale_offset + rows * groups_per_row * 2)
    for row in range(rows):
        for lane_of_row in range(groups_per_row * group):
            code = codes[row][lane_of_row] if lane_of_row < columns else 0
            u = (code + added) % 2**bits
            lane = lane_of_row % group
            g = row * groups_per_row + lane_of_row // group
            if bits == 8:
                payload[g * base + lane] |= u
            elif bits == 2:
                payload[g * base + lane // 4] |= u << lane % 4 * 2
            else:
                payload[g * base + lane // 2] |= (u & 15) << lane % 2 * 4
                for bit in range(4, bits):
                    t = lane * (bits - 4) + bit - 4
                    payload[high_offset + g * high + t // 8] |= (u >> bit & 1) << t % 8
        for g, scale in enumerate(scales[row]):
            at = scale_offset + (row * groups_per_row + g) * 2
            payload[at : at + 2] = scale.to_bytes(2, "little")
    return bytes(payload)


def block_scale(codes: list[list[int]], scales: list[list[int]], divisors: list[int]) -> bytes:
    """`codes` are E2M1 words, one an element."""
    rows, columns = len(codes), len(codes[0])
    scale_offset = align(rows * columns // 2, 256)
    divisor_offset = scale_offset + rows * columns // 16
    payload = bytearray(divisor_offset)
    for n in range(rows):
        for k in range(columns):
            payload[(n * columns + k) // 2] |= codes[n][k] << k % 2 * 4
        for g in range(columns // 16):
            tile = n // 128 * (columns // 64) + g // 4
            payload[scale_offset + tile * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4] = scales[n][g]
    return bytes(payload) + b"".join(divisor.to_bytes(4, "little") for divisor in divisors)


def row_scale(codes: list[list[int]], scales: list[int]) -> bytes:
    plane = b"".join(map(bytes, codes))
    return plane.ljust(align(len(plane), 256), b"\0") + b"".join(scale.to_bytes(2, "little") for scale in scales)


def row_interleaved(codes: list[list[int]], scales: list[int]) -> bytes:
    return b"".join(bytes(row) + scale.to_bytes(2, "little") for row, scale in zip(codes, scales, strict=True))
