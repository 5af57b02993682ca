"""`cast_direct`: bits that stay, values that are rounded once, integers that are exact."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from quantform.encode import encode
from quantform.errors import ArgumentError, UnsupportedError, ValuesError
from quantform.formats import DirectWords

BF16 = np.dtype(ml_dtypes.bfloat16)


def words_of(values: npt.ArrayLike, format: str) -> npt.NDArray[Any]:
    words = encode(values, format, "cast_direct")
    assert isinstance(words, DirectWords)
    words.validate()
    assert words.shape == np.shape(values)
    return words.words


@pytest.mark.parametrize(
    ("format", "dtype", "words"),
    [
        ("bf16", BF16, [0x0000, 0x8000, 0x0001, 0x7FC1, 0x7F81, 0xFF80]),
        ("fp32", np.float32, [0x00000000, 0x80000000, 0x00000001, 0x7FC01234, 0x7F800001, 0xFF800000]),
        ("int32", np.int32, [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF]),
    ],
)
def test_the_same_type_keeps_every_bit(format: str, dtype: Any, words: list[int]) -> None:
    stored = np.array(words, f"u{np.dtype(dtype).itemsize}")
    assert words_of(stored.view(dtype), format).tolist() == words
    matrix = np.asfortranarray(np.stack([stored, stored])).view()
    assert words_of(np.stack([stored.view(dtype)] * 2, axis=1)[:, 1], format).tolist() == words
    assert matrix.shape == (2, len(words))


def test_big_endian_words_keep_every_bit() -> None:
    words = np.array([0x7F800001, 0x80000000], ">u4")
    assert words_of(words.view(">f4"), "fp32").tolist() == [0x7F800001, 0x80000000]


def test_fp32_to_bf16_rounds_to_even() -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x00008000, 0x00018000, 0x80000001, 0x7F7F7FFF], np.uint32)
    assert [hex(word) for word in words_of(words.view(np.float32), "bf16")] == [
        *("0x3f80", "0x3f82", "0x3f81", "0x0", "0x2", "0x8000", "0x7f7f")
    ]


def test_fp64_to_bf16_rounds_once() -> None:
    assert words_of([1 + 2.0**-8 + 2.0**-40], "bf16").tolist() == [0x3F81]


def test_wider_types_hold_the_values() -> None:
    assert words_of(np.array([0x0001, 0x8000], np.uint16).view(np.float16), "fp32").view(np.float32).tolist() == [
        2.0**-24,
        0,
    ]
    assert words_of(np.array([0x3FC0], np.uint16).view(BF16), "fp32").view(np.float32).tolist() == [1.5]
    assert words_of(np.array([True, False]), "fp32").view(np.float32).tolist() == [1, 0]
    assert words_of(np.array([2**24 + 1]), "fp32").view(np.float32).tolist() == [2**24]


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3), (0, 4), (0,)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert words_of(np.ones(shape), "fp32").shape == shape


@pytest.mark.parametrize("format", ["bf16", "fp32"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_other_types_must_be_finite(format: str, value: float) -> None:
    with pytest.raises(ValuesError, match="values, row 0, column 1: the value is not finite"):
        encode([0.0, value], format)


def test_overflow_is_refused() -> None:
    with pytest.raises(ValuesError, match="row 1, column 0: the value does not fit bfloat16"):
        encode(np.array([[1.0], [3.4e38]], np.float32), "bf16")
    with pytest.raises(ValuesError, match="does not fit float32"):
        encode([1e39], "fp32")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64", "float16", BF16, "float32", "float64"])
def test_integers_are_exact(dtype: Any) -> None:
    values = [0, 1, 100] if np.dtype(dtype).kind == "u" else [0, -1, 100]
    assert words_of(np.array(values).astype(dtype), "int32").view(np.int32).tolist() == values
    assert words_of(np.array([True]), "int32").tolist() == [1]
    assert words_of(np.array([-0.0]), "int32").tolist() == [0]


def test_integer_limits() -> None:
    limits = [-(2**31), 2**31 - 1]
    for dtype in ("int64", "float64"):
        assert words_of(np.array(limits, dtype), "int32").view(np.int32).tolist() == limits
    assert words_of(np.array([-(2.0**31)], np.float32), "int32").tolist() == [0x80000000]


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 2**31]),
        np.array([0, -(2**31) - 1]),
        np.array([0, 2**31], np.uint32),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([0, 2.0**31], np.float32),  # the limit 2^31 - 1 itself rounds to 2^31 in binary32
        np.array([0, 2.0**31 - 0.5]),
        np.array([0, np.nan]),
        np.array([0, -np.inf], BF16),
        np.array([0, 1e300]),
    ],
)
def test_int32_range(values: npt.NDArray[Any]) -> None:
    with pytest.raises(ValuesError, match="row 0, column 1: the value does not fit int32") as caught:
        encode(values, "int32")
    assert str(caught.value.found).endswith("the only one")


def test_int32_fractions() -> None:
    source = np.zeros((300, 300), np.float32)
    source[299, 298:] = 0.5
    with pytest.raises(ValuesError, match="is not an integer") as caught:
        encode(source, "int32")
    assert caught.value.where == "values, row 299, column 298"
    assert caught.value.found == "0.5, the first of 2"


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="is made by grouped_absmax or grouped_search or import_encoded"):
        encode([[1.0]], "q4_g64_fp16", "cast_direct")
    with pytest.raises(ArgumentError, match="cast_direct takes none"):
        encode([1.0], "bf16", rounding="up")
