"""Reading sound GGUF files: every tensor type, both byte orders, rows, shapes, types that are known by name only."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_builder
from bits import bits_of
from gguf_builder import F32, Q1_0, Q2_0, Q4_0, build, tensor, typed
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, QuantformError, UnknownNameError, UnsupportedError
from quantform.formats import BlockWords, DirectWords
from quantform.packed import PROFILES, dequantize_packed
from quantform.sources.gguf import GGUFSource

Write = Callable[..., Path]

# Widths of the fields of one block, from the table "Packed layouts" of the operator's text: count and bytes each.
FIELDS = {
    "q4_0": [(1, 2), (16, 1)],
    "q4_1": [(2, 2), (16, 1)],
    "q5_0": [(1, 2), (20, 1)],
    "q5_1": [(2, 2), (20, 1)],
    "q8_0": [(1, 2), (32, 1)],
    "q8_1": [(2, 2), (32, 1)],
    "q2_k": [(80, 1), (2, 2)],
    "q3_k": [(108, 1), (1, 2)],
    "q4_k": [(2, 2), (140, 1)],
    "q5_k": [(2, 2), (172, 1)],
    "q6_k": [(208, 1), (1, 2)],
    "q8_k": [(1, 4), (256, 1), (16, 2)],
    "iq2_xxs": [(33, 2)],
    "iq2_xs": [(33, 2), (8, 1)],
    "iq2_s": [(1, 2), (80, 1)],
    "iq3_xxs": [(1, 2), (96, 1)],
    "iq3_s": [(1, 2), (108, 1)],
    "iq1_s": [(1, 2), (32, 1), (8, 2)],
    "iq1_m": [(56, 1)],
    "iq4_nl": [(1, 2), (16, 1)],
    "iq4_xs": [(2, 2), (132, 1)],
    "tq1_0": [(52, 1), (1, 2)],
    "tq2_0": [(64, 1), (1, 2)],
    "mxfp4": [(17, 1)],
    "nvfp4": [(36, 1)],
    "q1_0": [(1, 2), (16, 1)],
    "q2_0": [(1, 2), (16, 1)],
}
SCALAR_TYPES = {0: "fp32", 1: "fp16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "fp64", 30: "bf16"}
ORDERS = pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])


def big(payload: bytes, fields: list[tuple[int, int]]) -> bytes:
    """Blocks with every field of several bytes reversed, byte by byte."""
    out, at = bytearray(), 0
    while at < len(payload):
        for count, width in fields:
            for _ in range(count):
                out += payload[at : at + width][::-1]
                at += width
    return bytes(out)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*args: Any, name: str = "toy.gguf", **options: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(build(*args, **options))
        return path

    return write


@pytest.fixture
def blocks() -> bytes:
    """Six rows of two Q4_0 blocks with finite scales."""
    data = np.random.default_rng(5).integers(0, 256, (12, 18), np.uint8)
    data[:, 1] = 0x2C
    return data.tobytes()


def test_field_table_covers_every_profile() -> None:
    assert sorted(FIELDS) == sorted(identifier.removeprefix("gguf:") for identifier in PROFILES)
    for identifier, profile in PROFILES.items():
        assert sum(count * width for count, width in FIELDS[identifier.removeprefix("gguf:")]) == profile.bytes


@ORDERS
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("identifier", PROFILES)
def test_every_profile(
    write: Write, packed_vectors: dict[str, np.ndarray], identifier: str, version: int, big_endian: bool
) -> None:
    profile, kind = PROFILES[identifier], identifier.removeprefix("gguf:")
    payload, bits = packed_vectors[f"{kind}/payload"], packed_vectors[f"{kind}/bits"]
    stored = big(payload.tobytes(), FIELDS[kind]) if big_endian else payload.tobytes()
    shape = (2, 3, payload.shape[0] // 6 * profile.values)
    path = write([tensor("w", shape, profile.ggml_type, stored)], version=version, big_endian=big_endian)
    with GGUFSource(path) as source:
        w = source["w"]
        assert (source.version, source.big_endian) == (version, big_endian)
        assert (w.shape, w.stored_shape, w.format, w.type_name) == (shape, shape, identifier, profile.name)
        assert (w.ggml_type, w.nbytes, w.exact, w.decodable) == (profile.ggml_type, payload.size, True, True)
        assert w.stored().tobytes() == stored
        assert w.payload().tobytes() == payload.tobytes()
        assert not w.payload().flags.writeable
        values = w.decode()
        assert values.shape == shape
        assert values.dtype == np.float32
        np.testing.assert_array_equal(bits_of(values).reshape(-1), bits_of(bits.view(np.float32)).reshape(-1))
        words = w.words()
        assert isinstance(words, BlockWords)
        words.validate()
        np.testing.assert_array_equal(words.blocks.reshape(-1), payload.reshape(-1))
        row = w.words([4, -1])
        assert isinstance(row, BlockWords)
        assert row.shape == (2, shape[-1])
        np.testing.assert_array_equal(row.blocks, payload.reshape(6, -1)[[4, 5]])


@ORDERS
@pytest.mark.parametrize("number", SCALAR_TYPES)
def test_every_plain_type(write: Write, number: int, big_endian: bool) -> None:
    scalar = SCALARS[SCALAR_TYPES[number]]
    words = np.random.default_rng(number).integers(0, 256, 12 * scalar.nbytes, np.uint8).view(scalar.word_dtype)
    stored = words.astype(scalar.word_dtype.newbyteorder(">" if big_endian else "<")).tobytes()
    with GGUFSource(write([tensor("v", (3, 4), number, stored)], big_endian=big_endian)) as source:
        v = source["v"]
        assert v.format == scalar.name
        assert v.payload().tobytes() == words.astype(scalar.stored_dtype).tobytes()
        got = v.words()
        assert isinstance(got, DirectWords)
        np.testing.assert_array_equal(got.words, words.reshape(3, 4))
        values = v.decode()
        assert values.dtype == scalar.dtype
        assert values.tobytes() == words.tobytes()
        picked = v.decode(rows=[2, 0])
        assert picked.tobytes() == words.reshape(3, 4)[[2, 0]].tobytes()
        if not scalar.is_float:
            np.testing.assert_array_equal(v.decode("float64"), words.view(scalar.dtype).reshape(3, 4).astype(float))


def test_integers_are_not_made_of_floats(write: Write) -> None:
    with GGUFSource(write([tensor("v", (2,), F32, bytes(8))])) as source:
        with pytest.raises(ArgumentError, match="tensor 'v'"):
            source["v"].decode("int32")
        assert source["v"].decode("bfloat16").dtype.name == "bfloat16"


@ORDERS
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rows(write: Write, blocks: bytes, big_endian: bool, dtype: str) -> None:
    stored = big(blocks, FIELDS["q4_0"]) if big_endian else blocks
    expected = dequantize_packed(blocks, "gguf:q4_0", (6, 64), dtype)
    with GGUFSource(write([tensor("w", (2, 3, 64), Q4_0, stored)], big_endian=big_endian)) as source:
        w = source["w"]
        for rows in (slice(None), slice(1, 4), slice(4, 99), slice(5, 1), slice(None, None, -1), slice(0, 6, 2)):
            np.testing.assert_array_equal(w.decode(dtype, rows), expected[rows])
            np.testing.assert_array_equal(w.words(rows).decode(dtype), expected[rows])
        for chosen in ([], [3], [5, 0, 0, 2], [-1, -6], range(1, 3), np.array([4, 4], np.uint8)):
            wanted = expected[np.asarray(chosen, np.int64)]
            np.testing.assert_array_equal(w.decode(dtype, chosen), wanted)
            np.testing.assert_array_equal(w.words(chosen).decode(dtype), wanted)
        for wrong in ([6], [-7], [0.5], 3):
            with pytest.raises(ArgumentError, match="tensor 'w'"):
                w.decode(dtype, wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"tensor 'w'.*float32, float16, bfloat16, float64"):
            w.decode("int8")


@pytest.mark.parametrize("big_endian", [False, True])
def test_decoding_goes_in_pieces(write: Write, big_endian: bool) -> None:
    rows, columns = 5, 640 * 1024
    payload = np.random.default_rng(1).integers(0, 256, (rows * columns // 32, 18), np.uint8)
    payload[:, 1] = 0x2C
    stored = payload[:, [1, 0, *range(2, 18)]] if big_endian else payload
    path = write([tensor("w", (rows, columns), Q4_0, stored.tobytes())], big_endian=big_endian)
    expected = dequantize_packed(payload.reshape(-1), "gguf:q4_0", (rows, columns), "float16")
    with GGUFSource(path) as source:
        w = source["w"]
        for chosen in (None, slice(1, 4), [3, 1, 1]):
            tracemalloc.start()
            values = w.decode("float16", chosen)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            np.testing.assert_array_equal(values, expected if chosen is None else expected[chosen])
            assert peak < values.nbytes + 8e6


@given(start=st.integers(0, 12 * 18), size=st.integers(0, 12 * 18))
def test_bounded_pieces_of_big_endian_blocks(tmp_path_factory: pytest.TempPathFactory, start: int, size: int) -> None:
    payload = np.arange(12 * 18, dtype=np.uint8)
    path = tmp_path_factory.getbasetemp() / "pieces.gguf"
    path.write_bytes(build([tensor("w", (6, 64), Q4_0, big(payload.tobytes(), FIELDS["q4_0"]))], big_endian=True))
    out = np.zeros(min(size, 12 * 18 - start), np.uint8)
    with GGUFSource(path) as source:
        source["w"].read_into(start, out)
        np.testing.assert_array_equal(out, payload[start : start + size])
        source["w"].read_stored_into(start, out)
        np.testing.assert_array_equal(out, source["w"].stored()[start : start + size])


def test_bounded_reads_are_checked(write: Write, blocks: bytes) -> None:
    with GGUFSource(write([tensor("w", (6, 64), Q4_0, blocks)])) as source:
        for offset, out in ((0, np.zeros(217, np.uint8)), (-1, np.zeros(2, np.uint8)), (2**70, np.zeros(1, np.uint8))):
            with pytest.raises(ArgumentError, match="does not lie in the tensor"):
                source["w"].read_into(offset, out)
        fixed = np.zeros(4, np.uint8)
        fixed.flags.writeable = False
        for wrong in (np.zeros(4), np.zeros((2, 2), np.uint8), np.zeros(4, np.uint8)[::2], fixed):
            with pytest.raises(ArgumentError, match="out is not"):
                source["w"].read_into(0, wrong)  # type: ignore[arg-type]


def test_names_are_looked_up(write: Write) -> None:
    path = write([tensor("blk.0.attn_q.weight", (1,), F32, bytes(4))])
    with GGUFSource(path) as source:
        assert list(source) == ["blk.0.attn_q.weight"]
        assert source.kind == "gguf"
        assert source.files == (source.path,) == (path,)
        with pytest.raises(UnknownNameError, match=r"Did you mean 'blk.0.attn_q.weight'"):
            source["blk.0.attn_k.weight"]
        assert source.describe() == "GGUF version 3, 1 tensor"
        assert "toy.gguf" in repr(source)


def test_closing(write: Write) -> None:
    source = GGUFSource(write([tensor("w", (1,), F32, bytes(4))], {"a": 1}))
    view = source["w"].payload()
    source.close()
    assert view.tobytes() == bytes(4)
    for access in (source["w"].payload, source["w"].decode, lambda: source.metadata["a"]):
        with pytest.raises(QuantformError, match="closed"):
            access()


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096, 1 << 20])
@pytest.mark.parametrize("width", ["uint8", "uint16", "uint32", "uint64"])
def test_alignments(write: Write, alignment: int, width: str) -> None:
    if alignment >= 2 ** int(width.removeprefix("uint")):
        return
    tensors = [tensor("a", (3,), F32, b"abcdefghijkl"), tensor("b", (2,), F32, b"ABCDEFGH")]
    path = write(tensors, {"general.alignment": typed(width, alignment)}, alignment=alignment, pad_end=False)
    with GGUFSource(path) as source:
        assert source.alignment == alignment
        assert source["b"].offset == source["a"].offset + max(alignment, 16)
        assert source["b"].payload().tobytes() == b"ABCDEFGH"


def test_no_padding_after_an_aligned_header(write: Write) -> None:
    """The header's last byte may be the last before a multiple: nothing is skipped then."""
    for filler in range(32):
        path = write([tensor("a", (1,), F32, b"data")], {"k": "x" * filler})
        with GGUFSource(path) as source:
            assert source["a"].payload().tobytes() == b"data"
            (shard,) = source.shards
            assert shard.data_offset - shard.header_end < 32


