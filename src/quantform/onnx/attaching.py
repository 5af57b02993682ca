"""Packed weights of a GGUF model in place of the float initializers of an ONNX graph that exists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import onnx
from onnx import TensorProto

from quantform._progress import Progress, silent
from quantform._registry import near_matches
from quantform._report import Report
from quantform._sizes import human_bytes
from quantform._toml import read_map
from quantform.errors import ArgumentError, UnknownNameError, UnsupportedError
from quantform.onnx.graphs import check_opset, names_of, opset_of, raise_opset
from quantform.onnx.lowering import lower
from quantform.onnx.parts import IR_VERSION, OPSET, Parts
from quantform.onnx.schema import register
from quantform.onnx.storage import Blob, check_data, check_reference, copied, write_model
from quantform.packed import PROFILES
from quantform.sources import GGUFSource, GGUFTensor
from quantform.sources.onnx_contract import graphs_of
from quantform.sources.onnx_file import data_type
from quantform.sources.onnx_model import OnnxSource

__all__ = ["Weight", "attach"]

_OUTPUT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


class Weight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an initializer is replaced by.

    Attributes:
        tensor: The GGUF tensor.
        transpose: Whether the graph has its columns first; None for what the shapes say, which a square does not.
    """

    tensor: str
    transpose: bool | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """An initializer and its replacement, checked against each other."""

    initializer: onnx.TensorProto
    tensor: GGUFTensor
    transpose: bool


