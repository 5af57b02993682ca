"""Scalar encoders written from the specification's text, one number at a time: what the methods are judged by.

Nothing here uses the package under test or NumPy's conversions. Rounding is `round_to`, on exact fractions; only
`search`, which needs some 70 candidates a group, rounds by `struct`, which `test_encoder_oracle.py` holds against it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Binary:
    """A binary floating-point type: significant bits, exponent of the smallest step, largest finite value."""

    bits: int
    least: int
    largest: Fraction


FP32 = Binary(24, -149, Fraction(2) ** 128 - Fraction(2) ** 104)
FP16 = Binary(11, -24, Fraction(65504))
BF16 = Binary(8, -133, Fraction(2) ** 128 - Fraction(2) ** 120)
E4M3FN = Binary(4, -9, Fraction(448))
E2M1 = Binary(2, -1, Fraction(6))

GRIDS = {
    "q4_g64_fp16": (64, -8, 7),
    "q5_g64_fp16": (64, -16, 15),
    "q6_g64_fp16": (64, -32, 31),
    "q8_g32_fp16": (32, -127, 127),
}
"""Group size, smallest and largest code of the formats that have an encoder."""


class RefusedError(Exception):
    """The text says that encoding fails."""


def round_to(value: Fraction, kind: Binary) -> Fraction:
    """The nearest value of a type, ties to even.

    Raises:
        RefusedError: It is beyond the largest.
    """
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - kind.bits + 1, kind.least)
    result = round(value / step) * step  # Python rounds a fraction's half to the even integer
    if abs(result) > kind.largest:
        raise RefusedError
    return result


def word_of(value: Fraction, kind: Binary, *, negative: bool = False) -> int:
    """The word of a value of a type; `negative` is the sign of a zero."""
    magnitude, sign = abs(value), value < 0 or (value == 0 and negative)
    width = {24: 32, 11: 16, 8: 16, 4: 8, 2: 4}[kind.bits]
    normal = Fraction(2) ** (kind.least + kind.bits - 1)
    if magnitude < normal:
        word = magnitude / Fraction(2) ** kind.least
    else:
        steps = 0
        while magnitude >= 2 * normal:
            magnitude, steps = magnitude / 2, steps + 1
        word = magnitude / Fraction(2) ** kind.least + steps * 2 ** (kind.bits - 1)
    assert word.denominator == 1
    return int(word) | sign << width - 1


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def absmax(values: Sequence[float], qmin: int, qmax: int) -> tuple[list[int], int]:
    """Section 7.2 for the logical values of one group: codes, and the scale's binary16 word."""
    exact = [round_to(Fraction(value), FP32) for value in values]
    amax = max(abs(value) for value in exact)
    if amax == 0:
        return [0] * len(exact), 0
    raw = round_to(amax / qmax, FP32)
    scale = round_to(raw, FP16)
    if scale == 0:
        scale = Fraction(1, 2**24)
    inverse = round_to(1 / scale, FP32)
    codes = [clamp(round(round_to(value * inverse, FP32)), qmin, qmax) for value in exact]
    return codes, word_of(scale, FP16)


def fp8_row(values: Sequence[float], kind: Binary) -> tuple[list[int], int]:
    """`fp8_row_maxabs` for one row: E4M3FN words, and the scale's word in `kind`."""
    exact = [round_to(Fraction(value), BF16) for value in values]
    signs = [math.copysign(1, value) < 0 for value in values]
    largest = max(abs(value) for value in exact)
    if largest == 0:
        return [0] * len(exact), 0
    scale = round_to(round_to(largest / 448, FP32), kind)
    if scale == 0:
        scale = Fraction(2) ** kind.least
    inverse = round_to(1 / scale, FP32)
    codes = []
    for value, sign in zip(exact, signs, strict=True):
        ratio = round_to(value * inverse, FP32)
        ratio = max(Fraction(-448), min(ratio, Fraction(448)))
        codes.append(word_of(round_to(ratio, E4M3FN), E4M3FN, negative=sign))
    return codes, word_of(scale, kind)


def nvfp4(rows: Sequence[Sequence[float]]) -> tuple[list[list[int]], list[list[int]], int]:
    """`nvfp4_maxabs` for a matrix: codes, scale words, and the divisor's binary32 word."""
    exact = [[round_to(Fraction(value), FP32) for value in row] for row in rows]
    largest = max(abs(value) for row in exact for value in row)
    divisor = round_to(2688 / largest, FP32) if largest else Fraction(1)
    codes: list[list[int]] = []
    scales: list[list[int]] = []
    for row, original in zip(exact, rows, strict=True):
        codes.append([])
        scales.append([])
        for first in range(0, len(row), 16):
            scaled = [round_to(value * divisor, FP32) for value in row[first : first + 16]]
            raw = round_to(max(map(abs, scaled)) / 6, FP32)
            scale = round_to(min(raw, Fraction(448)), E4M3FN)
            scales[-1].append(word_of(scale, E4M3FN))
            for value, source in zip(scaled, original[first : first + 16], strict=True):
                if scale == 0:
                    codes[-1].append(0)
                    continue
                codes[-1].append(e2m1(round_to(value / scale, FP32), negative=math.copysign(1, source) < 0))
    return codes, scales, word_of(divisor, FP32)