def test_offsets_in_any_order_with_gaps(write: Write) -> None:
    data = b"late" + bytes(28) + bytes(32) + b"soon" + bytes(28)
    path = write([tensor("late", (1,), F32, data, offset=64), tensor("early", (1,), F32, offset=0)])
    with GGUFSource(path) as source:
        assert list(source) == ["late", "early"]
        assert source["late"].payload().tobytes() == b"soon"
        assert source["early"].payload().tobytes() == b"late"


def test_empty_tensors_and_scalars(write: Write) -> None:
    tensors = [
        tensor("none", (0, 64), Q4_0),
        tensor("some", (1, 32), Q4_0, bytes(18)),
        tensor("no columns", (5, 0), F32),
        tensor("wide", (2**59, 0), F32),
        tensor("unknown", (0,), 77),
        tensor("one", (), F32, np.float32(1.5).tobytes()),
        tensor("last", (4, 0), Q2_0),
    ]
    with GGUFSource(write(tensors, pad_end=False)) as source:
        assert source["none"].offset == source["some"].offset
        assert source["none"].decode().shape == (0, 64)
        assert source["no columns"].decode().shape == (5, 0)
        assert source["no columns"].decode(rows=[1, 2]).shape == (2, 0)
        source["no columns"].words().validate()
        assert source["one"].decode().item() == 1.5
        assert source["one"].shape == ()
        assert source["last"].decode().shape == (4, 0)
        assert [t.nbytes for t in source.values()] == [0, 18, 0, 0, 0, 4, 0]
        assert source["wide"].decode("float64").shape == (2**59, 0)
        source["wide"].words().validate()


