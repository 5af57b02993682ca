"""Rewriting models: where nodes are found, what stays as it was, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, TensorProto, checker, helper, numpy_helper

import onnx_cases
from onnx_builder import external, model, packed_node, raw
from quantform.errors import ArgumentError, QuantformError, UnknownNameError, UnsupportedError
from quantform.onnx import lower
from quantform.onnx.opsets import NEWEST_OPSET
from quantform.packed import dequantize_packed

# Two blocks of Q8_0, both of scale 1.
PAYLOAD = np.concatenate([[0, 0x3C], np.arange(32), [0, 0x3C], np.arange(32) + 200]).astype(np.uint8)
VALUES = dequantize_packed(PAYLOAD, "gguf:q8_0", [2, 32])
FLOATS = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])


def payload(name: str = "x") -> onnx.TensorProto:
    return raw(name, TensorProto.UINT8, [PAYLOAD.size], PAYLOAD.tobytes())


def node(x: str = "x", y: str = "y", **more: Any) -> onnx.NodeProto:
    return packed_node(x, y, **{"format": "gguf:q8_0", "shape": [2, 32], **more})


def results(made: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    """What the model gives, which its lowered form must give in onnx's evaluator and in onnxruntime."""
    checker.check_model(made, full_check=True)
    first = onnx_cases.evaluate(made, feeds)
    second = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)
    return first


def branching(then: onnx.GraphProto, otherwise: onnx.GraphProto, *initializers: onnx.TensorProto) -> onnx.ModelProto:
    return model(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        initializers,
        [FLOATS],
        inputs=[helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
    )


def test_the_model_given_is_not_changed() -> None:
    made = model([node()], [payload()], [FLOATS])
    before = made.SerializeToString()
    changed = lower(made)
    assert made.SerializeToString() == before
    assert np.array_equal(results(changed)[0], VALUES)
    assert [entry.version for entry in changed.opset_import if not entry.domain] == [26]
    assert [function.name for function in changed.functions] == ["DequantizePacked_gguf_q8_0_float32"]
    assert changed.graph.node[0].domain == "quantform"


def test_what_is_said_about_a_model_stays() -> None:
    made = model([node()], [payload()], [FLOATS], properties={"general.name": "toy"})
    made.graph.node[0].name, made.graph.node[0].doc_string = "decode", "of the projection"
    made.graph.doc_string = made.doc_string = "a toy"
    changed = lower(made)
    assert changed.metadata_props == made.metadata_props
    assert (changed.doc_string, changed.graph.doc_string) == ("a toy", "a toy")
    assert (changed.graph.node[0].name, changed.graph.node[0].doc_string) == ("decode", "of the projection")


def test_subgraphs_see_the_tables_of_the_graph_around_them() -> None:
    negative = [node("x", "t"), helper.make_node("Neg", ["t"], ["n"])]
    inside = helper.make_graph(
        [node("own", "t")], "then", [], [helper.make_tensor_value_info("t", 1, [2, 32])], [payload("own")]
    )
    outside = helper.make_graph(negative, "else", [], [helper.make_tensor_value_info("n", 1, [2, 32])])
    changed = lower(branching(inside, outside, payload()))
    assert len(changed.functions) == 1
    assert np.array_equal(results(changed, c=np.array(True))[0], VALUES)
    assert np.array_equal(results(changed, c=np.array(False))[0], -VALUES)


def test_loops_and_scans() -> None:
    floats = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("x", "w"),
            helper.make_node("Add", ["before", "w"], ["after"]),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [floats("i", TensorProto.INT64, []), floats("c", TensorProto.BOOL, []), floats("before", 1, [2, 32])],
        [floats("d", TensorProto.BOOL, []), floats("after", 1, [2, 32])],
    )
    row = helper.make_graph(
        [node("x", "w"), helper.make_node("Add", ["s", "w"], ["t"]), helper.make_node("Neg", ["r"], ["m"])],
        "row",
        [floats("s", 1, [2, 32]), floats("r", 1, [32])],
        [floats("t", 1, [2, 32]), floats("m", 1, [32])],
    )
    made = model(
        [
            helper.make_node("Loop", ["three", "true", "zero"], ["sum"], body=body),
            helper.make_node("Scan", ["sum", "sum"], ["y", "minus"], body=row, num_scan_inputs=1),
        ],
        [
            payload(),
            numpy_helper.from_array(np.array(3), "three"),
            numpy_helper.from_array(np.array(True), "true"),
            numpy_helper.from_array(np.zeros((2, 32), np.float32), "zero"),
        ],
        [FLOATS, helper.make_tensor_value_info("minus", 1, [2, 32])],
    )
    found = results(lower(made))
    assert np.array_equal(found[0], 5 * VALUES)
    assert np.array_equal(found[1], -3 * VALUES)


