"""The functions compute the operator's bits, in onnx's evaluator and in onnxruntime, folded and not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, checker, helper, shape_inference

import onnx_cases
from bits import bits_of
from onnx_builder import model, packed_node, raw
from quantform.onnx import lower
from quantform.onnx.lowering.function import lowered
from quantform.packed import PROFILES, Profile, dequantize_packed

# How onnxruntime may be asked: packed initializers folded to floats at loading, kept, or nothing optimized.
WAYS = ("folded", "kept", "not optimized")


def session(made: onnx.ModelProto, way: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if way == "not optimized":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    left_out = ["ConstantFolding"] if way == "kept" else []
    return ort.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
    )


def run(made: onnx.ModelProto, way: str) -> list[Any]:
    """Every output. bfloat16, which onnxruntime gives no NumPy array of, is bound to memory of ours."""
    opened = session(made, way)
    if not any(output.type == "tensor(bfloat16)" for output in opened.get_outputs()):
        return list(opened.run(None, {}))
    binding = opened.io_binding()
    found = []
    for output in opened.get_outputs():
        values = np.empty(output.shape, ml_dtypes.bfloat16)
        found.append(values)
        binding.bind_output(output.name, "cpu", 0, TensorProto.BFLOAT16, values.shape, values.ctypes.data)
    opened.run_with_iobinding(binding)
    return found


@pytest.mark.parametrize("kind", onnx_cases.TYPES, ids=onnx_cases.TYPES.get)
def test_golden_blocks_in_the_evaluator(kind: int, packed_vectors: dict[str, np.ndarray]) -> None:
    made, expected = onnx_cases.every_profile(packed_vectors, kind)
    with np.errstate(all="ignore"):
        onnx_cases.assert_equal(made, onnx_cases.evaluate(lower(made)), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", onnx_cases.TYPES, ids=onnx_cases.TYPES.get)
def test_golden_blocks_in_onnxruntime(kind: int, way: str, packed_vectors: dict[str, np.ndarray]) -> None:
    made, expected = onnx_cases.every_profile(packed_vectors, kind)
    onnx_cases.assert_equal(made, run(lower(made), way), expected)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_random_bytes(profile: Profile) -> None:
    payload = np.random.default_rng(profile.ggml_type).integers(0, 256, 512 * profile.bytes, np.uint8)
    shape = [2, 256 * profile.values]
    made = lower(
        model(
            [packed_node("x", "y", profile.identifier, shape)],
            [raw("x", TensorProto.UINT8, [payload.size], payload.tobytes())],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        )
    )
    expected = bits_of(dequantize_packed(payload, profile.identifier, shape))
    for way in ("folded", "kept"):
        assert np.array_equal(bits_of(run(made, way)[0]), expected), way


@pytest.mark.parametrize("opset", [21, 25, 26, 28])
def test_the_bits_do_not_depend_on_the_opset(opset: int, packed_vectors: dict[str, np.ndarray]) -> None:
    made, expected = onnx_cases.every_profile(packed_vectors, TensorProto.FLOAT)
    changed = lower(made, opset=opset)
    checker.check_model(changed, full_check=True)
    onnx_cases.assert_equal(made, run(changed, "kept"), expected)


@pytest.mark.parametrize("case", onnx_cases.BY_HAND, ids=lambda case: case.format)
def test_by_hand(case: onnx_cases.ByHand) -> None:
    made = lower(onnx_cases.by_hand_model(case))
    found = [onnx_cases.evaluate(made)[0], *(run(made, way)[0] for way in WAYS)]
    for values in found:
        assert values.shape == case.shape
        assert values.reshape(-1).tolist() == case.values


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("lead", [(0,), (3, 0), ()])
def test_empty_tensors(profile: Profile, lead: tuple[int, ...]) -> None:
    shape = (*lead, profile.values if lead else 0)
    x = raw("x", TensorProto.UINT8, [0], b"")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    made = lower(model([packed_node("x", "y", profile.identifier, shape)], [x], [output]))
    assert onnx_cases.evaluate(made)[0].shape == shape
    assert run(made, "kept")[0].shape == run(made, "folded")[0].shape == shape


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_functions_are_short_and_of_their_opset(profile: Profile) -> None:
    """Runtimes take time for every node of every call: a longer body is a slower load, and should be meant."""
    for kind in onnx_cases.TYPES:
        function = lowered(profile, kind).function
        assert len(function.node) <= 23, function.name
        for node in function.node:
            assert onnx.defs.get_schema(node.op_type, 21, "").since_version <= 21
            assert node.op_type not in {"Constant", "Where"}
        names = [name for node in function.node for name in node.output]
        assert len(set(names)) == len(names)
        used = {name for node in function.node for name in node.input}
        assert set(function.input) <= used


def test_a_payload_that_is_an_input() -> None:
    made = lower(
        model(
            [packed_node("x", "w", "gguf:q8_0", [2, 32]), helper.make_node("Transpose", ["w"], ["y"])],
            inputs=[helper.make_tensor_value_info("x", TensorProto.UINT8, ["n"])],
            outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 2])],
        )
    )
    inferred = shape_inference.infer_shapes(made, strict_mode=True, check_type=True)
    (value,) = inferred.graph.value_info
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2, 32]
    payload = np.random.default_rng(0).integers(0, 256, 68, np.uint8)
    for way in WAYS:
        (found,) = session(made, way).run(None, {"x": payload})
        assert np.array_equal(bits_of(found), bits_of(dequantize_packed(payload, "gguf:q8_0", [2, 32]).T))


def test_a_thousand_weights_load() -> None:
    """How long that takes is for `benchmarks/onnx_models.py` to say."""
    profile, count = PROFILES["gguf:q4_k"], 1000
    shape = [2, profile.values]
    rng = np.random.default_rng(0)
    blocks = np.frombuffer(rng.bytes(2 * count * profile.bytes), np.uint8).copy().view(profile.block)
    blocks["d"] = blocks["dmin"] = np.float16(0.01)
    payload = blocks.view(np.uint8).reshape(count, -1)
    nodes, total = [], "zero"
    for index in range(count):
        nodes.append(packed_node(f"p{index}", f"w{index}", profile.identifier, shape))
        nodes.append(helper.make_node("Add", [total, f"w{index}"], [f"sum{index}"]))
        total = f"sum{index}"
    made = lower(
        model(
            nodes,
            [raw(f"p{index}", TensorProto.UINT8, [row.size], row.tobytes()) for index, row in enumerate(payload)],
            [helper.make_tensor_value_info(total, TensorProto.FLOAT, shape)],
            inputs=[helper.make_tensor_value_info("zero", TensorProto.FLOAT, shape)],
        )
    )
    (found,) = session(made, "folded").run(None, {"zero": np.zeros(shape, np.float32)})
    expected = np.zeros(shape, np.float32)
    for values in dequantize_packed(payload.reshape(-1), profile.identifier, [count, *shape]):
        expected += values
    assert np.array_equal(found, expected)
