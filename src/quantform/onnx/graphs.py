"""Graphs as a whole: what is in them at any depth, and raising the version of the operators that they use."""

from __future__ import annotations

import onnx
from onnx import inliner, version_converter

from quantform.errors import ArgumentError, FileError, UnsupportedError
from quantform.sources.onnx_contract import SINCE_VERSION, STANDARD_DOMAINS, graphs_of, is_packed_node

__all__ = ["check_opset", "inline_packed", "names_of", "opset_of", "raise_opset"]

_LOWERED_SINCE = 21  # the earliest version that lowered models can have


def check_opset(opset: int | None) -> None:
    """Check that a version of ONNX's operators, if one is asked for, exists and can hold packed weights.

    Raises:
        ArgumentError: It does not, or cannot.
    """
    if opset is not None and not (type(opset) is int and _LOWERED_SINCE <= opset <= SINCE_VERSION):
        raise ArgumentError(
            "opset is no version of ONNX's operators that can hold packed weights",
            expected=f"{SINCE_VERSION}, which has the operator, or one from {_LOWERED_SINCE} on for the lowered form",
            found=repr(opset),
        )


def opset_of(model: onnx.ModelProto, where: str) -> int:
    """The version of ONNX's own operators.

    Raises:
        FileError: The model imports none, or two.
    """
    versions = {entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS}
    if len(versions) != 1:
        raise FileError(
            "the model does not say which version of ONNX's operators it uses",
            where=where,
            expected="one import of the default domain",
            found=sorted(versions) or "none",
        )
    return int(versions.pop())


def inline_packed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions that have packed nodes, or call one that has: their nodes are where they are called.

    A runtime creates the operator's nodes from attributes, which inside a function may be its caller's; and it takes
    nodes of a library's operators in graphs only. `model` itself comes back where there is no such function.
    """
    nodes = {
        (function.domain, function.name): [
            node for one in graphs_of(onnx.GraphProto(node=function.node)) for node in one.node
        ]
        for function in model.functions
    }
    found = {key for key, inner in nodes.items() if any(map(is_packed_node, inner))}
    before = 0
    while len(found) > before:
        before = len(found)
        found.update(key for key, inner in nodes.items() if any((node.domain, node.op_type) in found for node in inner))
    return inliner.inline_selected_functions(model, sorted(found)) if found else model


def names_of(graph: onnx.GraphProto) -> set[str]:
    """The names of all values of a graph and of those inside it."""
    found: set[str] = set()
    for one in graphs_of(graph):
        found.update(proto.name for field in (one.input, one.output, one.initializer) for proto in field)
        found.update(proto.values.name for proto in one.sparse_initializer)
        found.update(name for node in one.node for name in (*node.input, *node.output))
    return found


def raise_opset(model: onnx.ModelProto, version: int, where: str) -> onnx.ModelProto:
    """The model with operators of a later version: the same one where no operator in it has changed since.

    Raises:
        UnsupportedError: The model imports a later version already, or `onnx` cannot convert it.
    """
    current = opset_of(model, where)
    if current > version:
        raise UnsupportedError(
            "the model's operators are of a later version than the one asked for",
            where=where,
            expected=f"version {version} or earlier",
            found=current,
            hint=f"Ask for version {current} (--opset {current}) or a later one"
            if current <= SINCE_VERSION
            else "Name no version: the graph's own is kept",
        )
    if current == version:
        return model
    if not _changed(model, current, version):
        for entry in model.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = version
        return model
    hint = "Convert it with other tools" + (
        f", or keep its operators: --opset {current}" if _LOWERED_SINCE <= current <= SINCE_VERSION else ""
    )
    if model.functions:  # the converter would drop them
        raise UnsupportedError(
            f"a model with functions cannot be raised from version {current} of ONNX's operators to {version}",
            where=where,
            hint=hint,
        )
    try:
        return version_converter.convert_version(model, version)
    except (version_converter.ConvertError, RuntimeError, ValueError, TypeError) as error:
        raise UnsupportedError(
            f"the model cannot be raised from version {current} of ONNX's operators to {version}",
            where=where,
            found=str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
            hint=hint,
        ) from error


def _changed(model: onnx.ModelProto, current: int, version: int) -> bool:
    """Whether an operator of the model means something else in the later version, as far as its schema tells."""
    roots = [model.graph, *(onnx.GraphProto(node=function.node) for function in model.functions)]
    nodes = (node for root in roots for graph in graphs_of(root) for node in graph.node)
    used = {node.op_type for node in nodes if node.domain in STANDARD_DOMAINS}
    for name in used:
        try:
            before, after = (onnx.defs.get_schema(name, end, "").since_version for end in (current, version))
        except onnx.defs.SchemaError:
            return True
        if before != after:
            return True
    return False