def test_functions_of_the_model_hold_their_tables() -> None:
    inner = helper.make_graph([node("x", "t")], "then", [], [helper.make_tensor_value_info("t", 1, [2, 32])])
    other = helper.make_graph(
        [node("x", "w"), helper.make_node("Neg", ["w"], ["n"])],
        "else",
        [],
        [helper.make_tensor_value_info("n", 1, [2, 32])],
    )
    function = helper.make_function(
        "local",
        "Choose",
        ["c", "x"],
        ["y"],
        [
            node("x", "v"),
            helper.make_node("If", ["c"], ["u"], then_branch=inner, else_branch=other),
            helper.make_node("Add", ["u", "v"], ["y"]),
        ],
        [helper.make_opsetid("", 29)],
    )
    made = model(
        [helper.make_node("Choose", ["c", "x"], ["y"], domain="local")],
        [payload()],
        [FLOATS],
        inputs=[helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
    )
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("local", 1))
    changed = lower(made)
    assert {entry.domain: entry.version for entry in changed.functions[-1].opset_import} == {"": 26, "quantform": 1}
    assert not changed.graph.initializer[1:]
    assert np.array_equal(results(changed, c=np.array(True))[0], 2 * VALUES)
    assert not results(changed, c=np.array(False))[0].any()


