"""Recipes in conversions: formats, rows, groups, sources, methods, uses and plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from conversions import made, same, values
from quantform.convert import work
from quantform.errors import (
    ArgumentError,
    OutputExistsError,
    QuantformError,
    RecipeError,
    UnknownNameError,
    ValuesError,
)
from quantform.formats import FORMATS, GroupedWords
from quantform.methods import METHODS

# --- recipes --------------------------------------------------------------------------------------------------------


def test_rows_of_different_formats_are_joined_by_parts(tmp_path: Path) -> None:
    array = values(8, 64)

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("w", format="q4_g64_fp16")
        recipe.assign("w", format="q8_g32_fp16", rows=(1, 3))

    with made(tmp_path, {"w": array}, recipe=configure) as source:
        parts = source.directory.bindings["w"].parts
        assert parts is not None
        assert [(part.object, part.range) for part in parts] == [
            ("weight/w[0:1]", (0, 64)),
            ("weight/w[1:3]", (0, 128)),
            ("weight/w[3:8]", (0, 320)),
        ]
        assert source["w"].shape == (8, 64)
        expected = qf.encode(array, "q4_g64_fp16").decode()
        expected[1:3] = qf.encode(array[1:3], "q8_g32_fp16").decode()
        assert np.array_equal(source["w"].decode(), expected)


def test_some_rows_keep_their_words(tmp_path: Path) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("*", format="q4_g64_fp16", rows=(2, 4))

    bank, half = values(4, 3, 64), values(6, 64).astype(np.float16)
    with made(tmp_path, {"bank": bank, "half": half}, recipe=configure) as source:
        assert np.array_equal(source["bank"].decode()[:2], bank[:2])
        assert source.objects["weight/bank[2:4]"].shape == (6, 64)
        assert source["half"].format == "fp32+q4_g64_fp16"
        assert np.array_equal(source["half"].decode(rows=slice(4, 6)), half[4:6].astype(np.float32))


def test_groups_are_one_object_in_their_order(tmp_path: Path) -> None:
    arrays = {"q": values(4, 64), "k": values(2, 64, seed=1), "v": values(3, 64, seed=2)}

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("*", format="q6_g64_fp16", method="grouped_search")
        recipe.group(["v", "q", "k"])

    with made(tmp_path, arrays, recipe=configure) as source:
        (id,) = source.objects
        stacked = np.concatenate([arrays["v"], arrays["q"], arrays["k"]])
        assert same(source.objects[id].words(), qf.encode(stacked, "q6_g64_fp16", "grouped_search"))
        for name, array in arrays.items():
            assert source[name].shape == array.shape
            assert same(source[name].words(), qf.encode(array, "q6_g64_fp16", "grouped_search"))


def test_groups_of_plain_words(tmp_path: Path) -> None:
    arrays = {"q": values(4, 64), "k": values(2, 64, seed=1)}
    with made(tmp_path, arrays, recipe=lambda _m, r, _s: r.group(["q", "k"])) as source:
        assert len(source.objects) == 1
        for name, array in arrays.items():
            assert np.array_equal(source[name].decode(), array)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda r: r.assign("k", format="bf16"), "not made alike"),
        (lambda r: r.assign("k", format="bf16", rows=(0, 1)), "split"),
        (lambda r: r.share("k", "v"), "shares"),
    ],
)
def test_what_cannot_be_stacked(tmp_path: Path, prepare: Any, expected: str) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign(["q", "k"], format="q4_g64_fp16")
        recipe.group(["q", "k"])
        prepare(recipe)

    with pytest.raises(ArgumentError, match=expected):
        qf.convert({name: values(2, 64) for name in "qkv"}, tmp_path / "a.ninfer", recipe=configure)


def test_shared_parameters_take_one_object(tmp_path: Path) -> None:
    arrays = {"embed": values(8, 64), "head": values(8, 64, seed=1)}

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.share("head", "embed")
        recipe.assign("embed", format="q8_g32_fp16")

    with made(tmp_path, arrays, recipe=configure) as source:
        assert source.directory.bindings["head"] == source.directory.bindings["embed"]
        assert len(source.objects) == 1
        assert np.array_equal(source["head"].decode(), qf.encode(arrays["embed"], "q8_g32_fp16").decode())


def test_other_sources(tmp_path: Path) -> None:
    better = {"w": values(4, 64, seed=9), "unused": values(2, 2)}

    def configure(model: Any, recipe: Any, sources: Mapping[str, Any]) -> None:  # noqa: ARG001
        recipe.assign("w", format="q4_g64_fp16", source=sources["better"])

    directory = tmp_path / "better"
    directory.mkdir()
    sb.model(directory, better)
    options = {"recipe": configure, "sources": {"better": directory, "missing": tmp_path / "nothing"}}
    with made(tmp_path, {"w": values(4, 64)}, **options) as source:
        assert same(source["w"].words(), qf.encode(better["w"], "q4_g64_fp16"))
        assert source.directory.provenance is not None
        assert list(source.directory.provenance["sources"]) == ["better"]  # the other one was not even opened
    with pytest.raises(UnknownNameError, match="--source better=PATH"):
        qf.convert({"w": values(4, 64)}, tmp_path / "b.ninfer", recipe=configure)


def test_methods_of_the_users_own(tmp_path: Path) -> None:
    def halved(request: Any) -> Any:
        inner = METHODS["cast_direct"].start(dataclasses.replace(request, parameters={}))
        factor = np.float32(request.parameters["factor"])

        def rows(first: int, end: int) -> Any:
            return inner.rows(first, end).decode() * factor

        return rows

    def broken(request: Any) -> Any:  # noqa: ARG001
        return lambda first, end: 1 // 0  # noqa: ARG005

    array = values(4, 64)
    with made(tmp_path, {"w": array}, format="fp32", method=halved, parameters={"factor": 0.5}) as source:
        assert np.array_equal(source["w"].decode(), array * np.float32(0.5))
        assert source.directory.provenance is not None
        (record,) = source.directory.provenance["methods"]
        assert record["method"].endswith("halved")
        assert record["parameters"] == {"factor": 0.5}
    with pytest.raises(RecipeError, match=r"parameter 'w', .*broken.*, line \d+: the method failed: ZeroDivisionError"):
        qf.convert({"w": array}, tmp_path / "b.ninfer", format="fp32", method=broken)
    assert not (tmp_path / "b.ninfer").exists()


@pytest.mark.parametrize("format", ["q4_g64_fp16", "q6_g64_fp16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"])
@pytest.mark.parametrize("as_words", [True, False])
def test_methods_give_codes_and_scales(tmp_path: Path, format: str, as_words: bool) -> None:
    array = values(4, 100)
    expected: Any = qf.encode(array, format)
    number = FORMATS[format].scale.dtype if format.startswith("fp8") else np.float16  # type: ignore[attr-defined]

    def method(request: Any) -> Any:  # noqa: ARG001
        scales = expected.scales if as_words else expected.scales.view(number)
        return lambda first, end: (expected.codes[first:end], scales[first:end])

    with made(tmp_path, {"w": array}, format=format, method=method) as source:
        assert same(source["w"].words(), expected)


def test_methods_give_values_of_other_types(tmp_path: Path) -> None:
    array = values(4, 64)

    def method(request: Any) -> Any:
        return lambda first, end: request.values(first, end).astype(np.float32)

    with made(tmp_path, {"w": array}, format="bf16", method=method) as source:
        assert np.array_equal(source["w"].decode(), array.astype(ml_dtypes.bfloat16))
    with pytest.raises(QuantformError, match=r"parameter 'w'.*row 0, column 0: the value is not an integer"):
        qf.convert({"w": array}, tmp_path / "a.ninfer", format="int32", method=method)


@pytest.mark.parametrize(
    ("codes", "scales", "expected"),
    [
        (np.zeros((4, 64), np.int16), np.zeros((4, 1), np.float16), r"codes int8 \[4, 64\], found codes int16"),
        (np.zeros((4, 64), np.int8), np.zeros(4, np.float16), r"scales float16 or uint16 \[4, 1\], found scales"),
        (np.zeros((4, 64), np.int8), None, "found scales NoneType"),
        (np.full((4, 64), 100, np.int8), np.ones((4, 1), np.float16), "row 0, group 0, column 0"),
    ],
)
def test_wrong_codes_and_scales(tmp_path: Path, codes: Any, scales: Any, expected: str) -> None:
    with pytest.raises(QuantformError, match=f"parameter 'w'.*{expected}"):
        qf.convert(
            {"w": values(4, 64)},
            tmp_path / "a.ninfer",
            format="q4_g64_fp16",
            method=lambda _: lambda _first, _end: (codes, scales),
        )


def test_errors_of_the_users_own_methods_name_the_parameter(tmp_path: Path) -> None:
    def leaves(request: Any) -> Any:  # noqa: ARG001
        raise SystemExit(0)

    def nothing(request: Any) -> Any:  # noqa: ARG001
        return None

    def wrong(request: Any) -> Any:  # noqa: ARG001
        return lambda first, end: np.zeros((end - first, 1), np.float32)

    def illegal(request: Any) -> Any:
        def rows(first: int, end: int) -> Any:
            scales = np.full((end - first, 1), 0x7C00, np.uint16)
            return GroupedWords(request.format, (end - first, 64), np.zeros((end - first, 64), np.int8), scales)

        return rows

    cases = [
        (leaves, "fp32", "the method failed: SystemExit"),
        (nothing, "fp32", "gave nothing that gives rows"),
        (wrong, "fp32", "not what was asked for"),
        (illegal, "q4_g64_fp16", "row 0, group 0"),
    ]
    for method, format, expected in cases:
        with pytest.raises(QuantformError, match=f"parameter 'w'.*{expected}"):
            qf.convert({"w": values(4, 64)}, tmp_path / "b.ninfer", format=format, method=method)


def test_errors_in_some_rows_count_from_the_parameters_first(tmp_path: Path) -> None:
    array = values(100, 64)
    array[17, 5] = np.nan

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("w", format="q4_g64_fp16", rows=(10, 100))

    with pytest.raises(ValuesError, match=r"parameter 'w'\[10:100\], row 17, column 5: "):
        qf.convert({"w": array}, tmp_path / "a.ninfer", recipe=configure)


def test_errors_do_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = values(256, 64)
    array[[40, 41, 255], 3] = np.nan
    texts = set()
    for chunk in (64, 1000, 1 << 30):
        monkeypatch.setattr(work, "CHUNK_VALUES", chunk)
        with pytest.raises(ValuesError) as caught:
            qf.convert({"w": array}, tmp_path / "a.ninfer", format="q4_g64_fp16")
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert texts.pop().endswith("found nan")


def test_a_recipe_changes_what_a_format_says(tmp_path: Path) -> None:
    arrays = {"w": values(4, 64), "embed": values(4, 64)}

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("embed", format="auto")

    with made(tmp_path, arrays, recipe=configure, format="q4_g64_fp16") as source:
        assert [source[name].format for name in arrays] == ["q4_g64_fp16", "fp32"]


# --- uses -----------------------------------------------------------------------------------------------------------


def test_uses_and_auxiliaries(tmp_path: Path) -> None:
    signs = np.where(np.random.default_rng(1).random(1024) < 0.5, -1.0, 1.0)
    blocks = gb.tensor("g", (2, 1024), gb.Q4_0, bytes(2 * 32 * 18))
    (tmp_path / "g.gguf").write_bytes(gb.build([blocks]))
    order = np.random.default_rng(2).permutation(1024)

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.use("g", "a", activation_policy="AllowA8", auxiliaries={"hadamard_signs": signs, "input_columns": order})
        recipe.use("g", "b", auxiliaries={"hadamard_signs": list(signs), "activation_input_divisor": 1.5})
        recipe.use("g", "c", auxiliaries={"activation_input_divisor": np.float32(1.5).tobytes()})

    with made(tmp_path, tmp_path / "g.gguf", recipe=configure) as source:
        uses = {use.input: use for use in source.uses}
        assert [use.activation_policy for use in uses.values()] == ["AllowA8", None, None]
        ids = {(use.input, role): binding.object for use in source.uses for role, binding in use.auxiliaries.items()}
        assert ids["a", "hadamard_signs"] == ids["b", "hadamard_signs"]
        assert ids["b", "activation_input_divisor"] != ids["c", "activation_input_divisor"]
        held = {key: source.objects[str(id)] for key, id in ids.items()}
        assert held["a", "hadamard_signs"].format == "bf16"
        assert np.array_equal(held["a", "hadamard_signs"].decode(np.float64), signs)
        assert held["a", "input_columns"].format == "int32"
        assert np.array_equal(held["a", "input_columns"].decode(), order)
        assert held["b", "activation_input_divisor"].shape == ()
        assert held["b", "activation_input_divisor"].decode() == np.float32(1.5)


@pytest.mark.parametrize(
    ("auxiliaries", "expected"),
    [
        ({"activation_input_divisor": 0.0}, "finite and positive"),
        ({"activation_input_divisor": -1.0}, "finite and positive"),
        ({"activation_input_divisor": float("nan")}, "finite and positive"),
        ({"activation_input_divisor": 1e39}, "finite and positive"),
        ({"activation_input_divisor": "2"}, "no number"),
        ({"activation_input_divisor": [1.0, 2.0]}, "no number"),
        ({"hadamard_signs": [1.0]}, "one number a column"),
        ({"hadamard_signs": np.ones(64)}, "whole transforms"),
        ({"hadamard_signs": "+-"}, "takes numbers"),
        ({"input_columns": np.arange(64)}, "for matrices in gguf"),
    ],
)
def test_wrong_auxiliaries(tmp_path: Path, auxiliaries: dict[str, Any], expected: str) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.use("w", "x", auxiliaries=auxiliaries)

    with pytest.raises(ArgumentError, match=expected) as caught:
        qf.convert({"w": values(2, 64)}, tmp_path / "a.ninfer", recipe=configure)
    assert "parameter 'w', input 'x'" in str(caught.value)


@pytest.mark.parametrize("change", [(3, 4), (5, -1), (7, 32), (0, 0.5)])
def test_columns_are_a_permutation(tmp_path: Path, change: tuple[int, float]) -> None:
    order = np.arange(32, dtype=np.float64)
    order[change[0]] = change[1]
    (tmp_path / "g.gguf").write_bytes(gb.build([gb.tensor("g", (2, 32), gb.Q4_0, bytes(36))]))

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.use("g", "x", auxiliaries={"input_columns": order})

    with pytest.raises(ArgumentError, match="input_columns"):
        qf.convert(tmp_path / "g.gguf", tmp_path / "a.ninfer", recipe=configure)


# --- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_what_a_conversion_does(tmp_path: Path) -> None:
    arrays = {"w": values(256, 64), "h": values(64).astype(ml_dtypes.bfloat16), "bank": values(2, 3, 64)}
    plan = qf.plan(arrays, format="q4_g64_fp16", method="grouped_search")
    assert plan.rows() == [
        ("w", "256x64", "array fp32", "grouped_search", "q4_g64_fp16", "row_split_k128_v1", "17.4 kB"),
        ("h", "64", "array bf16", "cast_direct", "bf16", "contiguous_le_v1", "128 B"),
        ("bank", "2x3x64", "array fp32", "grouped_search", "q4_g64_fp16", "row_split_k128_v1", "536 B"),
    ]
    with made(tmp_path, arrays, format="q4_g64_fp16", method="grouped_search") as source:
        assert [one.nbytes for one in plan.objects] == [tensor.nbytes for tensor in source.objects.values()]
        assert [one.id for one in plan.objects] == list(source.objects)
        assert plan.tensor_bytes == sum(tensor.nbytes for tensor in source.objects.values())
    document = plan.as_dict()
    assert document["objects"][2]["fragments"] == [
        {"parameter": "bank", "shape": [2, 3, 64], "rows": None, "source": "array fp32"}
    ]
    assert document["tensor_bytes"] == plan.tensor_bytes


def test_a_plan_reads_no_weight(tmp_path: Path) -> None:
    """A sparse file of a terabyte."""
    header = sb.raw({"w": sb.entry("F32", [1 << 19, 1 << 19], 0, 1 << 40)})
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (1 << 40))
    plan = qf.plan(path, format="q4_g64_fp16", method="grouped_search")
    assert plan.tensor_bytes == (1 << 38) // 2 + (1 << 38) // 64 * 2


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].category in {"grouped", "row-scaled"}])
def test_ternary_and_other_words_are_imported_by_format(tmp_path: Path, name: str) -> None:
    """Blocks whose codes a grouped format holds become it without rounding; everything else goes by its values."""
    q8 = np.zeros((2, 2, 34), np.uint8)
    q8[..., :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    q8[..., 2:] = np.arange(32)
    (tmp_path / "g.gguf").write_bytes(gb.build([gb.tensor("w", (2, 64), gb.Q8_0, q8.tobytes())]))
    if name in {"q2_g64_fp16", "t2_g128_fp16"}:
        with pytest.raises(QuantformError):
            qf.convert(tmp_path / "g.gguf", tmp_path / "a.ninfer", recipe=lambda _m, r, _s: r.assign("w", format=name))
        return
    with made(tmp_path, tmp_path / "g.gguf", format=name) as source:
        words = source["w"].words()
        if name == "q8_g32_fp16":
            assert np.array_equal(words.codes[0, :32], np.arange(32))  # type: ignore[attr-defined]
            assert source.directory.provenance is not None
            assert source.directory.provenance["methods"][0]["method"] == "import_encoded"
        else:
            decoded = np.tile(np.arange(32, dtype=np.float32) * 0.5, (2, 2))
            assert same(words, qf.encode(decoded, name))


@pytest.mark.parametrize(
    "text", ["format='bf16', parameters={'x': 1}", "layout='row_scale_v1'", "method='grouped_absmax'"]
)
def test_what_a_recipe_file_asks_for_is_an_error_of_the_recipe(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.py"
    path.write_text(f"def configure(model, recipe, sources):\n    recipe.assign('w', {text})\n")
    with pytest.raises(RecipeError, match=r"r\.py:configure, parameter 'w'"):
        qf.convert({"w": values(4, 64)}, tmp_path / "a.ninfer", recipe=path)


def test_a_plan_for_an_output_refuses_what_writing_would(tmp_path: Path) -> None:
    arrays, path = {"w": values(4, 64)}, tmp_path / "a.ninfer"
    qf.plan(arrays, output=path)
    with pytest.raises(ArgumentError):
        qf.plan(arrays, output=path, max_file_bytes=10)
    path.touch()
    with pytest.raises(OutputExistsError):
        qf.plan(arrays, output=path)
    qf.plan(arrays, output=path, force=True)
    assert path.read_bytes() == b""