def test_no_tensors_at_all(write: Write) -> None:
    path = write([], {"a": 1})
    with GGUFSource(path) as source:
        assert len(source) == 0
        (shard,) = source.shards
        assert shard.header_end == shard.data_offset == path.stat().st_size


@pytest.mark.parametrize("kind", ["int32", "uint64", "int64", "uint8"])
def test_original_shape(write: Write, blocks: bytes, kind: str) -> None:
    metadata = {"comfy.gguf.orig_shape.conv": typed(kind, [32, 4, 3, 1])}
    with GGUFSource(write([tensor("conv", (6, 64), Q4_0, blocks)], metadata)) as source:
        conv = source["conv"]
        assert (conv.shape, conv.stored_shape) == ((32, 4, 3, 1), (6, 64))
        expected = dequantize_packed(blocks, "gguf:q4_0", (6, 64))
        np.testing.assert_array_equal(conv.decode(), expected.reshape(32, 4, 3, 1))
        np.testing.assert_array_equal(conv.decode(rows=[5]), expected[[5]])
        words = conv.words()
        words.validate()
        assert words.shape == (6, 64)


@pytest.mark.parametrize(
    "value",
    [
        typed("int32", [32, 4, 2]),
        typed("int32", [-1, -384]),
        typed("int32", [384, *[1] * 16]),
        typed("int32", []),
        typed("float32", [384.0]),
        typed("string", ["384"]),
        384,
        "384",
        b"\xff",
        [typed("int32", [384])],
    ],
    ids=repr,
)
def test_original_shapes_that_are_none(write: Write, blocks: bytes, value: Any) -> None:
    path = write([tensor("conv", (6, 64), Q4_0, blocks)], {"comfy.gguf.orig_shape.conv": value})
    with GGUFSource(path) as source:
        assert source["conv"].shape == (6, 64)


