"""Importance by layer and role, and the two families of tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from quantform.errors import FileError
from quantform.recipes import Importance, import_importance
from quantform.recipes.tensor_names import ggml_name, huggingface_names
from quantform.sources import SafetensorsSource

CONFIG: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 2,
}


def importance(path: Path, vectors: dict[str, Any], count: float = 2.0) -> Path:
    tensors = []
    for name, sums in vectors.items():
        for suffix, values in ((".in_sum2", sums), (".counts", [count])):
            array = np.asarray(values, "<f4")
            tensors.append(gb.tensor(f"{name}.weight{suffix}", array.shape, gb.F32, array.tobytes()))
    path.write_bytes(gb.build(tensors))
    return path


def written(tmp_path: Path, vectors: dict[str, Any], config: Any = CONFIG, count: float = 2.0) -> dict[str, Any]:
    source = importance(tmp_path / "i.gguf", vectors, count)
    (tmp_path / "config.json").write_text(json.dumps(config))
    import_importance(source, tmp_path / "o.safetensors", config=tmp_path / "config.json", force=True)
    with Importance(tmp_path / "o.safetensors") as found:
        return {name: vector.tolist() for name, vector in found.items()}


def test_check_values(tmp_path: Path) -> None:
    """A count of 2: attn_qkv 6 is 3 for a key, attn_q 9 is 4.5 for a gate, ffn_down 4 is 2."""
    vectors = {"blk.0.attn_qkv": [6.0], "blk.1.attn_q": [9.0], "blk.1.ffn_down": [4.0]}
    found = written(tmp_path, vectors)
    assert found == {
        "text/layers/0/gdn/query": [3.0],
        "text/layers/0/gdn/key": [3.0],
        "text/layers/0/gdn/value": [3.0],
        "text/layers/1/attention/query": [4.5],
        "text/layers/1/attention/gate": [4.5],
        "text/layers/1/mlp/down": [2.0],
    }
    with SafetensorsSource(tmp_path / "o.safetensors") as file:
        assert file.metadata == {"source": "i.gguf"}
        assert {tensor.dtype_name for tensor in file.values()} == {"F32"}


def test_every_role(tmp_path: Path) -> None:
    linear = ("attn_qkv", "attn_gate", "ffn_gate", "ffn_up", "ffn_down")
    full = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    vectors: dict[str, Any] = {f"blk.0.{name}": [2.0 * at] for at, name in enumerate(linear)}
    vectors |= {f"blk.1.{name}": [20.0 * at] for at, name in enumerate(full)}
    vectors |= {"blk.0.ssm_out": 2.0 * np.arange(8), "blk.0.ssm_ba": [1.0], "output": [1.0], "blk.1.ssm_out": [1.0]}
    found = written(tmp_path, vectors)
    assert found == {
        "text/layers/0/gdn/query": [0.0],
        "text/layers/0/gdn/key": [0.0],
        "text/layers/0/gdn/value": [0.0],
        "text/layers/0/gdn/z": [1.0],
        "text/layers/0/gdn/output": [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0],  # heads k0r0 k0r1 k1r0 k1r1
        "text/layers/0/mlp/gate": [2.0],
        "text/layers/0/mlp/up": [3.0],
        "text/layers/0/mlp/down": [4.0],
        "text/layers/1/attention/query": [0.0],
        "text/layers/1/attention/gate": [0.0],
        "text/layers/1/attention/key": [10.0],
        "text/layers/1/attention/value": [20.0],
        "text/layers/1/attention/output": [30.0],
        "text/layers/1/mlp/gate": [40.0],
        "text/layers/1/mlp/up": [50.0],
        "text/layers/1/mlp/down": [60.0],
    }


def test_value_heads_at_the_real_geometry(tmp_path: Path) -> None:
    config = CONFIG | {"linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128}
    sums = np.arange(48 * 128)
    found = written(tmp_path, {"blk.0.ssm_out": sums}, config, count=1.0)
    want = [float((r * 16 + k) * 128 + lane) for k in range(16) for r in range(3) for lane in range(128)]
    assert found == {"text/layers/0/gdn/output": want}


def test_text_config_and_configs_without_layer_types(tmp_path: Path) -> None:
    vectors = {"blk.0.attn_q": [2.0], "blk.1.attn_q": [4.0], "blk.2.attn_q": [6.0]}
    plain = written(tmp_path, vectors, {"num_hidden_layers": 2})
    assert list(plain) == [f"text/layers/{layer}/attention/{role}" for layer in (0, 1) for role in ("query", "gate")]
    assert written(tmp_path, vectors, {"text_config": {"num_hidden_layers": 2}, "layer_types": 5}) == plain
    assert written(tmp_path, vectors, {"text_config": None, "num_hidden_layers": 2}) == plain
    sliding = {"layer_types": ["sliding_attention", "full_attention"]}
    assert written(tmp_path, vectors, sliding) == plain


def test_vectors_without_a_role_are_named(tmp_path: Path) -> None:
    names = ("output", "blk.0.ffn_up", "blk.0.ssm_ba", "blk.1.ssm_out", "blk.2.ffn_up")
    source = importance(tmp_path / "i.gguf", {name: [1.0] for name in names})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    imported = import_importance(source, tmp_path / "o.safetensors", config=tmp_path / "config.json")
    assert imported.shapes == {"text/layers/0/mlp/up": (1,)}
    assert imported.unused == tuple(f"{names[index]}.weight" for index in (0, 2, 3, 4))


def test_an_unseen_weight_counts_as_seen_once(tmp_path: Path) -> None:
    assert written(tmp_path, {"blk.0.ffn_up": [3.0]}, count=0.0) == {"text/layers/0/mlp/up": [3.0]}


@pytest.mark.parametrize(
    ("vectors", "config", "message"),
    [
        ({"blk.7.attn_q": [1.0]}, CONFIG, r"no role.*'blk\.0\.ffn_down\.weight'.*'blk\.7\.attn_q\.weight'"),
        ({"blk.0.ssm_out": [1.0]}, CONFIG, r"does not fit the config.*4 heads of 2.*1 values"),
        ({"blk.0.ffn_up": [1.0]}, {}, "no usable num_hidden_layers"),
        ({"blk.0.ffn_up": [1.0]}, {"num_hidden_layers": 10**12}, "num_hidden_layers.*1 to 65536"),
        ({"blk.0.ffn_up": [1.0]}, {"layer_types": "full"}, "layer_types is no list"),
        (
            {"blk.0.ffn_up": [1.0], "blk.0.ssm_out": [1.0]},
            {"num_hidden_layers": 2, "linear_num_key_heads": 2},
            "which layers have linear attention.*layer_types.*found linear_num_key_heads alone.*Add the list",
        ),
        ({"blk.0.ffn_up": [1.0]}, {"text_config": []}, "text_config is no JSON object"),
        ({"blk.0.ssm_out": [1.0]}, CONFIG | {"linear_num_key_heads": 0}, "linear_num_key_heads.*found 0"),
        ({"blk.0.ssm_out": [1.0]}, CONFIG | {"linear_num_key_heads": 3}, "a multiple of 3"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, vectors: dict[str, Any], config: Any, message: str) -> None:
    with pytest.raises(FileError, match=message):
        written(tmp_path, vectors, config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "i.gguf"]


def test_several_counts_of_a_dense_weight_are_refused(tmp_path: Path) -> None:
    tensors = [
        gb.tensor(f"blk.1.attn_q.weight{suffix}", shape, gb.F32, np.ones(shape, "<f4").tobytes())
        for suffix, shape in ((".in_sum2", (3, 2)), (".counts", (3, 1)))
    ]
    (tmp_path / "i.gguf").write_bytes(gb.build(tensors))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FileError, match=r"several importance vectors.*one count.*found 3"):
        import_importance(tmp_path / "i.gguf", tmp_path / "o.safetensors", config=tmp_path / "config.json")


# --- names ------------------------------------------------------------------------------------------------------------

PAIRS = {
    "blk.3.attn_q.weight": "model.layers.3.self_attn.q_proj.weight",
    "blk.3.attn_k.weight": "model.layers.3.self_attn.k_proj.weight",
    "blk.3.attn_v.weight": "model.layers.3.self_attn.v_proj.weight",
    "blk.3.attn_qkv.weight": "model.layers.3.self_attn.qkv_proj.weight",
    "blk.13.attn_output.weight": "model.layers.13.self_attn.o_proj.weight",
    "blk.3.ffn_gate.weight": "model.layers.3.mlp.gate_proj.weight",
    "blk.3.ffn_up.weight": "model.layers.3.mlp.up_proj.weight",
    "blk.3.ffn_down.weight": "model.layers.3.mlp.down_proj.weight",
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
}


@pytest.mark.parametrize(("ggml", "theirs"), PAIRS.items())
def test_names_of_one_weight(ggml: str, theirs: str) -> None:
    assert ggml_name(theirs) == ggml
    names = list(huggingface_names(ggml))
    assert names[0] == theirs
    assert all(ggml_name(name) == ggml for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.encoder.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "vision/model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.x.mlp.up_proj.weight",
        "model.layers.0.mlp.experts.1.up_proj.weight",
        "v.blk.0.attn_q.weight",
        "blk.0.ssm_out.weight",
    ],
)
def test_other_names_have_no_partner(name: str) -> None:
    assert ggml_name(name) is None
    assert not list(huggingface_names(name))


@pytest.mark.parametrize("swapped", [False, True])
def test_an_importance_matrix_serves_the_other_names(tmp_path: Path, swapped: bool) -> None:
    rng = np.random.default_rng(3)
    ours, theirs = "blk.0.attn_q.weight", "model.language_model.layers.0.self_attn.q_proj.weight"
    if swapped:
        ours, theirs = theirs, ours
    weights = {theirs: rng.normal(size=(4, 64)).astype(np.float32)}
    vector = rng.random(64)
    qf.convert(weights, tmp_path / "a.ninfer", format="q4_g64_fp16", method="grouped_search", imatrix={ours: vector})
    expected = qf.encode(weights[theirs], "q4_g64_fp16", method="grouped_search", importance=vector)
    with qf.open(tmp_path / "a.ninfer") as source:
        assert np.array_equal(source[theirs].decode(), expected.decode())


@pytest.mark.parametrize("architecture", ["LLAMA", "QWEN2", "QWEN3", "GEMMA2", "GEMMA3", "PHI3"])
def test_the_names_are_those_of_the_gguf_package(architecture: str) -> None:
    known = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture), 4)
    for theirs, ours in {theirs: ours for ours, theirs in PAIRS.items()}.items():
        found = known.get_name(theirs.replace(".13.", ".3."), try_suffixes=(".weight",))
        if found is not None:
            assert found == ours.replace(".13.", ".3.")
    assert known.get_name("model.layers.3.mlp.down_proj.weight", try_suffixes=(".weight",)) is not None
