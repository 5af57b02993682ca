"""Opsets: models of opset 29 for runtimes that know none beyond 28."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from quantform.errors import UnsupportedError
from quantform.sources.onnx_contract import STANDARD_DOMAINS, graphs_of, is_packed_node

__all__ = ["NEWEST_OPSET", "for_runtime"]

NEWEST_OPSET = 28
"""The newest opset of any released onnxruntime."""

_OLDEST = 21  # one that each runtime knows which takes the operator


def for_runtime(model: ModelProto) -> ModelProto:
    """The same model under an opset that runtimes load; no node changes.

    onnxruntime refuses opset 29 where any other standard operator is in the model, while the operator itself, which a
    library adds, is in every opset. So a model of opset 29 is stamped with the lowest opset, 21 or more, in which all
    its other operators are defined as they are in 29, and functions of the model likewise.

    Args:
        model: Any model; external data need not be loaded.

    Returns:
        A copy, or `model` itself where its opset is not above 28.

    Raises:
        UnsupportedError: An operator is unknown to the installed `onnx`, or is defined so in opset 29 only.
    """
    if all(_version(scope.opset_import) <= NEWEST_OPSET for scope in (model, *model.functions)):
        return model
    needed = _OLDEST
    for scope, graph in ((model, model.graph), *((each, GraphProto(node=each.node)) for each in model.functions)):
        version = _version(scope.opset_import)
        for node in (node for inner in graphs_of(graph) for node in inner.node):
            if node.domain in STANDARD_DOMAINS and not is_packed_node(node):
                needed = max(needed, _defined_since(node, version))
    result = ModelProto()
    result.CopyFrom(model)
    for scope in (result, *result.functions):
        for entry in scope.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = min(entry.version, needed)
    return result


def _version(imports: Iterable[OperatorSetIdProto]) -> int:
    return max((entry.version for entry in imports if entry.domain in STANDARD_DOMAINS), default=0)


def _defined_since(node: NodeProto, version: int) -> int:
    try:
        since: int = onnx.defs.get_schema(node.op_type, version, "").since_version
    except onnx.defs.SchemaError:
        raise UnsupportedError(
            f"the installed onnx {onnx.__version__} knows no operator {node.op_type!r} of opset {version}",
            where=f"node {node.name or next(iter(node.output), '')!r}",
            hint="Upgrade onnx, or check the operator's name",
        ) from None
    if since > NEWEST_OPSET:
        raise UnsupportedError(
            f"{node.op_type} is defined so in opset {since} only, which no runtime knows yet",
            where=f"node {node.name or next(iter(node.output), '')!r}",
            hint=f"Use operators of opset {NEWEST_OPSET}",
        )
    return since
