"""The command line on checkpoints with quantized weights: what they are together, not what they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
import safetensors_builder as sb
from quantform.errors import FileError, UnsupportedError
from quantform.sources import Checkpoint, SafetensorsSource

Run = Callable[..., Any]

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
Q = "layers.0.self_attn.q_proj.weight"
O = "layers.0.self_attn.o_proj.weight"  # noqa: E741 - the projection's name
MODELOPT = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
CODES = sb.f8([[0x38, 0x40], [0x3C, 0xB8]])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    tensors: dict[str, Any] = {
        "a.weight": CODES,
        "a.weight_scale": np.array([2.0], np.float32),
        "a.input_scale": np.array([1.0], np.float32),
        "b.weight": CODES,
        "c.weight": np.ones((2, 3), np.float32),
    }
    (tmp_path / "m").mkdir()
    sb.model(tmp_path / "m", tensors, MODELOPT)
    return tmp_path / "m"


def test_opening_gives_logical_weights_and_uses_fail_one_by_one(broken: Path) -> None:
    with qf.open(broken) as source:
        assert isinstance(source, Checkpoint)
        assert (source.kind, list(source)) == ("safetensors", ["a.weight", "b.weight", "c.weight"])
        assert source["a.weight"].decode().tolist() == [[2, 4], [3, -2]]
        assert source["c.weight"].decode().tolist() == [[1, 1, 1]] * 2
        with pytest.raises(FileError, match=r"'b\.weight'.*lacks one.*'b\.weight_scale'"):
            source["b.weight"].decode()


def test_without_quantized_weights_nothing_changes(tmp_path: Path) -> None:
    sb.model(tmp_path, {"a.weight": np.ones((2, 3), np.float32), "ids": np.zeros((1, 2), np.int32)})
    with qf.open(tmp_path) as source:
        assert isinstance(source, SafetensorsSource)
        assert list(source) == ["a.weight", "ids"]


def test_a_malformed_config_matters_where_there_are_codes(tmp_path: Path) -> None:
    sb.model(tmp_path, {"a.weight": np.ones((2, 3), np.float32)}, {"quantization_config": 5})
    with qf.open(tmp_path) as source:
        assert source["a.weight"].decode().tolist() == [[1, 1, 1]] * 2
    sb.model(tmp_path, {"a.weight": CODES}, {"quantization_config": 5})
    with pytest.raises(FileError, match=r"quantization_config"):
        qf.open(tmp_path)


def test_inspect_lists_weights_with_their_convention_and_what_was_left_out(run: Run, broken: Path) -> None:
    document = json.loads(run("inspect", broken, "--json").out)
    assert {tensor["name"]: tensor["format"] for tensor in document["tensors"]} == {
        "a.weight": "fp8-per-tensor",
        "b.weight": "broken",
        "c.weight": "fp32",
    }
    assert [one["name"] for one in document["dropped"]] == ["a.input_scale"]
    assert "activations" in document["dropped"][0]["reason"]
    assert [one["name"] for one in document["unreadable"]] == ["b.weight"]
    assert "'b.weight_scale'" in document["unreadable"][0]["reason"]
    lines = run("inspect", broken).out.splitlines()
    assert "safetensors checkpoint, 3 tensors, 2 quantized weights, 1 left out" in lines[0]
    assert any(line.startswith("a.weight ") and "2x2" in line and "fp8-per-tensor" in line for line in lines)
    assert any(line.startswith("a.input_scale ") and "activations" in line for line in lines)
    assert any(line.startswith("b.weight ") and "'b.weight_scale'" in line for line in lines)


@pytest.mark.parametrize("name", ["nvfp4", "fp8_block", "fp8_channel_fp32", "mxfp4"])
def test_decode_writes_scaled_values(run: Run, tmp_path: Path, name: str) -> None:
    assert run("decode", CHECKPOINTS / name, Q, "-o", tmp_path / "q.npy").code == 0
    with SafetensorsSource(CHECKPOINTS / name / "expected.safetensors") as expected:
        want = expected[Q].decode()
    assert np.array_equal(np.load(tmp_path / "q.npy").astype(want.dtype), want)


def test_decode_refuses_what_it_cannot_scale(run: Run, tmp_path: Path, broken: Path) -> None:
    ran = run("decode", broken, "b.weight", "-o", tmp_path / "b.npy")
    assert ran.code == 1
    assert "lacks one of its tensors" in ran.err
    assert run("decode", CHECKPOINTS / "int4", Q, "-o", tmp_path / "b.npy").code == 1
    assert not (tmp_path / "b.npy").exists()


def test_conversion_names_the_weight_that_is_broken(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'b\.weight'.*lacks one of its tensors.*'b\.weight_scale'"):
        qf.convert(broken, tmp_path / "a.ninfer", fallback="bf16")
    assert not (tmp_path / "a.ninfer").exists()


def test_a_recipe_replaces_integers_that_are_not_read_from_another_source(tmp_path: Path) -> None:
    expected = CHECKPOINTS / "int4" / "expected.safetensors"

    def recipe(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        for name in (Q, O):
            recipe.assign(name, source=sources["values"][name])

    made = tmp_path / "a.ninfer"
    qf.convert(CHECKPOINTS / "int4", made, recipe=recipe, sources={"values": expected})
    with qf.open(made) as source, qf.open(expected) as values:
        for name in (Q, O):
            assert source[name].decode("float32").tobytes() == values[name].decode("float32").tobytes()
