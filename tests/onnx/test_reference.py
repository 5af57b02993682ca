"""The operator in onnx's reference evaluator: results worked out by hand, every profile and type, and refusals."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, shape_inference

import onnx_cases
from bits import bits_of
from onnx_builder import model, packed_node, raw
from quantform.errors import ArgumentError, QuantformError, UnknownNameError
from quantform.onnx import DequantizePacked, register


def evaluate(format: str | None, shape: list[int] | None, payload: bytes, **more: Any) -> Any:
    x = raw("x", TensorProto.UINT8, [len(payload)], payload)
    made = model([packed_node("x", "y", format, shape, **more)], [x], onnx_cases.untyped("y"))
    return onnx_cases.evaluate(made, new_ops=[DequantizePacked])[0]


@pytest.mark.parametrize("case", onnx_cases.BY_HAND, ids=lambda case: case.format)
def test_by_hand(case: onnx_cases.ByHand) -> None:
    values = evaluate(case.format, list(case.shape), case.payload)
    assert values.dtype == np.float32
    assert values.shape == case.shape
    assert values.reshape(-1).tolist() == case.values


@pytest.mark.parametrize("kind", onnx_cases.TYPES, ids=onnx_cases.TYPES.get)
def test_every_profile(kind: int, packed_vectors: dict[str, np.ndarray]) -> None:
    made, expected = onnx_cases.every_profile(packed_vectors, kind)
    found = onnx_cases.evaluate(made, new_ops=[DequantizePacked])
    onnx_cases.assert_equal(made, found, expected)


def test_with_the_schema_and_operators_behind_it() -> None:
    register()
    nodes = [packed_node("x", "w", "gguf:q8_0", [2, 32]), helper.make_node("Transpose", ["w"], ["y"])]
    payload = struct.pack("<e", 0.5) + bytes(range(32)) + struct.pack("<e", 2) + bytes(range(32))
    made = model(nodes, [raw("x", TensorProto.UINT8, [68], payload)], onnx_cases.untyped("y"))
    found = onnx_cases.evaluate(shape_inference.infer_shapes(made), new_ops=[DequantizePacked])[0]
    assert found.tolist() == [[0.5 * q, 2.0 * q] for q in range(32)]


def test_bfloat16_is_a_type_of_its_own() -> None:
    payload = struct.pack("<e", 1) + bytes([0x0F] * 16)
    values = evaluate("gguf:q4_0", [32], payload, output_dtype=TensorProto.BFLOAT16)
    assert values.dtype == ml_dtypes.bfloat16
    assert values.tolist() == [7.0] * 16 + [-8.0] * 16


def test_overflow_is_infinity_without_a_warning() -> None:
    payload = struct.pack("<e", 65504) + bytes([127] * 32)
    assert np.isposinf(evaluate("gguf:q8_0", [32], payload, output_dtype=TensorProto.FLOAT16)).all()
    assert np.array_equal(bits_of(evaluate("gguf:q8_0", [32], payload)), bits_of(np.full(32, 65504 * 127, np.float32)))


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no format": ({"format": None}, "attribute format is missing; expected a string such as 'gguf:q4_k'"),
    "no shape": ({"shape": None}, "attribute shape is missing"),
    "unknown": ({"format": "Q4_0"}, "no packed profile is called 'Q4_0'. Did you mean"),
    "length": ({"shape": [2, 32]}, "wrong length; expected 36 bytes, found 18 bytes"),
    "unaligned": ({"shape": [16]}, "not whole Q4_0 blocks"),
    "type": ({"output_dtype": TensorProto.INT8}, "expected FLOAT (1), FLOAT16 (10), BFLOAT16 (16), DOUBLE (11)"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    change, fragment = REFUSALS[case]
    arguments: dict[str, Any] = {"format": "gguf:q4_0", "shape": [32], "payload": bytes(18), **change}
    with pytest.raises(QuantformError) as caught:
        evaluate(**arguments)
    assert fragment in str(caught.value)
    assert isinstance(caught.value, UnknownNameError if case == "unknown" else ArgumentError)


def test_a_payload_of_another_type() -> None:
    made = model(
        [packed_node("x", "y", "gguf:q4_0", [32])],
        [raw("x", TensorProto.INT8, [18], bytes(18))],
        onnx_cases.untyped("y"),
    )
    with pytest.raises(ArgumentError, match="expected uint8"):
        onnx_cases.evaluate(made, new_ops=[DequantizePacked])
