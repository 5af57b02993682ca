"""Broken and hostile GGUF files: each is refused by an error of ours that names the file, at no great cost."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gguf_builder import F32, I64, Q4_0, Q4_K, Q8_0, GGUFTensorSpec, Raw, build, tensor, typed
from quantform.errors import FileError, GGUFError, QuantformError, TruncatedFileError, UnsupportedError
from quantform.sources.gguf import GGUFArray, GGUFSource


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], bytes]
    fragments: tuple[str, ...]
    error: type[FileError] = GGUFError


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def f32(name: str = "w", count: int = 8, *, offset: int | None = None) -> GGUFTensorSpec:
    return tensor(name, (count,), F32, bytes(4 * count), offset=offset)


def refused(name: str, make: Callable[[], bytes], *fragments: str) -> Case:
    return Case(name, make, fragments)


def truncated(name: str, make: Callable[[], bytes], *fragments: str) -> Case:
    return Case(name, make, fragments, TruncatedFileError)


def with_value(number: int, data: bytes) -> bytes:
    return build([], {"k": Raw(number, data)})


def nested(levels: int) -> bytes:
    """An array of one array of one array ... of no bytes."""
    return with_value(9, b"".join(u32(9) + u64(1) for _ in range(levels - 1)) + u32(0) + u64(0))


def alignment(value: object) -> bytes:
    return build([f32()], {"general.alignment": value})


def counts(tensors: int, pairs: int, each: int) -> bytes:
    """As many records as are declared, of the fewest bytes that they may have."""
    return b"GGUF" + u32(3) + u64(tensors, pairs) + bytes((tensors + pairs) * each)


def one(shape: tuple[int, ...], type: int, data: bytes = b"", **options: int) -> bytes:
    return build([tensor("w", shape, type, data, **options)])


CASES = [
    # The first fields.
    refused("empty file", lambda: b"", "not a GGUF file", "an empty file"),
    refused("one byte", lambda: b"x", "not a GGUF file"),
    truncated("magic only", lambda: b"GGUF", "ends within its first fields", "24 bytes at least", "4 bytes"),
    refused(
        "more pairs than are read", lambda: counts(0, 2**18 + 1, 13), "at most 262144 metadata pairs", "found 262145"
    ),
    refused(
        "more tensors than are read", lambda: counts(2**18 + 1, 0, 24), "as many tensors", "0 metadata pairs and 262145"
    ),
    truncated("no counts", lambda: build()[:23], "ends within its first fields", "23 bytes"),
    refused("other magic", lambda: build(magic=b"GGML"), "not a GGUF file", "b'GGML'"),
    refused("older magic", lambda: build(magic=b"tjgg"), "before GGUF"),
    refused("git lfs pointer", lambda: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    refused("version 0", lambda: build(version=0), "GGUF version 0 is not read"),
    refused("version 1", lambda: build(version=1), "GGUF version 1 is not read", "32 bits"),
    refused("version 1, big-endian", lambda: build(version=1, big_endian=True), "GGUF version 1 is not read"),
    refused("version 4", lambda: build(version=4), "GGUF version 4 is not read", "expected 2 or 3"),
    refused("version 2**31", lambda: build(version=2**31), "GGUF version 128 is not read"),
    # Counts.
    truncated(
        "too many pairs", lambda: build(pair_count=2**64 - 1), "18446744073709551615 metadata pairs", "0 bytes before"
    ),
    truncated("too many tensors", lambda: build(tensor_count=2**64 - 1), "18446744073709551615 tensors"),
    truncated("more pairs than fit", lambda: build([], {"k": 1}, pair_count=2), "a header of 2 metadata pairs"),
    truncated(
        "one tensor too many",
        lambda: build([f32()], tensor_count=2)[:57] + u64(99) + bytes(20),
        "name of tensor 2 of 2",
    ),
    # Metadata.
    truncated("key beyond the file", lambda: build([], [("k" * 40, 1)])[:50], "the key of metadata pair 1 of 1"),
    truncated("key of 2**63 bytes", lambda: build([], pair_count=1) + u64(2**63) + bytes(99), "metadata pair 1 of 1"),
    refused("key too long", lambda: build([], {"k" * 65536: 1}), "is too long", "65536 bytes"),
    refused("key not UTF-8", lambda: build([], {b"k\xff": 1}), "the key of metadata pair 1 of 1 is not UTF-8"),
    refused("key with NUL", lambda: build([], {"k\0": 1}), "holds a NUL character"),
    refused("duplicate key", lambda: build([], [("k", 1), ("j", 2), ("k", 1)]), "metadata key 'k' appears twice"),
    refused("unknown value type", lambda: with_value(13, bytes(8)), "metadata key 'k'", "unknown", "found 13"),
    truncated(
        "value cut short",
        lambda: build([], {"k": typed("uint64", 1)})[:-1],
        "metadata key 'k'",
        "a value of type uint64",
    ),
    truncated(
        "string cut short", lambda: build([], {"k": "value"})[:-1], "metadata key 'k'", "a string", "5 bytes", "4 bytes"
    ),
    truncated("string of 2**64 - 1 bytes", lambda: with_value(8, u64(2**64 - 1)), "a string ends beyond the file"),
    refused("unknown element type", lambda: with_value(9, u32(13) + u64(0)), "an array's elements", "found 13"),
    truncated(
        "array of 2**61 numbers", lambda: with_value(9, u32(10) + u64(2**61)), "an array of 2305843009213693952 uint64"
    ),
    truncated("array cut short", lambda: build([], {"k": typed("int16", [1, 2])})[:-1], "an array of 2 int16"),
    truncated(
        "array of 2**40 strings", lambda: with_value(9, u32(8) + u64(2**40)), "an array of 1099511627776 strings"
    ),
    truncated("strings cut short", lambda: build([], {"k": ["ab", "cd"]})[:-1], "an array of 2 strings"),
    truncated("string in an array of 2**64 - 1 bytes", lambda: with_value(9, u32(8) + u64(1, 2**64 - 1)), "1 strings"),
    truncated(
        "array of 2**50 arrays", lambda: with_value(9, u32(9) + u64(2**50)), "an array of 1125899906842624 arrays"
    ),
    truncated(
        "inner array cut short", lambda: with_value(9, u32(9) + u64(1) + u32(4) + u64(3)), "an array of 3 uint32"
    ),
    refused("nested too deep", lambda: nested(18), "nested too deep", "at most 16 levels"),
    refused("nested 100,000 deep", lambda: nested(100_000), "nested too deep"),
    # Alignment.
    refused("alignment 0", lambda: alignment(0), "the alignment is not possible", "found 0"),
    refused("alignment 1", lambda: alignment(1), "the alignment is not possible", "found 1"),
    refused("alignment 4", lambda: alignment(4), "a power of two, 8 to"),
    refused("alignment 48", lambda: alignment(48), "a power of two", "found 48"),
    refused("alignment 33", lambda: alignment(33), "a power of two", "found 33"),
    refused("alignment 2**31", lambda: alignment(2**31), "the alignment is not possible"),
    refused("alignment 2**63", lambda: alignment(typed("uint64", 2**63)), "the alignment is not possible"),
    refused("alignment signed", lambda: alignment(typed("int32", 32)), "wrong type", "found int32"),
    refused("alignment negative", lambda: alignment(-32), "wrong type"),
    refused("alignment a float", lambda: alignment(32.0), "wrong type", "found float32"),
    refused("alignment text", lambda: alignment("32"), "wrong type", "found string"),
    refused("alignment an array", lambda: alignment([32]), "wrong type", "array of uint32"),
    # Tensors' entries.
    truncated("entry cut short", lambda: build([f32("long name" * 9)], pad_end=False)[:150], "tensor 'long name"),
    truncated(
        "name of 2**64 - 1 bytes", lambda: build(tensor_count=1) + u64(2**64 - 1) + bytes(32), "name of tensor 1 of 1"
    ),
    refused("name too long", lambda: build([f32("n" * 65536)]), "the name of tensor 1 of 1 is too long"),
    refused("name not UTF-8", lambda: build([tensor(b"\xc3(", (8,), F32, bytes(32))]), "is not UTF-8"),
    refused("name with NUL", lambda: build([f32("w\0x")]), "holds a NUL character"),
    refused("duplicate name", lambda: build([f32("w"), f32("v"), f32("w")]), "tensor 'w' appears twice"),
    refused("rank 5", lambda: one((1, 1, 1, 1, 1), F32, bytes(4)), "tensor 'w'", "too many dimensions", "found 5"),
    refused("rank 2**32 - 1", lambda: one((1,), F32, bytes(4), rank=2**32 - 1), "too many dimensions"),
    refused("elements wrap to 0", lambda: one((2**32, 2**32), F32), "more elements than can be counted"),
    refused("elements wrap to 1", lambda: one((2**64 - 1, 2**64 - 1), F32, bytes(4)), "more elements than can be"),
    refused("huge beside a zero", lambda: one((0, 2**62, 2**62), F32), "more elements than can be counted"),
    refused("bytes wrap", lambda: one((2**61,), I64), "tensor 'w'", "more elements than can be counted"),
    truncated("bytes nearly wrap", lambda: one((2**59,), I64), "tensor 'w' at byte 64", f"at least {2**62 + 64} bytes"),
    refused("too wide for any array", lambda: one((0, 2**60), F32), "more elements than can be counted"),
    refused("partial Q4_0 block", lambda: one((2, 33), Q4_0, bytes(36)), "a row of Q4_0", "multiple of 32", "[2, 33]"),
    refused("partial Q4_K block", lambda: one((1, 128), Q4_K, bytes(144)), "a row of Q4_K is not whole blocks"),
    refused("blocks across rows", lambda: one((2, 16), Q8_0, bytes(34)), "a row of Q8_0 is not whole blocks"),
    refused("scalar of blocks", lambda: one((), Q8_0, bytes(34)), "a row of Q8_0 is not whole blocks"),
    refused("partial block, no rows", lambda: one((0, 33), Q4_0), "a row of Q4_0 is not whole blocks"),
    # Data.
    truncated("data cut short", lambda: one((8,), F32, bytes(31))[:-1], "'w' at byte 64", "at least 96", "found 95"),
    truncated("no data", lambda: one((8,), F32), "tensor 'w' at byte 64", "at least 96 bytes, found 64"),
    truncated("header not even padded", lambda: build([f32()], pad_end=False)[:60], "'w' at byte 64", "found 60"),
    truncated("one of two", lambda: build([f32("a"), f32("b", 24)])[:140], "'b' at byte 128", "1 of 2 are not whole"),
    truncated("both of two", lambda: build([f32("a"), f32("b", 24)])[:99], "'a' at", "2 of 2 are not", "continue it"),
    truncated("offset beyond the file", lambda: build([f32(offset=4096)]), "tensor 'w' at byte 4160"),
    truncated("offset near 2**64", lambda: build([f32(offset=2**64 - 32)]), f"at least {2**64 + 64} bytes"),
    truncated("unknown type beyond the file", lambda: one((8,), 99, offset=4096), "at least 4161 bytes"),
    truncated("empty tensor far away", lambda: one((0,), F32, offset=1 << 40), "ends before its tensors do"),
    refused("unaligned offset", lambda: build([f32(offset=4)]), "not aligned", "a multiple of 32", "found 4"),
    refused("unaligned for its file", lambda: build([f32(), f32("v", offset=32)], alignment=64), "a multiple of 64"),
    refused("unaligned empty tensor", lambda: one((0,), F32, offset=4), "not aligned"),
    refused("same place", lambda: build([f32("a"), f32("b", offset=0)]), "overlaps", "'a'", "'b'"),
    refused("overlap", lambda: build([f32("a", 24), f32("b", 24, offset=64)]), "tensor 'a' overlaps tensor 'b'"),
    refused(
        "overlap out of order",
        lambda: build([f32("b", 24, offset=64), f32("a", 24, offset=0)]),
        "'a' overlaps tensor 'b'",
    ),
    refused(
        "unknown type inside another", lambda: build([f32("a", 24), tensor("b", (1,), 99, offset=64)]), "'a' overlaps"
    ),
    refused(
        "unknown types at one place", lambda: build([tensor(n, (1,), 99, b"?", offset=0) for n in "ab"]), "overlaps"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "hostile.gguf"
    data = case.make()
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(QuantformError) as caught:
            GGUFSource(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is case.error
    for fragment in (str(path), *case.fragments):
        assert fragment in str(caught.value)
    assert peak < 2 * len(data) + 200_000
    assert len(str(caught.value)) < 1000


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 35


@pytest.mark.parametrize("inner", [8, 9], ids=["strings", "arrays"])
def test_sparse_files_cannot_claim_endless_arrays(tmp_path: Path, inner: int) -> None:
    """A terabyte of zeros costs nothing on disk, and each 8 or 12 of them are an empty string or array."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(with_value(9, u32(inner) + u64(2**36)))
    os.truncate(path, 2**40)
    with pytest.raises(GGUFError, match=r"too many strings and inner arrays; expected at most 16777216 in a file"):
        GGUFSource(path)


