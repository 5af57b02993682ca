"""Rewriting a model: every node `DequantizePacked` becomes a call of a function of standard operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    defs,
    helper,
    numpy_helper,
)

from quantform.errors import ArgumentError, QuantformError, UnsupportedError
from quantform.onnx.graphs import names_of
from quantform.onnx.lowering.body import Array
from quantform.onnx.lowering.function import FUNCTION_VERSION, lowered
from quantform.onnx.opsets import NEWEST_OPSET
from quantform.sources.onnx_contract import (
    FUNCTION_DOMAIN,
    OPERATOR,
    STANDARD_DOMAINS,
    graphs_of,
    is_packed_node,
    read,
)

__all__ = ["LOWEST_OPSET", "lower"]

LOWEST_OPSET = 21
"""The functions need 18, but from 20 to 21 an operator changed its meaning and nothing else."""


def lower(model: ModelProto, *, opset: int = 26) -> ModelProto:
    """Replace the operator `DequantizePacked`, so that a model runs in any runtime, with the same bits.

    Each node, also in subgraphs and in the model's own functions, becomes a call of a model-local function in domain
    `quantform`: one function for each format and output type that is used, written in standard operators. Tables and
    other constants are initializers that all calls share (in a function of the model's own: constants of that
    function). Payloads stay what they were, external data included.

    Args:
        model: The model; it is not changed. Load large ones without their data:
            `onnx.load(path, load_external_data=False)`.
        opset: The opset of the result, 21 to 28. A model of a lower one keeps its own. Other operators are not
            converted: each must exist in that opset with the attributes and inputs that it has.

    Returns:
        A new model, whose IR version is no higher than its opset needs.

    Raises:
        ArgumentError: `model` is no model, `opset` is not one of these, or a node breaks the operator's contract.
        UnknownNameError: A node names no format.
        UnsupportedError: The model's opset is below 21, an operator does not exist in `opset`, or the model has
            functions of ours that differ from ours.
    """
    if not isinstance(model, ModelProto):
        raise ArgumentError(
            "model is not a model",
            expected="an onnx.ModelProto",
            found=type(model).__name__,
            hint="Load it with onnx.load",
        )
    if type(opset) is not int or not LOWEST_OPSET <= opset <= NEWEST_OPSET:
        raise ArgumentError(
            "opset is none that lowered models can have",
            expected=f"{LOWEST_OPSET} to {NEWEST_OPSET}",
            found=repr(opset),
            hint="Name the newest one that your runtime knows; no runtime knows a later one yet",
        )
    result = ModelProto()
    result.CopyFrom(model)
    used: dict[str, FunctionProto] = {}
    constants = _Initializers(result.graph)
    _lower_graph(result.graph, _Place("graph", constants.name, used), {})
    result.graph.initializer.extend(constants.made)
    for function in result.functions:
        _lower_function(function, used)
    version = _relabel(result, result.graph, opset, "the model")
    for function in result.functions:
        _relabel(function, GraphProto(node=function.node), opset, f"function {function.name!r}")
    if used:
        if version < LOWEST_OPSET:
            raise UnsupportedError(
                "the model imports an opset that is too low",
                expected=f"at least {LOWEST_OPSET}",
                found=version,
                hint="Convert the model first, as onnx.version_converter does",
            )
        _import(result)
        _add_functions(result, used, version)
    needed = helper.find_min_ir_version_for(result.opset_import, ignore_unknown=True)
    result.ir_version = max(min(result.ir_version, needed), _FUNCTIONS_SINCE_IR)
    return result


_FUNCTIONS_SINCE_IR = 8


@dataclass(slots=True)
class _Place:
    """Where nodes are found: what to call the place, who names constants there, and the functions used so far."""

    where: str
    name_of: Callable[[Array], str]
    used: dict[str, FunctionProto]


@dataclass(slots=True)
class _Initializers:
    """Names constants of a graph, each once; `made` are the new initializers."""

    graph: GraphProto
    made: list[TensorProto] = field(default_factory=list)
    _names: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def name(self, array: Array) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            self._taken = self._taken or names_of(self.graph)
            number = len(self._names)
            while (name := f"{FUNCTION_DOMAIN}.{number}") in self._taken:
                number += 1
            self._taken.add(name)
            self._names[key] = name
            self.made.append(numpy_helper.from_array(array, name))
        return self._names[key]


def _lower_graph(graph: GraphProto, place: _Place, outer: Mapping[str, TensorProto]) -> None:
    """Lower the nodes of a graph and of what is in it; `outer` are the initializers of the graphs around it."""
    known = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
    typed = {value.name for values in (graph.input, graph.output, graph.value_info) for value in values}
    for number, node in enumerate(graph.node):
        for subgraph in _subgraphs(node):
            _lower_graph(subgraph, place, known)
        if is_packed_node(node):
            kind, shape = _lower_node(node, place, known, number)
            if node.output[0] not in typed:
                graph.value_info.append(helper.make_tensor_value_info(node.output[0], kind, shape))


def _lower_function(function: FunctionProto, used: dict[str, FunctionProto]) -> None:
    # Functions see nothing of the graph, so they hold their constants themselves.
    shell = GraphProto(node=function.node, input=[helper.make_empty_tensor_value_info(name) for name in function.input])
    constants = _Initializers(shell)
    place = _Place(f"function {function.name!r}", constants.name, used)
    _lower_graph(shell, place, {})
    if constants.made:
        nodes = [
            helper.make_node("Constant", [], [tensor.name], tensor.name, value=tensor) for tensor in constants.made
        ]
        nodes.extend(shell.node)
        del function.node[:]
        function.node.extend(nodes)
        _import(function)


def _lower_node(
    node: NodeProto, place: _Place, known: Mapping[str, TensorProto], number: int
) -> tuple[int, tuple[int, ...]]:
    """Turn a node into a call; gives its output's type and shape."""
    try:
        if len(node.input) != 1 or len(node.output) != 1 or not node.input[0]:
            raise ArgumentError(
                f"{OPERATOR} has other inputs or outputs",
                expected="1 input, 1 output",
                found=f"{len(node.input)} and {len(node.output)}",
            )
        contract = read({attribute.name: attribute for attribute in node.attribute}.get)
        if node.input[0] in known:
            payload = known[node.input[0]]
            contract.check_payload(payload.data_type, payload.dims)
    except QuantformError as error:
        raise error.at(f"{place.where}, node {node.name or number!r}") from None
    target = lowered(contract.profile, contract.output_type)
    place.used[target.function.name] = target.function
    del node.attribute[:]
    node.op_type, node.domain = target.function.name, FUNCTION_DOMAIN
    node.name = node.name or node.output[0]
    node.input.extend(map(place.name_of, (np.array(contract.shape, np.int64), *target.constants)))
    return contract.output_type, contract.shape


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _relabel(importer: ModelProto | FunctionProto, graph: GraphProto, opset: int, where: str) -> int:
    """Let the import of the standard domain be `opset` at most, if the operators used admit it; gives what it is."""
    standard = [entry for entry in importer.opset_import if entry.domain in STANDARD_DOMAINS]
    version = max((entry.version for entry in standard), default=opset)
    if version <= opset:
        return version
    for node in (node for inner in graphs_of(graph) for node in inner.node):
        if node.domain in STANDARD_DOMAINS and not _admitted(node, opset):
            raise UnsupportedError(
                f"operator {node.op_type} of node {node.name or node.output[0]!r} is not one of opset {opset}",
                where=where,
                hint=f"Opset {version} is imported, and nodes are not converted; name a higher opset",
            )
    for entry in standard:
        entry.version = opset
    return opset


