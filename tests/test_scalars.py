"""Conversion of values between plain number types: one rounding, whatever the types."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from quantform._scalars import SCALARS, convert

BF16 = np.dtype(ml_dtypes.bfloat16)
_MAGNITUDES = [Fraction(float(value)) for value in np.arange(0x7F80, dtype=np.uint16).view(BF16).astype(np.float64)]


def nearest_bf16(value: Fraction) -> int:
    """The word nearest to an exact value, found among all of them; ties go to the even word."""
    magnitude, sign = abs(value), 0x8000 if value < 0 else 0
    low, high = 0, len(_MAGNITUDES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _MAGNITUDES[middle] <= magnitude else (low, middle)
    step = _MAGNITUDES[low + 1] - _MAGNITUDES[low] if low + 1 < len(_MAGNITUDES) else _MAGNITUDES[-1] - _MAGNITUDES[-2]
    excess = 2 * (magnitude - _MAGNITUDES[low])
    return sign | (low + (excess > step or (excess == step and low % 2 == 1)))


def test_binary64_to_bf16_rounds_once() -> None:
    below, above = 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8 + 2.0**-40
    words = convert(np.array([below, 1 + 2.0**-8, above, 1 + 3 * 2.0**-8 - 2.0**-40, -above, -0.0]), BF16)
    assert [hex(word) for word in words.view(np.uint16)] == ["0x3f80", "0x3f80", "0x3f81", "0x3f81", "0xbf81", "0x8000"]


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "int32", "uint32"])
def test_wide_types_round_once_to_bf16(dtype: str) -> None:
    rng = np.random.default_rng(7)
    if dtype == "float64":
        words = rng.integers(0, 0x7F7F, 500)
        middle = np.array([float((_MAGNITUDES[word] + _MAGNITUDES[word + 1]) / 2) for word in words])
        values = np.concatenate(
            [middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle, [1e300, 1e-300]]
        )
    else:
        limits = np.iinfo(dtype)
        random = rng.integers(limits.min, limits.max, 500, dtype=dtype, endpoint=True)
        ties = [(1 << bit) + (1 << bit - 8) + off for bit in range(9, limits.bits - 1) for off in (-1, 0, 1)]
        values = np.concatenate([random, random >> 9, random >> 20, np.array([*ties, limits.min, limits.max], dtype)])
    expected = [nearest_bf16(Fraction(value)) for value in values.tolist()]
    assert convert(values, BF16).view(np.uint16).tolist() == expected


def test_special_values_pass() -> None:
    words = convert(np.array([np.inf, -np.inf, np.nan]), BF16)
    assert words[0] == np.inf
    assert words[1] == -np.inf
    assert np.isnan(words[2])


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e5m2"])
def test_the_same_type_keeps_its_bits(name: str) -> None:
    scalar = SCALARS[name]
    values = np.arange(1 << 8 * scalar.nbytes, dtype=scalar.word_dtype).view(scalar.dtype)
    assert convert(values, scalar.dtype) is values
