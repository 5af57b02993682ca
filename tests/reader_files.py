"""One file for each reader, with a tensor `w` of a quarter of a mebibyte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

import gguf_builder as gb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform.sources import Source
from quantform.sources.arrays import ArraySource
from quantform.sources.onnx_model import OnnxSource

__all__ = ["FILES", "SHAPE", "data_of"]

SHAPE = (256, 512)
VALUES = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float16)


def _gguf(path: Path) -> Path:
    path = path.with_suffix(".gguf")
    path.write_bytes(gb.build([gb.tensor("w", SHAPE, gb.F16, VALUES.tobytes())]))
    return path


def _safetensors(path: Path) -> Path:
    path = path.with_suffix(".safetensors")
    path.write_bytes(sb.build({"w": VALUES}))
    return path


def _ninfer(path: Path) -> Path:
    path = path.with_suffix(".ninfer")
    qf.convert({"w": VALUES.astype(np.float32)}, path)
    return path


def _onnx(path: Path) -> Path:
    path = path.with_suffix(".onnx")
    data_of(path).write_bytes(VALUES.tobytes())
    weight = ob.external("w", TensorProto.FLOAT16, SHAPE, location=data_of(path).name)
    return ob.write(path, ob.model([], [weight]))


def data_of(path: Path) -> Path:
    """The file that has the tensors' bytes."""
    return path.with_suffix(".onnx.data") if path.suffix == ".onnx" else path


FILES: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {"gguf": _gguf, "safetensors": _safetensors, "ninfer": _ninfer, "onnx": _onnx}
)
"""Each kind's maker, which takes a path, gives it the suffix and gives that."""


def _kinds() -> set[str]:
    readers = {*Source.__subclasses__(), OnnxSource} - {ArraySource}
    return {vars(one)["kind"] for one in readers if "kind" in vars(one) and one.__module__.startswith("quantform.")}


assert set(FILES) == _kinds(), "a reader has no file here"
