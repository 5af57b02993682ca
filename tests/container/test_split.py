from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantform.container.header import entry_payload_start, pack_header, unpack_header
from quantform.container.split import MAX_FILES, PayloadMap, part_name, split_payload
from quantform.errors import ArgumentError

U64 = 2**64 - 1


def test_header_is_32_little_endian_bytes() -> None:
    id = bytes(range(16))
    raw = pack_header(b"NINFER\x00\x03", 0x0102030405060708, id)
    assert raw == bytes.fromhex("4e494e4645520003 0807060504030201") + id
    assert unpack_header(raw) == (b"NINFER\x00\x03", 0x0102030405060708, id)


@pytest.mark.parametrize(("json_bytes", "start"), [(1, 4096), (4064, 4096), (4065, 8192), (65504, 65536)])
def test_payload_starts_at_a_page(json_bytes: int, start: int) -> None:
    assert entry_payload_start(json_bytes) == start


def test_check_value_of_the_text() -> None:
    placed = PayloadMap(65536, [31_999_934_464, 4096])
    assert placed.file_size(0) == 32_000_000_000
    assert placed.file_size(1) == 8192


def test_a_limit_of_32_gigabytes_gives_the_check_value() -> None:
    assert split_payload(31_999_934_464 + 4096, 65536, 32_000_000_000) == (31_999_934_464, 4096)


def test_one_file_without_a_limit_or_within_it() -> None:
    assert split_payload(32_000_000_000, 4096, None) == (32_000_000_000,)
    assert split_payload(8192, 4096, 12288) == (8192,)
    assert split_payload(8193, 4096, 12288) == (8192, 1)


def test_27610_bytes_at_12288_make_four_files() -> None:
    assert split_payload(27_610, 4096, 12_288) == (8192, 8192, 8192, 3034)


def test_capacities_are_whole_pages() -> None:
    assert split_payload(20_000, 4096, 12_287 + 4096) == (8192, 8192, 3616)


@pytest.mark.parametrize("limit", [1, 4096, 8191, 8192 + 4095])
def test_a_limit_without_room_is_refused(limit: int) -> None:
    with pytest.raises(ArgumentError, match="no room for payload"):
        split_payload(100_000, 8192, limit)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_a_limit_is_a_positive_integer(limit: int) -> None:
    with pytest.raises(ArgumentError, match="not a positive integer"):
        split_payload(100_000, 8192, limit)


@pytest.mark.parametrize(("payload", "start"), [(2**64, 4096), (U64, 4096), (U64 - 4095, 4096)])
def test_sizes_beyond_u64_are_refused(payload: int, start: int) -> None:
    with pytest.raises(ArgumentError, match="64-bit"):
        split_payload(payload, start, None)


def test_absurdly_many_files_are_refused_before_they_are_listed() -> None:
    with pytest.raises(ArgumentError, match="too many files"):
        split_payload(2**62, 4096, 8192)
    assert len(split_payload(4096 * MAX_FILES, 4096, 8192)) == MAX_FILES


def test_part_names_have_four_digits_or_more() -> None:
    assert part_name("m.ninfer", 1) == "m.ninfer.part-0001"
    assert part_name("m.ninfer", 12345) == "m.ninfer.part-12345"


@given(st.integers(1, 10**6), st.integers(1, 20).map(lambda pages: pages * 4096), st.integers(8192, 200_000))
def test_split_covers_the_payload_within_the_limit(payload: int, start: int, limit: int) -> None:
    try:
        sizes = split_payload(payload, start, limit)
    except ArgumentError:
        assert start + payload > limit
        assert limit - start < 4096
        return
    placed = PayloadMap(start, sizes)
    assert sum(sizes) == payload == placed.payload_bytes
    assert all(size > 0 for size in sizes)
    assert all(placed.file_size(index) <= limit for index in range(len(sizes)))
    assert all(placed.file_size(index) + 4096 > limit for index in range(len(sizes) - 1))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_pieces_are_the_range(sizes: list[int], data: st.DataObject) -> None:
    placed = PayloadMap(4096, sizes)
    where = [(file, (4096) + at) for file, size in enumerate(sizes) for at in range(size)]
    begin = data.draw(st.integers(0, sum(sizes)))
    end = data.draw(st.integers(begin, sum(sizes)))
    pieces = list(placed.pieces(begin, end - begin))
    assert [(p.file, p.offset + k) for p in pieces for k in range(p.size)] == where[begin:end]
    assert all(piece.size for piece in pieces)
    assert [piece.file for piece in pieces] == [
        file for file, _ in itertools.groupby(where[begin:end], key=lambda place: place[0])
    ]
