"""Formats that keep what they are given: direct words (Section 3.1) and ggml's blocks (Section 3.5)."""

from __future__ import annotations

import numpy as np
import pytest

import ninfer_oracle as oracle
from bits import bits_of
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError
from quantform.formats import (
    FORMATS,
    BlockWords,
    DirectWords,
    GgufFormat,
    block_format,
    direct_format,
)
from quantform.packed import PROFILES

WORDS: dict[str, tuple[list[int], list[float]]] = {  # representative words and what they are
    "bf16": ([0x0000, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC1, 0xFF81], [0.0, -0.0, 2.0**-133, np.inf, -np.inf]),
    "fp32": (
        [0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC01234, 0x7F800001],
        [0.0, -0.0, 2.0**-149, np.inf, -np.inf],
    ),
    "int32": ([0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF], [0, -1, -(2**31), 2**31 - 1]),
}
GGUF_FORMATS = [record for record in FORMATS.values() if isinstance(record, GgufFormat)]


@pytest.mark.parametrize("name", WORDS)
def test_direct_words_keep_their_bits(name: str) -> None:
    record = FORMATS[name]
    bits, values = WORDS[name]
    words = DirectWords(record, (len(bits),), np.array(bits, SCALARS[name].word_dtype))
    words.validate()
    decoded = words.decode()
    assert decoded.dtype == SCALARS[name].dtype
    assert decoded.view(SCALARS[name].word_dtype).tolist() == bits
    wide = decoded[: len(values)].astype(np.float64)
    assert wide.tolist() == values
    assert np.signbit(wide).tolist() == np.signbit(values).tolist()


def test_bf16_words_are_the_high_half_of_binary32() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    words = DirectWords(FORMATS["bf16"], (256, 256), every.reshape(256, 256))
    wide = words.decode("float32").reshape(-1)
    np.testing.assert_array_equal(bits_of(wide), bits_of((every.astype(np.uint32) << 16).view(np.float32)))
    assert [int(bits_of(wide[i : i + 1])[0]) for i in range(0, 0x7F80, 97)] == [
        oracle.binary32(oracle.bf16(word)) for word in range(0, 0x7F80, 97)
    ]


def test_conversion_rounds_once() -> None:
    fp32 = DirectWords(FORMATS["fp32"], (3,), np.array([0x3F808000, 0x3F808001, 0x3F818000], np.uint32))
    assert fp32.decode("bfloat16").view(np.uint16).tolist() == [0x3F80, 0x3F81, 0x3F82]
    int32 = DirectWords(FORMATS["int32"], (2,), np.array([2**24 + 1, 2**24 + 2**16 + 1], np.uint32))
    assert int32.decode("float32").tolist() == [2**24, 2**24 + 2**16]
    assert int32.decode("float64").tolist() == [2**24 + 1, 2**24 + 2**16 + 1]
    assert int32.decode("bfloat16").astype(np.float64).tolist() == [2**24, 2**24 + 2**17]


def test_shapes_are_free() -> None:
    for shape in ((), (0, 3), (1,) * 16, (2, 3, 4)):
        words = DirectWords(FORMATS["fp32"], shape, np.zeros(shape, np.uint32))
        words.validate()
        assert words.decode().shape == shape


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.float32, ">u4"])
def test_no_implicit_change_of_type(dtype: object) -> None:
    words = DirectWords(FORMATS["fp32"], (2,), np.zeros(2, dtype))  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="wrong type or shape; expected uint32"):
        words.validate()


def test_wrong_shape() -> None:
    with pytest.raises(ArgumentError, match=r"expected uint16 \[3\], found uint16 \[2\]"):
        DirectWords(FORMATS["bf16"], (3,), np.zeros(2, np.uint16)).decode()


def test_direct_formats_without_a_ninfer_name() -> None:
    record = direct_format(SCALARS["fp16"])
    assert record.name == "fp16"
    assert record.name not in FORMATS
    assert DirectWords(record, (1,), np.array([0x3C00], np.uint16)).decode().tolist() == [1.0]
    assert direct_format(SCALARS["bf16"]) == FORMATS["bf16"]


@pytest.mark.parametrize("record", GGUF_FORMATS, ids=str)
def test_blocks_decode_as_the_operator_does(record: GgufFormat, packed_vectors: dict[str, np.ndarray]) -> None:
    payload = packed_vectors[f"{record.profile.identifier.removeprefix('gguf:')}/payload"]
    bits = packed_vectors[f"{record.profile.identifier.removeprefix('gguf:')}/bits"]
    values = record.profile.values
    words = BlockWords(record, (32, 3 * values), payload.reshape(32, -1))
    words.validate()
    np.testing.assert_array_equal(bits_of(words.decode()).reshape(-1), bits.reshape(-1))
    assert words.decode("float16").dtype == np.float16


def test_partial_blocks_are_refused() -> None:
    record = FORMATS["gguf_q4_k"]
    assert isinstance(record, GgufFormat)
    with pytest.raises(ArgumentError, match="multiple of 256, found 128"):
        record.row_bytes(128)
    with pytest.raises(ArgumentError, match="whole blocks"):
        BlockWords(record, (1, 128), np.zeros((1, 72), np.uint8)).validate()
    with pytest.raises(ArgumentError, match=r"expected uint8 \[1, 144\], found uint8 \[1, 143\]"):
        BlockWords(record, (1, 256), np.zeros((1, 143), np.uint8)).validate()


def test_profiles_without_a_ninfer_name() -> None:
    named = {record.profile.identifier for record in GGUF_FORMATS}
    assert len(named) == 18
    for profile in PROFILES.values():
        record = block_format(profile)
        assert record.profile is profile
        assert (record.name in FORMATS) == (profile.identifier in named)
