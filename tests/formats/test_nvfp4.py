"""`nvfp4`: legal words and values (Section 3.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.errors import ArgumentError, WordsError
from quantform.formats import FORMATS, Nvfp4Words
from words_maker import make_words

NVFP4 = FORMATS["nvfp4"]
ONE = 0x3F800000


def nibbles(codes: np.ndarray) -> np.ndarray:
    """One E2M1 word an element; the low nibble is the smaller column."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)


def plain(rows: int, columns: int, divisors: int = 1) -> Nvfp4Words:
    return Nvfp4Words(
        NVFP4,
        (rows, columns),
        np.full((rows, columns // 2), 0x22, np.uint8),
        np.full((rows, columns // 16), 0x38, np.uint8),
        np.full(divisors, ONE, np.uint32),
    )


def oracle_bits(words: Nvfp4Words) -> np.ndarray:
    rows, columns = words.shape
    codes = nibbles(words.codes)
    bits = np.zeros(words.shape, np.uint32)
    for n in range(rows):
        divisor = int(words.divisors[n // (rows // words.divisors.size)])
        for k in range(columns):
            bits[n, k] = oracle.nvfp4_value(int(codes[n, k]), int(words.scales[n, k // 16]), divisor)
    return bits


@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.integers(1, 3),
    divisors=st.integers(1, 4),
    columns=st.sampled_from([16, 48, 64]),
)
def test_decode_is_the_oracle(seed: int, share: int, divisors: int, columns: int) -> None:
    words = make_words(NVFP4, (share * divisors, columns), np.random.default_rng(seed), divisors)
    assert isinstance(words, Nvfp4Words)
    words.validate()
    np.testing.assert_array_equal(words.decode().view(np.uint32), oracle_bits(words))


def test_every_code_under_every_scale_divided_once() -> None:
    """Divisors that make subnormal, tied, infinite and zero quotients; the product of code and scale is exact."""
    scales = np.arange(0x7F, dtype=np.uint8)[:, None]
    codes = np.tile(np.array([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], np.uint8), (0x7F, 1))
    for divisor in (ONE, 0x40400000, 0x7F7FFFFF, 0x7E800001, 0x00000001, 0x00800000, 0x4B7FFFFF):
        words = Nvfp4Words(NVFP4, (0x7F, 16), codes, scales, np.array([divisor], np.uint32))
        words.validate()
        np.testing.assert_array_equal(words.decode().view(np.uint32), oracle_bits(words), hex(divisor))


def test_the_grid() -> None:
    """Codes 0 to 15 under scales 1 and 2, divided by 2."""
    codes = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2], np.uint8)
    words = Nvfp4Words(NVFP4, (1, 32), codes, np.array([[0x38, 0x40]], np.uint8), np.array([0x40000000], np.uint32))
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    expected = np.concatenate([grid / 2, grid])
    np.testing.assert_array_equal(words.decode()[0].view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("case", ["128x64x1", "256x128x2"])
def test_golden_words(case: str, ninfer_vectors: dict[str, np.ndarray]) -> None:
    stem = f"words/nvfp4/{case}"
    one_a_byte = ninfer_vectors[f"{stem}/codes"]
    words = Nvfp4Words(
        NVFP4,
        one_a_byte.shape,
        one_a_byte[:, ::2] | one_a_byte[:, 1::2] << 4,
        ninfer_vectors[f"{stem}/scales"],
        ninfer_vectors[f"{stem}/divisors"].view(np.uint32),
    )
    words.validate()
    np.testing.assert_array_equal(words.decode().view(np.uint32), ninfer_vectors[f"{stem}/decoded"])


def test_a_long_row_is_decoded_in_pieces() -> None:
    words = make_words(NVFP4, (2, 16 * 9001), np.random.default_rng(4), 2)
    assert isinstance(words, Nvfp4Words)
    head = Nvfp4Words(NVFP4, (2, 16), words.codes[:, -8:], words.scales[:, -1:], words.divisors)
    np.testing.assert_array_equal(words.decode()[:, -16:].view(np.uint32), oracle_bits(head))


@pytest.mark.parametrize("word", [0x7F, 0x80, 0x81, 0xFE, 0xFF])
def test_illegal_scales(word: int) -> None:
    words = plain(4, 64)
    words.scales[2, 3] = words.scales[3, 0] = word
    with pytest.raises(WordsError, match="scale") as caught:
        words.validate()
    assert caught.value.where == "row 2, group 3"
    assert str(caught.value.found).startswith(f"0x{word:02X} (")
    assert str(caught.value.found).endswith("the first of 2")


@pytest.mark.parametrize("word", [0, 0x80000000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001])
def test_illegal_divisors(word: int) -> None:
    words = plain(6, 64, 3)
    words.divisors[1] = word
    with pytest.raises(WordsError, match="divisor") as caught:
        words.validate()
    assert caught.value.where == "divisor 1, of rows 2 to 3"
    assert f"0x{word:08X}" in str(caught.value)


def test_legal_edges() -> None:
    words = plain(2, 16, 2)
    words.divisors[:] = 1, 0x7F7FFFFF
    words.scales[:, 0] = 0, 0x7E
    words.validate()


def test_arrays_of_the_wrong_type_or_shape() -> None:
    good = plain(4, 64)
    cases: list[tuple[tuple[int, ...], object, object, object, str]] = [
        ((4, 64), good.codes[:, :31], good.scales, good.divisors, "codes"),
        ((4, 64), good.codes, good.scales.view(np.int8), good.divisors, "scales"),
        ((4, 64), good.codes, good.scales, good.divisors.view(np.float32), "divisors"),
        ((4, 64), good.codes, good.scales, good.divisors[None], "divisors"),
        ((4, 64), good.codes, good.scales, 1.0, "divisors"),
        ((4, 64), good.codes, good.scales, np.full(3, ONE, np.uint32), "share the rows"),
        ((4, 64), good.codes, good.scales, np.zeros(0, np.uint32), "share the rows"),
        ((4, 72), good.codes, good.scales, good.divisors, "whole groups"),
        ((4, 0), good.codes, good.scales, good.divisors, "whole groups"),
        ((1, 4, 64), good.codes, good.scales, good.divisors, "rank"),
    ]
    for shape, codes, scales, divisors, problem in cases:
        words = Nvfp4Words(NVFP4, shape, codes, scales, divisors)  # type: ignore[arg-type]
        for use in (words.validate, words.decode):
            with pytest.raises(ArgumentError, match=problem):
                use()
