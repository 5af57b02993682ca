"""The nodes of an ONNX graph that stand for packed weights, read as what they declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import AttributeProto, TensorProto

from quantform._registry import near_matches
from quantform._scalars import FLOAT_OUTPUTS
from quantform._sizes import product
from quantform.errors import ArgumentError, FileError
from quantform.packed import PROFILES, Profile
from quantform.packed.dequantize import payload_bytes
from quantform.sources.onnx_file import constant_shape, text

__all__ = ["PackedNode", "Reshapes", "packed_nodes"]

_OPERATOR = "DequantizePacked"
_STANDARD_DOMAINS = ("", "ai.onnx")
_COUNT_MAX = 2**60 - 1
_OUTPUT_TYPES: dict[int, str] = dict(
    zip((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE), FLOAT_OUTPUTS, strict=True)
)


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
        helpers: The names of further initializers that are of no use but to this node.
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

    Raises:
        FileError: A node breaks the operator's contract.
    """
    for node in graph.node:
        if _is_packed(node):
            found = _node(node, where)
            if found.payload in initializers:
                yield found


class Reshapes:
    """The Reshape nodes of a graph that give all there is of a value another name and constant dimensions."""

    def __init__(self, graph: onnx.GraphProto, initializers: Mapping[str, onnx.TensorProto]) -> None:
        self._initializers = initializers
        self._uses = Counter(name for node in graph.node for name in node.input)
        self._uses.update(output.name for output in graph.output)
        self._nodes = {
            node.input[0]: node
            for node in graph.node
            if node.op_type == "Reshape" and len(node.input) == 2 and len(node.output) == 1
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
        helpers = (*found.helpers, constant.name) if self._uses[constant.name] == 1 else found.helpers
        whole = shape[-1] % found.profile.values == 0
        stored_shape = shape if whole else found.stored_shape
        return replace(found, name=reshape.output[0], shape=shape, stored_shape=stored_shape, helpers=helpers)


def _is_packed(node: onnx.NodeProto) -> bool:
    return node.op_type == _OPERATOR and node.domain in _STANDARD_DOMAINS


def _node(node: onnx.NodeProto, model: str) -> PackedNode:
    where = f"{model}, node {node.name or (node.output[0] if node.output else '')!r}"
    if len(node.input) != 1 or len(node.output) != 1 or not node.input[0] or not node.output[0]:
        raise FileError(
            f"{_OPERATOR} has one input and one output",
            where=where,
            found=f"{len(node.input)} inputs, {len(node.output)} outputs",
        )
    attributes = {attribute.name: attribute for attribute in node.attribute}
    identifier = text(_attribute(attributes, "format", AttributeProto.STRING, where).s, "the format", where)
    shape = tuple(_attribute(attributes, "shape", AttributeProto.INTS, where).ints)
    output_type: int = TensorProto.FLOAT
    if "output_dtype" in attributes:
        output_type = _attribute(attributes, "output_dtype", AttributeProto.INT, where).i
    unknown = attributes.keys() - {"format", "shape", "output_dtype"}
    if unknown or len(attributes) != len(node.attribute):
        raise FileError(
            f"{_OPERATOR} has an attribute that it does not know, or one twice",
            where=where,
            expected="format, shape, output_dtype",
            found=", ".join(sorted(map(repr, unknown or attributes))),
        )
    if output_type not in _OUTPUT_TYPES:
        raise FileError(
            "output_dtype is none of the operator's types",
            where=where,
            expected="FLOAT (1), FLOAT16 (10), DOUBLE (11) or BFLOAT16 (16)",
            found=output_type,
        )
    profile = PROFILES.get(identifier)
    if profile is None:
        raise FileError(
            f"no packed profile is called {identifier!r}", where=where, hint=near_matches(identifier, PROFILES)
        )
    try:
        nbytes = payload_bytes(profile, shape)
    except ArgumentError as error:
        raise FileError(error.problem, where=where, expected=error.expected, found=error.found) from None
    if product(filter(None, shape)) > _COUNT_MAX:
        raise FileError(
            "the shape cannot be", where=where, expected="dimensions whose product is below 2^60", found=list(shape)
        )
    return PackedNode(node.output[0], node.input[0], profile, shape, shape, nbytes, _OUTPUT_TYPES[output_type])


def _attribute(
    attributes: Mapping[str, AttributeProto], name: str, kind: AttributeProto.AttributeType, where: str
) -> AttributeProto:
    attribute = attributes.get(name)
    if attribute is None:
        raise FileError(f"the attribute {name!r} is missing", where=where, expected="format and shape")
    if attribute.type != kind or attribute.ref_attr_name:
        raise FileError(
            f"the attribute {name!r} has the wrong type",
            where=where,
            expected=AttributeProto.AttributeType.Name(kind),
            found="a reference" if attribute.ref_attr_name else attribute.type,
        )
    return attribute
