"""The registered schema: what inference accepts and refuses, and registering from anywhere, any number of times."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx
import pytest
from onnx import TensorProto, checker, helper, shape_inference
from onnx.shape_inference import InferenceError

from onnx_builder import model, packed_node
from quantform.onnx import register
from quantform.packed import PROFILES, Profile

register()


def vector(name: str, length: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.UINT8, [length])


def one_node(x: onnx.ValueInfoProto, format: str | None, shape: list[int] | None, **more: Any) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    output.ClearField("type")
    return model([packed_node("x", "y", format, shape, **more)], inputs=[x], outputs=[output])


def inferred(made: onnx.ModelProto) -> tuple[int, list[int]]:
    checked = shape_inference.infer_shapes(made, check_type=True, strict_mode=True)
    tensor = checked.graph.output[0].type.tensor_type
    return tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("lead", [(), (3,), (2, 5), (0,), (4, 0)])
def test_every_size(profile: Profile, lead: tuple[int, ...]) -> None:
    shape = [*lead, 2 * profile.values]
    length = 2 * profile.bytes
    for dimension in lead:
        length *= dimension
    for known in (length, "N", None):  # a symbolic and an unknown length tell nothing, and need not
        assert inferred(one_node(vector("x", known), profile.identifier, shape)) == (TensorProto.FLOAT, shape)
    for wrong in (length + 1, length + profile.bytes, 1):
        with pytest.raises(InferenceError, match=f"wrong length; expected {length} bytes, found {wrong} bytes"):
            inferred(one_node(vector("x", wrong), profile.identifier, shape))


@pytest.mark.parametrize(
    "kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE], ids=str
)
def test_every_output_type(kind: int) -> None:
    made = one_node(vector("x", 36), "gguf:q4_0", [2, 32], output_dtype=kind)
    assert inferred(made) == (kind, [2, 32])
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, [2, None]))
    checker.check_model(made, full_check=True)


def test_a_payload_of_unknown_rank() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, None)
    assert inferred(one_node(x, "gguf:q4_0", [2, 32])) == (TensorProto.FLOAT, [2, 32])


def test_an_empty_last_dimension() -> None:
    assert inferred(one_node(vector("x", 0), "gguf:q6_k", [3, 0])) == (TensorProto.FLOAT, [3, 0])


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown identifier": ({"format": "gguf:q4_9"}, "no packed profile is called 'gguf:q4_9'. Did you mean"),
    "parameterized": ({"format": "gguf:q4_0<32>"}, "Did you mean 'gguf:q4_0'"),
    "upper case": ({"format": "gguf:Q4_0"}, "Did you mean 'gguf:q4_0'"),
    "no prefix": ({"format": "q4_0"}, "no packed profile"),
    "no text": ({"format": b"\xff\xfe"}, r"no packed profile is called '\\xff\\xfe'"),
    "no format": ({"format": None}, "attribute format is missing; expected a string such as 'gguf:q4_k'"),
    "no shape": ({"shape": None}, "attribute shape is missing; expected a list of integers"),
    "format of wrong kind": ({"format": 2}, "attribute format has the wrong kind; expected STRING, found INT"),
    "output type of wrong kind": ({"output_dtype": "FLOAT"}, "attribute output_dtype has the wrong kind"),
    "rank 0": ({"shape": []}, "shape [] has rank 0; expected rank at least 1"),
    "unaligned": ({"shape": [2, 48]}, "not whole Q4_0 blocks; expected a multiple of 32, found 48"),
    "unaligned and empty": ({"shape": [0, 48]}, "not whole Q4_0 blocks"),
    "negative": ({"shape": [-2, 32]}, "dimension 0 of shape [-2, 32] is negative"),
    "minus one": ({"shape": [2, -1]}, "dimension 1 of shape [2, -1] is negative"),
    "overflow": ({"shape": [2**62, 32]}, f"too many bytes; expected at most {2**63 - 1}, found {2**62 * 18}"),
    "wrapping overflow": ({"shape": [2**62, 4, 32]}, "too many bytes"),
    "int32": ({"output_dtype": TensorProto.INT32}, "output_dtype is not an output type; expected FLOAT (1), FLOAT16"),
    "undefined": ({"output_dtype": 0}, "found UNDEFINED (0)"),
    "no type": ({"output_dtype": 1000}, "found 1000"),
    "matrix": ({"x": helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 18])}, "expected rank 1, found rank 2"),
    "scalar": ({"x": helper.make_tensor_value_info("x", TensorProto.UINT8, [])}, "expected rank 1, found rank 0"),
    "int8": ({"x": helper.make_tensor_value_info("x", TensorProto.INT8, [36])}, "expected UINT8, found INT8"),
    "sequence": (
        {"x": helper.make_tensor_sequence_value_info("x", TensorProto.UINT8, [36])},
        "expected a tensor, found sequence_type",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    change, fragment = REFUSALS[case]
    arguments: dict[str, Any] = {"x": vector("x", 36), "format": "gguf:q4_0", "shape": [2, 32], **change}
    with pytest.raises(InferenceError) as caught:
        shape_inference.infer_shapes(one_node(**arguments), strict_mode=True)
    assert str(caught.value).startswith("DequantizePacked: ")
    assert fragment in str(caught.value)


def in_function(**attributes: Any) -> onnx.ModelProto:
    """A call of a function in which an operator leaves attributes to the caller."""
    node = helper.make_node("DequantizePacked", ["x"], ["y"])
    for name, kind in (("format", "STRING"), ("shape", "INTS")):
        node.attribute.add(name=name, ref_attr_name=name, type=onnx.AttributeProto.AttributeType.Value(kind))
    imports = [helper.make_opsetid("", 29)]
    function = helper.make_function("local", "Decode", ["x"], ["y"], [node], imports, ["format", "shape"])
    made = one_node(vector("x", 36), "", [0])
    made.graph.node[0].CopyFrom(helper.make_node("Decode", ["x"], ["y"], domain="local", **attributes))
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("local", 1))
    return made


def test_attributes_through_a_function() -> None:
    assert inferred(in_function(format="gguf:q4_0", shape=[2, 32])) == (TensorProto.FLOAT, [2, 32])
    with pytest.raises(InferenceError, match="wrong length; expected 54 bytes, found 36 bytes"):
        inferred(in_function(format="gguf:q4_0", shape=[3, 32]))


def test_opset_28_has_no_such_operator() -> None:
    made = one_node(vector("x", 36), "gguf:q4_0", [2, 32])
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32]))
    checker.check_model(made)
    made.opset_import[0].version = 28
    with pytest.raises(checker.ValidationError, match="No Op registered for DequantizePacked"):
        checker.check_model(made)


def test_the_schema_itself() -> None:
    schema = onnx.defs.get_schema("DequantizePacked", 29, "")
    assert schema.since_version == 29
    assert {name for name, attribute in schema.attributes.items() if attribute.required} == {"format", "shape"}
    assert helper.get_attribute_value(schema.attributes["output_dtype"].default_value) == TensorProto.FLOAT
    assert [len(parameters) for parameters in (schema.inputs, schema.outputs)] == [1, 1]
    for identifier in PROFILES:
        assert identifier in (schema.doc or "")


FRESH = """
import threading, onnx
from quantform.onnx import register
assert not onnx.defs.has("DequantizePacked", "")
threads = [threading.Thread(target=register) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
register()
assert onnx.defs.get_schema("DequantizePacked").since_version == 29
"""
SHIPPED = """
import onnx
from quantform.onnx import register
theirs = onnx.defs.OpSchema("DequantizePacked", "", 29, "theirs", inputs=[], outputs=[])
onnx.defs.register_schema(theirs)
register()
assert onnx.defs.get_schema("DequantizePacked").doc == "theirs"
"""


@pytest.mark.parametrize("script", [FRESH, SHIPPED], ids=["from threads", "where onnx has it"])
def test_registering(script: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
