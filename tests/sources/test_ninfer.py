"""Artifacts as tensors: by parameter, in whole objects, in rows of several, in pieces of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ninfer_builder as build
from quantform.container import ArtifactWriter, Binding, Component, Part, PlannedResource, PlannedTensor, Use
from quantform.errors import ArgumentError, ArtifactError, QuantformError, UnknownNameError, UnsupportedError
from quantform.formats import FORMATS, BlockWords, DirectWords, GroupedWords, Nvfp4Words
from quantform.layouts import LAYOUTS
from quantform.sources import ninfer_matrix
from quantform.sources.ninfer import NinferSource
from words_maker import assert_same_words, make_words

RANDOM = np.random.default_rng(5)


def _blocks(rows: int, columns: int = 64) -> npt.NDArray[np.uint8]:
    """Q8_0 blocks of finite scales."""
    blocks = RANDOM.integers(0, 256, (rows, columns // 32, 34)).astype(np.uint8)
    blocks[:, :, :2] = RANDOM.uniform(-1, 1, (rows, columns // 32, 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def _values(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """What Q8_0 blocks are worth: scale times code, once rounded."""
    split = blocks.reshape(blocks.shape[0], -1, 34)
    scales = np.ascontiguousarray(split[:, :, :2]).view("<f2").astype(np.float32)
    return (scales * split[:, :, 2:].view(np.int8).astype(np.float32)).reshape(blocks.shape[0], -1)


BANK = _blocks(12)  # [3, 4, 64] as [12, 64]
MORE = _blocks(6)
FLAT = RANDOM.standard_normal(300).astype(np.float32)
BF16 = RANDOM.standard_normal((6, 10)).astype(ml_dtypes.bfloat16)
SMALL = np.array([[1, -2, 3], [4, 5, -6]], np.int32)
PAYLOADS: dict[str, npt.NDArray[Any]] = {"bank": BANK, "more": MORE, "flat": FLAT, "half": BF16, "ints": SMALL}


def _tensor(id: str, format: str, layout: str = "contiguous_le_v1") -> PlannedTensor:
    shape = (PAYLOADS[id].shape[0], 64) if format.startswith("gguf") else PAYLOADS[id].shape
    return PlannedTensor(id=id, shape=shape, format=format, layout=layout)


OBJECTS = [
    _tensor("bank", "gguf_q8_0", "gguf_blocks_v1"),
    _tensor("more", "gguf_q8_0", "gguf_blocks_v1"),
    _tensor("flat", "fp32"),
    _tensor("half", "bf16"),
    _tensor("ints", "int32"),
]


def _parts(*parts: tuple[str, int, int]) -> Binding:
    return Binding(parts=tuple(Part(object=id, range=(begin, end)) for id, begin, end in parts))


BINDINGS = {
    "z.bank": _parts(("bank", 0, 768)),
    "whole": Binding(object="more"),
    "a.rows": _parts(("more", 64, 256), ("bank", 0, 128), ("more", 0, 64)),
    "some": _parts(("bank", 128, 256)),
    "flat": Binding(object="flat"),
    "bias": _parts(("flat", 200, 300), ("flat", 0, 20)),
    "table": _parts(("flat", 0, 300)),
    "torn": _parts(("bank", 10, 100)),
    "mixed": _parts(("half", 0, 60), ("bank", 0, 64)),
    "ints and reals": _parts(("ints", 0, 6), ("flat", 0, 2)),
    "scalar": _parts(("flat", 7, 8)),
}
SHAPES = {
    "z.bank": [3, 4, 64],
    "a.rows": [6, 64],
    "table": [3, 10, 10],
    "scalar": [],
    "mixed": [7, 7],
    "bias": [True] * 3,
}


def _expected() -> dict[str, npt.NDArray[Any]]:
    bank, more = _values(BANK), _values(MORE)
    return {
        "z.bank": bank.reshape(3, 4, 64),
        "whole": more,
        "a.rows": np.concatenate([more[1:4], bank[:2], more[:1]]),
        "some": bank[2:4].reshape(-1),
        "flat": FLAT,
        "bias": np.concatenate([FLAT[200:], FLAT[:20]]),
        "table": FLAT.reshape(3, 10, 10),
        "torn": bank.reshape(-1)[10:100],
        "mixed": np.concatenate([BF16.astype(np.float32).reshape(-1), bank[0]]),
        "ints and reals": np.concatenate([SMALL.reshape(-1), FLAT[:2]]).astype(np.float64),
        "scalar": FLAT[7].reshape(()),
    }


@pytest.fixture(scope="module", params=[None, 8192], ids=["one file", "split"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "m.ninfer"
    with ArtifactWriter(
        path,
        components={
            "text": Component(config={"layers": 1}, resources={"template": "chat"}),
            "vision": Component(config={}, resources={"template": "look", "extra": "look"}),
        },
        objects=[*OBJECTS, PlannedResource(id="chat", nbytes=5), PlannedResource(id="look", nbytes=2)],
        bindings=BINDINGS,
        uses=[Use(parameter="whole", input="x")],
        metadata={"name": "n", "quantform": {"shapes": SHAPES}},
        max_file_bytes=request.param,
    ) as writer:
        writer.write("chat", 0, b"hello")
        writer.write("look", 0, b"hi")
        for id, payload in PAYLOADS.items():
            writer.write(id, 0, payload)
    return path


@pytest.fixture
def source(path: Path) -> Any:
    with NinferSource(path) as opened:
        yield opened


def test_the_face(source: NinferSource, path: Path) -> None:
    assert source.kind == "ninfer"
    assert list(source) == list(BINDINGS)
    assert source.files[0] == source.path == path
    assert source.metadata["name"] == "n"
    assert list(source.components) == ["text", "vision"]
    assert source.uses == (Use(parameter="whole", input="x"),)
    assert len(source.artifact_id) == 32
    assert source.describe().startswith(".ninfer version 3, 11 tensors, 7 objects")
    with pytest.raises(UnknownNameError, match=r"'z\.bank'"):
        source["z.bonk"]


def test_resources(source: NinferSource) -> None:
    assert dict(source.resources) == {"template": b"hello", "vision/template": b"hi", "extra": b"hi"}
    assert "template" in source.resources
    assert source.resources.get("none") is None
    with pytest.raises(UnknownNameError, match="'template'"):
        source.resources["templat"]


@pytest.mark.parametrize(
    ("name", "shape", "format", "layout", "nbytes", "objects"),
    [
        ("z.bank", (3, 4, 64), "gguf_q8_0", "gguf_blocks_v1", 12 * 68, ("bank",)),
        ("whole", (6, 64), "gguf_q8_0", "gguf_blocks_v1", 6 * 68, ("more",)),
        ("a.rows", (384,), "gguf_q8_0", "gguf_blocks_v1", 6 * 68, ("more", "bank")),
        ("some", (128,), "gguf_q8_0", "gguf_blocks_v1", 2 * 68, ("bank",)),
        ("bias", (120,), "fp32", "contiguous_le_v1", 480, ("flat",)),
        ("table", (3, 10, 10), "fp32", "contiguous_le_v1", 1200, ("flat",)),
        ("torn", (90,), "gguf_q8_0", "gguf_blocks_v1", 12 * 68 * 90 // 768, ("bank",)),
        ("mixed", (124,), "bf16+gguf_q8_0", "contiguous_le_v1+gguf_blocks_v1", 120 + 68, ("half", "bank")),
        ("scalar", (), "fp32", "contiguous_le_v1", 4, ("flat",)),
    ],
)
def test_what_tensors_are(
    source: NinferSource, name: str, shape: Any, format: str, layout: str, nbytes: int, objects: Any
) -> None:
    tensor = source[name]
    if name == "a.rows":
        shape = (6, 64)
    assert (tensor.shape, tensor.format, tensor.layout) == (shape, format, layout)
    assert (tensor.nbytes, tensor.objects) == (nbytes, objects)
    tensor.check()


@pytest.mark.parametrize("name", BINDINGS)
@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_values(source: NinferSource, monkeypatch: pytest.MonkeyPatch, name: str, piece: int) -> None:
    monkeypatch.setattr(ninfer_matrix, "_PIECE_VALUES", piece)
    expected = _expected()[name]
    values = source[name].decode()
    assert values.dtype == expected.dtype
    assert values.shape == source[name].shape
    assert values.tobytes() == expected.tobytes()
    half = source[name].decode("float16")
    assert half.tobytes() == expected.astype(np.float16).tobytes()


@pytest.mark.parametrize("name", BINDINGS)
@pytest.mark.parametrize("rows", [slice(0, 1), slice(None, None, -1), [], [0, 0], [-1], slice(1, 3), slice(9, 3)])
def test_values_of_rows(source: NinferSource, name: str, rows: Any) -> None:
    expected = _expected()[name]
    matrix = expected.reshape(-1, expected.shape[-1] if expected.shape else 1)
    chosen = matrix[rows] if isinstance(rows, slice) else matrix[np.asarray(rows, int)]
    values = source[name].decode(rows=rows)
    assert values.dtype == matrix.dtype
    assert values.shape == chosen.shape
    assert values.tobytes() == chosen.tobytes()


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("z.bank", BANK),
        ("whole", MORE),
        ("a.rows", np.concatenate([MORE[1:4], BANK[:2], MORE[:1]])),
        ("some", BANK[2:4]),
        ("flat", FLAT),
        ("bias", np.concatenate([FLAT[200:], FLAT[:20]])),
        ("scalar", FLAT[7:8]),
    ],
)
def test_payloads(source: NinferSource, name: str, payload: npt.NDArray[Any]) -> None:
    tensor = source[name]
    raw = payload.tobytes()
    assert tensor.payload().tobytes() == raw
    assert not tensor.payload().flags.writeable
    for offset in (0, 1, len(raw) // 2, len(raw) - 1, len(raw)):
        for count in {0, 1, len(raw) // 3, len(raw) - offset}:
            if offset + count <= len(raw):
                out = np.full(count, 99, np.uint8)
                tensor.read_into(offset, out)
                assert out.tobytes() == raw[offset : offset + count]
    with pytest.raises(QuantformError, match="exceeds"):
        tensor.read_into(len(raw), np.zeros(1, np.uint8))


def test_words_have_the_tensors_shape(source: NinferSource) -> None:
    words = source["z.bank"].words()
    assert isinstance(words, BlockWords)
    assert words.shape == (3, 4, 64)
    assert words.blocks.tobytes() == BANK.tobytes()
    table = source["table"].words()
    assert isinstance(table, DirectWords)
    assert table.shape == table.words.shape == (3, 10, 10)
    some = source["some"].words()  # nobody recorded a shape, so that its rows are the object's
    assert some.shape == (2, 64)
    assert source["some"].shape == (128,)


def test_words_of_rows(source: NinferSource) -> None:
    words = source["z.bank"].words([11, 0, 0])
    assert isinstance(words, BlockWords)
    assert words.shape == (3, 64)
    assert words.blocks.tobytes() == BANK[[11, 0, 0]].tobytes()
    rows = source["a.rows"].words(slice(2, 5))
    assert isinstance(rows, BlockWords)
    assert rows.blocks.tobytes() == np.concatenate([MORE[3:4], BANK[:2]]).tobytes()
    table = source["table"].words([29, 1])
    assert isinstance(table, DirectWords)
    assert table.words.tobytes() == FLAT.reshape(30, 10)[[29, 1]].tobytes()
    with pytest.raises(UnsupportedError, match="not whole rows of the stored"):
        source["some"].words([0])
    with pytest.raises(ArgumentError, match="outside"):
        source["whole"].words([6])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("torn", "begins or ends within a row"),
        ("mixed", "different formats, bf16 and gguf_q8_0"),
        ("ints and reals", "different formats, fp32 and int32"),
    ],
)
def test_parts_without_a_payload(source: NinferSource, name: str, why: str) -> None:
    tensor = source[name]
    for use in (tensor.payload, tensor.words, lambda: tensor.read_into(0, np.zeros(1, np.uint8))):
        with pytest.raises(UnsupportedError, match=why) as caught:
            use()
        assert f"tensor {name!r}" in str(caught.value)


def test_wrong_output_types(source: NinferSource) -> None:
    for name in ("whole", "mixed", "flat"):
        with pytest.raises(ArgumentError):
            source[name].decode("int8")


def test_objects_are_reachable_without_a_name(source: NinferSource) -> None:
    assert list(source.objects) == list(PAYLOADS)
    assert source.objects["half"].shape == (6, 10)
    assert source.objects["half"].decode().tobytes() == BF16.tobytes()
    source.check("chat")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_rows_of_joined_parts(source: NinferSource, data: st.DataObject) -> None:
    expected = _expected()["a.rows"]
    rows = data.draw(st.lists(st.integers(-6, 5), max_size=10))
    assert source["a.rows"].decode(rows=rows).tobytes() == expected[rows].tobytes() if rows else True
    words = source["a.rows"].words(rows)
    assert words.shape == (len(rows), 64)


# --- formats with several planes, or without rows ---------------------------------------------------------------

SPLIT_ROWS = "row_split_k128_v1"


def test_planes_of_several_objects_are_joined(tmp_path: Path) -> None:
    layout = LAYOUTS[SPLIT_ROWS]
    objects, payloads = [], {}
    for id, rows in (("one", 3), ("two", 5)):
        objects.append(PlannedTensor(id=id, shape=(rows, 130), format="q5_g64_fp16", layout=SPLIT_ROWS))
        size = layout.encoded_size("q5_g64_fp16", (rows, 130))
        payloads[id] = RANDOM.integers(0, 256, size).astype(np.uint8)
    with ArtifactWriter(
        tmp_path / "m",
        components={"text": Component(config={})},
        objects=objects,
        bindings={"w": _parts(("two", 130, 390), ("one", 0, 390))},
        metadata={"quantform": {"shapes": {"w": [5, 1, 130]}}},
    ) as writer:
        for id, payload in payloads.items():
            writer.write(id, 0, payload)
    with NinferSource(tmp_path / "m") as source:
        tensor = source["w"]
        one, two, joined = source.objects["one"].words(), source.objects["two"].words(), tensor.words()
        assert isinstance(one, GroupedWords)
        assert isinstance(two, GroupedWords)
        assert isinstance(joined, GroupedWords)
        assert tensor.nbytes == layout.encoded_size("q5_g64_fp16", (5, 130)) == tensor.payload().size
        assert joined.shape == (5, 1, 130)
        assert joined.codes.tobytes() == two.codes[1:3].tobytes() + one.codes.tobytes()
        assert joined.scales.tobytes() == two.scales[1:3].tobytes() + one.scales.tobytes()
        some = tensor.words([4, 0])
        assert isinstance(some, GroupedWords)
        assert some.codes.tobytes() == one.codes[2].tobytes() + two.codes[1].tobytes()


def test_rows_of_tiles(tmp_path: Path) -> None:
    layout = LAYOUTS["block_scale_k16_m128x4_v1"]
    size = layout.encoded_size("nvfp4", (256, 64), 2)
    payload = RANDOM.integers(0, 0x70, size).astype(np.uint8)
    payload[-8:] = np.array([0.5, 4], "<f4").view(np.uint8)
    with ArtifactWriter(
        tmp_path / "m",
        components={"text": Component(config={})},
        objects=[PlannedTensor(id="t", shape=(256, 64), format="nvfp4", layout=layout.name, divisors=2)],
        bindings={"w": _parts(("t", 0, 256 * 64)), "low": _parts(("t", 128 * 64, 256 * 64))},
        metadata={"quantform": {"shapes": {"w": [2, 128, 64], "low": [128, 64]}}},
    ) as writer:
        writer.write("t", 0, payload)
    with NinferSource(tmp_path / "m") as source:
        values = layout.unpack(payload, "nvfp4", (256, 64), 2).decode()
        assert source["w"].decode().tobytes() == values.tobytes()
        assert source["w"].shape == (2, 128, 64)
        assert source["w"].payload().tobytes() == payload.tobytes()
        assert source["low"].decode().tobytes() == values[128:].tobytes()
        assert source["low"].decode(rows=[5, 100]).tobytes() == values[[133, 228]].tobytes()
        low = layout.unpack(source["low"].payload(), "nvfp4", (128, 64))
        assert low.decode().tobytes() == values[128:].tobytes()


TILED = LAYOUTS["block_scale_k16_m128x4_v1"]
TILED_ROWS = {"t": (768, 3), "u": (512, 1)}


@pytest.fixture(scope="module")
def tiled_words() -> dict[str, Nvfp4Words]:
    made = {}
    for seed, (id, (rows, divisors)) in enumerate(TILED_ROWS.items()):
        words = make_words(FORMATS["nvfp4"], (rows, 64), np.random.default_rng(seed), divisors)
        assert isinstance(words, Nvfp4Words)
        made[id] = words
    return made


# Rows of t, shares of 256, and of u, one share; and the share of each divisor of the part: its object and number.
TILED_PARTS: dict[str, tuple[list[tuple[str, int, int]], list[tuple[str, int]]]] = {
    "one share": ([("t", 256, 512)], [("t", 1)]),
    "within a share": ([("t", 384, 512)], [("t", 1)]),
    "two shares": ([("t", 256, 768)], [("t", 1), ("t", 2)]),
    "half shares": ([("t", 128, 512)], [("t", 0), ("t", 1), ("t", 1)]),
    "all": ([("t", 0, 768)], [("t", 0), ("t", 1), ("t", 2)]),
    "of two": ([("u", 0, 256), ("t", 512, 768)], [("u", 0), ("t", 2)]),
    "of two, odd": ([("u", 128, 512), ("t", 512, 768)], [("u", 0)] * 3 + [("t", 2)] * 2),
    "one share in turns": ([("u", 128, 256), ("u", 384, 512), ("u", 0, 128)], [("u", 0)]),
    "twice": ([("t", 0, 256), ("t", 0, 256)], [("t", 0)]),
    "long and short": ([("u", 0, 512), ("t", 128, 256)], [("u", 0)] * 4 + [("t", 0)]),
    "no tiles": ([("t", 200, 400)], [*([("t", 0)] * 7), *([("t", 1)] * 18)]),
    "no tiles of two": ([("u", 10, 20), ("t", 300, 310)], [("u", 0), ("t", 1)]),
    "no tiles of one share": ([("t", 256, 300), ("t", 301, 322)], [("t", 1)]),
}


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory, tiled_words: dict[str, Nvfp4Words]) -> Path:
    path = tmp_path_factory.mktemp("tiled") / "m.ninfer"
    rows = {name: sum(end - first for _, first, end in parts) for name, (parts, _) in TILED_PARTS.items()}
    with ArtifactWriter(
        path,
        components={"text": Component(config={})},
        objects=[
            PlannedTensor(id=id, shape=(rows, 64), format="nvfp4", layout=TILED.name, divisors=divisors)
            for id, (rows, divisors) in TILED_ROWS.items()
        ],
        bindings={
            name: _parts(*((id, first * 64, end * 64) for id, first, end in parts))
            for name, (parts, _) in TILED_PARTS.items()
        },
        metadata={"quantform": {"shapes": {name: [rows[name], 64] for name in TILED_PARTS}}},
    ) as writer:
        for id, words in tiled_words.items():
            writer.write(id, 0, TILED.pack(words))
    return path


@pytest.mark.parametrize("name", TILED_PARTS)
def test_parts_of_tiled_objects(tiled: Path, tiled_words: dict[str, Nvfp4Words], name: str) -> None:
    parts, divisors = TILED_PARTS[name]
    codes = np.concatenate([tiled_words[id].codes[first:end] for id, first, end in parts])
    scales = np.concatenate([tiled_words[id].scales[first:end] for id, first, end in parts])
    words = np.array([tiled_words[id].divisors[number] for id, number in divisors], np.uint32)
    expected = Nvfp4Words(FORMATS["nvfp4"], (len(codes), 64), codes, scales, words)
    with NinferSource(tiled) as source:
        tensor = source[name]
        assert_same_words(tensor.words(), expected)
        assert tensor.stored_shape == (len(codes), 64)
        some = tensor.words([3, 0])
        assert isinstance(some, Nvfp4Words)
        np.testing.assert_array_equal(some.codes, codes[[3, 0]])
        assert some.decode().tobytes() == expected.decode()[[3, 0]].tobytes()
        assert tensor.decode().tobytes() == expected.decode().tobytes()
        assert tensor.words([]).shape == (0, 64)
        with pytest.raises(ArgumentError, match="outside"):
            tensor.words([len(codes)])
        assert tensor.joined == (not name.startswith("no tiles"))
        if not tensor.joined:
            with pytest.raises(UnsupportedError, match="within a tile of rows"):
                tensor.payload()
            return
        payload = TILED.pack(expected)
        assert tensor.divisors == len(divisors)
        assert tensor.nbytes == payload.size == TILED.encoded_size("nvfp4", (len(codes), 64), len(divisors))
        assert tensor.payload().tobytes() == payload.tobytes()
        for offset in (0, 1, len(codes) * 32 - 1, *range(payload.size - 4 * len(divisors) - 1, payload.size)):
            for size in (1, 3, 6, payload.size):
                out = np.empty(min(size, payload.size - offset), np.uint8)
                tensor.read_into(offset, out)
                assert out.tobytes() == payload[offset : offset + size].tobytes()


def test_divisors_of_impossible_objects_take_no_memory(tmp_path: Path) -> None:
    """Sizes are found wrong when an object is used; until then a part may claim any number of tiles."""
    rows = 128 * (2**40 + 1)

    def change(directory: dict[str, Any]) -> None:
        directory["objects"][0] |= {"shape": [rows, 64], "format": "nvfp4", "layout": TILED.name}
        directory["bindings"] = {
            "w": {"parts": [{"object": "a", "range": [0, rows * 64]}] * 2},
            "v": {"parts": [{"object": "a", "range": [0, (rows - 1) * 64]}]},
        }
        directory["uses"] = []

    with _opened(tmp_path, change) as source:
        for name in ("w", "v"):
            for use in (source[name].words, source[name].payload, source[name].decode):
                with pytest.raises(ArtifactError):
                    use()


# --- artifacts of others ------------------------------------------------------------------------------------------


def _opened(tmp_path: Path, change: Any) -> NinferSource:
    directory = build.small_directory()
    change(directory)
    return NinferSource(build.Artifact(directory=directory).write(tmp_path / "m.ninfer"))


def test_unknown_formats_are_listed_and_only_their_use_fails(tmp_path: Path) -> None:
    def change(directory: dict[str, Any]) -> None:
        directory["objects"][0]["format"] = "q9_k"

    with _opened(tmp_path, change) as source:
        assert [(tensor.name, tensor.format, tensor.nbytes) for tensor in source.values()] == [
            ("w", "q9_k", 256),
            ("w.top", "q9_k", 128),
            ("blk.0.norm", "fp32", 128),
        ]
        assert source["blk.0.norm"].decode().shape == (32,)
        for name in ("w", "w.top"):
            tensor = source[name]
            for use in (tensor.check, tensor.decode, tensor.words, tensor.payload):
                with pytest.raises(ArtifactError, match="format 'q9_k' is not known"):
                    use()


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"quantform": None},
        {"quantform": {"shapes": []}},
        {"quantform": {"shapes": {"w.top": None}}},
        {"quantform": {"shapes": {"w.top": [64, 2]}}},
        {"quantform": {"shapes": {"w.top": [64.0]}}},
        {"quantform": {"shapes": {"w.top": [-8, -8]}}},
        {"quantform": {"shapes": {"w.top": [True, 64]}}},
        {"quantform": {"shapes": {"w.top": [1] * 17 + [64]}}},
        {"quantform": {"shapes": {"w.top": "64"}}},
    ],
)
def test_recorded_shapes_that_do_not_fit_are_not_used(tmp_path: Path, metadata: Any) -> None:
    with _opened(tmp_path, lambda directory: directory.update(metadata=metadata)) as source:
        assert source["w.top"].shape == (64,)
        assert source["w.top"].decode().size == 64


def test_a_part_repeated_without_end_takes_no_memory_at_once(tmp_path: Path) -> None:
    def change(directory: dict[str, Any]) -> None:
        directory["bindings"]["w"] = {"parts": [{"object": "a", "range": [0, 128]}] * 5000}

    with _opened(tmp_path, change) as source:
        tensor = source["w"]
        assert tensor.shape == (640_000,)
        assert tensor.decode(rows=[0]).shape == (1, 640_000)
        out = np.zeros(300, np.uint8)
        tensor.read_into(256 * 4999 - 44, out)
        assert out.tobytes() == build.small_payload()[212:256] + build.small_payload()[:256]


def test_ranges_of_shapes(tmp_path: Path) -> None:
    shapes: Sequence[tuple[list[int], tuple[int, ...]]] = [([8, 8], (8, 8)), ([64], (64,)), ([2, 2, 16], (2, 2, 16))]
    for recorded, shape in shapes:
        metadata = {"quantform": {"shapes": {"w.top": recorded}}}
        with _opened(tmp_path, lambda directory, metadata=metadata: directory.update(metadata=metadata)) as source:
            assert source["w.top"].shape == source["w.top"].words().shape == shape
