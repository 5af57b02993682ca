"""The nodes of an ONNX graph that stand for packed weights, read as what they declare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx

from quantform._sizes import product
from quantform.errors import ArgumentError, FileError, QuantformError, UnknownNameError
from quantform.packed import PROFILES, Profile
from quantform.packed.dequantize import payload_bytes
from quantform.sources.onnx_contract import (
    FUNCTION_DOMAIN,
    OPERATOR,
    OUTPUT_TYPES,
    STANDARD_DOMAINS,
    function_name,
    is_packed_node,
    read,
)
from quantform.sources.onnx_file import constant_shape, stored_integers

__all__ = ["PackedNode", "Reshapes", "packed_nodes"]

_COUNT_MAX = 2**60 - 1
_FUNCTIONS = {
    function_name(profile, output_type): (profile, output_type)
    for profile in PROFILES.values()
    for output_type in OUTPUT_TYPES
}


@dataclass(frozen=True, slots=True)
class PackedNode:
    """A node that decodes packed blocks.

    Attributes:
        name: What its values are called: its output, or that of the node that only gives it another shape.
        payload: The name of its input.
        profile: The block layout.
        stored_shape: The shape whose rows are whole blocks.
        shape: The shape of the values called `name`.
        nbytes: Bytes of the payload.
        output_type: The type of the values, `"float32"`.
        helpers: The names of its further inputs, as often as it has them.
    """

    name: str
    payload: str
    profile: Profile
    stored_shape: tuple[int, ...]
    shape: tuple[int, ...]
    nbytes: int
    output_type: str
    helpers: tuple[str, ...] = ()


def packed_nodes(
    graph: onnx.GraphProto, initializers: Mapping[str, onnx.TensorProto], where: str
) -> Iterator[PackedNode]:
    """The nodes of a graph, not of graphs within it, whose packed blocks are initializers.

    The operator itself, and calls of the functions that stand for it in lowered models.

    Raises:
        FileError: A node breaks the operator's contract.
    """
    for node in graph.node:
        found = _node(node, initializers, where)
        if found is not None and found.payload in initializers:
            yield found


class Reshapes:
    """The Reshape nodes of a graph that give all there is of a value another name and constant dimensions."""

    def __init__(
        self, graph: onnx.GraphProto, initializers: Mapping[str, onnx.TensorProto], uses: Mapping[str, int]
    ) -> None:
        self._initializers = initializers
        self._uses = uses
        self._nodes = {
            node.input[0]: node
            for node in graph.node
            if node.op_type == "Reshape"
            and node.domain in STANDARD_DOMAINS
            and len(node.input) == 2
            and len(node.output) == 1
        }

    def follow(self, found: PackedNode) -> PackedNode:
        """`found` under the name and shape that a Reshape gives its values; as it is where none does."""
        reshape = self._nodes.get(found.name)
        constant = None if reshape is None else self._initializers.get(reshape.input[1])
        if reshape is None or constant is None or self._uses[found.name] != 1:
            return found
        shape = constant_shape(constant, reshape)
        if not shape or product(shape) != product(found.stored_shape):
            return found
        whole = shape[-1] % found.profile.values == 0
        stored_shape = shape if whole else found.stored_shape
        return replace(
            found,
            name=reshape.output[0],
            shape=shape,
            stored_shape=stored_shape,
            helpers=(*found.helpers, constant.name),
        )


def _node(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto], model: str) -> PackedNode | None:
    where = f"{model}, node {node.name or (node.output[0] if node.output else '')!r}"
    if is_packed_node(node):
        return _operator(node, where)
    called = _FUNCTIONS.get(node.op_type) if node.domain == FUNCTION_DOMAIN else None
    if called is None or len(node.input) < 2 or len(node.output) != 1:
        return None
    constant = initializers.get(node.input[1])
    if constant is None or node.input[0] not in initializers:
        return None
    profile, output_type = called
    return _packed(node, profile, stored_integers(constant), output_type, where, tuple(node.input[1:]))


def _operator(node: onnx.NodeProto, where: str) -> PackedNode:
    if len(node.input) != 1 or len(node.output) != 1 or not node.input[0] or not node.output[0]:
        raise FileError(
            f"{OPERATOR} has one input and one output",
            where=where,
            found=f"{len(node.input)} inputs, {len(node.output)} outputs",
        )
    attributes = {attribute.name: attribute for attribute in node.attribute}
    unknown = attributes.keys() - {"format", "shape", "output_dtype"}
    if unknown or len(attributes) != len(node.attribute):
        raise FileError(
            f"{OPERATOR} has an attribute that it does not know, or one twice",
            where=where,
            expected="format, shape, output_dtype",
            found=", ".join(sorted(map(repr, unknown or attributes))),
        )
    try:
        contract = read(attributes.get)
    except (ArgumentError, UnknownNameError) as error:
        raise _of_file(error, where) from None
    return _packed(node, contract.profile, contract.shape, contract.output_type, where, ())


def _packed(
    node: onnx.NodeProto,
    profile: Profile,
    shape: tuple[int, ...],
    output_type: int,
    where: str,
    helpers: tuple[str, ...],
) -> PackedNode:
    try:
        nbytes = payload_bytes(profile, shape)
    except ArgumentError as error:
        raise _of_file(error, where) from None
    if product(filter(None, shape)) > _COUNT_MAX:
        raise FileError(
            "the shape cannot be", where=where, expected="dimensions whose product is below 2^60", found=list(shape)
        )
    return PackedNode(node.output[0], node.input[0], profile, shape, shape, nbytes, OUTPUT_TYPES[output_type], helpers)


def _of_file(error: QuantformError, where: str) -> FileError:
    """What is wrong with an argument of an operator, as what is wrong with the file that has it."""
    return FileError(error.problem, where=where, expected=error.expected, found=error.found, hint=error.hint)
