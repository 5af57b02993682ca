"""The 4-bit and 8-bit codes by the equations of Section 3.3, and conversion to the output types, rounded once."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import ninfer_oracle as oracle
from quantform._scalars import FLOAT_OUTPUTS, SCALARS, convert
from quantform.formats.small_floats import E2M1, E4M3FN

TARGETS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23)}


def test_every_e2m1_word() -> None:
    assert E2M1.dtype == np.float32
    assert E2M1.view(np.uint32).tolist() == [oracle.binary32(oracle.e2m1(word)) for word in range(16)]
    assert not E2M1.flags.writeable


def test_every_e4m3fn_word() -> None:
    for word in range(256):
        if word & 0x7F == 0x7F:
            assert np.isnan(E4M3FN[word])
        else:
            assert int(E4M3FN.view(np.uint32)[word]) == oracle.binary32(oracle.e4m3fn(word)), hex(word)
    assert E4M3FN[0x7E] == 448
    assert E4M3FN[1] == 2.0**-9


@pytest.mark.parametrize(("name", "read"), [("bf16", oracle.bf16), ("fp16", oracle.fp16)])
def test_every_16_bit_word_widens_exactly(name: str, read: object) -> None:
    scalar = SCALARS[name]
    finite = [
        word for word in range(0, 1 << 16, 7) if np.isfinite(np.uint16(word).view(scalar.dtype).astype(np.float32))
    ]
    assert callable(read)
    wide = convert(np.array(finite, np.uint16).view(scalar.dtype), np.dtype(np.float32))
    assert wide.view(np.uint32).tolist() == [oracle.binary32(read(word)) for word in finite]


def neighbours(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Every finite magnitude of a 16-bit type and the next one, as exact binary64 values."""
    dtype = FLOAT_OUTPUTS[name]
    infinity = 0x7C00 if name == "float16" else 0x7F80
    values = np.arange(infinity + 1, dtype=np.uint16).view(dtype).astype(np.float64)
    values[-1] = 2 * values[-2] - values[-3]  # where infinity would be if the type went on
    return values[:-1], values[1:]


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_ties_and_what_is_beside_them(name: str, source: str) -> None:
    """Around every midpoint: just below goes down, the tie to even, just above up; subnormals and overflow too."""
    low, high = neighbours(name)
    middle = ((low + high) / 2).astype(source)
    np.testing.assert_array_equal(middle.astype(np.float64), (low + high) / 2)
    words = np.arange(low.size, dtype=np.uint16)
    dtype = FLOAT_OUTPUTS[name]
    wide = np.dtype(source).type
    for values, expected in (
        (np.nextafter(middle, wide(0)), words),
        (middle, words + words % 2),
        (np.nextafter(middle, wide(np.inf)), words + 1),
    ):
        np.testing.assert_array_equal(convert(values, dtype).view(np.uint16), expected)
        np.testing.assert_array_equal(convert(-values, dtype).view(np.uint16), expected | 0x8000)


def test_binary64_to_binary32_rounds_once() -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.standard_normal(50), rng.standard_normal(50) * 2.0**-140, [3.5e38, 2.0**-150]])
    expected = [oracle.binary32((int(np.signbit(value)), abs(Fraction(value)))) for value in values.tolist()]
    assert convert(values, np.dtype(np.float32)).view(np.uint32).tolist() == expected


def test_float8_from_binary64_rounds_once() -> None:
    f8 = np.dtype(ml_dtypes.float8_e4m3fn)
    values = np.array([1 + 2.0**-4, 1 + 2.0**-4 + 2.0**-40, 2.0**-10, 2.0**-10 * (1 + 2.0**-40), 448.0, -0.0])
    assert convert(values, f8).view(np.uint8).tolist() == [0x38, 0x39, 0x00, 0x01, 0x7E, 0x80]
