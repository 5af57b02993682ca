"""Quantized weights by hand: the tensors of a module `p` in each convention, and configs that speak of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import BrokenWeight, Checkpoint, QuantizedWeight

__all__ = [
    "BF16",
    "BLOCKS",
    "CODES",
    "E8M0",
    "FP8_BLOCK",
    "FP8_CHANNEL",
    "FP8_GROUP_3",
    "FP8_TENSOR",
    "GRID",
    "INT8",
    "MXFP4",
    "NVFP4",
    "U8",
    "blocks",
    "changed",
    "compressed",
    "config",
    "f8",
    "f32",
    "modelopt",
    "rows",
    "same",
    "weight",
]

E4M3FN, BF16, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
CODES = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


U8 = np.zeros((2, 8), np.uint8)


def f8(words: Any) -> np.ndarray:
    return np.array(words, np.uint8).view(E4M3FN)


def f32(value: Any) -> np.ndarray:
    return np.array(value, np.float32)


def compressed(**changes: Any) -> dict[str, Any]:
    """NVFP4 of compressed-tensors: two rows of 16 values, scales 1 and 2, divisor 2."""
    tensors = {
        "p.weight_packed": np.array([CODES, CODES], np.uint8),
        "p.weight_scale": f8([[0x38], [0x40]]),
        "p.weight_global_scale": f32(2.0),
        "p.input_global_scale": f32([1.5]),
    }
    return changed(tensors, changes)


def modelopt(**changes: Any) -> dict[str, Any]:
    """NVFP4 of ModelOpt: the same rows, the second scale 1/4."""
    tensors = {
        "p.weight": np.array([CODES, CODES], np.uint8),
        "p.weight_scale": f8([[0x38], [0x40]]),
        "p.weight_scale_2": f32(0.25),
        "p.input_scale": f32(0.125),
    }
    return changed(tensors, changes)


def rows(scale: Any, **changes: Any) -> dict[str, Any]:
    tensors = {"p.weight": f8([[0x38, 0xB8, 0x40], [0x30, 0xB0, 0x80]]), "p.weight_scale": scale}
    return changed(tensors, changes)


def blocks(**changes: Any) -> dict[str, Any]:
    """130 rows and 200 columns in blocks of 128: both edges are partial."""
    codes = np.random.default_rng(6).integers(0, 0x7F, (130, 200)).astype(np.uint8).view(E4M3FN)
    return changed({"p.weight": codes, "p.weight_scale_inv": f32([[1.5, 0.1], [3.0, 1e-3]])}, changes)


def changed(tensors: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Members `weight_scale=...` of module p; None takes a tensor away."""
    found = tensors | {f"p.{name}": value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


def weight(tensors: dict[str, Any], config: Any = None, name: str = "p.weight") -> QuantizedWeight:
    tensor = Checkpoint(ArraySource(tensors), config or {})[name]
    assert isinstance(tensor, QuantizedWeight)
    if isinstance(tensor, BrokenWeight):
        tensor.check()
    return tensor


def config(weights: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_config": {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}}


FP8_CHANNEL = config({"num_bits": 8, "type": "float", "strategy": "channel"})
FP8_TENSOR = config({"num_bits": 8, "type": "float", "strategy": "tensor"})
FP8_BLOCK = config({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [1, 128]})
FP8_GROUP_3 = config({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 3})
INT8 = config({"num_bits": 8, "type": "int", "strategy": "channel"})
NVFP4 = config({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})
MXFP4 = config({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})


def same(have: np.ndarray, want: Any) -> None:
    assert have.dtype == np.float32
    assert have.tobytes() == np.asarray(want, np.float32).tobytes()