def test_constants_are_shared() -> None:
    count = 20
    nodes = [
        node(f"x{index}", f"w{index}", format=f"gguf:{kind}", shape=[2, 256])
        for index, kind in enumerate(["q4_k", "q5_k"] * (count // 2))
    ]
    sizes = {"gguf:q4_k": 288, "gguf:q5_k": 352}
    made = model(
        [*nodes, helper.make_node("Sum", [f"w{index}" for index in range(count)], ["y"])],
        [
            raw(f"x{index}", TensorProto.UINT8, [size := sizes[one.attribute[0].s.decode()]], bytes(size))
            for index, one in enumerate(nodes)
        ],
        [helper.make_tensor_value_info("y", 1, [2, 256])],
    )
    changed = lower(made)
    shared = changed.graph.initializer[count:]
    assert len(changed.functions) == 2
    assert len({(tensor.raw_data, *tensor.dims) for tensor in shared}) == len(shared) < 30
    assert sum(len(tensor.raw_data) for tensor in shared) < 500_000
    results(changed)


def test_new_names_do_not_collide() -> None:
    taken = [numpy_helper.from_array(np.ones((2, 32), np.float32), f"quantform.{index}") for index in range(4)]
    inside = helper.make_graph(
        [helper.make_node("Add", ["w", "quantform.1"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", 1, [2, 32])],
    )
    deep = helper.make_graph(
        [helper.make_node("Add", ["w", "quantform.2"], ["quantform.5"])],
        "else",
        [],
        [helper.make_tensor_value_info("quantform.5", 1, [2, 32])],
    )
    made = branching(inside, deep, payload(), *taken)
    made.graph.node.insert(0, node("x", "w"))
    changed = lower(made)
    names = [tensor.name for tensor in changed.graph.initializer]
    assert len(set(names)) == len(names)
    assert "quantform.5" not in names
    assert np.array_equal(results(changed, c=np.array(False))[0], VALUES + 1)


def test_lowering_twice() -> None:
    once = lower(model([node()], [payload()], [FLOATS]))
    assert lower(once) == once
    more = onnx.ModelProto()
    more.CopyFrom(once)
    more.graph.node.append(node("x", "z"))
    more.graph.output.append(helper.make_tensor_value_info("z", 1, [2, 32]))
    twice = lower(more)
    assert len(twice.functions) == 1
    assert all(np.array_equal(found, VALUES) for found in results(twice))
    more.functions[0].doc_string = "another"
    with pytest.raises(UnsupportedError, match="the model has another function 'DequantizePacked_gguf_q8_0_float32'"):
        lower(more)


def test_a_model_without_the_operator() -> None:
    made = model(
        [helper.make_node("Neg", ["x"], ["y"])],
        inputs=[helper.make_tensor_value_info("x", 1, [2, 32])],
        outputs=[FLOATS],
    )
    changed = lower(made)
    assert not changed.functions
    assert not changed.graph.initializer
    assert [(entry.domain, entry.version) for entry in changed.opset_import] == [("", 26)]


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(32) + PAYLOAD.tobytes())
    x = external("x", TensorProto.UINT8, [68], location="weights.bin", offset=32, length=68)
    onnx.save(model([node()], [x], [FLOATS]), tmp_path / "model.onnx")
    loaded = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    changed = lower(loaded)
    assert changed.graph.initializer[0] == loaded.graph.initializer[0]
    onnx.save(changed, tmp_path / "lowered.onnx")
    checker.check_model(tmp_path / "lowered.onnx", full_check=True)
    found = ort.InferenceSession(tmp_path / "lowered.onnx", providers=["CPUExecutionProvider"]).run(None, {})[0]
    assert np.array_equal(found, VALUES)


@pytest.mark.parametrize(("opset", "ir_version"), [(21, 10), (24, 12), (26, 13)])
def test_versions(opset: int, ir_version: int) -> None:
    made = model([node()], [payload()], [FLOATS])
    made.ir_version = 14
    changed = lower(made, opset=opset)
    assert changed.ir_version == ir_version
    assert changed.functions[0].opset_import[0].version == opset
    assert np.array_equal(results(changed)[0], VALUES)


def test_a_lower_opset_is_kept() -> None:
    changed = lower(model([node()], [payload()], [FLOATS], opset=24))
    assert changed.opset_import[0].version == changed.functions[0].opset_import[0].version == 24
    assert np.array_equal(results(changed)[0], VALUES)


def test_the_name_ai_onnx() -> None:
    made = model([node()], [payload()], [FLOATS])
    made.opset_import[0].domain = made.graph.node[0].domain = "ai.onnx"
    changed = lower(made)
    assert not [one for one in changed.graph.node if one.op_type == "DequantizePacked"]
    assert changed.opset_import[0].version == 26


def test_the_output_type_is_declared_once() -> None:
    made = model([node("x", "w"), helper.make_node("Neg", ["w"], ["y"])], [payload()], [FLOATS])
    made.graph.value_info.append(helper.make_tensor_value_info("w", 1, [2, 32]))
    assert lower(made).graph.value_info == made.graph.value_info


# --- refusals -------------------------------------------------------------------------------------------------------


def referring() -> onnx.NodeProto:
    made = helper.make_node("DequantizePacked", ["x"], ["y"], shape=[2, 32])
    made.attribute.add(name="format", ref_attr_name="kind", type=AttributeProto.STRING)
    return made


def of_inputs(*names: str) -> onnx.NodeProto:
    made = node()
    made.input[:] = names
    return made


REFUSALS: dict[str, tuple[onnx.NodeProto, str]] = {
    "no format": (node(format=None), "graph, node 0: attribute format is missing"),
    "no shape": (node(shape=None), "attribute shape is missing"),
    "unknown": (node(format="gguf:q8_0;v2"), "Did you mean 'gguf:q8_0'"),
    "unaligned": (node(shape=[2, 31]), "expected a multiple of 32, found 31"),
    "negative": (node(shape=[-2, 32]), "is negative"),
    "length": (node(shape=[3, 32]), "wrong length; expected 102 bytes, found 68 bytes"),
    "type": (node(output_dtype=7), "expected FLOAT (1), FLOAT16 (10), BFLOAT16 (16), DOUBLE (11), found INT64 (7)"),
    "left to a caller": (referring(), "attribute format is left to the caller of a function; found @kind. Inline"),
    "no input": (of_inputs(), "expected 1 input, 1 output, found 0 and 1"),
    "two inputs": (of_inputs("x", "x"), "found 2 and 1"),
    "empty input": (of_inputs(""), "has other inputs or outputs"),
    "floats": (node("f"), "x is not a vector of bytes; expected UINT8, found FLOAT"),
    "matrix": (node("m"), "x is not a vector of bytes; expected rank 1, found rank 2"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    wrong, fragment = REFUSALS[case]
    others = [raw("f", TensorProto.FLOAT, [17], bytes(68)), raw("m", TensorProto.UINT8, [2, 34], bytes(68))]
    with pytest.raises(QuantformError) as caught:
        lower(model([wrong], [payload(), *others], [FLOATS]))
    assert fragment in str(caught.value)
    assert isinstance(caught.value, UnknownNameError if case == "unknown" else ArgumentError)


def test_a_refusal_names_the_node_and_the_graph() -> None:
    wrong = node(shape=[3, 32])
    wrong.name = "decode"
    with pytest.raises(ArgumentError, match=r"^graph, node 'decode': the payload of gguf:q8_0 .* has the wrong length"):
        lower(model([wrong], [payload()], [FLOATS]))
    made = model([node()], [payload()], [FLOATS])
    function = helper.make_function("local", "F", ["x"], ["y"], [node(shape=[2, 31])], [helper.make_opsetid("", 29)])
    made.functions.append(function)
    with pytest.raises(ArgumentError, match=r"^function 'F', node 0: the last dimension"):
        lower(made)


def test_an_operator_that_the_opset_lacks() -> None:
    made = model([node("x", "w"), helper.make_node("BitCast", ["w"], ["y"], to=TensorProto.INT32)], [payload()])
    lower(made)
    with pytest.raises(UnsupportedError, match=r"operator BitCast of node 'y' is not one of opset 25.*higher opset"):
        lower(made, opset=25)


def test_an_attribute_that_the_opset_lacks() -> None:
    cast = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT8E8M0, round_mode="down")
    made = model([node("x", "w"), cast], [payload()])
    lower(made, opset=24)
    with pytest.raises(UnsupportedError, match="operator Cast of node 'y' is not one of opset 23"):
        lower(made, opset=23)


@pytest.mark.parametrize("opset", [20, 0, -1, "26", None, 26.0, True, NEWEST_OPSET + 1, 99, 2**70])
def test_opsets_that_cannot_be(opset: Any) -> None:
    text = rf"opset is none that .*; expected 21 to {NEWEST_OPSET}, found {re.escape(repr(opset))}\. Name the newest"
    with pytest.raises(ArgumentError, match=text):
        lower(model([node()], [payload()], [FLOATS]), opset=opset)


def test_a_model_of_a_low_opset() -> None:
    with pytest.raises(UnsupportedError, match=r"opset that is too low; expected at least 21, found 18\. Convert"):
        lower(model([node()], [payload()], [FLOATS], opset=18))


def test_something_else_than_a_model() -> None:
    with pytest.raises(ArgumentError, match=r"expected an onnx\.ModelProto, found str\. Load it with onnx\.load"):
        lower("model.onnx")  # type: ignore[arg-type]
