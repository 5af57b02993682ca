"""Row-scaled FP8: legal words and values (Section 3.4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.errors import ArgumentError, WordsError
from quantform.formats import FORMATS, RowScaledFormat, RowScaledWords
from words_maker import make_words

READ = {"fp8_e4m3fn_row_bf16": oracle.bf16, "fp8_e4m3fn_row_fp16": oracle.fp16}
FORMATS_HERE = [record for record in FORMATS.values() if isinstance(record, RowScaledFormat)]
every_format = pytest.mark.parametrize("record", FORMATS_HERE, ids=str)


def plain(record: RowScaledFormat, rows: int, columns: int) -> RowScaledWords:
    one = {"bf16": 0x3F80, "fp16": 0x3C00}[record.scale.name]
    return RowScaledWords(
        record, (rows, columns), np.full((rows, columns), 0x38, np.uint8), np.full(rows, one, np.uint16)
    )


def oracle_bits(words: RowScaledWords) -> np.ndarray:
    read = READ[words.format.name]
    return np.array(
        [
            [oracle.fp8_value(code, read(scale)) for code in row]
            for row, scale in zip(words.codes.tolist(), words.scales.tolist(), strict=True)
        ],
        np.uint32,
    ).reshape(words.shape)


@every_format
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(0, 6), columns=st.integers(1, 70))
def test_decode_is_the_oracle(record: RowScaledFormat, seed: int, rows: int, columns: int) -> None:
    words = make_words(record, (rows, columns), np.random.default_rng(seed))
    assert isinstance(words, RowScaledWords)
    words.validate()
    np.testing.assert_array_equal(words.decode().view(np.uint32), oracle_bits(words))


@every_format
def test_every_code_at_the_ends_of_the_scales(record: RowScaledFormat) -> None:
    """Products that are subnormal, tied and, under BF16's largest scales, infinite."""
    codes = np.array([[code for code in range(256) if code & 0x7F != 0x7F]], np.uint8)
    scales = [1, 2, 3, 5, 0x7F, 0x80, 0x3F80, record.infinity - 1]
    words = RowScaledWords(
        record, (len(scales), codes.size), np.repeat(codes, len(scales), axis=0), np.array(scales, np.uint16)
    )
    words.validate()
    np.testing.assert_array_equal(words.decode().view(np.uint32), oracle_bits(words))


def test_worked_values() -> None:
    record = FORMATS["fp8_e4m3fn_row_bf16"]
    codes = np.array([[0x00, 0x80, 0x38, 0xB8], [0x40, 0xC0, 0x7E, 0xFE]], np.uint8)
    words = RowScaledWords(record, (2, 4), codes, np.array([0x3F00, 0x4000], np.uint16))
    words.validate()
    values = words.decode()
    assert values.tolist() == [[0, 0, 0.5, -0.5], [4, -4, 896, -896]]
    assert np.signbit(values[0]).tolist() == [False, True, False, True]


@every_format
def test_golden_words(record: RowScaledFormat, ninfer_vectors: dict[str, np.ndarray]) -> None:
    stem = f"fp8_row_maxabs/{record.name}"
    codes = ninfer_vectors[f"{stem}/codes"]
    words = RowScaledWords(record, codes.shape, codes, ninfer_vectors[f"{stem}/scales"])
    words.validate()
    np.testing.assert_array_equal(words.decode().view(np.uint32), ninfer_vectors[f"{stem}/decoded"])


@every_format
@pytest.mark.parametrize("word", [0x7F, 0xFF])
def test_nan_codes(record: RowScaledFormat, word: int) -> None:
    words = plain(record, 3, 40_000)
    words.codes[1, 39_999] = words.codes[2, 5] = word
    with pytest.raises(WordsError, match="NaN") as caught:
        words.validate()
    assert caught.value.where == "row 1, column 39999"
    assert caught.value.found == f"0x{word:02X} (nan), the first of 2"


@every_format
@pytest.mark.parametrize("scale", [-0.0, -1.0, np.inf, -np.inf, np.nan])
def test_illegal_scales(record: RowScaledFormat, scale: float) -> None:
    words = plain(record, 4, 3)
    word = np.array([scale], np.float32).astype(record.scale.dtype).view(np.uint16)[0]
    words.scales[2:] = word
    with pytest.raises(WordsError, match="scale") as caught:
        words.validate()
    assert caught.value.where == "row 2"
    assert caught.value.found == f"0x{word:04X} ({scale}), the first of 2"


@every_format
def test_codes_under_a_zero_scale(record: RowScaledFormat) -> None:
    words = plain(record, 4, 3)
    words.scales[2] = 0
    words.codes[2] = 0x80, 0x01, 0xFE
    with pytest.raises(WordsError, match="zero scale") as caught:
        words.validate()
    assert caught.value.where == "row 2, column 1"
    assert str(caught.value.found).endswith("the first of 2")
    words.codes[2] = 0x80, 0x00, 0x80
    words.codes[3] = 0  # a scale without codes is legal
    words.validate()
    assert np.signbit(words.decode()[2]).tolist() == [True, False, True]


@every_format
def test_every_legal_scale(record: RowScaledFormat) -> None:
    scales = np.arange(record.infinity, dtype=np.uint16)
    RowScaledWords(record, (scales.size, 1), np.zeros((scales.size, 1), np.uint8), scales).validate()


def test_infinities_are_the_types_own() -> None:
    assert {record.scale.name: record.infinity for record in FORMATS_HERE} == {"bf16": 0x7F80, "fp16": 0x7C00}


@every_format
def test_arrays_of_the_wrong_type_or_shape(record: RowScaledFormat) -> None:
    good = plain(record, 2, 3)
    cases: list[tuple[tuple[int, ...], object, object, str]] = [
        ((2, 3), good.codes.view(np.int8), good.scales, "codes"),
        ((2, 3), good.codes[:, :2], good.scales, "codes"),
        ((2, 3), good.codes, good.scales[:, None], "scales"),
        ((2, 3), good.codes, good.scales.astype(np.float32), "scales"),
        ((2, 0), good.codes[:, :0], good.scales, "zero"),
        ((3,), good.codes[0], good.scales, "rank"),
    ]
    for shape, codes, scales, problem in cases:
        words = RowScaledWords(record, shape, codes, scales)  # type: ignore[arg-type]
        for use in (words.validate, words.decode):
            with pytest.raises(ArgumentError, match=problem):
                use()