def e2m1(value: Fraction, *, negative: bool = False) -> int:
    """The E2M1 code nearest to a value, ties to the even code, saturating."""
    inside = max(Fraction(-6), min(value, Fraction(6)))
    return word_of(round_to(inside, E2M1), E2M1, negative=negative)


def f32(value: float) -> float:
    """binary64 to binary32, as a binary64 number; infinite where it does not fit."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def f16(value: float) -> float:
    """binary64 to binary16, as a binary64 number; infinite where it does not fit."""
    try:
        rounded: float = struct.unpack("<e", struct.pack("<e", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def f16_word(value: float) -> int:
    word: int = struct.unpack("<H", struct.pack("<e", value))[0]
    return word


def search_codes(values: Sequence[float], scale: float, qmin: int, qmax: int) -> list[int]:
    inverse = f32(1 / scale)
    return [clamp(round(f32(value * inverse)), qmin, qmax) for value in values]


def folded(terms: list[float], lanes: int) -> float:
    """The documented order of the sums: halves of `lanes` lanes onto halves; lanes without a value are zero."""
    sums = terms + [0.0] * (lanes - len(terms))
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def search(  # noqa: C901 - one text, one function
    values: Sequence[float],
    lanes: int,
    qmin: int,
    qmax: int,
    importance: Sequence[float] | None = None,
    *,
    negative: bool = False,
) -> tuple[list[int], int]:
    """`grouped_search` for the logical binary32 values of one group: codes, and the scale's binary16 word."""
    weights = [1.0] * len(values) if importance is None else list(importance)
    codes, word = absmax(values, qmin, qmax)
    amax = max(abs(value) for value in values)
    if amax == 0:
        return codes, word
    start: float = struct.unpack("<e", struct.pack("<H", word))[0]

    def error(scale: float) -> float:
        found = search_codes(values, scale, qmin, qmax)
        residuals = [value - scale * code for value, code in zip(values, found, strict=True)]
        return folded([(weight * r) * r for weight, r in zip(weights, residuals, strict=True)], lanes)

    def rounded(candidate: float) -> float:
        scale = f16(f32(candidate))
        if scale == 0 and candidate != 0:
            scale = math.copysign(2.0**-24, candidate)
        return scale

    def neighbour(scale: float, step: int) -> float:
        magnitude = f16_word(abs(scale))
        moved = magnitude + step
        if magnitude == 0 or not 1 <= moved <= 0x7BFF:
            return 0.0
        near: float = struct.unpack("<e", struct.pack("<H", moved))[0]
        return math.copysign(near, scale)

    def least_squares(scale: float) -> float:
        found = search_codes(values, scale, qmin, qmax)
        triples = list(zip(weights, values, found, strict=True))
        above = folded([(weight * value) * code for weight, value, code in triples], lanes)
        below = folded([(weight * code) * code for weight, _, code in triples], lanes)
        return rounded(above / max(below, 1e-300)) if below > 0 else 0.0

    best, least = start, error(start)

    def compete(candidate: float) -> None:
        nonlocal best, least
        if candidate == 0 or not math.isfinite(candidate) or (candidate < 0 and not negative):
            return
        found = error(candidate)
        if found < least:
            best, least = candidate, found

    ratios = [float(f"{0.70 + 0.02 * step:.2f}") for step in range(25)]
    extreme = next(value for value in values if abs(value) == amax)
    fit = least_squares(start)
    candidates = [
        *(rounded((amax / qmax) * ratio) for ratio in ratios),
        *(rounded((extreme / qmin) * ratio) for ratio in ratios),
        *(rounded(start * 2.0**power) for power in (-2, -1, 1, 2)),
        *(neighbour(start, step) for step in (-2, -1, 1, 2)),
        fit,
        *(rounded(fit * 2.0**power) for power in (-1, 1)),
        *(neighbour(fit, step) for step in (-2, -1, 1, 2)),
    ]
    for candidate in candidates:
        compete(candidate)
    refit = least_squares(best)
    last = [refit, neighbour(refit, -1), neighbour(refit, 1)]
    assert len(candidates) + len(last) == 68
    for candidate in last:
        compete(candidate)
    return search_codes(values, best, qmin, qmax), f16_word(best)
