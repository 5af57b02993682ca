"""Importance by role: which of llama.cpp's vectors weighs which part of a decoder layer.

The roles are those of decoders whose layers have full attention (`attention/*`) or linear attention (`gdn/*`), and a
dense feed-forward block (`mlp/*`). One of llama.cpp's projections may be several of the model's: they read one input,
and so share one vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.errors import FileError
from quantform.recipes.heads import untiled_heads

__all__ = ["RoleImportance"]

F32 = npt.NDArray[np.float32]

_ATTENTION = {
    "attention/query": "attn_q",
    "attention/gate": "attn_q",
    "attention/key": "attn_k",
    "attention/value": "attn_v",
    "attention/output": "attn_output",
}
_LINEAR = {
    "gdn/query": "attn_qkv",
    "gdn/key": "attn_qkv",
    "gdn/value": "attn_qkv",
    "gdn/z": "attn_gate",
    "gdn/output": "ssm_out",
}
_MLP = {"mlp/gate": "ffn_gate", "mlp/up": "ffn_up", "mlp/down": "ffn_down"}
_TILED = "gdn/output"
_FULL = {"full_attention", "sliding_attention", "chunked_attention"}
_LINEAR_KEYS = "linear_num_"
_MOST_LAYERS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Heads:
    """The geometry of linear attention, whose output llama.cpp has in another order of heads."""

    keys: int
    values: int
    width: int


class RoleImportance(Mapping[str, F32]):
    """Importance vectors by `text/layers/<n>/<role>`, F32 `[K]`, read when they are asked for.

    Roles for which there is no vector are left out.

    Attributes:
        unused: The names of vectors that no role uses, in the order of the file.

    Args:
        importance: Vectors by llama.cpp's names.
        config: The model's `config.json`; what is under `text_config`, if that is there.
        where: The config's file, for errors.
        source: The importance file, for errors.

    Raises:
        FileError: The config does not say what the layers are, or there is no vector for any role.
    """

    def __init__(self, importance: Mapping[str, F32], config: Mapping[str, Any], where: str, source: str) -> None:
        text = config.get("text_config")
        text = config if text is None else text
        if not isinstance(text, Mapping):
            raise FileError("text_config is no JSON object", where=where, found=type(text).__name__)
        self._importance = importance
        self._source = source
        self._names: dict[str, str] = {}
        kinds = _layer_types(text, where)
        for layer, kind in enumerate(kinds):
            for role, stem in ((_ATTENTION if kind in _FULL else _LINEAR) | _MLP).items():
                name = f"blk.{layer}.{stem}.weight"
                if name in importance:
                    self._names[f"text/layers/{layer}/{role}"] = name
        if not self._names:
            raise FileError(
                "no role of the config's layers has an importance vector",
                where=source,
                expected="names such as 'blk.0.ffn_down.weight'",
                found=", ".join(repr(name) for name in list(importance)[:2]),
            )
        used = set(self._names.values())
        self.unused = tuple(name for name in importance if name not in used)
        tiled = any(key.endswith(_TILED) for key in self._names)
        self._heads = _heads(text, where) if tiled else None

    def __getitem__(self, key: str) -> F32:
        name = self._names[key]
        vector = self._importance[name]
        if vector.ndim != 1:
            raise FileError(
                "a weight of a dense layer has several importance vectors",
                where=f"{self._source}, {name!r}",
                expected="one count",
                found=len(vector),
            )
        if self._heads is None or not key.endswith(_TILED):
            return vector
        heads = self._heads
        if vector.size != heads.values * heads.width:
            raise FileError(
                "the importance of a linear attention's output does not fit the config",
                where=f"{self._source}, {name!r}",
                expected=f"{heads.values} heads of {heads.width}",
                found=f"{vector.size} values",
            )
        return vector[untiled_heads(heads.keys, heads.values, heads.width)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _layer_types(text: Mapping[str, Any], where: str) -> list[str]:
    """The kind of attention of each layer; all have full attention where nothing speaks of another."""
    kinds = text.get("layer_types")
    if kinds is None:
        linear = next((key for key in text if key.startswith(_LINEAR_KEYS)), None)
        if linear is not None:
            raise FileError(
                "the config does not say which layers have linear attention",
                where=where,
                expected="layer_types, one name a layer",
                found=f"{linear} alone",
                hint="Add the list to a copy of the config, such as ['linear_attention', 'full_attention']",
            )
        kinds = ["full_attention"] * _number(text, "num_hidden_layers", where, _MOST_LAYERS)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds) or len(kinds) > _MOST_LAYERS:
        raise FileError(
            "layer_types is no list of names",
            where=where,
            expected=f"one name a layer, at most {_MOST_LAYERS}",
            found=repr(kinds)[:80],
        )
    return kinds


def _heads(text: Mapping[str, Any], where: str) -> _Heads:
    most = 1 << 20
    keys = _number(text, "linear_num_key_heads", where, most)
    values = _number(text, "linear_num_value_heads", where, most)
    width = _number(text, "linear_value_head_dim", where, most)
    if values % keys:
        raise FileError(
            "linear_num_value_heads is no multiple of linear_num_key_heads",
            where=where,
            expected=f"a multiple of {keys}",
            found=values,
        )
    return _Heads(keys, values, width)


def _number(text: Mapping[str, Any], key: str, where: str, most: int) -> int:
    found = text.get(key)
    if type(found) is not int or not 0 < found <= most:
        raise FileError(
            f"the config has no usable {key}", where=where, expected=f"an integer from 1 to {most}", found=repr(found)
        )
    return found
