"""Safetensors checkpoints to `.ninfer`: words equal in every bit, what goes along, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, FileError, UnsupportedError, WordsError
from quantform.formats import Nvfp4Words, RowScaledWords
from quantform.sources import NinferSource, SafetensorsSource
from quantform.sources.conventions import Checkpoint

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
Q = "layers.0.self_attn.q_proj.weight"


def made(tmp_path: Path, source: Any, **options: Any) -> NinferSource:
    path = tmp_path / "made.ninfer"
    qf.convert(source, path, force=True, **options)
    report = qf.verify(path, deep=True, against=source if isinstance(source, Path) else None)
    assert report.ok, report.findings
    return NinferSource(path)


def nvfp4(rows: int, columns: int, divisor: float, name: str = "p", seed: int = 0, *, modelopt: bool = False) -> Any:
    """The tensors of one NVFP4 weight, in compressed-tensors' way or in ModelOpt's."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = rng.integers(0, 0x7F, (rows, columns // 16), np.uint8)
    stored = ("F8_E4M3", scales.shape, scales.tobytes())
    f32 = np.float32
    if modelopt:
        return {
            f"{name}.weight": codes,
            f"{name}.weight_scale": stored,
            f"{name}.weight_scale_2": np.array(1 / divisor, f32),
            f"{name}.input_scale": np.array(0.125, f32),
        }
    return {
        f"{name}.weight_packed": codes,
        f"{name}.weight_scale": stored,
        f"{name}.weight_global_scale": np.array([divisor], f32),
        f"{name}.input_global_scale": np.array([1.5 + seed], f32),
    }


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp8_channel", "fp8_channel_fp32", "fp8_tensor"])
def test_fp8_rows_keep_their_words(tmp_path: Path, name: str) -> None:
    with made(tmp_path, CHECKPOINTS / name) as source, SafetensorsSource(CHECKPOINTS / name) as raw:
        checkpoint = Checkpoint(raw)
        assert set(source) == set(checkpoint)
        for weight in checkpoint.weights:
            words, original = source[weight].words(), checkpoint[weight].words()
            assert source[weight].format == "fp8_e4m3fn_row_bf16"
            assert isinstance(words, RowScaledWords)
            assert isinstance(original, RowScaledWords)
            assert np.array_equal(words.codes, raw[weight].payload().reshape(words.codes.shape))
            assert np.array_equal(words.scales, original.scales)
        for plain in set(checkpoint) - set(checkpoint.weights):
            assert source[plain].payload().tobytes() == raw[plain].payload().tobytes()


@pytest.mark.parametrize("name", ["nvfp4", "fp8_block", "mxfp4", "mxfp8", "mixed", "int4"])
def test_what_no_format_holds_is_refused_and_can_be_decoded(tmp_path: Path, name: str) -> None:
    """NVFP4 of 40 rows does not fill tiles of 128, and the others have no format at all."""
    with pytest.raises(UnsupportedError, match=r"no \.ninfer format holds the words of") as caught:
        qf.convert(CHECKPOINTS / name, tmp_path / "a.ninfer")
    assert f"'{Q}'" in str(caught.value)
    if name == "int4":
        assert "4-bit int" in str(caught.value)
        with pytest.raises(UnsupportedError):
            qf.convert(CHECKPOINTS / name, tmp_path / "a.ninfer", fallback="bf16")
        return
    with SafetensorsSource(CHECKPOINTS / name / "expected.safetensors") as expected:
        kind = expected[Q].format
        with made(tmp_path, CHECKPOINTS / name, fallback=kind) as source:
            assert source[Q].format == kind
            assert source[Q].payload().tobytes() == expected[Q].payload().tobytes()


@pytest.mark.parametrize("modelopt", [False, True])
def test_nvfp4_keeps_its_words(tmp_path: Path, *, modelopt: bool) -> None:
    tensors = nvfp4(256, 192, 4.0, modelopt=modelopt)
    with made(tmp_path, sb.model(tmp_path, tensors)) as source:
        words = source["p.weight"].words()
        assert isinstance(words, Nvfp4Words)
        assert np.array_equal(words.codes, tensors["p.weight" if modelopt else "p.weight_packed"])
        assert words.scales.tobytes() == tensors["p.weight_scale"][2]
        assert words.divisors.view(np.float32).tolist() == [4.0]


