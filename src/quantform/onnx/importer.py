"""A GGUF model as an ONNX model: every tensor an output of the graph under its own name, packed blocks as they are."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from quantform._progress import Progress, silent
from quantform._report import Report
from quantform._sizes import counted
from quantform._strict_json import json_values
from quantform._version import __version__
from quantform.errors import ArgumentError, QuantformError, UnsupportedError
from quantform.onnx.graphs import check_opset
from quantform.onnx.lowering import lower
from quantform.onnx.parts import OPSET, Parts
from quantform.onnx.storage import Blob, check_data, check_reference, write_model
from quantform.packed import PROFILES
from quantform.packed.linear import LINEAR
from quantform.sources import GGUFSource
from quantform.sources.gguf import GGUFArray, GGUFMetadata

__all__ = ["import_gguf"]

# What a model imports that needs no later one: runtimes know it.
_RUNTIME_OPSET = 26
_LISTED = 8
# What of the metadata goes into a model. A vocabulary would make it larger than everything else in it together.
_LONGEST_VALUE = 1 << 16
_MOST_KEYS = 10_000
_LEFT_OUT = "quantform.metadata_left_out"


def import_gguf(
    source: GGUFSource,
    output: Path,
    *,
    data: str | None = None,
    opset: int | None = None,
    qdq: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Report:
    """Write a GGUF model as an ONNX model without inputs, whose outputs are the model's tensors.

    A packed tensor is a UINT8 initializer `NAME.packed` and a `DequantizePacked` node with the output NAME; plain
    numbers are initializers NAME. The metadata becomes `metadata_props`, except values longer than 64 KiB, whose keys
    `quantform.metadata_left_out` lists.

    Args:
        source: The open GGUF model.
        output: The `.onnx` file.
        data: `"reference"`, the default, uses the GGUF file, beside which the model must be written, as external data;
            `"copy"` writes the weights to `OUTPUT.data`; `"inline"` into the model.
        opset: The version of ONNX's operators that the model imports. By default 29, the first with the operator, or 26
            where no tensor needs that. Earlier versions, from 21 on, get the lowered form, see `lower`.
        qdq: Write Q4_0, Q4_1, Q8_0, TQ2_0 and Q2_0 as standard `DequantizeLinear`, with the same values.
        force: Replace existing outputs.
        progress: Called as bytes are written.

    Raises:
        UnsupportedError: A tensor has no form in ONNX, or the weights cannot be where `data` says; says what to do.
        ArgumentError: An argument does not fit.
        OutputExistsError: An output exists and `force` is false.
        FileError: A file cannot be read or written.
    """
    data = "reference" if data is None else data
    check_data(data)
    check_opset(opset)
    _check_names(source)
    if data == "reference":
        if qdq:
            raise UnsupportedError(
                "DequantizeLinear has codes and scales apart, which no GGUF file does",
                where=str(output),
                hint="Write them anew: --data copy (data='copy') or --data inline",
            )
        check_reference(source, output)
    report = Report([])
    model, blobs = _model(source, output, report, opset=opset, qdq=qdq)
    report.files = write_model(model, blobs, output, data=data, sources=source.files, force=force, progress=progress)
    return report


def _check_names(source: GGUFSource) -> None:
    bad = [tensor for tensor in source.values() if not tensor.name or not tensor.decodable]
    if not bad:
        return
    if any(not tensor.name for tensor in bad):
        raise UnsupportedError(
            "a tensor has an empty name, which no value in ONNX may have",
            where=str(source.path),
            hint="Rename it with the program that made the file",
        )
    names = ", ".join(f"{tensor.name!r} ({tensor.type_name})" for tensor in bad[:_LISTED])
    raise UnsupportedError(
        f"{counted(len(bad), 'tensor')} of types that have no form in ONNX: {names}",
        where=str(source.path),
        hint="Export the model in types that are in ggml today",
    )


def _model(
    source: GGUFSource, output: Path, report: Report, *, opset: int | None, qdq: bool
) -> tuple[onnx.ModelProto, list[Blob]]:
    """The model, its initializers without data, and their bytes."""
    parts = Parts(source)
    outputs = []
    for tensor in source.values():
        if qdq and tensor.format in LINEAR:
            parts.linear(tensor, tensor.name)
            kind, way = int(TensorProto.FLOAT), f"DequantizeLinear of {tensor.format}"
        elif tensor.format in PROFILES:
            parts.packed(tensor, tensor.name)
            kind, way = int(TensorProto.FLOAT), f"DequantizePacked of {tensor.format}"
        else:
            kind = parts.plain(tensor)
            way = f"initializer of {TensorProto.DataType.Name(kind)}"
        outputs.append(helper.make_tensor_value_info(tensor.name, kind, list(tensor.shape)))
        report.tensors[way] += 1
    version = (OPSET if parts.has_packed else _RUNTIME_OPSET) if opset is None else opset
    _check_version(parts, version, output)
    model = helper.make_model(
        helper.make_graph(parts.nodes, output.stem, [], outputs, parts.initializers),
        opset_imports=[helper.make_opsetid("", version)],
        ir_version=parts.ir_version,
        producer_name="quantform",
        producer_version=__version__,
    )
    properties, left = _properties(source.metadata)
    if left:
        shown = ", ".join(left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
        report.notes.append(f"{counted(len(left), 'metadata value')} left out, too long or no text: {shown}")
        properties[_LEFT_OUT] = json.dumps(left)
    helper.set_model_props(model, properties)
    if parts.has_packed and version < OPSET:
        model = lower(model, opset=version)
    return model, parts.blobs


def _check_version(parts: Parts, version: int, output: Path) -> None:
    """Check that a version of ONNX's operators has those beside `DequantizePacked`, which can be lowered."""
    if version < parts.opset:
        raise ArgumentError(
            "ONNX's operators of that version do not hold the weights",
            where=str(output),
            expected=f"version {parts.opset} or later",
            found=version,
        )


def _properties(metadata: GGUFMetadata) -> tuple[dict[str, str], list[str]]:
    """The metadata as texts, and the keys of what is left out."""
    properties: dict[str, str] = {}
    left: list[str] = []
    for key in metadata:
        text = _text(metadata, key) if len(properties) < _MOST_KEYS else None
        if text is None:
            left.append(key)
        else:
            properties[key] = text
    return properties, left


def _text(metadata: GGUFMetadata, key: str) -> str | None:
    """A value as text, as JSON where it is none; nothing where it is too long or cannot be read."""
    if metadata.field(key).nbytes > _LONGEST_VALUE:
        return None
    try:
        value = metadata[key]
        if isinstance(value, GGUFArray):
            value = value.tolist()
    except QuantformError:
        return None
    text = value if isinstance(value, str) else json.dumps(json_values(value), ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else None
