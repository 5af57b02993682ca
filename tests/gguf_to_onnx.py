"""GGUF models to make ONNX models of, and what those give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import gguf_builder as gb
from quantform.onnx import DequantizePacked
from quantform.packed import PROFILES

__all__ = ["beside", "bits", "blocks", "evaluated", "every_type"]


def blocks(identifier: str, count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count * PROFILES[identifier].bytes, np.uint8).tobytes()


def every_type() -> list[gb.GGUFTensorSpec]:
    tensors = [
        gb.tensor(f"packed.{p.name}", (3, 2 * p.values), p.ggml_type, blocks(p.identifier, 6, p.ggml_type))
        for p in PROFILES.values()
    ]
    rng = np.random.default_rng(1)
    for name, number, size in (
        ("F32", gb.F32, 4),
        ("F16", gb.F16, 2),
        ("BF16", gb.BF16, 2),
        ("F64", gb.F64, 8),
        ("I8", gb.I8, 1),
        ("I16", gb.I16, 2),
        ("I32", gb.I32, 4),
        ("I64", gb.I64, 8),
    ):
        tensors.append(gb.tensor(f"plain.{name}", (2, 3), number, rng.integers(0, 256, 6 * size, np.uint8).tobytes()))
    return [
        *tensors,
        gb.tensor("scalar", (), gb.F32, b"\0\0\x80\x3f"),
        gb.tensor("empty.packed", (0, 256), gb.Q4_K),
        gb.tensor("empty.plain", (0, 3), gb.F32),
        gb.tensor("cube", (2, 3, 32), gb.Q4_0, blocks("gguf:q4_0", 6)),
        gb.tensor("name with ümlaut/and slash", (1, 32), gb.Q8_0, blocks("gguf:q8_0", 1)),
    ]


def bits(array: np.ndarray) -> tuple[Any, tuple[int, ...], bytes]:
    """Type, shape and bits; NaN payloads aside."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.dtype, array.shape, array.tobytes()


def evaluated(model: onnx.ModelProto) -> list[np.ndarray]:
    return [np.asarray(value) for value in ReferenceEvaluator(model, new_ops=[DequantizePacked]).run(None, {})]


def beside(directory: Path) -> tuple[Path, Path]:
    return directory / "m.gguf", directory / "m.onnx"