def test_nvfp4_of_the_real_package_keeps_its_words(tmp_path: Path) -> None:
    """Whole tiles, as compressed-tensors wrote them: the words of the file, the values that the package gives."""
    directory = CHECKPOINTS / "nvfp4_tiles"
    with made(tmp_path, directory) as source, SafetensorsSource(directory) as raw:
        for weight in Checkpoint(raw).weights:
            words = source[weight].words()
            assert isinstance(words, Nvfp4Words)
            assert words.codes.tobytes() == raw[f"{weight}_packed"].payload().tobytes()
            assert words.scales.tobytes() == raw[f"{weight}_scale"].payload().tobytes()
            assert words.divisors.tobytes() == raw[f"{weight}_global_scale"].payload().tobytes()
            with SafetensorsSource(directory / "expected.safetensors") as expected:
                assert words.decode("bfloat16").tobytes() == expected[weight].payload().tobytes()


def test_an_illegal_word_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    tensors = nvfp4(256, 192, 4.0)
    kind, shape, data = tensors["p.weight_scale"]
    data = bytearray(data)
    data[200 * 12 + 5] = 0xFF
    directory = tmp_path / "model"
    directory.mkdir()
    sb.model(directory, {**tensors, "p.weight_scale": (kind, shape, bytes(data))})
    with pytest.raises(WordsError, match="row 200, group 5"):
        qf.convert(directory, tmp_path / "a.ninfer")
    assert list(tmp_path.iterdir()) == [directory]


def test_stacked_nvfp4(tmp_path: Path) -> None:
    tensors = {**nvfp4(128, 64, 4.0, "q", 0), **nvfp4(128, 64, 8.0, "k", 1), **nvfp4(256, 64, 8.0, "v", 2)}
    model = sb.model(tmp_path, tensors)

    def grouped(*names: str) -> Any:
        def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
            recipe.group([f"{name}.weight" for name in names])

        return configure

    with made(tmp_path, model, recipe=grouped("q", "k")) as source:
        (id,) = (one for one in source.objects if "+" in one)
        words = source.objects[id].words()
        assert isinstance(words, Nvfp4Words)
        assert words.divisors.view(np.float32).tolist() == [4.0, 8.0]
        assert np.array_equal(words.codes[128:], tensors["k.weight_packed"])
        record = source.artifact.record(id)
        assert getattr(record, "divisors", None) == 2
        with SafetensorsSource(model) as raw:
            assert np.array_equal(source["k.weight"].decode(), Checkpoint(raw)["k.weight"].decode())
    with made(tmp_path, model, recipe=grouped("v", "k")) as source:  # one divisor: any row counts
        (id,) = (one for one in source.objects if "+" in one)
        assert getattr(source.artifact.record(id), "divisors", None) == 1
    with pytest.raises(ArgumentError, match="equal row counts"):
        qf.convert(model, tmp_path / "b.ninfer", recipe=grouped("q", "v"))


