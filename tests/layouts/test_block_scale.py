"""`block_scale_k16_m128x4_v1`: geometry, the swizzle, and rows with the divisors of their source matrices."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, Nvfp4Words
from quantform.layouts import LAYOUTS, block_scale, reader_of
from words_maker import assert_same_words, faults_of, make_words

LAYOUT = LAYOUTS["block_scale_k16_m128x4_v1"]
NVFP4 = FORMATS["nvfp4"]


def made(rows: int, columns: int, divisors: int = 1, seed: int = 0) -> Nvfp4Words:
    words = make_words(NVFP4, (rows, columns), np.random.default_rng(seed), divisors)
    assert isinstance(words, Nvfp4Words)
    return words


def test_sizes() -> None:
    assert LAYOUT.encoded_size("nvfp4", (14336, 5120)) == 41_287_684
    assert LAYOUT.encoded_size("nvfp4", (128, 64)) == 4612
    assert LAYOUT.encoded_size("nvfp4", (256, 64), 2) == 2 * 4608 + 8


def test_worked_geometry() -> None:
    """`[128, 64]`: codes, scales at 4096 in the order of the swizzle, the divisor at 4608."""
    words = made(128, 64)
    payload = LAYOUT.pack(words)
    assert payload.size == 4612
    assert payload[:4096].tobytes() == words.codes.tobytes()
    for row in range(128):
        for lane in range(4):
            assert payload[4096 + row % 32 * 16 + row // 32 * 4 + lane] == words.scales[row, lane]
    assert payload[4608:].tobytes() == words.divisors.astype("<u4").tobytes()


@given(seed=st.integers(0, 2**32 - 1), tiles=st.integers(1, 2), columns=st.integers(1, 3), split=st.booleans())
def test_every_byte_is_where_the_text_has_it(seed: int, tiles: int, columns: int, *, split: bool) -> None:
    words = made(128 * tiles, 64 * columns, tiles if split else 1, seed)
    codes = np.stack([words.codes & 15, words.codes >> 4], axis=-1).reshape(words.shape)
    expected = oracle.block_scale(codes.tolist(), words.scales.tolist(), words.divisors.tolist())
    assert LAYOUT.pack(words).tobytes() == expected


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((127, 64), "dimension 0 .* multiple of 128, found 127"),
        ((128, 32), "dimension 1 .* multiple of 64, found 32"),
        ((64, 64), "dimension 0"),
        ((128, 80), "dimension 1"),
    ],
)
def test_partial_tiles_are_refused(shape: tuple[int, int], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        LAYOUT.encoded_size("nvfp4", shape)


def test_words_that_only_the_format_allows_are_not_packed() -> None:
    words = made(128, 64, 128)
    words.validate()
    with pytest.raises(ArgumentError, match="128 divisors do not share 128 rows"):
        LAYOUT.pack(words)


@pytest.mark.parametrize(
    ("rows", "divisors"),
    [
        (slice(None), [0, 1, 2]),
        (slice(0, 128), [0]),
        (slice(128, 384), [1, 2]),
        (slice(127, 129), [0, 1]),
        (slice(126, 129), [0, 0, 1]),
        ([383, 0], [2, 0]),
        ([5, 6, 7, 300, 301, 302], [0, 2]),
        ([5, 6, 7, 300, 301, 302, 1, 200, 3], [0, 0, 0, 2, 2, 2, 0, 1, 0]),
        ([9, 9, 9], [0]),
        ([], [0]),
        (np.r_[256:384, 0:128], [2, 0]),
        (np.r_[0:128, 64:128, 128:192], [0, 0, 0, 1]),
    ],
)
def test_rows_have_as_few_divisors_as_they_need(rows: Any, divisors: list[int]) -> None:
    words = made(384, 64, 3)
    found = LAYOUT.words_of_rows(reader_of(LAYOUT.pack(words)), "nvfp4", (384, 64), rows, 3)
    assert isinstance(found, Nvfp4Words)
    assert found.divisors.tolist() == words.divisors[divisors].tolist()
    np.testing.assert_array_equal(found.codes, words.codes[rows])
    np.testing.assert_array_equal(found.scales, words.scales[rows])
    found.validate()


def test_equal_divisors_of_different_sources_stay_apart() -> None:
    words = made(256, 64, 2)
    words.divisors[1] = words.divisors[0]
    found = LAYOUT.words_of_rows(reader_of(LAYOUT.pack(words)), "nvfp4", (256, 64), slice(None), 2)
    assert_same_words(found, words)


def test_whole_tiles_can_be_stored_again() -> None:
    words = made(512, 128, 4)
    rows = np.r_[384:512, 128:256]
    found = LAYOUT.words_of_rows(reader_of(LAYOUT.pack(words)), "nvfp4", (512, 128), rows, 4)
    payload = LAYOUT.pack(found)
    np.testing.assert_array_equal(LAYOUT.unpack(payload, "nvfp4", (256, 128), 2).decode(), words.decode()[rows])


def test_whole_tiles_are_spans_of_both_planes() -> None:
    """Tiles 1 and 2 of four, and their divisors, copied without looking at a code."""
    words = made(512, 128, 4)
    payload = LAYOUT.pack(words)
    assert isinstance(LAYOUT, block_scale.BlockScaleLayout)
    spans = [payload[p.offset + 128 * p.row_bytes :][: 256 * p.row_bytes] for p in LAYOUT.planes((512, 128))]
    spans.append(payload[LAYOUT.divisor_offset((512, 128)) + 4 :][:8])
    found = LAYOUT.unpack(np.concatenate(spans), "nvfp4", (256, 128), 2)
    assert isinstance(found, Nvfp4Words)
    np.testing.assert_array_equal(found.codes, words.codes[128:384])
    np.testing.assert_array_equal(found.scales, words.scales[128:384])
    np.testing.assert_array_equal(found.divisors, words.divisors[1:3])


def test_scales_are_gathered_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gather across many tiles holds a few at a time, and reads neighbouring ones at once."""
    monkeypatch.setattr(block_scale, "_GATHERED_BYTES", 3 * 128 * 4)
    words = made(128 * 10, 64)
    payload = LAYOUT.pack(words)
    rows = np.random.default_rng(3).permutation(1280)[:700]
    sizes: list[int] = []

    def read(offset: int, out: np.ndarray) -> None:
        if offset >= 1280 * 32:
            sizes.append(out.size)
        reader_of(payload)(offset, out)

    found = LAYOUT.words_of_rows(read, "nvfp4", (1280, 64), rows)
    assert isinstance(found, Nvfp4Words)
    np.testing.assert_array_equal(found.scales, words.scales[rows])
    assert sizes == [4, 1536, 1536, 1536, 512]


