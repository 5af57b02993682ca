"""Weights in forms that are not read, and tensors that no weight needs."""

# ruff: noqa: E501 - tables have one case a line

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantform.errors import FileError, QuantformError, UnknownNameError, UnsupportedError
from quantform.sources.arrays import ArraySource, ArrayTensor
from quantform.sources.conventions import Checkpoint, UnsupportedWeight
from quantform.sources.safetensors import SafetensorsSource
from quantized_weights import (
    BF16,
    BLOCKS,
    CODES,
    FP8_CHANNEL,
    FP8_TENSOR,
    GRID,
    INT8,
    MXFP4,
    NVFP4,
    U8,
    blocks,
    changed,
    compressed,
    config,
    f8,
    f32,
    modelopt,
    rows,
    same,
    weight,
)
from safetensors_builder import model

# --- forms that are not read ---

I32, I8 = np.zeros((4, 4), np.int32), np.zeros((4, 4), np.int8)
OTHERS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("GPTQ", {"p.qweight": I32, "p.qzeros": I32, "p.scales": f32([[1]]), "p.g_idx": np.zeros(4, np.int32)}, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "GPTQ or AWQ"),
    ("AWQ without a config", {"p.qweight": I32, "p.qzeros": I32, "p.scales": np.ones((1, 4), np.float16)}, None, "GPTQ or AWQ"),
    ("packed integers", {"p.weight_packed": I32, "p.weight_scale": f32([[1]]), "p.weight_shape": np.array([4, 8])}, None, "integers packed in int32"),
    ("packed integers with zero points", {"p.weight_packed": I32, "p.weight_scale": f32([[1]]), "p.weight_zero_point": I32}, config({"num_bits": 4, "type": "int"}), "4-bit int"),
    ("six-bit floats", {"p.weight_packed": np.zeros((1, 24), np.uint8), "p.weight_scale": np.array([[127]], np.uint8)}, config({"num_bits": 6, "type": "float", "group_size": 32}), "6-bit float"),
    ("integers of a row", {"p.weight": I8, "p.weight_scale": f32([[1]] * 4)}, INT8, "int8 codes .8-bit int"),
    ("integers without a config", {"p.weight": I8, "p.weight_scale": f32([[1]] * 4)}, None, "int8 codes"),
    ("integers of ModelOpt", {"p.weight": U8, "p.weight_scale": f32([[1], [1]])}, {"quantization_config": {"quant_algo": "W4A16_AWQ"}}, "4-bit int"),
    ("integers of ModelOpt without a config", {"p.weight": U8, "p.weight_scale": f32([[1], [1]])}, None, "uint8 codes under fp32"),
    ("bitsandbytes in 8 bits", {"p.weight": I8, "p.SCB": f32([1] * 4)}, None, "bitsandbytes"),
    ("bitsandbytes in 4 bits", {"p.weight": U8, "p.weight.absmax": f32([1]), "p.weight.quant_map": f32([1]), "p.weight.quant_state.bitsandbytes__nf4": U8}, None, "bitsandbytes"),
    ("HQQ", {"p.W_q": U8, "p.scale": f32([1]), "p.zero": f32([1])}, None, "HQQ"),
    ("blocks and scales", {"p.weight_blocks": np.zeros((2, 3, 1, 16), np.uint8), "p.weight_scales": np.zeros((2, 3, 1), np.uint8)}, {"quantization_config": {"quant_method": "mxfp4"}}, "MXFP4 in blocks"),
    ("sparse", {"p.weight.compressed": f32([1]), "p.weight.bitmask": U8, "p.weight.shape": np.array([4, 8])}, None, "sparse"),
    ("scaled inputs of ModelOpt", modelopt(pre_quant_scale=f32([1] * 16)), None, "pre_quant_scale"),
    ("scaled inputs of compressed-tensors", compressed(pre_quant_scale=f32([1] * 16)), None, "pre_quant_scale"),
    ("scaled inputs of FP8", rows(f32(1), pre_quant_scale=f32([1] * 3)), None, "pre_quant_scale"),
    ("another FP8", {"p.weight": np.zeros((2, 2), ml_dtypes.float8_e5m2), "p.weight_scale": f32(1)}, None, "e5m2 codes"),
    ("a third FP8", {"p.weight": np.zeros((2, 2), ml_dtypes.float8_e4m3fnuz), "p.weight_scale": f32(1)}, None, "e4m3fnuz codes"),
    ("reordered columns", rows(f32(1), weight_g_idx=np.zeros(3, np.int32)), None, "weight_g_idx"),
    ("shifted NVFP4", compressed(weight_zero_point=U8), None, "weight_zero_point"),
    ("an unknown method", {"p.weight": U8}, {"quantization_config": {"quant_method": "bitnet"}}, "'bitnet'"),
    ("an unknown method with scales", rows(f32(1)), {"quantization_config": {"quant_method": "quark"}}, "'quark'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "settings", "message"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS]
)
def test_other_forms_are_listed_and_refused_by_name(tensors: dict[str, Any], settings: Any, message: str) -> None:
    checkpoint = Checkpoint(ArraySource(tensors), settings or {})
    assert list(checkpoint) == ["p.weight"]
    tensor = checkpoint["p.weight"]
    assert isinstance(tensor, UnsupportedWeight)
    assert checkpoint.unsupported == (tensor,)
    assert {*tensor.companions, *(dropped.name for dropped in checkpoint.dropped)} == set(tensors)
    for use in (tensor.words, tensor.decode, tensor.check):
        with pytest.raises(UnsupportedError, match=message) as caught:
            use()
        assert "'p.weight'" in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        (np.array([4, 30]), (4, 30)),
        (np.array([4, 32], np.int32), (4, 32)),
        (np.array([5, 32]), (4, 4)),
        (np.array([4, -1]), (4, 4)),
        (np.array([4, 0]), (4, 4)),
        (np.array([4, 129]), (4, 4)),
        (np.array([1, 4, 32]), (4, 4)),
        (f32([4, 32]), (4, 4)),
        (None, (4, 4)),
    ],
)
def test_packed_integers_have_the_shape_that_the_checkpoint_says(said: Any, shape: tuple[int, ...]) -> None:
    tensors = changed({"p.weight_packed": I32, "p.weight_scale": f32([[1]] * 4)}, {"weight_shape": said})
    tensor = weight(tensors)
    assert isinstance(tensor, UnsupportedWeight)
    assert tensor.shape == shape
    with pytest.raises(UnsupportedError, match=r"integers packed in int32"):
        tensor.decode()