def test_activation_divisors_come_from_the_checkpoint(tmp_path: Path) -> None:
    tensors = {**nvfp4(128, 64, 4.0, "q", 0), **nvfp4(128, 64, 8.0, "k", 1), **nvfp4(128, 64, 2.0, "v", 2)}
    del tensors["v.input_global_scale"]
    model = sb.model(tmp_path, tensors)

    def divisors(recipe: Any) -> dict[str, float]:
        with made(tmp_path, str(model), recipe=recipe) as source:
            return {
                use.parameter: float(source.objects[str(binding.object)].decode())
                for use in source.uses
                for binding in use.auxiliaries.values()
            }

    def alone(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign(["q.weight", "k.weight"], activation_policy="AllowA4")

    def together(model: Any, recipe: Any, sources: Any) -> None:
        alone(model, recipe, sources)
        recipe.group(["k.weight", "q.weight"])

    def given(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.use("v.weight", "x", activation_policy="AllowA4", auxiliaries={"activation_input_divisor": 7})

    assert divisors(alone) == {"q.weight": 1.5, "k.weight": 2.5}
    assert divisors(together) == {"q.weight": 1.5, "k.weight": 1.5}  # they meet one quantized input
    assert divisors(given) == {"v.weight": 7.0}
    for prepare in (
        lambda r: r.assign("v.weight", activation_policy="AllowA4"),
        lambda r: (r.share("q.weight", "k.weight"), r.assign("q.weight", activation_policy="AllowA4")),
    ):
        with pytest.raises(ArgumentError, match="activation_input_divisor"):
            divisors(lambda _m, recipe, _s, prepare=prepare: prepare(recipe))


def test_quantized_weights_can_be_quantized_again(tmp_path: Path) -> None:
    with made(tmp_path, str(CHECKPOINTS / "mixed"), format="q8_g32_fp16") as source:
        assert source[Q].format == "q8_g32_fp16"
        with SafetensorsSource(CHECKPOINTS / "mixed") as raw:
            values = Checkpoint(raw)[Q].decode()
        expected = qf.encode(values, "q8_g32_fp16")
        assert np.array_equal(source[Q].decode(), expected.decode())


@pytest.mark.parametrize("name", [name for name in SCALARS if SCALARS[name].bits == 8 or name in {"fp16", "uint32"}])
def test_every_word_of_small_types_finds_a_home(tmp_path: Path, name: str) -> None:
    scalar = SCALARS[name]
    words = np.arange(2 if name == "bool" else 256, dtype=scalar.word_dtype)
    array = words.view(scalar.dtype)
    if scalar.is_float and name != "fp16":
        array = array[np.isfinite(array.astype(np.float32))]
    with made(tmp_path, {"v": array}) as source:
        assert source["v"].format in {"bf16", "fp32", "int32"}
        assert np.array_equal(source["v"].decode(np.float64), array.astype(np.float64))


# --- what goes along ------------------------------------------------------------------------------------------------


def a_model(directory: Path, **files: str | bytes) -> Path:
    directory.mkdir(exist_ok=True)
    sb.model(directory, {"w": np.ones((2, 3), np.float32)}, {"model_type": "toy", "layers": 2})
    for name, content in files.items():
        path = directory / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


def test_config_tokenizer_and_templates_go_along(tmp_path: Path) -> None:
    model = a_model(
        tmp_path / "m",
        tokenizer__json='{"a": 1}',
        tokenizer_config__json='{"chat_template": "old"}',
        chat_template__jinja="{{ messages }}",
        generation_config__json="{}",
        README__md="not kept",
        merges__txt="",
    )
    with made(tmp_path, model) as source:
        assert source.components["text"].config == {"model_type": "toy", "layers": 2}
        assert dict(source.resources) == {
            "tokenizer": b'{"a": 1}',
            "tokenizer_config": b'{"chat_template": "old"}',
            "generation_config": b"{}",
            "chat_template": b"{{ messages }}",
        }
        provenance = source.directory.provenance
    assert provenance is not None
    assert provenance["source"]["kind"] == "safetensors"
    assert [file["path"] for file in provenance["source"]["files"]] == ["model.safetensors"]
    assert len(provenance["source"]["files"][0]["sha256"]) == 64


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config__json": '{"chat_template": "in the config"}'}, b"in the config"),
        ({"chat_template__json": '{"chat_template": "in a file"}'}, b"in a file"),
        ({"tokenizer_config__json": '{"chat_template": [1]}'}, None),
        ({}, None),
    ],
)
def test_a_template_is_found_where_it_is(tmp_path: Path, files: dict[str, str], expected: bytes | None) -> None:
    with made(tmp_path, a_model(tmp_path / "m", **files)) as source:
        assert source.resources.get("chat_template") == expected


