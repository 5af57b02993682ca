"""Placing some rows of a larger tensor: the pieces, however cut, make the payload of the whole."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from quantform._rows import matrix_shape
from quantform.errors import ArgumentError, WordsError
from quantform.formats import FORMATS, Format, Nvfp4Words, Words
from quantform.layouts import LAYOUTS
from quantform.methods import row_range
from words_maker import make_words

NAMES = [*(name for name in FORMATS if not name.startswith("gguf_")), "gguf_q4_k", "gguf_q8_0", "gguf_iq1_m"]


def assembled(words: Words, cuts: list[int], divisors: int = 1) -> np.ndarray:
    """The payload from pieces, bytes that nobody writes being 0xEE."""
    layout = LAYOUTS[words.format.default_layout]
    payload = np.full(layout.encoded_size(words.format, words.shape, divisors), 0xEE, np.uint8)
    covered = np.zeros(payload.size, np.int64)
    for first, end in itertools.pairwise(cuts):
        for offset, data in layout.place(row_range(words, first, end), words.shape, first, divisors):
            payload[offset : offset + data.size] = data
            covered[offset : offset + data.size] += 1
    for offset, count in layout.gaps(words.format, words.shape, divisors):
        payload[offset : offset + count] = 0
        covered[offset : offset + count] += 1
    assert (covered == 1).all()
    return payload


def shape_of(record: Format) -> tuple[int, int]:
    return (384, 192) if record.name == "nvfp4" else (7, 512) if record.name.startswith("gguf_") else (7, 200)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_pieces_make_the_whole(name: str, pieces: int) -> None:
    record = FORMATS[name]
    words = make_words(record, shape_of(record), np.random.default_rng(pieces))
    rows = matrix_shape(words.shape)[0]
    unit = 128 if name == "nvfp4" else 1
    cuts = [rows * index // pieces // unit * unit for index in range(pieces + 1)]
    expected = LAYOUTS[record.default_layout].pack(words)
    assert np.array_equal(assembled(words, cuts), expected)


@pytest.mark.parametrize("cuts", [[0, 128, 256, 384, 512], [0, 256, 512], [0, 128, 256, 512]])
def test_divisors_go_with_the_first_rows_of_their_shares(cuts: list[int]) -> None:
    words = make_words(FORMATS["nvfp4"], (512, 128), np.random.default_rng(1))
    assert isinstance(words, Nvfp4Words)
    words = dataclasses.replace(words, divisors=np.array([1.5, 2.5], np.float32).view(np.uint32))
    layout = LAYOUTS["block_scale_k16_m128x4_v1"]
    assert np.array_equal(assembled(words, cuts, 2), layout.pack(words))


def test_several_shares_at_once() -> None:
    words = make_words(FORMATS["nvfp4"], (512, 128), np.random.default_rng(1))
    assert isinstance(words, Nvfp4Words)
    words = dataclasses.replace(words, divisors=np.arange(1, 5, dtype=np.float32).view(np.uint32))
    layout = LAYOUTS["block_scale_k16_m128x4_v1"]
    half = dataclasses.replace(words, shape=(256, 128), codes=words.codes[256:], scales=words.scales[256:])
    pieces = dict(layout.place(dataclasses.replace(half, divisors=words.divisors[2:]), words.shape, 256, 4))
    payload = layout.pack(words)
    for offset, data in pieces.items():
        assert np.array_equal(payload[offset : offset + data.size], data)
    assert len(pieces) == 4


@pytest.mark.parametrize(("first", "shape"), [(6, (7, 200)), (-1, (7, 200)), (0, (7, 199)), (0, (1, 200))])
def test_rows_outside_are_refused(first: int, shape: tuple[int, int]) -> None:
    words = make_words(FORMATS["q4_g64_fp16"], (2, 200), np.random.default_rng(1))
    with pytest.raises(ArgumentError):
        list(LAYOUTS["row_split_k128_v1"].place(words, shape, first))


def test_nvfp4_rows_are_whole_tiles() -> None:
    words = make_words(FORMATS["nvfp4"], (64, 128), np.random.default_rng(1))
    with pytest.raises(ArgumentError, match="whole tiles"):
        list(LAYOUTS["block_scale_k16_m128x4_v1"].place(words, (256, 128), 0))


def test_illegal_words_are_not_placed() -> None:
    words = make_words(FORMATS["nvfp4"], (128, 64), np.random.default_rng(1))
    assert isinstance(words, Nvfp4Words)
    words.scales[5, 1] = 0xFF
    with pytest.raises(WordsError, match="row 5, group 1"):
        list(LAYOUTS["block_scale_k16_m128x4_v1"].place(words, (128, 64), 0))
