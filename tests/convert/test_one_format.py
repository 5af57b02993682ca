"""One format for every matrix: from values to artifacts, against the methods on whole arrays."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from conversions import made, same, values
from quantform.convert import work
from quantform.errors import (
    ArgumentError,
    QuantformError,
    UnknownNameError,
    UnsupportedError,
    ValuesError,
)
from quantform.methods import METHODS
from quantform.sources import NinferSource

ENCODED = [
    *((method, name) for method in ("grouped_absmax", "grouped_search") for name in METHODS[method].targets),
    *(("fp8_row_maxabs", name) for name in METHODS["fp8_row_maxabs"].targets),
    ("nvfp4_maxabs", "nvfp4"),
]


@pytest.mark.parametrize(("method", "format"), ENCODED)
def test_a_format_for_every_matrix(tmp_path: Path, method: str, format: str) -> None:
    arrays = {"w": values(256, 192), "norm": values(192), "ids": np.arange(6).reshape(2, 3)}
    with made(tmp_path, arrays, format=format, method=method) as source:
        assert {name: tensor.format for name, tensor in source.items()} == {"w": format, "norm": "fp32", "ids": "int32"}
        assert same(source["w"].words(), qf.encode(arrays["w"], format, method))
        assert source["norm"].payload().tobytes() == arrays["norm"].tobytes()
        assert source.directory.provenance is not None
        assert {"method": method, "format": format, "objects": ["weight/w"]} in source.directory.provenance["methods"]
    with made(tmp_path, arrays, format=format) as source:  # without a method, the format's first
        default = next(name for name, record in METHODS.items() if format in record.targets)
        assert same(source["w"].words(), qf.encode(arrays["w"], format, default))


@pytest.mark.parametrize("format", ["q4_g64_fp16", "q6_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16", "bf16"])
def test_neither_chunks_nor_threads_change_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    arrays = {"w": values(256, 320), "v": values(384, 64, seed=1), "bank": values(3, 128, 64, seed=2)}
    method = "grouped_search" if "_g64_" in format else None
    results = set()
    for number, (chunk, threads) in enumerate(itertools.product((3000, 50_000, 1 << 30), (1, 3))):
        monkeypatch.setattr(work, "CHUNK_VALUES", chunk)
        path = tmp_path / f"{number}.ninfer"
        qf.convert(arrays, path, format=format, method=method, threads=threads)
        with NinferSource(path) as source:
            results.add(b"".join(tensor.payload().tobytes() for tensor in source.objects.values()))
    assert len(results) == 1


@pytest.mark.parametrize(
    ("format", "method"),
    [("bf16", None), ("int32", None), ("fp32", None)]
    + [(name, method) for method in ("grouped_absmax", "grouped_search") for name in METHODS[method].targets],
)
@pytest.mark.parametrize("columns", [5000, 4096, 2049])
def test_long_rows_are_cut_and_no_byte_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, method: str | None, columns: int
) -> None:
    numbers = values(3, columns)
    arrays = {"f": numbers, "h": numbers.astype(np.float16), "more": values(2, columns, seed=2)}
    if format == "int32":
        arrays = {"i": (numbers * 100).astype(np.int64), "b": numbers > 0, "vector": (numbers[0] * 9).astype(np.int8)}
    weights = {"f": np.random.default_rng(1).random(columns).astype(np.float32)}

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("*", format=format, method=method)
        if format != "int32":
            recipe.group(["h", "more"])

    results = set()
    for chunk, threads in ((2000, 1), (3000, 2), (1 << 30, 1)):
        monkeypatch.setattr(work, "CHUNK_VALUES", chunk)
        options = {"imatrix": weights} if method == "grouped_search" else {}
        with made(tmp_path, arrays, recipe=configure, threads=threads, **options) as source:
            results.add(b"".join(tensor.payload().tobytes() for tensor in source.objects.values()))
    assert len(results) == 1


def test_long_rows_of_blocks_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.zeros((2, 4096 // 32), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    data["d"], data["q"] = 0.5, np.random.default_rng(0).integers(-127, 128, (2, 128, 32))
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.build([gb.tensor("w", (2, 4096), gb.Q8_0, data.tobytes())]))
    expected = qf.encode(data["q"].reshape(2, 4096) * np.float32(0.5), "q4_g64_fp16")
    monkeypatch.setattr(work, "CHUNK_VALUES", 2000)
    with made(tmp_path, path, format="q4_g64_fp16", method="grouped_absmax") as source:
        assert same(source["w"].words(), expected)


@pytest.mark.parametrize("format", ["int32", "q4_g64_fp16"])
def test_values_in_long_rows_are_named_by_their_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(work, "CHUNK_VALUES", 1024)
    array = np.zeros((3, 5000))
    array[1, 4321] = np.nan
    with pytest.raises(ValuesError, match=r"'w', row 1, column 4321: "):
        qf.convert({"w": array}, tmp_path / "a.ninfer", format=format)
    array[1, 4321] = 1e30
    if format == "q4_g64_fp16":
        with pytest.raises(ValuesError, match=r"'w', row 1, group 67: "):
            qf.convert({"w": array}, tmp_path / "a.ninfer", format=format)


def test_memory_does_not_grow_with_a_row(tmp_path: Path) -> None:
    count = 1 << 23
    with (tmp_path / "m.safetensors").open("wb") as file:
        head = f'{{"w":{{"dtype":"I64","shape":[{count}],"data_offsets":[0,{8 * count}]}}}}'.encode()
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + 8 * count)
    for format in ("bf16", "int32"):

        def configure(model: Any, recipe: Any, sources: Any, format: str = format) -> None:  # noqa: ARG001
            recipe.assign("*", format=format)

        tracemalloc.start()
        qf.convert(tmp_path / "m.safetensors", tmp_path / f"{format}.ninfer", recipe=configure, threads=1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * count / 2


def test_banks_of_experts_are_matrices_bound_by_parts(tmp_path: Path) -> None:
    bank = values(4, 6, 64)
    with made(tmp_path, {"experts": bank}, format="q4_g64_fp16") as source:
        assert source["experts"].shape == (4, 6, 64)
        assert source.objects["weight/experts"].shape == (24, 64)
        assert same(source["experts"].words(), qf.encode(bank, "q4_g64_fp16"))
        assert np.array_equal(source["experts"].decode(), qf.encode(bank, "q4_g64_fp16").decode())


def test_what_a_format_cannot_hold_keeps_its_words_and_is_listed(tmp_path: Path) -> None:
    arrays = {"w": values(128, 64), "odd": values(10, 64), "conv": values(16, 4), "b": values(64)}
    report = qf.convert(arrays, tmp_path / "a.ninfer", format="nvfp4")
    with NinferSource(tmp_path / "a.ninfer") as source:
        assert {name: one.format for name, one in source.items()} == {
            "w": "nvfp4",
            "odd": "fp32",
            "conv": "fp32",
            "b": "fp32",
        }
    tiles = "dimension 0 of shape [10, 64] is not whole tiles of block_scale_k16_m128x4_v1; "
    tiles += "expected a multiple of 128, found 10"
    assert report.notes == [
        f"1 tensor made as without nvfp4 (odd): {tiles}",
        "1 tensor made as without nvfp4 (conv): rows of 4 are shorter than a group of 16",
        "1 tensor made as without nvfp4 (b): no matrix of numbers with a fraction",
    ]
    vectors = ["b", *(f"b{index}" for index in range(5))]
    arrays |= {name: values(64) for name in vectors}
    report = qf.convert(arrays, tmp_path / "a.ninfer", format="bf16", force=True)
    assert report.as_dict()["notes"] == [
        "6 tensors made as without bf16 (b, b0, b1, b2, ...): no matrix of numbers with a fraction"
    ]

    def assigned(_: qf.recipes.Model, recipe: qf.recipes.Recipe, __: object) -> None:
        recipe.assign(vectors, format="fp32")

    assert qf.convert(arrays, tmp_path / "a.ninfer", format="bf16", recipe=assigned, force=True).notes == []
    with made(tmp_path, arrays, format="q8_g32_fp16") as source:
        assert source["conv"].format == "fp32"  # rows shorter than a group
        assert source["odd"].format == "q8_g32_fp16"


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"format": "q9"}, UnknownNameError, "no format"),
        ({"format": "bf16", "method": "best"}, UnknownNameError, "no conversion method"),
        ({"method": "grouped_search"}, ArgumentError, "a method needs a format"),
        ({"parameters": {}}, ArgumentError, "parameters need a method"),
        ({"format": "q4_g64_fp16", "method": "fp8_row_maxabs"}, UnsupportedError, "'w'.*does not make q4_g64_fp16"),
        ({"format": "gguf_q8_0"}, UnsupportedError, "'w'.*no method makes gguf_q8_0 from values"),
        ({"format": "q2_g64_fp16"}, UnsupportedError, "no method makes q2_g64_fp16"),
        (
            {"format": "q4_g64_fp16", "method": "grouped_search", "parameters": {"negative": True}},
            ArgumentError,
            "'w'.*unknown grouped_search parameters: negative",
        ),
        (
            {"format": "q4_g64_fp16", "method": "grouped_search", "parameters": {"negative_scales": 1}},
            ArgumentError,
            "must be a bool",
        ),
        ({"format": "q4_g64_fp16", "imatrix": "x"}, ArgumentError, "for grouped_search"),
        ({"fallback": "fp16"}, ArgumentError, "fallback"),
        ({"threads": 0}, ArgumentError, "threads"),
        ({"components": {"text": {"x": np.ones(2)}}}, ArgumentError, "component"),
    ],
)
def test_wrong_requests(tmp_path: Path, options: dict[str, Any], error: type[QuantformError], expected: str) -> None:
    with pytest.raises(error, match=expected):
        qf.convert({"w": values(4, 64)}, tmp_path / "a.ninfer", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["q4_g64_fp16", "fp8_e4m3fn_row_bf16", "nvfp4", "bf16"])
def test_values_that_no_format_holds_are_named_by_place(tmp_path: Path, format: str) -> None:
    array = values(256, 128)
    array[200, 77] = np.inf
    with pytest.raises(QuantformError, match=r"'w', row 200, column 77") as caught:
        qf.convert({"w": array}, tmp_path / "a.ninfer", format=format)
    assert "inf" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_first_bad_value_is_named_whatever_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "CHUNK_VALUES", 64)
    array = values(256, 64)
    array[[40, 41, 255], 3] = np.nan
    for threads in (1, 2, 7):
        with pytest.raises(ValuesError, match=r"'w', row 40, column 3"):
            qf.convert({"w": array}, tmp_path / "a.ninfer", format="q4_g64_fp16", threads=threads)
