"""Writes safetensors bytes, right and wrong ones, independently of the reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {
    "uint8": "U8",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
}

Stored = tuple[str, tuple[int, ...], bytes]
"""A type, a shape and the bytes."""


def raw(header: bytes | str | Mapping[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of any header; `length` is what it claims."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def stored(value: np.ndarray | Stored) -> Stored:
    if isinstance(value, tuple):
        return value
    return TYPES[value.dtype.name], value.shape, value.astype(value.dtype.newbyteorder("<")).tobytes()


def f8(rows: list[list[int]]) -> Stored:
    array = np.array(rows, np.uint8)
    return "F8_E4M3", array.shape, array.tobytes()


def bf16(values: np.ndarray | list[Any]) -> Stored:
    """Values that BF16 holds exactly."""
    array = np.asarray(values, np.float32)
    words = array.view(np.uint32)
    assert not (words & 0xFFFF).any()
    return "BF16", array.shape, (words >> 16).astype("<u2").tobytes()


def build(tensors: Mapping[str, np.ndarray | Stored], metadata: Mapping[str, str] | None = None, pad: int = 0) -> bytes:
    """A right file; `pad` spaces end its header."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, value in tensors.items():
        dtype, shape, payload = stored(value)
        header[name] = entry(dtype, list(shape), len(data), len(data) + len(payload))
        data += payload
    return raw(json.dumps(header) + " " * pad, data)


def model(directory: Path, tensors: Mapping[str, np.ndarray | Stored], config: Any = None) -> Path:
    """A directory with `model.safetensors` and perhaps `config.json`."""
    (directory / "model.safetensors").write_bytes(build(tensors))
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def sharded(
    directory: Path,
    shards: Mapping[str, Mapping[str, np.ndarray | Stored]],
    weight_map: Mapping[str, str] | None = None,
) -> Path:
    """A directory of shards with their index; `weight_map` replaces the right one."""
    for name, tensors in shards.items():
        (directory / name).write_bytes(build(tensors, {"format": "pt", "shard": name}))
    right = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": dict(right if weight_map is None else weight_map)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory
