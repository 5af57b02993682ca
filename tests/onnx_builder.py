"""Small ONNX models for tests, made with the onnx package and none of quantform's code.

```python
model(nodes=[packed_node("x", "w", "gguf:q4_0", (2, 32))], initializers=[raw("x", TensorProto.UINT8, (36,), data)])
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

__all__ = ["external", "model", "packed_node", "raw", "write"]


def raw(name: str, kind: int, shape: Sequence[int], data: bytes) -> onnx.TensorProto:
    """An initializer with raw data, whether it fits or not."""
    return TensorProto(name=name, data_type=kind, dims=shape, raw_data=data)


def external(name: str, kind: int, shape: Sequence[int], **entries: Any) -> onnx.TensorProto:
    """An initializer with external data: `location=`, `offset=`, `length=`, or anything else."""
    proto = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def packed_node(x: str, y: str, format: str | None, shape: Sequence[int] | None, **more: Any) -> onnx.NodeProto:
    """A `DequantizePacked` node; None leaves an attribute out."""
    node = helper.make_node("DequantizePacked", [x], [y])
    for name, value in {"format": format, "shape": None if shape is None else list(shape), **more}.items():
        if value is not None:
            kind = onnx.AttributeProto.INTS if value == [] else None
            node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return node


def model(
    nodes: Iterable[onnx.NodeProto] = (),
    initializers: Iterable[onnx.TensorProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] = (),
    *,
    inputs: Iterable[onnx.ValueInfoProto] = (),
    opset: int = 29,
    properties: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """A model of these parts."""
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(made, dict(properties or {}))
    return made


def write(path: Path, made: onnx.ModelProto) -> Path:
    """Write a model and give its path."""
    path.write_bytes(made.SerializeToString())
    return path
