"""What one node `DequantizePacked` says: its three attributes, checked, for whoever meets such a node.

The operator's own rules on sizes are those of `quantform.packed`; here is only how ONNX carries them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from quantform.errors import ArgumentError
from quantform.packed import PROFILES, Profile, payload_bytes

__all__ = [
    "DOMAIN",
    "FUNCTION_DOMAIN",
    "OPERATOR",
    "OUTPUT_TYPES",
    "SINCE_VERSION",
    "STANDARD_DOMAINS",
    "Contract",
    "function_name",
    "graphs_of",
    "is_packed_node",
    "missing",
    "output_type",
    "read",
    "uses_of",
]

OPERATOR = "DequantizePacked"
DOMAIN = ""
SINCE_VERSION = 29
OUTPUT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}
"""The four types that `output_dtype` may name, by ONNX's number: what `dequantize_packed` calls them."""

STANDARD_DOMAINS = ("", "ai.onnx")
"""The two spellings of the domain of ONNX's own operators."""

FUNCTION_DOMAIN = "quantform"
"""The domain of the functions of standard operators that lowered models call instead."""

_MEMBERS = {AttributeProto.STRING: "s", AttributeProto.INTS: "ints", AttributeProto.INT: "i"}


@dataclass(frozen=True, slots=True)
class Contract:
    """The attributes of one node, legal together.

    Attributes:
        profile: The profile that `format` names.
        shape: The output's shape.
        output_type: The output's type, by ONNX's number.
        nbytes: The bytes that the payload must have.
    """

    profile: Profile
    shape: tuple[int, ...]
    output_type: int
    nbytes: int

    def check_payload(self, kind: int, dimensions: Sequence[int | None] | None) -> None:
        """Check the type and shape of `x`; what is not known is UNDEFINED or None.

        Raises:
            ArgumentError: It is not a vector of bytes, or not of `nbytes` bytes.
        """
        if kind not in {TensorProto.UINT8, TensorProto.UNDEFINED}:
            found = TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else kind
            raise ArgumentError("x is not a vector of bytes", expected="UINT8", found=found)
        if dimensions is None:
            return
        if len(dimensions) != 1:
            raise ArgumentError("x is not a vector of bytes", expected="rank 1", found=f"rank {len(dimensions)}")
        if dimensions[0] is not None and dimensions[0] != self.nbytes:
            raise ArgumentError(
                f"the payload of {self.profile.identifier} {list(self.shape)} has the wrong length",
                expected=f"{self.nbytes} bytes",
                found=f"{dimensions[0]} bytes",
            )


def is_packed_node(node: NodeProto) -> bool:
    """Whether a node is the specification's own operator."""
    return node.op_type == OPERATOR and node.domain in STANDARD_DOMAINS


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)
            for inner in attribute.graphs:
                yield from graphs_of(inner)


def uses_of(graph: GraphProto) -> Counter[str]:
    """How often each value is an input of a node or an output of a graph, also inside nodes, which see those around."""
    uses: Counter[str] = Counter()
    for one in graphs_of(graph):
        uses.update(name for node in one.node for name in node.input)
        uses.update(output.name for output in one.output)
    return uses


def function_name(profile: Profile, output_type: int) -> str:
    """The function that stands for the operator with that format and output type, in `FUNCTION_DOMAIN`."""
    return f"{OPERATOR}_{profile.identifier.replace(':', '_')}_{OUTPUT_TYPES[output_type]}"


def read(attribute: Callable[[str], AttributeProto | None]) -> Contract:
    """Read and check a node's attributes.

    Args:
        attribute: Gives an attribute by name, or None.

    Raises:
        UnknownNameError: `format` is no profile.
        ArgumentError: A required attribute is missing, one has another kind or is left to a function's caller, or the
            operator does not admit its value.
    """
    found = {name: attribute(name) for name in ("format", "shape", "output_dtype")}
    format, shape, kind = found["format"], found["shape"], found["output_dtype"]
    if format is None:
        raise missing("format")
    if shape is None:
        raise missing("shape")
    name = _value(format, "format", AttributeProto.STRING)
    profile = PROFILES[name.decode("utf-8", "backslashreplace")]
    dimensions = tuple(_value(shape, "shape", AttributeProto.INTS))
    number = TensorProto.FLOAT if kind is None else _value(kind, "output_dtype", AttributeProto.INT)
    output_type(number)
    return Contract(profile, dimensions, number, payload_bytes(profile, dimensions))


def output_type(number: int) -> str:
    """What `dequantize_packed` calls the type of that number.

    Raises:
        ArgumentError: It is none of the four.
    """
    if number not in OUTPUT_TYPES:
        known = ", ".join(f"{TensorProto.DataType.Name(kind)} ({kind})" for kind in OUTPUT_TYPES)
        named = number in TensorProto.DataType.values()
        found = f"{TensorProto.DataType.Name(number)} ({number})" if named else number
        raise ArgumentError("attribute output_dtype is not an output type", expected=known, found=found)
    return OUTPUT_TYPES[number]


def missing(name: str) -> ArgumentError:
    """The error of a required attribute that is not there."""
    expected = {"format": "a string such as 'gguf:q4_k'", "shape": "a list of integers"}[name]
    return ArgumentError(f"attribute {name} is missing", expected=expected, hint="The operator requires it")


def _value(attribute: AttributeProto, name: str, kind: AttributeProto.AttributeType) -> Any:  # noqa: ANN401 - by kind
    if attribute.ref_attr_name:
        raise ArgumentError(
            f"attribute {name} is left to the caller of a function",
            found=f"@{attribute.ref_attr_name}",
            hint="Inline the function first, as onnx.inliner does",
        )
    if attribute.type != kind:
        raise ArgumentError(
            f"attribute {name} has the wrong kind",
            expected=AttributeProto.AttributeType.Name(kind),
            found=AttributeProto.AttributeType.Name(attribute.type),
        )
    return getattr(attribute, _MEMBERS[kind])