# --- what is left ---


def test_sidecars_are_dropped_with_a_reason_and_plain_tensors_stay() -> None:
    left = {
        **dict.fromkeys(("p.input_scale", "p.input_zero_point", "p.output_scale"), "activations"),
        **dict.fromkeys(
            ("a.k_scale", "a.v_scale", "a.k_proj.k_scale", "a.q_scale", "a.kv_scale", "a.prob_scale"), "cache"
        ),
        "head.weight_scale": "unquantized",
    }
    plain = {"head.weight": f32([[1]]), "p.bias": f32([1]), "logit_scale": f32(1), "norm.weight": f32([1])}
    checkpoint = Checkpoint(ArraySource(rows(f32(2)) | dict.fromkeys(left, f32(1)) | plain))
    assert set(checkpoint) == {"p.weight", *plain}
    assert checkpoint.describe() == f"arrays checkpoint, 5 tensors, 1 quantized weight, {len(left)} left out"
    assert {dropped.name for dropped in checkpoint.dropped} == set(left)
    assert all(left[dropped.name] in dropped.reason for dropped in checkpoint.dropped)
    assert isinstance(checkpoint["head.weight"], ArrayTensor)


def test_without_quantized_weights_every_tensor_is_itself() -> None:
    tensors = {
        "a.weight_scale": f32(1),
        "b.input_scale": f32(1),
        "c.weight": f8([[1, 2]]),
        "d": np.zeros((2, 2), np.uint8),
        "e_packed": f32([1]),
    }
    checkpoint = Checkpoint(ArraySource(tensors))
    assert set(checkpoint) == set(tensors)
    assert not checkpoint.weights
    assert not checkpoint.dropped
    assert checkpoint["c.weight"].format == "e4m3fn"


def test_a_weight_without_a_module() -> None:
    tensor = weight({"weight": f8([[0x38]]), "weight_scale": f32(2), "input_scale": f32(1)}, FP8_TENSOR, "weight")
    same(tensor.decode(), [[2]])


def test_an_index_of_unquantized_modules_is_no_contradiction() -> None:
    settings = {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    }
    checkpoint = Checkpoint(ArraySource(modelopt() | {"lm_head.weight": np.zeros((2, 2), BF16)}), settings)
    assert checkpoint["lm_head.weight"].format == "bf16"
    assert checkpoint.quantization is not None
    with pytest.raises(UnknownNameError):
        checkpoint["p.weight_scale"]


def test_modelopts_older_config_lies_beside(tmp_path: Path) -> None:
    stored: dict[str, Any] = {
        "p.weight": ("U8", (2, 8), bytes(CODES * 2)),
        "p.weight_scale": ("F8_E4M3", (2, 1), bytes([0x38, 0x40])),
        "p.weight_scale_2": f32(0.25),
    }
    model(tmp_path, stored, {"model_type": "x"})
    (tmp_path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["p"]}}'
    )
    with (
        Checkpoint(SafetensorsSource(tmp_path)) as checkpoint,
        pytest.raises(FileError, match=r"hf_quant_config.json"),
    ):
        checkpoint["p.weight"].check()
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with Checkpoint(SafetensorsSource(tmp_path)) as checkpoint:
        same(checkpoint["p.weight"].decode(), [GRID / 4, GRID / 2])
        assert (checkpoint.kind, checkpoint.config) == ("safetensors", {"model_type": "x"})


@pytest.mark.parametrize("make", [compressed, modelopt, lambda: rows(f32([1, 2])), blocks])
def test_any_companion_of_any_type_and_shape_succeeds_or_fails_by_our_errors(make: Any) -> None:
    others = [f32(1), f32([1, 2]), f32([[1], [2]]), U8, I32, I8, f8([[1]]), f8(np.zeros((2, 2))), np.zeros((0, 4), np.uint8), np.zeros((2, 0), np.uint8), np.zeros((1, 2, 3, 4), BF16)]  # fmt: skip
    for name in make():
        for other in others:
            for settings in (None, BLOCKS, NVFP4, MXFP4, FP8_TENSOR, FP8_CHANNEL, INT8):
                try:
                    checkpoint = Checkpoint(ArraySource(make() | {name: other}), settings or {})
                    for tensor in checkpoint.values():
                        tensor.decode()
                        tensor.words()
                except QuantformError as error:
                    assert "p." in str(error)  # noqa: PT017 - success is as good
