"""`fp8_row_maxabs` against Section 3.4's recipe, the golden words and the specification's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_oracle import BF16, FP16, Binary, RefusedError, fp8_row
from encoder_values import values
from quantform.encode import encode
from quantform.errors import ArgumentError, UnsupportedError, ValuesError
from quantform.formats import RowScaledWords

FORMATS = {"fp8_e4m3fn_row_bf16": BF16, "fp8_e4m3fn_row_fp16": FP16}


def encoded(array: Any, format: str = "fp8_e4m3fn_row_bf16") -> RowScaledWords:
    words = encode(array, format, "fp8_row_maxabs")
    assert isinstance(words, RowScaledWords)
    words.validate()
    return words


@pytest.mark.parametrize("format", FORMATS)
def test_golden(ninfer_vectors: dict[str, np.ndarray], format: str) -> None:
    golden = {
        name: ninfer_vectors[f"fp8_row_maxabs/{format}/{name}"] for name in ("source", "codes", "scales", "decoded")
    }
    words = encoded(golden["source"], format)
    np.testing.assert_array_equal(words.codes, golden["codes"])
    np.testing.assert_array_equal(words.scales, golden["scales"])
    np.testing.assert_array_equal(words.decode().view(np.uint32), golden["decoded"])


@pytest.mark.parametrize(("format", "kind"), FORMATS.items())
@settings(max_examples=200)
@given(data=st.data())
def test_oracle(format: str, kind: Binary, data: st.DataObject) -> None:
    row = data.draw(values(data.draw(st.sampled_from([1, 7, 33])), float(BF16.largest)))
    try:
        codes, scale = fp8_row(row.tolist(), kind)
    except RefusedError:
        with pytest.raises(ValuesError, match=r"row 0: no (bf16|fp16) scale encodes the row"):
            encode(row[None, :], format)
        return
    words = encoded(row[None, :], format)
    assert words.scales.tolist() == [scale]
    assert words.codes[0].tolist() == codes


def test_ties_and_signed_zeros() -> None:
    words = encoded([[0, -0.0, 0, -0.0, 0], [448, 1.0625, 1.1875, -1.0625, -1.1875], [1, -0.0, 0.5, -1, -0.5]])
    assert words.scales.tolist() == [0x0000, 0x3F80, 0x3B12]
    assert words.codes[0].tolist() == [0] * 5
    assert words.codes[1].tolist() == [0x7E, 0x38, 0x3A, 0xB8, 0xBA]
    assert words.codes[2, 1] == 0x80


def test_streamed_rows() -> None:
    rows = [[448, 1.0625, -1.1875, 0], [0, -0.0, 0, -0.0], [2, -2, 1, -1]]
    words = encoded(rows)
    assert words.codes.tobytes().hex(" ") == "7e 38 ba 00 00 00 00 00 7e fe 76 f6"
    assert words.scales.tolist() == [0x3F80, 0x0000, 0x3B92]
    assert encoded(rows, "fp8_e4m3fn_row_fp16").scales.tolist() == [0x3C00, 0x0000, 0x1C92]


def test_binary64_is_rounded_once_to_bf16() -> None:
    # Twice rounded, by way of binary32, the value would be the tie's even neighbour, and the code 0x76 one less.
    above = 1 + 2.0**-8 + 2.0**-40
    once, expected = encoded([[above, 2.0]]), encoded([[1 + 2.0**-7, 2.0]])
    assert once.codes.tolist() == expected.codes.tolist()
    assert once.scales.tolist() == expected.scales.tolist()


def test_underflow_and_overflow_of_scales() -> None:
    assert encoded([[2.0**-24, 0]], "fp8_e4m3fn_row_fp16").scales.tolist() == [0x0001]
    source = np.zeros((4, 3), np.float32)
    source[2:, 1] = 65520 * 448.0
    with pytest.raises(ValuesError, match="no fp16 scale encodes the row") as caught:
        encode(source, "fp8_e4m3fn_row_fp16")
    assert caught.value.where == "values, row 2"
    assert str(caught.value.found).endswith("the first of 2")
    with pytest.raises(ValuesError, match="no bf16 scale"):  # the reciprocal of 2^-133 is beyond binary32
        encode([[2.0**-130, 0]], "fp8_e4m3fn_row_bf16")


def test_refused_sources() -> None:
    with pytest.raises(ValuesError, match="row 1, column 0: the value is not finite"):
        encode([[1.0], [np.inf]], "fp8_e4m3fn_row_bf16")
    with pytest.raises(ValuesError, match="row 0, column 1: the value does not fit bfloat16"):
        encode(np.array([[1, 3.4e38]], np.float32), "fp8_e4m3fn_row_bf16")
    with pytest.raises(ArgumentError, match="holds matrices"):
        encode([1.0, 2.0], "fp8_e4m3fn_row_bf16")
    with pytest.raises(UnsupportedError, match="does not make bf16"):
        encode([[1.0]], "bf16", "fp8_row_maxabs")


def test_rows_do_not_know_each_other() -> None:
    source = np.random.default_rng(4).standard_normal((3000, 50)).astype(np.float32)
    whole = encoded(source)
    for rows in (slice(0, 1), slice(7, 1400), slice(2999, 3000)):
        part = encoded(source[rows])
        np.testing.assert_array_equal(part.codes, whole.codes[rows])
        np.testing.assert_array_equal(part.scales, whole.scales[rows])
