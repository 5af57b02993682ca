"""The operator's schema, with inference of types and shapes, for the `onnx` package of this process."""

from __future__ import annotations

import threading

import onnx
from onnx import TensorProto
from onnx.defs import OpSchema
from onnx.shape_inference import InferenceContext, InferenceError

from quantform.errors import ArgumentError, QuantformError
from quantform.packed import PROFILES
from quantform.sources.onnx_contract import DOMAIN, OPERATOR, OUTPUT_TYPES, SINCE_VERSION, read

__all__ = ["register"]

_LOCK = threading.Lock()
_DOC = f"""
Decodes a tensor of packed blocks. The attributes say how: `format` is one of {len(PROFILES)} fixed block layouts,
`shape` what the decoded values are reshaped to, and `output_dtype` the type to which each is rounded once from
binary32, to nearest with ties to even. Where a block has V values in S bytes, `x` has product(shape) / V * S bytes
exactly, and the last dimension is a multiple of V. Formats: {", ".join(PROFILES)}.
"""


def register() -> None:
    """Make the operator known to `onnx.checker`, `onnx.shape_inference` and everything else that asks `onnx.defs`.

    It holds for the whole process. Calling again, from any thread, does nothing, and neither does calling where `onnx`
    has the operator itself. Afterwards `onnx.helper.make_model` without `opset_imports` writes opset 29, which runtimes
    may refuse: name the opset where you make models.
    """
    with _LOCK:
        if not onnx.defs.has(OPERATOR, DOMAIN):
            onnx.defs.register_schema(_schema())


def _schema() -> OpSchema:
    kinds = [f"tensor({TensorProto.DataType.Name(kind).lower()})" for kind in OUTPUT_TYPES]
    schema = OpSchema(
        OPERATOR,
        DOMAIN,
        SINCE_VERSION,
        _DOC,
        inputs=[OpSchema.FormalParameter("x", "T1", "The payload: blocks in the order of the output, rank 1.")],
        outputs=[OpSchema.FormalParameter("y", "T2", "The decoded values.")],
        type_constraints=[
            ("T1", ["tensor(uint8)"], "Payloads are bytes."),
            ("T2", kinds, "The type that output_dtype names."),
        ],
        attributes=[
            OpSchema.Attribute("format", OpSchema.AttrType.STRING, "The block layout, case-sensitive.", required=True),
            OpSchema.Attribute("shape", OpSchema.AttrType.INTS, "The output's shape, rank 1 or more.", required=True),
            OpSchema.Attribute(
                "output_dtype", onnx.helper.make_attribute("output_dtype", TensorProto.FLOAT), "The output's type."
            ),
        ],
    )
    schema.set_type_and_shape_inference_function(_infer)
    return schema


def _infer(context: InferenceContext) -> None:
    """The output's type and shape from the attributes, and all that can be known to be wrong."""
    try:
        _check_and_infer(context)
    except QuantformError as error:
        raise InferenceError(f"{OPERATOR}: {error}") from error


def _check_and_infer(context: InferenceContext) -> None:
    contract = read(context.get_attribute)
    x = context.get_input_type(0)
    if x is not None and (kind := x.WhichOneof("value")) is not None:
        if kind != "tensor_type":
            raise ArgumentError("x is not a vector of bytes", expected="a tensor", found=kind)
        tensor = x.tensor_type
        dimensions = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        contract.check_payload(tensor.elem_type, dimensions if tensor.HasField("shape") else None)
    context.set_output_type(0, onnx.helper.make_tensor_type_proto(contract.output_type, contract.shape))