def test_each_illegal_word_is_found_where_it_is() -> None:
    """Every scale and divisor of a few tiles: the swizzle's way back, and each byte read once."""
    words = make_words(FORMATS["nvfp4"], (512, 128), np.random.default_rng(5), 2)
    assert isinstance(words, Nvfp4Words)
    payload = LAYOUT.pack(words)
    assert faults_of(LAYOUT, payload, "nvfp4", (512, 128), 2) == []
    for row, group in ((0, 0), (31, 7), (32, 3), (127, 4), (128, 0), (300, 5), (511, 7)):
        words.scales[row, group] |= 0x80
        with mock.patch.object(type(words.format), "validate"):
            changed = LAYOUT.pack(words)
        (at,) = np.flatnonzero(changed != payload)
        (fault,) = faults_of(LAYOUT, changed, "nvfp4", (512, 128), 2)
        assert (fault.rule, fault.offset, fault.row, fault.group) == ("scale", int(at), row, group)
        words.scales[row, group] &= 0x7F
    payload[-1] |= 0x80
    (fault,) = faults_of(LAYOUT, payload, "nvfp4", (512, 128), 2)
    assert (fault.rule, fault.offset, fault.row, fault.divisor) == ("divisor", payload.size - 4, 256, 1)
    times = np.zeros(payload.size, np.uint8)

    def read(offset: int, out: np.ndarray) -> None:
        times[offset : offset + out.size] += 1
        reader_of(payload)(offset, out)

    list(LAYOUT.faults(read, "nvfp4", (512, 128), 2))
    assert times.min() == times.max() == 1
