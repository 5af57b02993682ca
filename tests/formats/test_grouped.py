"""Grouped integers: which words are legal (Section 5), and what they are worth (Section 6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.errors import ArgumentError, WordsError
from quantform.formats import FORMATS, GroupedFormat, GroupedWords
from words_maker import make_words

FORMATS_HERE = [record for record in FORMATS.values() if isinstance(record, GroupedFormat)]
BY_NAME = {record.name: record for record in FORMATS_HERE}
every_format = pytest.mark.parametrize("record", FORMATS_HERE, ids=str)


def plain(record: GroupedFormat, *shape: int) -> GroupedWords:
    """Codes 1 under scales of one."""
    scales = (*shape[:-1], record.groups(shape[-1]))
    return GroupedWords(record, shape, np.ones(shape, np.int8), np.full(scales, 0x3C00, np.uint16))


def oracle_bits(words: GroupedWords) -> np.ndarray:
    record = words.format
    assert isinstance(record, GroupedFormat)
    bits = np.zeros(words.shape, np.uint32)
    for place in np.ndindex(words.shape):
        scale = int(words.scales[*place[:-1], place[-1] // record.group])
        bits[place] = oracle.grouped_value(int(words.codes[place]), scale)
    return bits


@every_format
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(0, 3), max_size=3),
    columns=st.sampled_from([1, 31, 32, 33, 64, 65, 127, 128, 130]),
)
def test_decode_is_the_oracle_at_any_rank(record: GroupedFormat, seed: int, leading: list[int], columns: int) -> None:
    words = make_words(record, (*leading, columns), np.random.default_rng(seed))
    assert isinstance(words, GroupedWords)
    words.validate()
    values = words.decode()
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), oracle_bits(words))


@every_format
def test_golden_words(record: GroupedFormat, ninfer_vectors: dict[str, np.ndarray]) -> None:
    found = 0
    for key, bits in ninfer_vectors.items():
        stem, _, last = key.rpartition("/")
        if last != "decoded" or f"/{record.name}/" not in key:
            continue
        codes = ninfer_vectors[f"{stem}/codes"]
        words = GroupedWords(record, codes.shape, codes, ninfer_vectors[f"{stem}/scales"])
        words.validate()
        np.testing.assert_array_equal(words.decode().view(np.uint32), bits)
        found += 1
    for sign in ("positive", "signed"):
        stem = f"grouped_search/{record.name}/{sign}"
        if f"{stem}/codes" in ninfer_vectors:
            codes = ninfer_vectors[f"{stem}/codes"]
            GroupedWords(record, codes.shape, codes, ninfer_vectors[f"{stem}/scales"]).validate()
    assert found >= 2


@every_format
def test_a_piece_ends_where_a_group_does(record: GroupedFormat) -> None:
    """One row of more values than a piece has, and more rows than one."""
    for shape in ((200_001,), (3, 70_001), (1000, 130)):
        words = make_words(record, shape, np.random.default_rng(5))
        assert isinstance(words, GroupedWords)
        words.validate()
        scales = np.repeat(words.scales.view(np.float16).astype(np.float32), record.group, axis=-1)
        expected = words.codes.astype(np.float32) * scales[..., : shape[-1]]
        np.testing.assert_array_equal(words.decode().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_are_converted_from_binary32_once(dtype: str) -> None:
    """1 + 2^-10 times 3: exact in binary32, a tie in binary16 that goes to the even neighbour."""
    record = BY_NAME["q4_g64_fp16"]
    words = GroupedWords(record, (1, 2), np.array([[3, -3]], np.int8), np.array([[0x3C01]], np.uint16))
    value = {"float16": 3 + 2.0**-8, "bfloat16": 3.0, "float64": 3 + 3 * 2.0**-10}[dtype]
    decoded = words.decode(dtype)
    assert decoded.dtype.name == dtype
    assert decoded.astype(np.float64).tolist() == [[value, -value]]


def test_scales_are_signed_multipliers_with_subnormals() -> None:
    record = BY_NAME["q4_g64_fp16"]
    codes = np.array([[-8, 7, 0, 1]], np.int8)
    for word, scale in ((0x0001, 2.0**-24), (0x8001, -(2.0**-24)), (0x7BFF, 65504.0), (0xBC00, -1.0)):
        words = GroupedWords(record, (1, 4), codes, np.array([[word]], np.uint16))
        words.validate()
        assert words.decode().tolist() == [[-8 * scale, 7 * scale, 0.0 * scale, scale]]


def test_strided_words() -> None:
    words = make_words(BY_NAME["q6_g64_fp16"], (6, 130), np.random.default_rng(1))
    assert isinstance(words, GroupedWords)
    wide = np.zeros((6, 256), np.int8)
    wide[:, :130] = words.codes
    strided = GroupedWords(words.format, (3, 130), wide[::2, :130], words.scales[::2])
    strided.validate()
    np.testing.assert_array_equal(strided.decode(), words.decode()[::2])


# --- legality ---------------------------------------------------------------------------------------------------------


@every_format
def test_codes_outside_the_interval(record: GroupedFormat) -> None:
    for bad in {-128, record.qmin - 1, min(record.qmax + 1, 127)} - set(range(record.qmin, record.qmax + 1)):
        words = plain(record, 4, 300)
        words.codes[1, 297] = words.codes[3, 0] = bad
        with pytest.raises(WordsError, match="out of range") as caught:
            words.validate()
        error = caught.value
        assert error.where == f"row 1, group {297 // record.group}, column 297"
        assert error.expected == f"{record.qmin} to {record.qmax}"
        assert error.found == f"{bad} (int8 word 0x{bad & 0xFF:02X}), the first of 2"
    for edge in (record.qmin, record.qmax):
        words = plain(record, 2, 5)
        words.codes[...] = edge
        words.validate()


def test_the_two_restricted_words() -> None:
    for name, bad in (("q8_g32_fp16", -128), ("t2_g128_fp16", -2)):
        words = plain(BY_NAME[name], 1, 3)
        words.codes[0, 2] = bad
        with pytest.raises(WordsError, match=f"found {bad} .*the only one"):
            words.validate()


@every_format
@pytest.mark.parametrize("word", [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF])
def test_infinite_and_nan_scales(record: GroupedFormat, word: int) -> None:
    words = plain(record, 3, 300)
    words.scales[2, 1] = word
    with pytest.raises(WordsError, match="scale") as caught:
        words.validate()
    assert caught.value.where == "row 2, group 1"
    assert f"0x{word:04X}" in str(caught.value)
    assert "the only one" in str(caught.value)


@every_format
def test_negative_zero_scales(record: GroupedFormat) -> None:
    words = plain(record, 3, 300)
    words.scales[1:, 2] = 0x8000
    if record.any_finite_scale:
        words.validate()
        assert np.signbit(words.decode()[1, 2 * record.group])
        return
    with pytest.raises(WordsError, match="scale") as caught:
        words.validate()
    assert caught.value.where == "row 1, group 2"
    assert caught.value.found == "0x8000 (-0.0), the first of 2"


@every_format
def test_codes_under_a_zero_scale(record: GroupedFormat) -> None:
    words = plain(record, 3, 300)
    last = record.groups(300) - 1
    words.scales[1, last] = 0
    words.codes[1, last * record.group] = 0
    words.codes[2, :] = 0  # a scale without codes is legal
    if record.any_finite_scale:
        words.validate()
        return
    with pytest.raises(WordsError, match="under a zero scale") as caught:
        words.validate()
    column = last * record.group + 1
    assert caught.value.where == f"row 1, group {last}, column {column}"
    assert str(caught.value.found).endswith(f"the first of {300 - column}")
    words.codes[1, column:] = 0
    words.validate()


@every_format
def test_scales_of_every_legal_word(record: GroupedFormat) -> None:
    finite = np.array([w for w in range(1 << 16) if w & 0x7C00 != 0x7C00 and w != 0x8000], np.uint16)
    codes = np.zeros((finite.size, 1), np.int8)
    GroupedWords(record, codes.shape, codes, finite[:, None]).validate()


@pytest.mark.parametrize(
    ("shape", "place", "where"),
    [
        ((200,), (130,), "group 2, column 130"),
        ((2, 3, 200), (1, 2, 130), "row [1, 2], group 2, column 130"),
        ((2, 1, 3, 200), (1, 0, 2, 0), "row [1, 0, 2], group 0, column 0"),
    ],
)
def test_places_in_tensors_of_any_rank(shape: tuple[int, ...], place: tuple[int, ...], where: str) -> None:
    words = plain(BY_NAME["q4_g64_fp16"], *shape)
    words.codes[place] = 8
    with pytest.raises(WordsError) as caught:
        words.validate()
    assert caught.value.where == where


def test_the_first_bad_place_and_the_count_span_pieces() -> None:
    words = plain(BY_NAME["q4_g64_fp16"], 2, 200_000)
    words.codes[0, 150_000] = 8
    words.codes[1, 3] = 9
    words.codes[1, 199_999] = 9
    with pytest.raises(WordsError, match="first of 3") as caught:
        words.validate()
    assert caught.value.where == "row 0, group 2343, column 150000"


def test_arrays_of_the_wrong_type_or_shape() -> None:
    record = BY_NAME["q4_g64_fp16"]
    good = plain(record, 2, 130)
    cases: list[tuple[object, object, tuple[int, ...], str]] = [
        (good.codes.astype(np.int16), good.scales, (2, 130), "codes"),
        (good.codes[:, :129], good.scales, (2, 130), "codes"),
        (good.codes.tolist(), good.scales, (2, 130), "codes"),
        (good.codes, good.scales.view(np.float16), (2, 130), "scales"),
        (good.codes, good.scales.astype(">u2"), (2, 130), "scales"),
        (good.codes, good.scales[:, :2], (2, 130), "scales"),
        (np.int8(1), np.zeros(1, np.uint16), (), "rank"),
        (np.zeros((2, 0), np.int8), np.zeros((2, 0), np.uint16), (2, 0), "zero"),
    ]
    for codes, scales, shape, problem in cases:
        words = GroupedWords(record, shape, codes, scales)  # type: ignore[arg-type]
        for use in (words.validate, words.decode):
            with pytest.raises(ArgumentError, match=problem):
                use()
