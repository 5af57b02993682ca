"""`row_split_k128_v1`: worked bytes, bit positions, canonical padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_oracle as oracle
from quantform.formats import FORMATS, GroupedFormat, GroupedWords
from quantform.layouts import LAYOUTS, Fault, RowPlaneLayout, reader_of
from words_maker import faults_of, make_words

LAYOUT = LAYOUTS["row_split_k128_v1"]
assert isinstance(LAYOUT, RowPlaneLayout)
every_format = pytest.mark.parametrize("name", LAYOUT.formats)


def words(name: str, shape: tuple[int, int], codes: list[list[int]], scales: list[list[int]]) -> GroupedWords:
    """Words that begin with these and are zeros (scales of one where a code is not zero) further on."""
    record = FORMATS[name]
    assert isinstance(record, GroupedFormat)
    all_codes = np.zeros(shape, np.int8)
    all_scales = np.zeros((shape[0], record.groups(shape[1])), np.uint16)
    for row, (some_codes, some_scales) in enumerate(zip(codes, scales, strict=True)):
        all_codes[row, : len(some_codes)] = some_codes
        all_scales[row, : len(some_scales)] = some_scales
    return GroupedWords(record, shape, all_codes, all_scales)


@pytest.mark.parametrize(
    ("name", "columns", "codes", "planes", "scales_at"),
    [
        ("q4_g64_fp16", 65, [-8, -7, -1, 0, 1, 7], {0: "98 0F 71"}, 256),
        ("q5_g64_fp16", 130, [-16, -15, -1, 0, 1, 15], {0: "10 0F F1", 256: "07"}, 512),
        ("q6_g64_fp16", 65, [-32, -31, -17, -16, -1, 0, 15, 31], {0: "10 0F 0F FF", 256: "EA 43"}, 512),
        ("q8_g32_fp16", 33, [-127, -1, 0, 1, 127], {0: "81 FF 00 01 7F"}, 256),
        ("t2_g128_fp16", 130, [-1, 0, 1, 1, -1, 0, 0, 1], {0: "53 43"}, 256),
    ],
)
def test_worked_bytes(name: str, columns: int, codes: list[int], planes: dict[int, str], scales_at: int) -> None:
    payload = LAYOUT.pack(words(name, (1, columns), [codes], [[0x3E00, 0x3400]])).tobytes()
    expected = bytearray(len(payload))
    for at, text in {**planes, scales_at: "00 3E 00 34"}.items():
        plane = bytes.fromhex(text)
        expected[at : at + len(plane)] = plane
    assert payload == bytes(expected)
    groups_per_row = oracle.align(columns, 128) // oracle.ROW_SPLIT[name][1]
    assert len(payload) == scales_at + 2 * groups_per_row


def test_worked_q2() -> None:
    codes = [[-1, 0, 1, 2] * 32] * 2
    payload = LAYOUT.pack(words("q2_g64_fp16", (2, 128), codes, [[0x3800, 0xBC00], [0x0001, 0x8000]])).tobytes()
    assert payload == b"\xe4" * 64 + bytes(192) + bytes.fromhex("00 38 00 BC 01 00 00 80")
    assert len(payload) == 264


def test_worked_q2_padding() -> None:
    """Lane 64 is -1, the word 0b00, beside padding words 0b01; full padding bytes are 0x55."""
    codes = [[0] * 64 + [-1]] * 2
    payload = LAYOUT.pack(words("q2_g64_fp16", (2, 65), codes, [[0x3C00, 0x3C00]] * 2))
    for row in (payload[:32], payload[32:64]):
        assert row.tolist() == [0x55] * 16 + [0x54] + [0x55] * 15


def test_sizes() -> None:
    assert LAYOUT.encoded_size("q5_g64_fp16", (2, 130)) == 528
    assert LAYOUT.encoded_size("q4_g64_fp16", (7168, 5120)) == 19_496_960
    assert LAYOUT.encoded_size("q5_g64_fp16", (7168, 5120)) == 24_084_480
    assert isinstance(LAYOUT, RowPlaneLayout)
    planes = LAYOUT.planes(FORMATS["q5_g64_fp16"], (2, 130))
    assert [(plane.offset, 2 * plane.row_bytes) for plane in planes] == [(0, 256), (256, 64), (512, 16)]


@every_format
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), columns=st.integers(1, 300))
def test_every_bit_is_where_the_text_has_it(name: str, seed: int, rows: int, columns: int) -> None:
    made = make_words(FORMATS[name], (rows, columns), np.random.default_rng(seed))
    assert isinstance(made, GroupedWords)
    payload = LAYOUT.pack(made)
    assert payload.tobytes() == oracle.row_split(name, made.codes.tolist(), made.scales.tolist())


@every_format
def test_every_code_word_comes_back(name: str) -> None:
    """Also the words that are not legal: it is for validation to find them."""
    bits, group = oracle.ROW_SPLIT[name][:2]
    lanes = np.arange(256) % (1 << bits)
    every = lanes.astype(np.int64)
    added = oracle.ROW_SPLIT[name][4]
    every = every - 1 if added else np.where(every < 1 << bits - 1, every, every - (1 << bits))
    payload = np.frombuffer(oracle.row_split(name, [every.tolist()], [[0x3C00] * (256 // group)]), np.uint8)
    assert fields_codes(payload, name).tolist() == [every.tolist()]


def fields_codes(payload: np.ndarray, name: str) -> np.ndarray:
    back = LAYOUT.unpack(payload, name, (1, 256))
    assert isinstance(back, GroupedWords)
    return back.codes


@every_format
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_gathered_payloads_repack_no_code(name: str, seed: int, data: st.DataObject) -> None:
    """The payload of some rows is the payload of the words of these rows."""
    assert isinstance(LAYOUT, RowPlaneLayout)
    shape = 6, data.draw(st.integers(1, 300))
    made = make_words(FORMATS[name], shape, np.random.default_rng(seed))
    assert isinstance(made, GroupedWords)
    rows = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    taken = LAYOUT.take_rows(reader_of(LAYOUT.pack(made)), name, shape, rows)
    gathered = GroupedWords(made.format, (len(rows), shape[1]), made.codes[rows], made.scales[rows])
    np.testing.assert_array_equal(taken, LAYOUT.pack(gathered))


# --- padding ----------------------------------------------------------------------------------------------------------


@every_format
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_each_wrong_padding_bit_is_found_and_changes_no_word(name: str, seed: int, data: st.DataObject) -> None:
    """Flip one bit anywhere: either a word changes, or the padding check says which byte."""
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 260))
    made = make_words(FORMATS[name], shape, np.random.default_rng(seed))
    payload = LAYOUT.pack(made)
    at, bit = data.draw(st.integers(0, payload.size - 1)), data.draw(st.integers(0, 7))
    found = int(payload[at])
    payload[at] ^= 1 << bit
    back = LAYOUT.unpack(payload, name, shape)
    assert isinstance(made, GroupedWords)
    assert isinstance(back, GroupedWords)
    same = np.array_equal(back.codes, made.codes) and np.array_equal(back.scales, made.scales)
    faults = [fault for fault in faults_of(LAYOUT, payload, name, shape) if fault.rule == "padding"]
    assert same == bool(faults)
    if faults:
        assert [(fault.offset, fault.expected, fault.found) for fault in faults] == [
            (at, f"0x{found:02X}", f"0x{found ^ 1 << bit:02X}")
        ]


def test_every_wrong_byte_of_padding_is_found() -> None:
    name, shape = "q5_g64_fp16", (40, 65)
    made = make_words(FORMATS[name], shape, np.random.default_rng(1))
    payload = LAYOUT.pack(made)
    assert isinstance(LAYOUT, RowPlaneLayout)
    low, high, scales = LAYOUT.planes(FORMATS[name], shape)
    payload[low.offset + 3 * low.row_bytes + 33] = 0x10  # row 3, lanes 66 and 67
    payload[low.offset + 39 * low.row_bytes + 63] = 0x01
    payload[high.offset + 5 * high.row_bytes + 15] = 0x80
    payload[high.offset + 40 * high.row_bytes] = 7  # the gap
    code = "a code past the last column is not canonical"
    assert faults_of(LAYOUT, payload, name, shape) == [
        Fault("padding", "the gap between planes is not canonical", high.offset + 40 * high.row_bytes, "0x00", "0x07"),
        Fault("padding", code, low.offset + 3 * low.row_bytes + 33, "0x00", "0x10", 3),
        Fault("padding", code, low.offset + 39 * low.row_bytes + 63, "0x00", "0x01", 39),
        Fault("padding", code, high.offset + 5 * high.row_bytes + 15, "0x00", "0x80", 5),
    ]
    assert scales.row_bytes == 4  # both groups are logical: no padding scales


def test_stretches_of_padding_end_with_their_row() -> None:
    name, shape = "q8_g32_fp16", (3, 70)
    payload = LAYOUT.pack(make_words(FORMATS[name], shape, np.random.default_rng(1)))
    assert isinstance(LAYOUT, RowPlaneLayout)
    codes, scales = LAYOUT.planes(FORMATS[name], shape)
    for row in (0, 1):
        payload[codes.offset + row * 128 + 70 : codes.offset + (row + 1) * 128] = 9
    payload[codes.offset + 100] = 0
    payload[scales.offset - 5 : scales.offset] = 1
    problem = "a code past the last column is not canonical"
    assert faults_of(LAYOUT, payload, name, shape) == [
        Fault("padding", "the gap between planes is not canonical", scales.offset - 5, "0x00", "0x01", count=5),
        Fault("padding", problem, codes.offset + 70, "0x00", "0x09", 0, count=30),
        Fault("padding", problem, codes.offset + 101, "0x00", "0x09", 0, count=27),
        Fault("padding", problem, codes.offset + 128 + 70, "0x00", "0x09", 1, count=58),
    ]


def test_padding_scales() -> None:
    name, shape = "q8_g32_fp16", (3, 33)
    payload = LAYOUT.pack(make_words(FORMATS[name], shape, np.random.default_rng(1)))
    assert isinstance(LAYOUT, RowPlaneLayout)
    scales = LAYOUT.planes(FORMATS[name], shape)[-1]
    payload[scales.offset + 2 * scales.row_bytes + 7] = 0x3C
    (fault,) = faults_of(LAYOUT, payload, name, shape)
    assert fault.problem == "a scale past the last group is not canonical"
    at = scales.offset + 2 * scales.row_bytes + 7
    assert (fault.offset, fault.expected, fault.found, fault.row) == (at, "0x00", "0x3C", 2)


@pytest.mark.parametrize("shape", [(5000, 130), (2, 300_001), (2, 2**21 + 65)])
def test_payloads_are_read_once_in_pieces(shape: tuple[int, int]) -> None:
    """Every row's end is seen, no byte is read twice, and no read is much larger than a piece."""
    name = "q6_g64_fp16"
    payload = LAYOUT.pack(make_words(FORMATS[name], shape, np.random.default_rng(1)))
    assert isinstance(LAYOUT, RowPlaneLayout)
    low = LAYOUT.planes(FORMATS[name], shape)[0]
    ends = np.arange(1, shape[0] + 1) * low.row_bytes - 1
    payload[ends] ^= 0xFF
    times, sizes = np.zeros(payload.size, np.uint8), []

    def read(offset: int, out: np.ndarray) -> None:
        sizes.append(out.size)
        times[offset : offset + out.size] += 1
        reader_of(payload)(offset, out)

    found = list(LAYOUT.faults(read, name, shape, limit=2))
    assert sum(faults.count for faults in found) == shape[0]
    assert found[0].first[0].offset == int(ends[0])
    assert max(len(faults.first) for faults in found) <= 2
    assert max(sizes) <= 1 << 20
    assert times.min() == times.max() == 1