def _admitted(node: NodeProto, opset: int) -> bool:
    """Whether an opset has the node's operator, with its attributes and as many inputs and outputs."""
    if not defs.has(node.op_type, opset, ""):
        return False
    schema = defs.get_schema(node.op_type, opset, "")
    return (
        len(node.input) <= schema.max_input
        and len(node.output) <= schema.max_output
        and all(attribute.name in schema.attributes for attribute in node.attribute)
    )


def _import(importer: ModelProto | FunctionProto) -> None:
    if all(entry.domain != FUNCTION_DOMAIN for entry in importer.opset_import):
        importer.opset_import.append(helper.make_opsetid(FUNCTION_DOMAIN, FUNCTION_VERSION))


def _add_functions(model: ModelProto, used: dict[str, FunctionProto], version: int) -> None:
    """Put functions before those of the model: onnx's evaluator wants them before what calls them."""
    there = {function.name: function for function in model.functions if function.domain == FUNCTION_DOMAIN}
    new = []
    for name in sorted(used):
        function = FunctionProto()
        function.CopyFrom(used[name])
        function.opset_import.append(helper.make_opsetid("", version))
        if name not in there:
            new.append(function)
        elif there[name] != function:
            raise UnsupportedError(
                f"the model has another function {name!r} of the domain {FUNCTION_DOMAIN!r}",
                hint="Lower the model that it was lowered from",
            )
    old = list(model.functions)
    del model.functions[:]
    model.functions.extend([*new, *old])
