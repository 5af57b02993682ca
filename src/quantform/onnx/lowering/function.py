"""The function that stands for the operator, one for each format and output type, and the constants of its calls."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from onnx import FunctionProto, TensorProto, helper

from quantform.onnx.lowering import fp4, iquants, kquants, legacy, ternary
from quantform.onnx.lowering.body import Array, Body, Maker
from quantform.packed import Profile
from quantform.sources.onnx_contract import FUNCTION_DOMAIN, OUTPUT_TYPES, function_name

__all__ = ["FUNCTION_VERSION", "Lowered", "lowered"]

FUNCTION_VERSION = 1
_FAMILIES = (legacy, kquants, iquants, ternary, fp4)
_BODIES: dict[str, Maker] = {name: maker for family in _FAMILIES for name, maker in family.BODIES.items()}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A function `y = NAME(x, shape, constants...)`: one for each format and output type.

    Its name, not an overload, tells it from the others, because onnx's own evaluator knows no overloads.

    Attributes:
        function: The function, without the import of an opset.
        constants: What a call passes after `x` and `shape`.
    """

    function: FunctionProto
    constants: tuple[Array, ...]


@functools.cache
def lowered(profile: Profile, output_type: int) -> Lowered:
    """The function for one format and output type."""
    body = Body()
    values = _BODIES[profile.identifier](body)
    if output_type != TensorProto.FLOAT:
        values = body.cast(values, output_type)
    # allowzero: a zero in the shape is a dimension without elements
    body.nodes.append(helper.make_node("Reshape", [values, "shape"], ["y"], "y", allowzero=1))
    dtype = OUTPUT_TYPES[output_type]
    function = helper.make_function(
        FUNCTION_DOMAIN,
        function_name(profile, output_type),
        ["x", "shape", *body.constants],
        ["y"],
        body.nodes,
        [],
        doc_string=f"Decodes {profile.name} blocks to {dtype}.",
    )
    return Lowered(function, tuple(body.constants.values()))