def attach(
    graph: str | os.PathLike[str],
    weights: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    names: Mapping[str, str | Weight] | str | os.PathLike[str] | None = None,
    data: str = "reference",
    opset: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Report:
    """Write a model that computes what `graph` does, with packed weights in place of float initializers.

    Each replaced initializer becomes the output of a `DequantizePacked` node, under the same name and in the same type,
    with a Transpose where the graph has columns first (`[K, N]`). Everything else stays: external data of other
    initializers too, with `data="reference"` where it is, else moved to where the weights go.

    Args:
        graph: The ONNX model.
        weights: The GGUF model.
        output: The `.onnx` file to write.
        names: Initializer to GGUF tensor, or a TOML file of that; an entry is a name or `{tensor, transpose}`. None
            pairs the float initializers and packed tensors of equal names.
        data: Where the weights are: `"reference"`, `"copy"` or `"inline"`, as for `import_gguf`.
        opset: The version of ONNX's operators that the result imports. By default the first that has the operator, 29,
            or the graph's own if that is later. Earlier versions, from 21 on, get the lowered form, see `lower`.
        force: Replace existing outputs.
        progress: Called as bytes are written.

    Raises:
        UnknownNameError: The graph has no such initializer, or the GGUF model no such tensor; lists near matches.
        ArgumentError: Shapes or types do not fit, or an argument does not.
        UnsupportedError: The weights cannot be where `data` says, or the graph's operators cannot be raised.
        FileError: A file cannot be read or written, or breaks its format's rules.
        OutputExistsError: An output exists and `force` is false.
    """
    check_data(data)
    check_opset(opset)
    target = Path(output)
    with OnnxSource(graph) as host, GGUFSource(weights) as source:
        pairs = _pairs(host, source, names)
        if data == "reference":
            check_reference(source, target)
        _check_home(host, target, data)
        report = Report([])
        model, blobs = _model(host, pairs, opset, report)
        if data != "reference":
            blobs += _moved(host, model)
        report.files = write_model(
            model, blobs, target, data=data, sources=(*host.files, *source.files), force=force, progress=progress
        )
    return report


def _pairs(
    host: OnnxSource, source: GGUFSource, names: Mapping[str, str | Weight] | str | os.PathLike[str] | None
) -> list[_Pair]:
    """What replaces what, in the order of the graph's initializers."""
    initializers = {proto.name: proto for proto in host.model.graph.initializer}
    floats = [name for name, proto in initializers.items() if proto.data_type in _OUTPUT_TYPES]
    packed = [name for name, tensor in source.items() if tensor.format in PROFILES]
    wanted: dict[str, Weight]
    if names is None:
        wanted = {name: Weight(name) for name in floats if name in packed}
        where = f"{host.path} and {source.path}"
        if not wanted:
            raise ArgumentError(
                "no float initializer has the name of a packed tensor",
                where=where,
                expected=f"such as {packed[0]!r}" if packed else "packed tensors",
                found=f"such as {floats[0]!r}" if floats else "no float initializers",
                hint="Say which is which in a map: --map names.toml (names=...)",
            )
    else:
        where = "names" if isinstance(names, Mapping) else os.fspath(names)
        wanted = _entries(names if isinstance(names, Mapping) else read_map(Path(names)), where)
        if not wanted:
            raise ArgumentError("the map names nothing", where=where, expected="initializers and their tensors")
    for name, weight in wanted.items():
        if name not in initializers:
            raise UnknownNameError(
                f"{host.path} has no initializer called {name!r}", where=where, hint=near_matches(name, initializers)
            )
        if weight.tensor not in source:
            raise UnknownNameError(
                f"{source.path} has no tensor called {weight.tensor!r}",
                where=f"{where}, {name!r}",
                hint=near_matches(weight.tensor, source),
            )
    return [
        _pair(proto, source[wanted[name].tensor], wanted[name], where)
        for name, proto in initializers.items()
        if name in wanted
    ]


def _entries(document: Mapping[str, Any], where: str) -> dict[str, Weight]:
    try:
        entries = msgspec.convert(dict(document), dict[str, str | Weight], strict=True)
    except msgspec.ValidationError as error:
        raise ArgumentError(
            "an entry of the map is no name",
            where=where,
            expected='"INITIALIZER" = "TENSOR" or "INITIALIZER" = { tensor = "TENSOR", transpose = true }',
            found=str(error),
            hint="Names with dots need quotation marks on both sides",
        ) from None
    return {name: weight if isinstance(weight, Weight) else Weight(weight) for name, weight in entries.items()}


def _pair(proto: onnx.TensorProto, tensor: GGUFTensor, weight: Weight, where: str) -> _Pair:
    where = f"{where}, {proto.name!r}"
    if proto.data_type not in _OUTPUT_TYPES:
        raise ArgumentError(
            "the initializer does not hold floats that the operator makes",
            where=where,
            expected="FLOAT, FLOAT16, BFLOAT16 or DOUBLE",
            found=data_type(proto.data_type, where).name,
        )
    if tensor.format not in PROFILES:
        raise ArgumentError(
            f"tensor {tensor.name!r} is not packed",
            where=where,
            expected="a quantized tensor",
            found=tensor.type_name,
            hint="Leave it out: the graph keeps its own numbers",
        )
    shape, turned = tuple(proto.dims), tensor.shape[::-1] if len(tensor.shape) == 2 else None
    transpose = weight.transpose
    if transpose is None and shape == tensor.shape == turned:
        raise ArgumentError(
            f"the matrix is square, so that its shape does not tell whether {tensor.name!r} is to be transposed",
            where=where,
            found=list(shape),
            hint=f'Say so: "{proto.name}" = {{ tensor = "{tensor.name}", transpose = true }}, where true is for what '
            "MatMul wants, one column an output; GGUF has one row an output",
        )
    if transpose is None:
        transpose = shape != tensor.shape
    if shape != (turned if transpose else tensor.shape):
        raise ArgumentError(
            f"tensor {tensor.name!r} does not fit",
            where=where,
            expected=list(shape) if transpose is weight.transpose else f"{list(shape)} or, transposed, its reverse",
            found=list(turned or ()) if transpose and turned and weight.transpose else list(tensor.shape),
        )
    return _Pair(proto, tensor, transpose)


def _check_home(host: OnnxSource, output: Path, data: str) -> None:
    """Check that external data that stays where it is will be beside the new model too."""
    inner = [proto for one in list(graphs_of(host.model.graph))[1:] for proto in one.initializer]
    inner += [
        proto
        for one in graphs_of(host.model.graph)
        for node in one.node
        for attribute in node.attribute
        for proto in (attribute.t, *attribute.tensors)
    ]
    stays = any(proto.data_location == TensorProto.EXTERNAL for proto in inner)
    moves = len(host.files) > 1 and not stays
    if (stays or (moves and data == "reference")) and host.path.parent.resolve() != output.parent.resolve():
        raise UnsupportedError(
            "the graph's own external data would not be beside the new model",
            where=str(output),
            expected=f"an output in {host.path.parent.resolve()}",
            hint="Write the model there" + (", or move all weights: --data copy (data='copy')" if moves else ""),
        )


def _model(
    host: OnnxSource, pairs: list[_Pair], opset: int | None, report: Report
) -> tuple[onnx.ModelProto, list[Blob]]:
    """The graph with its new nodes, whose payloads have no data yet, and their bytes."""
    register()
    where = str(host.path)
    version = max(OPSET, opset_of(host.model, where)) if opset is None else opset
    model = raise_opset(host.model, version, where)  # the host's own message is ours to change
    graph = model.graph
    replaced = {pair.initializer.name for pair in pairs}
    for field in (graph.initializer, graph.input):
        for index in reversed(range(len(field))):
            if field[index].name in replaced:
                del field[index]
    parts = Parts(names_of(graph) | replaced)
    for pair in pairs:
        kind = pair.initializer.data_type
        parts.packed(pair.tensor, pair.initializer.name, output_type=kind, transpose=pair.transpose)
        turned = ", transposed" if pair.transpose else ""
        report.tensors[f"{pair.tensor.format} as {TensorProto.DataType.Name(kind)}{turned}"] += 1
    nodes = [*parts.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(parts.initializers)
    model.ir_version = max(model.ir_version, IR_VERSION)
    if version < OPSET:
        model = lower(model, opset=version)
    freed = sum(host.initializer(name).nbytes for name in replaced)
    packed = sum(blob.nbytes for blob in parts.blobs)
    report.notes.append(f"{human_bytes(packed)} of packed weights in place of {human_bytes(freed)}")
    return model, parts.blobs


def _moved(host: OnnxSource, model: onnx.ModelProto) -> list[Blob]:
    """The external data that the graph keeps, to go where the packed weights go."""
    blobs = []
    for proto in model.graph.initializer:
        if proto.data_location == TensorProto.EXTERNAL:
            data = host.initializer(proto.name)
            del proto.external_data[:]
            proto.data_location = TensorProto.DEFAULT
            if data.nbytes:
                blobs.append(Blob(proto.name, data.nbytes, partial(copied, data)))
            else:
                proto.raw_data = b""
    return blobs
