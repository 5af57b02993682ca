"""`row_scale_v1` and `row_interleaved_v1`: worked bytes, geometry, padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, RowScaledWords
from quantform.layouts import LAYOUTS, Fault, RowPlaneLayout, reader_of
from words_maker import faults_of, make_words

SCALE, INTERLEAVED = LAYOUTS["row_scale_v1"], LAYOUTS["row_interleaved_v1"]
BF16, FP16 = FORMATS["fp8_e4m3fn_row_bf16"], FORMATS["fp8_e4m3fn_row_fp16"]
CODES = np.array([[0x00, 0x80, 0x38, 0xB8], [0x40, 0xC0, 0x7E, 0xFE]], np.uint8)


def test_sizes() -> None:
    assert SCALE.encoded_size(BF16, (14336, 5120)) == 73_428_992
    assert SCALE.encoded_size(BF16, (2, 4)) == 260
    assert INTERLEAVED.encoded_size(FP16, (1, 160)) == 162
    assert INTERLEAVED.encoded_size(FP16, (2, 160)) == 324


def test_worked_row_scale() -> None:
    words = RowScaledWords(BF16, (2, 4), CODES, np.array([0x3F00, 0x4000], np.uint16))
    payload = SCALE.pack(words)
    assert payload.tobytes() == CODES.tobytes() + bytes(248) + bytes.fromhex("00 3F 00 40")
    assert SCALE.unpack(payload, BF16, (2, 4)).decode().tolist() == [[0, 0, 0.5, -0.5], [4, -4, 896, -896]]


def test_worked_object_bytes() -> None:
    """The rows [448, 1.0625, -1.1875, 0], zeros, and [2, -2, 1, -1] as `fp8_row_maxabs` encodes them."""
    codes = np.frombuffer(bytes.fromhex("7E 38 BA 00 00 00 00 00 7E FE 76 F6"), np.uint8).reshape(3, 4)
    words = RowScaledWords(BF16, (3, 4), codes, np.array([0x3F80, 0x0000, 0x3B92], np.uint16))
    assert SCALE.pack(words).tobytes() == codes.tobytes() + bytes(244) + bytes.fromhex("80 3F 00 00 92 3B")


def test_worked_row_interleaved() -> None:
    codes = CODES.copy()
    words = RowScaledWords(FP16, (2, 4), codes, np.array([0x3800, 0x4000], np.uint16))
    payload = INTERLEAVED.pack(words)
    assert payload.tobytes() == bytes.fromhex("00 80 38 B8 00 38 40 C0 7E FE 00 40")
    assert INTERLEAVED.unpack(payload, FP16, (2, 4)).decode().tolist() == [[0, 0, 0.5, -0.5], [4, -4, 896, -896]]
    with pytest.raises(ArgumentError, match="expected 12 bytes, found 11 bytes"):
        INTERLEAVED.unpack(payload[:-1], FP16, (2, 4))


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), columns=st.integers(1, 200))
def test_every_byte_is_where_the_text_has_it(seed: int, rows: int, columns: int) -> None:
    for layout, record, place in (
        (SCALE, BF16, oracle.row_scale),
        (INTERLEAVED, FP16, oracle.row_interleaved),
    ):
        words = make_words(record, (rows, columns), np.random.default_rng(seed))
        assert isinstance(words, RowScaledWords)
        assert layout.pack(words).tobytes() == place(words.codes.tolist(), words.scales.tolist())


@pytest.mark.parametrize(("layout", "record"), [(SCALE, BF16), (INTERLEAVED, FP16)], ids=str)
def test_a_gather_is_the_payload_of_the_gathered_words(layout: RowPlaneLayout, record: object) -> None:
    for columns in (1, 160, 256):
        words = make_words(record, (5, columns), np.random.default_rng(columns))  # type: ignore[arg-type]
        assert isinstance(words, RowScaledWords)
        rows = [4, 0, 0, 2]
        taken = layout.take_rows(reader_of(layout.pack(words)), words.format, (5, columns), rows)
        gathered = RowScaledWords(words.format, (4, columns), words.codes[rows], words.scales[rows])
        np.testing.assert_array_equal(taken, layout.pack(gathered))


def test_codes_are_views_of_the_payload() -> None:
    for layout, record in ((SCALE, BF16), (INTERLEAVED, FP16)):
        payload = layout.pack(make_words(record, (3, 5), np.random.default_rng(1)))
        back = layout.unpack(payload, record, (3, 5))
        assert isinstance(back, RowScaledWords)
        assert np.shares_memory(back.codes, payload)
        assert not np.shares_memory(back.scales, payload)


def test_the_gap_is_checked_and_never_needed() -> None:
    words = make_words(BF16, (3, 5), np.random.default_rng(1))
    payload = SCALE.pack(words)
    payload[20] = 0xAB
    payload[255] = 1
    assert faults_of(SCALE, payload, BF16, (3, 5)) == [
        Fault("padding", "the gap between planes is not canonical", 20, "0x00", "0xAB"),
        Fault("padding", "the gap between planes is not canonical", 255, "0x00", "0x01"),
    ]
    np.testing.assert_array_equal(SCALE.unpack(payload, BF16, (3, 5)).decode(), words.decode())
