"""What a quantization config says of each module, in every dialect."""

# ruff: noqa: E501 - tables have one case a line

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantform.errors import FileError, QuantformError, UnsupportedError
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import Checkpoint, QuantizationConfig
from quantform.sources.conventions.config import find_config

FP8 = {"num_bits": 8, "type": "float"}
CHANNEL = {**FP8, "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
Q, OUT, GATE, HEAD = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.o_proj",
    "model.layers.1.mlp.gate",
    "lm_head",
)


def groups(*entries: tuple[list[str], Any], **others: Any) -> dict[str, Any]:
    found = {f"group_{at}": {"targets": targets, "weights": weights} for at, (targets, weights) in enumerate(entries)}
    return {"quant_method": "compressed-tensors", "config_groups": found, **others}


# Name, config, and for some modules the scheme as text ("-": left unquantized).
TABLE: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("a class", groups((["Linear"], CHANNEL)), {Q: "8-bit float, strategy channel", HEAD: "8-bit float, strategy channel"}),
    ("an ignored name", groups((["Linear"], CHANNEL), ignore=["lm_head"]), {Q: "8-bit float, strategy channel", HEAD: "-"}),
    ("an ignored pattern", groups((["Linear"], CHANNEL), ignore=["re:.*mlp.gate$"]), {GATE: "-", Q: "8-bit float, strategy channel"}),
    ("an ignored class says nothing of names", groups((["Linear"], CHANNEL), ignore=["Embedding"]), {Q: "8-bit float, strategy channel"}),
    ("a part of a name is no match", groups((["Linear"], CHANNEL), ignore=["q_proj", "head"]), {Q: "8-bit float, strategy channel", HEAD: "8-bit float, strategy channel"}),
    ("a name", groups(([Q], CHANNEL)), {Q: "8-bit float, strategy channel", OUT: "-"}),
    ("a pattern", groups((["re:.*q_proj$"], NVFP4)), {Q: "4-bit float, strategy tensor_group of 16", OUT: "-"}),
    ("two patterns", groups((["re:.*q_proj"], NVFP4), (["re:.*o_proj"], CHANNEL)), {Q: "4-bit float, strategy tensor_group of 16", OUT: "8-bit float, strategy channel"}),
    ("a name before a pattern before a class", groups((["Linear"], CHANNEL), (["re:.*self_attn.*"], NVFP4), ([OUT], INT4)), {HEAD: "8-bit float, strategy channel", Q: "4-bit float, strategy tensor_group of 16", OUT: "4-bit int, strategy group of 128"}),
    ("a group without weights", groups((["re:.*q_proj"], None), (["Linear"], CHANNEL)), {Q: "-", OUT: "8-bit float, strategy channel"}),
    ("a preset", {"config_groups": {"FP8_BLOCK": ["Linear"]}, "ignore": None}, {Q: "8-bit float, strategy block of [128, 128]"}),
    ("a preset in small letters", {"config_groups": {"nvfp4": [Q], "w4a16": [OUT]}}, {Q: "4-bit float, strategy tensor_group of 16", OUT: "4-bit int, strategy group of 128", HEAD: "-"}),
    ("a strategy that follows from nothing", groups((["Linear"], FP8)), {Q: "8-bit float, strategy tensor"}),
    ("a strategy that follows from the group", groups((["Linear"], {**FP8, "group_size": 32})), {Q: "8-bit float, strategy group of 32"}),
    ("a strategy that follows from -1", groups((["Linear"], {**FP8, "group_size": -1})), {Q: "8-bit float, strategy channel"}),
    ("blocks", groups((["Linear"], {**FP8, "strategy": "block", "block_structure": [16, 32]})), {Q: "8-bit float, strategy block of [16, 32]"}),
    ("blocks as text", groups((["Linear"], {**FP8, "strategy": "block", "block_structure": "16x32"})), {Q: "8-bit float, strategy block of [16, 32]"}),
    ("integers by default", groups((["Linear"], {})), {Q: "8-bit int, strategy tensor"}),
    ("ModelOpt FP8", {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, {Q: "8-bit float, strategy tensor", HEAD: "-"}),
    ("ModelOpt NVFP4 with patterns", {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "model.layers.1*"]}, {Q: "-", GATE: "-", HEAD: "4-bit float, strategy tensor_group of 16"}),
    ("ModelOpt with groups", {"quant_method": "modelopt", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"dynamic": False, **NVFP4}}}, "ignore": ["lm_head"]}, {Q: "4-bit float, strategy tensor_group of 16", HEAD: "-"}),
    ("ModelOpt's algorithm before its groups", {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "config_groups": {"group_0": {"targets": ["Linear"], "weights": FP8}}}, {Q: "8-bit float, strategy channel"}),
    ("ModelOpt mixed", {"quant_algo": "MIXED_PRECISION", "quantized_layers": {Q: {"quant_algo": "NVFP4"}, "*.mlp.*": {"quant_algo": "FP8"}}}, {Q: "4-bit float, strategy tensor_group of 16", GATE: "8-bit float, strategy tensor", OUT: "-"}),
    ("ModelOpt integers", {"quant_algo": "W4A16_AWQ"}, {Q: "4-bit int, strategy group of 128"}),
    ("FP8 in blocks", {"quant_method": "fp8", "weight_block_size": [128, 64]}, {Q: "8-bit float, strategy block of [128, 64]"}),
    ("FP8 of tensors", {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["re:.*gate"]}, {Q: "8-bit float, strategy tensor", GATE: "-"}),
    ("FP8 with modules left out", {"quant_method": "fp8", "weight_block_size": [1, 1], "modules_to_not_convert": ["gate", "lm_head", "model.layers.0"]}, {GATE: "-", HEAD: "-", Q: "-", "model.layers.1.mlp.gate_proj": "8-bit float, strategy block of [1, 1]"}),
    ("FP8 of FBGEMM", {"quant_method": "fbgemm_fp8"}, {Q: "8-bit float, strategy channel"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "schemes"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE])