def test_numbers_that_json_lacks_become_texts_in_the_config(tmp_path: Path) -> None:
    model = a_model(tmp_path / "m", config__json='{"limit": Infinity, "inner": [NaN, 1.5]}')
    with made(tmp_path, model) as source:
        assert source.components["text"].config == {"limit": "inf", "inner": ["nan", 1.5]}


def test_a_resource_that_is_too_long_is_refused(tmp_path: Path) -> None:
    model = a_model(tmp_path / "m")
    with (model / "tokenizer.json").open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(FileError, match=r"tokenizer\.json: too long"):
        qf.convert(model, tmp_path / "a.ninfer")


def test_sidecars_are_listed(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    (tmp_path / "m").mkdir()
    tensors: dict[str, Any] = {
        "a.weight": sb.f8([[0x38, 0x40], [0x30, 0x31]]),
        "a.weight_scale": np.array([2.0], np.float32),
        "a.input_scale": np.array(1.0, np.float32),
        "a.k_scale": np.array(1.0, np.float32),
    }
    report = qf.convert(sb.model(tmp_path / "m", tensors, config), tmp_path / "a.ninfer")
    assert any("'a.input_scale', 'a.k_scale'" in note for note in report.notes)
    with NinferSource(tmp_path / "a.ninfer") as source:
        assert list(source) == ["a.weight"]
        assert source.directory.provenance is not None
        assert list(source.directory.provenance["source"]["dropped"]) == ["a.input_scale", "a.k_scale"]


def test_several_components(tmp_path: Path) -> None:
    text = a_model(tmp_path / "t", tokenizer__json="text's")
    vision = a_model(tmp_path / "v", preprocessor_config__json="{}", tokenizer__json="vision's")
    with made(tmp_path, str(text), components={"vision": vision}) as source:
        assert list(source) == ["w", "vision/w"]
        assert source.components["vision"].target == "text"
        assert source.components["text"].target is None
        assert source.resources["tokenizer"] == b"text's"
        assert source.resources["vision/tokenizer"] == b"vision's"
        assert source.resources["preprocessor_config"] == b"{}"
        assert source.directory.provenance is not None
        assert list(source.directory.provenance["components"]) == ["vision"]


def test_shards_are_one_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=(4, 64)).astype(np.float32) for name in ("a", "b", "c")}
    (tmp_path / "m").mkdir()
    model = sb.sharded(
        tmp_path / "m", {"1.safetensors": {"a": arrays["a"]}, "2.safetensors": {"b": arrays["b"], "c": arrays["c"]}}
    )
    with made(tmp_path, model) as source:
        assert {name: tensor.decode().tobytes() for name, tensor in source.items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
        assert source.directory.provenance is not None
        files = [file["path"] for file in source.directory.provenance["source"]["files"]]
        assert files == ["model.safetensors.index.json", "1.safetensors", "2.safetensors"]


def test_the_output_may_be_split(tmp_path: Path) -> None:
    arrays = {"w": np.random.default_rng(1).normal(size=(512, 320)).astype(np.float32)}
    report = qf.convert(arrays, tmp_path / "a.ninfer", format="q5_g64_fp16", max_file_bytes=20_480)
    assert len(report.files) > 3
    with NinferSource(tmp_path / "a.ninfer") as source:
        assert np.array_equal(source["w"].decode(), qf.encode(arrays["w"], "q5_g64_fp16").decode())
    assert json.dumps(report.as_dict())


def test_types_that_are_not_decoded_are_refused_with_a_hint_for_their_files(tmp_path: Path) -> None:
    model = ob.model([], [ob.raw("t", TensorProto.INT4, (4,), bytes(2))])
    checkpoint = sb.model(tmp_path, {"t": ("C64", (4,), bytes(32))})
    for original in (ob.write(tmp_path / "m.onnx", model), checkpoint):
        with pytest.raises(UnsupportedError, match=r"'t' cannot even be decoded: .* in floating point$"):
            qf.convert(original, tmp_path / "m.ninfer", fallback="bf16")