@ORDERS
@pytest.mark.parametrize(
    ("number", "name", "message"),
    [
        (4, "Q4_2", "removed from ggml"),
        (31, "Q4_0_4_4", "Quantize the model again as Q4_0"),
        (38, "IQ4_NL_8_8", "Quantize the model again as IQ4_NL"),
        (142, "PQ2_0", "nother program"),
        (143, "PTQ1_0", "nother program"),
        (43, "type 43", "unknown"),
        (2**32 - 1, "type 4294967295", "unknown"),
    ],
)
def test_types_known_by_name_only(write: Write, number: int, name: str, message: str, big_endian: bool) -> None:
    tensors = [
        tensor("odd", (3, 50), number, b"?" * 70),
        tensor("fine", (1,), F32, np.array(2, ">f4" if big_endian else "<f4").tobytes()),
        tensor("end", (3, 50), number, b"?" * 10),
    ]
    with GGUFSource(write(tensors, pad_end=False, big_endian=big_endian)) as source:
        odd = source["odd"]
        assert (odd.format, odd.type_name, odd.ggml_type) == (f"ggml:{number}", name, number)
        assert (odd.nbytes, odd.exact, odd.decodable) == (96, False, False)
        assert source["end"].nbytes == 10
        assert odd.stored().tobytes()[:70] == b"?" * 70
        assert source["fine"].decode().item() == 2
        for access in (odd.words, odd.decode):
            with pytest.raises(UnsupportedError, match=rf"tensor 'odd': .*{name}.*{message}"):
                access()
        if big_endian:
            with pytest.raises(UnsupportedError):
                odd.payload()
        else:
            assert odd.payload().size == 96


def test_another_programs_type_of_known_size(write: Write) -> None:
    """Its blocks are words that a method may move; there is no decoder."""
    data = np.arange(102, dtype=np.uint8)
    for big_endian, stored in ((False, data.tobytes()), (True, big(data.tobytes(), [(1, 2), (32, 1)]))):
        with GGUFSource(write([tensor("w", (3, 128), 142, stored)], big_endian=big_endian)) as source:
            w = source["w"]
            assert (w.nbytes, w.exact, w.format, w.decodable) == (102, True, "ggml:142", False)
            words = w.words([2])
            assert isinstance(words, BlockWords)
            np.testing.assert_array_equal(words.blocks, data.reshape(3, 34)[[2]])
            np.testing.assert_array_equal(w.payload(), data)
            for access in (w.decode, w.check):
                with pytest.raises(UnsupportedError, match="PQ2_0 tensors cannot be decoded"):
                    access()