def test_resolution(config: dict[str, Any], schemes: dict[str, str]) -> None:
    resolved = QuantizationConfig(config, "here")
    assert resolved.readable
    assert {module: str(resolved.scheme(module) or "-") for module in schemes} == schemes


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "hqq", "anything"])
def test_other_methods_are_known_to_be_others(method: str) -> None:
    assert not QuantizationConfig({"quant_method": method, "bits": 4}, "here").readable


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("a method that is a number", {"quant_method": 3}, "here.quant_method"),
    ("groups that are a list", groups(ignore=[]) | {"config_groups": []}, "here.config_groups"),
    ("a group that is a number", {"config_groups": {"g": 1}}, "here.config_groups.g"),
    ("weights that are text", groups((["Linear"], "x")), "group_0.weights"),
    ("targets that are text", {"config_groups": {"g": {"targets": "Linear", "weights": FP8}}}, "g.targets"),
    ("bits as text", groups((["Linear"], {"num_bits": "8"})), "weights.num_bits"),
    ("no bits", groups((["Linear"], {"num_bits": 0})), "weights.num_bits"),
    ("an unknown type", groups((["Linear"], {"type": "complex"})), "weights.type"),
    ("an unknown strategy", groups((["Linear"], {"strategy": "token"})), "weights.strategy"),
    ("groups without a size", groups((["Linear"], {"strategy": "group"})), "weights.group_size"),
    ("groups of nothing", groups((["Linear"], {"strategy": "group", "group_size": 0})), "weights.group_size"),
    ("blocks without a size", groups((["Linear"], {"strategy": "block"})), "weights.block_structure"),
    ("blocks of three", groups((["Linear"], {"block_structure": [1, 2, 3]})), "weights.block_structure"),
    ("blocks as other text", groups((["Linear"], {"block_structure": "axb"})), "weights.block_structure"),
    ("blocks of nothing", {"quant_method": "fp8", "weight_block_size": [128, 0]}, "here.weight_block_size"),
    ("blocks of fractions", {"quant_method": "fp8", "weight_block_size": [128.0, 128]}, "here.weight_block_size"),
    ("an ignore of numbers", groups(ignore=[1]), "here.ignore"),
    ("an unknown preset", {"config_groups": {"FP9": ["Linear"]}}, "here.config_groups.FP9"),
    ("an unknown algorithm", {"quant_algo": "FP9"}, "here.quant_algo"),
    ("classes that disagree", groups((["Linear"], FP8), (["Embedding"], INT4)), "several classes"),
    ("layers that are a list", {"quant_algo": "MIXED_PRECISION", "quantized_layers": []}, "here.quantized_layers"),
]


@pytest.mark.parametrize(("config", "message"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_malformed_configs_are_errors_that_name_the_member(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        QuantizationConfig(config, "here")


def test_a_pattern_that_is_not_supported_is_named_with_its_place() -> None:
    with pytest.raises(UnsupportedError, match=r"here\.ignore.*'\(a\)\\\\1'"):
        QuantizationConfig(groups(ignore=[r"re:(a)\1"]), "here")


def test_where_configs_are_found() -> None:
    fp8 = {"quant_method": "fp8"}
    for config in (
        {"quantization_config": fp8},
        {"compression_config": fp8},
        {"text_config": {"quantization_config": fp8}},
        {"quantization_config": fp8, "text_config": {"quantization_config": {"quant_method": "gptq"}}},
    ):
        found = find_config(config, None, "m")
        assert found is not None
        assert found.method == "fp8"
        assert found.where.startswith("m, config.json, ")
    assert find_config({}, None, "m") is None
    assert find_config({"quantization_config": {}}, None, "m") is None
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    found = find_config({}, beside, "m")
    assert found is not None
    assert str(found.scheme(Q)) == "8-bit float, strategy tensor"
    with pytest.raises(FileError, match=r"hf_quant_config.json"):
        find_config({}, {"quantization": 1}, "m")
    with pytest.raises(FileError, match=r"no object"):
        find_config({"quantization_config": []}, None, "m")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from(["Linear", "re:a*", "re:(", "x", "float", "block"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "quant_method",
                        "config_groups",
                        "group_0",
                        "weights",
                        "targets",
                        "ignore",
                        "num_bits",
                        "type",
                        "strategy",
                    ),
                    *("group_size", "block_structure", "quant_algo", "weight_block_size", "quantized_layers"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["compressed-tensors", "modelopt", "fp8", None]))
def test_any_config_resolves_or_fails_by_our_errors(config: Any, method: str | None) -> None:
    if isinstance(config, dict) and method is not None:
        config["quant_method"] = method
    try:
        checkpoint = Checkpoint(ArraySource({"a.weight": np.zeros((2, 2))}), {"quantization_config": config})
        if checkpoint.quantization is not None:
            checkpoint.quantization.scheme("a")
    except QuantformError as error:
        assert "config" in str(error)  # noqa: PT017 - success is as good
