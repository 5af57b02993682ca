"""Reading right safetensors files: every type, any rows, nothing unasked, few files open."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from quantform.errors import ArgumentError, FileError, QuantformError, UnknownNameError, UnsupportedError
from quantform.formats import DirectWords
from quantform.sources import _scalar_tensor
from quantform.sources.safetensors import SafetensorsSource
from quantform.sources.safetensors_files import looks_like_safetensors
from safetensors_builder import build, entry, model, raw, sharded

TYPES = {
    "BOOL": ("bool", np.bool_),
    "U8": ("uint8", np.uint8),
    "I8": ("int8", np.int8),
    "F8_E5M2": ("e5m2", ml_dtypes.float8_e5m2),
    "F8_E4M3": ("e4m3fn", ml_dtypes.float8_e4m3fn),
    "F8_E8M0": ("e8m0", ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": ("e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": ("e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    "I16": ("int16", np.int16),
    "U16": ("uint16", np.uint16),
    "F16": ("fp16", np.float16),
    "BF16": ("bf16", ml_dtypes.bfloat16),
    "I32": ("int32", np.int32),
    "U32": ("uint32", np.uint32),
    "F32": ("fp32", np.float32),
    "F64": ("fp64", np.float64),
    "I64": ("int64", np.int64),
    "U64": ("uint64", np.uint64),
}


FDS = Path("/proc/self/fd")


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pad", range(4))
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_keeps_its_bits(tmp_path: Path, dtype: str, pad: int) -> None:
    name, number = TYPES[dtype]
    size = np.dtype(number).itemsize
    data = np.random.default_rng(1).integers(0, 2 if dtype == "BOOL" else 256, 6 * 5 * size, np.uint8)
    path = write(tmp_path, build({"x": (dtype, (2, 3, 5), data.tobytes())}, pad=pad))
    with SafetensorsSource(path) as source:
        tensor = source["x"]
        assert (tensor.format, tensor.dtype_name, tensor.shape, tensor.nbytes) == (name, dtype, (2, 3, 5), data.size)
        assert (tensor.path, tensor.payload().tobytes()) == (path, data.tobytes())
        assert path.read_bytes()[tensor.offset :] == data.tobytes()
        words = tensor.words()
        assert isinstance(words, DirectWords)
        assert words.words.dtype == f"u{size}"
        assert words.words.astype(f"<u{size}").tobytes() == data.tobytes()
        values = tensor.decode()
        assert values.dtype == number
        assert values.view(np.uint8).reshape(-1).tobytes() == words.words.view(np.uint8).reshape(-1).tobytes()
        some = tensor.words([5, 0, 0, -1])
        assert some.shape == (4, 5)
        assert (some.words == words.words.reshape(6, 5)[[5, 0, 0, 5]]).all()
        assert (tensor.words(slice(1, 4)).words == words.words.reshape(6, 5)[1:4]).all()


def test_f4_packs_two_numbers_low_half_first_and_rows_may_begin_inside_a_byte(tmp_path: Path) -> None:
    path = write(tmp_path, build({"x": ("F4", (2, 3), bytes([0x21, 0x83, 0x7F]))}))
    with SafetensorsSource(path) as source:
        tensor = source["x"]
        assert (tensor.format, tensor.nbytes, tensor.bits_per_weight) == ("e2m1", 3, 4.0)
        assert tensor.words().words.tolist() == [[1, 2, 3], [8, 15, 7]]
        assert tensor.words([1]).words.tolist() == [[8, 15, 7]]
        assert tensor.decode("float32").tolist() == [[0.5, 1.0, 1.5], [-0.0, -6.0, 6.0]]
        assert np.signbit(tensor.decode("float32", rows=[1])[0, 0])


@pytest.mark.parametrize(("dtype", "last"), [("F6_E2M3", 7.5), ("F6_E3M2", 28.0)])
def test_f6_packs_four_numbers_into_three_bytes_from_the_lowest_bit(tmp_path: Path, dtype: str, last: float) -> None:
    words = [0b000001, 0b100000, 0b111111, 0b011111]
    packed = sum(word << 6 * at for at, word in enumerate(words)).to_bytes(3, "little")
    with SafetensorsSource(write(tmp_path, build({"x": (dtype, (4,), packed)}))) as source:
        assert source["x"].words().words.tolist() == words
        assert source["x"].decode("float32")[3] == last


def test_pieces_do_not_change_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(2).integers(0, 256, 7 * 9 // 2 + 1, np.uint8).tobytes()
    values = np.random.default_rng(3).standard_normal((7, 9)).astype(np.float32)
    path = write(tmp_path, build({"four": ("F4", (7, 9 + 1 - 1 + 1), data + b"abc"), "x": values}))
    with SafetensorsSource(path) as source:
        whole = {name: source[name].decode("float32") for name in source}
        for size in (1, 3, 8):
            monkeypatch.setattr(_scalar_tensor, "_PIECE_VALUES", size)
            for name in source:
                assert source[name].decode("float32").tobytes() == whole[name].tobytes()
                rows = [6, 2, 3, 2]
                assert source[name].decode("float32", rows=rows).tobytes() == whole[name][rows].tobytes()


def test_other_type_converts_once_and_empty_reads_touch_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, build({"x": np.array([[1.0, 65536.0], [-0.0, np.nan]])}))
    with SafetensorsSource(path) as source:
        assert np.isposinf(source["x"].decode("float16")[0, 1])
        path.write_bytes(b"")  # any read fails from here on
        assert source["x"].decode(rows=[]).shape == (0, 2)
        assert source["x"].words(slice(0, 0)).shape == (0, 2)
        with pytest.raises(FileError, match=r"shorter"):
            source["x"].decode()


def test_scalars_vectors_and_empty_tensors(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "s": np.array(3, np.float32),
        "v": np.arange(3, dtype=np.int64),
        "e": np.zeros((0, 5), np.float32),
    }
    with SafetensorsSource(write(tmp_path, build(tensors))) as source:
        assert set(source) == set(tensors)
        for name, array in tensors.items():
            assert source[name].decode().tobytes() == array.tobytes()
            assert source[name].decode().shape == array.shape
        assert source["v"].decode(rows=[0, 0]).shape == (2, 3)


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    arrays = {
        f"{name}.{dtype.__name__}": rng.standard_normal((3, 4)).astype(dtype)
        for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
        for name in ("b", "a")
    }
    path = tmp_path / "peer.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    with SafetensorsSource(path) as source:
        assert source.metadata == {"format": "np"}
        assert set(source) == set(arrays)
        for name, array in arrays.items():
            assert source[name].decode().tobytes() == array.tobytes()
        assert [t.offset for t in source.values()] == sorted(t.offset for t in source.values())


@pytest.mark.parametrize("dtype", ["F128", "C64", "weird type"])
def test_unknown_types_are_listed_and_refused_by_name(tmp_path: Path, dtype: str) -> None:
    header = {"x": entry(dtype, [2], 0, 16), "y": entry("F32", [1], 16, 20)}
    with SafetensorsSource(write(tmp_path, raw(header, bytes(20)))) as source:
        assert source["x"].format == f"safetensors:{dtype}"
        assert not source["x"].decodable
        assert source["x"].payload().tobytes() == bytes(16)
        assert source["y"].decode().tolist() == [0]
        for read in (source["x"].words, source["x"].decode):
            with pytest.raises(UnsupportedError, match=rf"{dtype} cannot be read"):
                read()
        kind, text = (UnsupportedError, "cannot be read") if dtype == "C64" else (FileError, "no such dtype")
        with pytest.raises(kind, match=text):
            source["x"].check()


@pytest.mark.parametrize("shape", [[0, 2**63], [2**64 - 1, 0], [2**40, 0, 2**40], [1] * 70])
def test_huge_shapes_are_listed_and_fail_only_as_arrays(tmp_path: Path, shape: list[int]) -> None:
    size = 0 if 0 in shape else 4
    with SafetensorsSource(write(tmp_path, raw({"x": entry("F32", shape, 0, size)}, bytes(size)))) as source:
        assert source["x"].shape == tuple(shape)
        for read in (source["x"].words, source["x"].decode, lambda: source["x"].decode(rows=[0])):
            try:
                read()
            except QuantformError as error:
                assert "'x'" in str(error)  # noqa: PT017 - some of these succeed


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ([2**63, 0], "no elements: leave it out"),
        ([0, 2**63], "no elements: leave it out"),
        ([1] * 70, "at most 64 axes; rows="),
    ],
)
def test_what_fits_no_array_gets_a_hint_that_helps(tmp_path: Path, shape: list[int], hint: str) -> None:
    size = 0 if 0 in shape else 4
    with SafetensorsSource(write(tmp_path, raw({"x": entry("F32", shape, 0, size)}, bytes(size)))) as source:
        with pytest.raises(UnsupportedError, match=hint):
            source["x"].decode()
        if size:
            assert source["x"].decode(rows=slice(None)).tolist() == [[0]]


def test_arguments_are_checked(tmp_path: Path) -> None:
    with SafetensorsSource(write(tmp_path, build({"x": np.zeros((2, 3), np.float32)}))) as source:
        with pytest.raises(UnknownNameError, match=r"'y'"):
            source["y"]
        with pytest.raises(ArgumentError, match=r"tensor 'x'.*row is outside"):
            source["x"].words([2])
        with pytest.raises(ArgumentError, match=r"tensor 'x'"):
            source["x"].decode("int8")
        with pytest.raises(ArgumentError, match=r"outside the tensor"):
            source["x"].read_into(20, np.empty(8, np.uint8))
    with pytest.raises(FileError, match=r"closed"):
        source["x"].decode()


def test_config_is_read_late_and_strictly(tmp_path: Path) -> None:
    model(tmp_path, {"x": np.zeros(1, np.float32)}, {"a": 1})
    with SafetensorsSource(tmp_path) as source:
        assert source.config == {"a": 1}
        assert source.files == (tmp_path / "model.safetensors",)
        assert source.document("none.json") is None
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')  # as Mamba's configs have it
    with SafetensorsSource(tmp_path) as source:
        assert source.config == {"time_step_limit": [0.0, math.inf]}
    for text in ('{"a": 1, "a": 2}', "[]", "{", "\ufeff{}"):
        (tmp_path / "config.json").write_text(text, "utf-8")
        with (
            SafetensorsSource(tmp_path / "model.safetensors") as source,
            pytest.raises(FileError, match=r"config.json"),
        ):
            assert source.config
    (tmp_path / "config.json").unlink()
    with SafetensorsSource(tmp_path) as source:
        assert source.config == {}


def test_directories(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no safetensors file"):
        SafetensorsSource(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(build({"b": np.zeros(1, np.float32)}))
    assert list(SafetensorsSource(tmp_path)) == ["b"]
    (tmp_path / "c.safetensors").write_bytes(build({"c": np.zeros(1, np.float32)}))
    with pytest.raises(FileError, match=r"several.*'b.safetensors', 'c.safetensors'"):
        SafetensorsSource(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(build({"m": np.zeros(1, np.float32)}))
    assert list(SafetensorsSource(tmp_path)) == ["m"]
    sharded(tmp_path, {"d.safetensors": {"d": np.zeros(1, np.float32)}})
    assert list(SafetensorsSource(tmp_path)) == ["d"]
    with pytest.raises(FileError, match=r"no such file"):
        SafetensorsSource(tmp_path / "none.safetensors")


def test_what_is_told_to_be_safetensors(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(build({"x": np.zeros(1, np.float32)}))
    other = tmp_path / "other"
    other.write_bytes(b"GGUF" + bytes(100))
    assert looks_like_safetensors(plain)
    assert looks_like_safetensors(tmp_path)
    assert not looks_like_safetensors(other)


def test_few_files_are_open_and_opening_reads_headers_only(tmp_path: Path) -> None:
    shards = {f"m-{at:02}.safetensors": {f"t{at}": np.full(1000, at, np.float32)} for at in range(20)}
    sharded(tmp_path, shards)
    before = len(list(FDS.iterdir())) if FDS.exists() else 0
    with SafetensorsSource(tmp_path) as source:
        for at in (*range(20), *range(20)):
            assert source[f"t{at}"].decode(rows=slice(None)).max() == at
            assert source.open_files <= 4
        if before:
            assert len(list(FDS.iterdir())) <= before + 8
        assert len(source.files) == 21
        assert source.metadata == {"total_size": 1, "format": "pt", "shard": "m-00.safetensors"}
        assert "20 files" in source.describe()
    assert source.open_files == 0


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    sharded(tmp_path, {f"m{at}": {f"t{at}": np.zeros(4, np.float32)} for at in range(6)})
    with SafetensorsSource(tmp_path) as source:
        (tmp_path / "m0").write_bytes((tmp_path / "m0").read_bytes() + b"x")
        with pytest.raises(FileError, match=r"changed since"):
            source["t0"].decode()


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    with SafetensorsSource(write(tmp_path, build({"x": values}))) as source:
        payload, words = source["x"].payload(), source["x"].words()
    assert payload.tobytes() == values.tobytes()
    assert not payload.flags.writeable
    assert words.decode().tolist() == values.tolist()


INDEXES = [
    ("a missing shard", {"a": "one", "b": "two", "e": "two", "c": "gone"}, "missing.*'gone'"),
    ("a missing tensor", {"a": "one", "b": "two", "e": "two", "c": "one"}, "shard one: .*lacks.*'c'"),
    ("an extra tensor", {"a": "one", "e": "two"}, "shard two: .*does not name.*'b'"),
    ("a swapped tensor", {"a": "two", "b": "two", "e": "two"}, "'a'"),
    ("a path upwards", {"a": "../one", "b": "two", "e": "two"}, "plain file name.*'../one'"),
    ("an absolute path", {"a": "/etc/passwd", "b": "two", "e": "two"}, "plain file name"),
    ("a backslash", {"a": "x\\one", "b": "two", "e": "two"}, "plain file name"),
    ("a NUL", {"a": "one\0", "b": "two", "e": "two"}, "plain file name"),
    ("the directory itself", {"a": ".", "b": "two", "e": "two"}, "plain file name"),
    ("an empty name", {"a": "", "b": "two", "e": "two"}, "plain file name"),
    ("a number", {"a": 1, "b": "two", "e": "two"}, "plain file name"),
    ("a list", {"a": ["one"], "b": "two", "e": "two"}, "plain file name"),
]


@pytest.mark.parametrize(("weight_map", "message"), [case[1:] for case in INDEXES], ids=[case[0] for case in INDEXES])
def test_an_index_that_disagrees_is_an_error_that_names_it(
    tmp_path: Path, weight_map: dict[str, str], message: str
) -> None:
    one = np.zeros(1, np.float32)
    sharded(tmp_path, {"one": {"a": one}, "two": {"b": one, "e": one}}, weight_map)
    with pytest.raises(FileError, match=message) as caught:
        SafetensorsSource(tmp_path)
    assert "index.json" in str(caught.value)


def test_a_tensor_in_two_shards_is_an_error_that_names_both(tmp_path: Path) -> None:
    one = np.zeros(1, np.float32)
    sharded(tmp_path, {"one": {"a": one, "b": one}, "two": {"b": one, "c": one}})
    with pytest.raises(FileError, match=r"shard one: tensor 'b' is in two shards.*two"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": []}', '{"weight_map": {}, "metadata": 3}', "\xff"])
def test_malformed_indexes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError, match=r"index"):
        SafetensorsSource(path)


def test_an_empty_index_is_an_empty_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    assert len(SafetensorsSource(tmp_path)) == 0