@pytest.mark.parametrize(("number", "values"), [(Q1_0, 128), (Q2_0, 64)])
def test_numbers_that_had_other_blocks(write: Write, number: int, values: int) -> None:
    """Types 41 and 42 are believed where the spans of the file allow it, and only there."""
    name = {Q1_0: "Q1_0", Q2_0: "Q2_0"}[number]
    sound = [tensor("a", (2, values), number, bytes(36)), tensor("b", (4, values), number, bytes(72))]
    with GGUFSource(write(sound)) as source:
        assert source["a"].format == f"gguf:{name.lower()}"
        assert source["b"].nbytes == 72
        assert not source["b"].decode().any()
    cases = [
        tensor("small", (8, values), number, bytes(96)),
        tensor("large", (8, values), number, bytes(288)),
        tensor("rows", (8, values // 2), number, bytes(144)),
    ]
    for other in cases:
        for tensors in ([*sound, other], [other, *sound]):
            with GGUFSource(write(tensors)) as source:
                wrong = source["a"]
                assert (wrong.format, wrong.exact, wrong.decodable) == (f"ggml:{number}", False, False)
                for access in (wrong.decode, wrong.words):
                    with pytest.raises(
                        UnsupportedError, match=rf"the {name} blocks .* are not of {name}'s size.*{other.name!r}"
                    ):
                        access()


def test_segments_cover_the_file(write: Write) -> None:
    tensors = [
        tensor("a", (3,), F32, b"abcdefghijkl"),
        tensor("empty", (0,), F32),
        tensor("odd", (5,), 99, b"?" * 40),
        tensor("b", (8,), F32, b"B" * 32),
    ]
    path = write(tensors, {"k": "v"})
    with path.open("ab") as stream:
        stream.write(b"trailing")
    with GGUFSource(path) as source:
        (shard,) = source.shards
        segments = list(shard.segments())
        assert [segment.tensor.name if segment.tensor else None for segment in segments] == [
            *(None, "a", None, "odd", "b", None),
        ]
        at = 0
        for segment in segments:
            assert segment.offset == at
            at += segment.nbytes
        assert at == shard.size == path.stat().st_size
        assert segments[0].nbytes == shard.data_offset


def test_vocabularies_are_not_built(write: Write) -> None:
    tokens = [f"token {number}" for number in range(100_000)]
    path = write([], {"tokens": tokens, "scores": typed("float32", [0.5] * 100_000)})
    tracemalloc.start()
    with GGUFSource(path) as source:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
        found = source.metadata["tokens"]
        assert len(found) == 100_000
        assert (found[99_999], found[-100_000], found[5:7]) == ("token 99999", "token 0", ["token 5", "token 6"])
        assert list(found) == tokens


def test_agrees_with_the_gguf_package(write: Write, packed_vectors: dict[str, np.ndarray]) -> None:
    # The package gives Q8_1 the 40 bytes that it had before its two scales became binary16.
    known = {item.value for item in gguf.GGMLQuantizationType} - {gguf.GGMLQuantizationType.Q8_1.value}
    tensors = [
        tensor(
            identifier,
            (6, 16 * profile.values),
            profile.ggml_type,
            packed_vectors[f"{identifier.removeprefix('gguf:')}/payload"].tobytes(),
        )
        for identifier, profile in PROFILES.items()
        if profile.ggml_type in known
    ]
    tensors.append(tensor("plain", (2, 3), gguf_builder.F16, np.arange(6, dtype="<f2").tobytes()))
    path = write(tensors, {"name": "toy", "list": typed("int16", [1, -2]), "words": ["a", "b"], "big": 2**63})
    peer = gguf.GGUFReader(path)
    with GGUFSource(path) as source:
        for item in peer.tensors:
            mine = source[item.name]
            assert mine.stored_shape == tuple(reversed(item.shape.tolist()))
            assert (mine.type_name, mine.offset, mine.nbytes) == (
                item.tensor_type.name,
                item.data_offset,
                item.n_bytes,
            )
            assert mine.payload().tobytes() == item.data.tobytes()
        assert [item.name for item in peer.tensors] == list(source)
        for key, value in source.metadata.items():
            assert peer.fields[key].contents() == (value if isinstance(value, (int, str)) else value.tolist())