def test_zeros_without_end_are_no_pairs(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    for pairs, tensors, fault in ((2**34, 2**30, "at most 262144"), (2**18, 2**18, "metadata key '' appears twice")):
        path.write_bytes(build(pair_count=pairs, tensor_count=tensors))
        os.truncate(path, 2**40)
        with pytest.raises(GGUFError, match=fault):
            GGUFSource(path)


def test_tensors_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse tensor opens and gives its rows; all at once is refused with what to do instead."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(one((2**20, 2**22), 34, b"data"))
    os.truncate(path, 2**40)

    def empty(*_: object) -> None:
        raise MemoryError

    with GGUFSource(path) as source:
        w = source["w"]
        assert w.nbytes == 2**34 * 54
        assert w.decode(rows=[2**20 - 1]).shape == (1, 2**22)
        monkeypatch.setattr(np, "empty", empty)
        with pytest.raises(
            UnsupportedError, match=r"do not fit into memory; expected 17592186044416 bytes.*rows=slice"
        ):
            w.decode()


@pytest.mark.parametrize("target", ["directory", "missing", "NUL"])
def test_paths_that_are_no_files(tmp_path: Path, target: str) -> None:
    path = {"directory": tmp_path, "missing": tmp_path / "no.gguf", "NUL": tmp_path / "a\0b.gguf"}[target]
    with pytest.raises(FileError):
        GGUFSource(path)


SOUND = build(
    [
        tensor("a", (2, 32), Q4_0, bytes(range(36))),
        tensor("odd", (3,), 142, b"?" * 8),
        tensor("b", (2, 2), F32, bytes(16)),
        tensor("none", (0,), F32),
        tensor("c", (2, 64), 42, bytes(36)),
    ],
    {
        "general.alignment": 32,
        "text": "value",
        "list": ["a", "bc"],
        "numbers": typed("int64", [1, 2]),
        "nested": [["x"], ["y", "z"]],
        "flag": True,
        "split.count": 1,
        "comfy.gguf.orig_shape.b": typed("int32", [4]),
    },
)
SWAPPED = build([tensor("a", (2, 32), Q4_0, bytes(36))], {"list": ["a", "b"], "n": 1}, big_endian=True)


@contextmanager
def errors_of_ours(path: Path) -> Iterator[None]:
    """Whatever happens inside is fine or an error of ours that names the file."""
    try:
        yield
    except QuantformError as error:
        if str(path) not in str(error):
            raise


def read_everything(path: Path) -> None:
    """What a user would do with a file; each step may fail, but only with an error of ours."""
    with GGUFSource(path) as source:
        (shard,) = source.shards
        assert sum(segment.nbytes for segment in shard.segments()) == shard.size
        for key in source.metadata:
            with errors_of_ours(path):
                value = source.metadata[key]
                if isinstance(value, GGUFArray):
                    value.tolist()
        for item in source.values():
            assert item.nbytes <= shard.size
            assert item.stored().size == item.nbytes
            for access in (item.payload, item.words, lambda item=item: item.decode(rows=slice(0, 2))):
                with errors_of_ours(path):
                    access()


def attempt(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with errors_of_ours(path):
        read_everything(path)


@settings(max_examples=400)
@given(
    st.sampled_from([SOUND, SWAPPED]),
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(SOUND)),
)
@example(SOUND, [], len(SOUND))
def test_any_damage_is_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, sound: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(sound)
    for at, value in changes:
        data[at % len(data)] = value
    attempt(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(data[:cut] if cut < len(data) else data))


@pytest.mark.parametrize("sound", [SOUND, SWAPPED], ids=["little", "big"])
def test_every_byte_of_the_header_damaged(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "damaged.gguf"
    for at in range(len(sound)):
        for value in (0x00, 0xFF, sound[at] ^ 1):
            attempt(path, sound[:at] + bytes([value]) + sound[at + 1 :])


def test_every_length(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    last = len(SOUND) - 64  # where "c" begins; its type is not settled, so that one byte of it is enough to open
    for length in range(last + 1):
        path.write_bytes(SOUND[:length])
        with pytest.raises(FileError, match=r"cut\.gguf"):
            GGUFSource(path)
    for length in range(last + 1, len(SOUND) + 1):
        path.write_bytes(SOUND[:length])
        with GGUFSource(path) as source:
            assert source["c"].decodable == (length >= last + 36)
        read_everything(path)
