"""`contiguous_le_v1`, `gguf_blocks_v1` and `raw_bytes_v1`: bytes that are what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quantform.errors import ArgumentError
from quantform.formats import FORMATS, BlockWords, DirectFormat, DirectWords, GgufFormat
from quantform.layouts import LAYOUTS, RowPlaneLayout, reader_of
from quantform.layouts.raw_bytes import RawBytesLayout
from words_maker import make_words

CONTIGUOUS, BLOCKS, RAW = (LAYOUTS[name] for name in ("contiguous_le_v1", "gguf_blocks_v1", "raw_bytes_v1"))


@pytest.mark.parametrize(
    ("name", "words", "stored"),
    [
        ("bf16", [0x0000, 0x8000, 0x0001, 0x7FC1], "0000 0080 0100 C17F"),
        ("fp32", [0, 0x80000000, 1, 0x7FC01234], "00000000 00000080 01000000 3412C07F"),
        ("int32", [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF], "00000000 FFFFFFFF 00000080 FFFFFF7F"),
    ],
)
def test_worked_direct_words(name: str, words: list[int], stored: str) -> None:
    record = FORMATS[name]
    assert isinstance(record, DirectFormat)
    array: npt.NDArray[Any] = np.array(words, record.scalar.word_dtype).reshape(2, 2)
    payload = CONTIGUOUS.pack(DirectWords(record, (2, 2), array))
    assert payload.tobytes() == bytes.fromhex(stored)
    back = CONTIGUOUS.unpack(payload, record, (2, 2))
    assert isinstance(back, DirectWords)
    assert back.words.tolist() == array.tolist()


def test_contiguous_sizes_and_ranks() -> None:
    assert CONTIGUOUS.encoded_size("bf16", []) == 2
    assert CONTIGUOUS.encoded_size("fp32", [3, 5, 7]) == 420
    assert CONTIGUOUS.encoded_size("int32", [3, 0]) == 0
    scalar = CONTIGUOUS.pack(DirectWords(FORMATS["fp32"], (), np.array(0x3F800000, np.uint32)))
    assert scalar.tobytes() == bytes.fromhex("0000803F")
    assert CONTIGUOUS.unpack(scalar, "fp32", ()).decode().tolist() == 1.0
    rows = CONTIGUOUS.words_of_rows(reader_of(scalar), "fp32", (), [0, 0])
    assert rows.decode().tolist() == [[1.0], [1.0]]


def test_contiguous_words_are_views_where_they_can_be() -> None:
    payload = np.zeros(8, np.uint8)
    back = CONTIGUOUS.unpack(payload, "fp32", (2,))
    assert isinstance(back, DirectWords)
    assert np.shares_memory(back.words, payload)
    assert np.shares_memory(CONTIGUOUS.pack(back), payload)


def test_strided_words_are_packed_in_c_order() -> None:
    array = np.arange(6, dtype=np.uint16).reshape(2, 3).T
    payload = CONTIGUOUS.pack(DirectWords(FORMATS["bf16"], (3, 2), array))
    assert payload.view("<u2").tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("name", BLOCKS.formats)
def test_blocks_stay_as_they_are(name: str) -> None:
    record = FORMATS[name]
    assert isinstance(record, GgufFormat)
    assert isinstance(BLOCKS, RowPlaneLayout)
    profile = record.profile
    shape = 3, 2 * profile.values
    words = make_words(record, shape, np.random.default_rng(1))
    assert isinstance(words, BlockWords)
    payload = BLOCKS.pack(words)
    assert payload.tobytes() == words.blocks.tobytes()
    assert BLOCKS.encoded_size(name, shape) == 6 * profile.bytes
    assert np.shares_memory(payload, words.blocks)
    taken = BLOCKS.take_rows(reader_of(payload), name, shape, [2, 0, 2])
    assert taken.tobytes() == words.blocks[[2, 0, 2]].tobytes()
    with pytest.raises(ArgumentError, match=f"multiple of {profile.values}, found {profile.values // 2}"):
        BLOCKS.encoded_size(name, (3, profile.values // 2))


def test_resources() -> None:
    assert isinstance(RAW, RawBytesLayout)
    assert RAW.check_size(1) == 1
    assert RAW.check_size(2**64 - 1) == 2**64 - 1
    with pytest.raises(ArgumentError, match="at least one byte"):
        RAW.check_size(0)
    for size in (2**64, -1):
        with pytest.raises(ArgumentError, match="64-bit"):
            RAW.check_size(size)
