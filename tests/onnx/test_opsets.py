"""Models of opset 29 under an opset that runtimes load."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from quantform.errors import UnsupportedError
from quantform.onnx import for_runtime

PACKED = helper.make_node("DequantizePacked", ["x"], ["y"], format="gguf:q4_0", shape=[32])


def make_model(nodes: list[NodeProto], opset: int, domain: str = "") -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [18])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [32])
    graph = helper.make_graph(nodes, "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=10)


def imports(model: ModelProto) -> list[tuple[str, int]]:
    return [(entry.domain, entry.version) for entry in model.opset_import]


@pytest.mark.parametrize("opset", [1, 21, 28])
def test_runtimes_know_these(opset: int) -> None:
    model = make_model([PACKED], opset)
    assert for_runtime(model) is model


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_the_lowest_opset_with_the_same_operators(domain: str) -> None:
    model = make_model([PACKED], 29, domain)
    assert imports(for_runtime(model)) == [(domain, 21)]
    assert imports(model) == [(domain, 29)]
    newer = make_model([PACKED, helper.make_node("RMSNormalization", ["y", "s"], ["z"])], 29, domain)
    newer.opset_import.append(helper.make_opsetid("com.example", 40))
    newer.graph.node.append(helper.make_node("Anything", ["z"], ["v"], domain="com.example"))
    lowered = for_runtime(newer)
    assert imports(lowered) == [(domain, 23), ("com.example", 40)]
    assert list(lowered.graph.node) == list(newer.graph.node)


def test_inner_graphs_and_functions_count() -> None:
    inner = helper.make_graph([helper.make_node("BitCast", ["y"], ["i"], to=TensorProto.INT32)], "inner", [], [])
    model = make_model([PACKED, helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)], 29)
    assert imports(for_runtime(model)) == [("", 26)]

    body = [helper.make_node("Swish", ["a"], ["b"])]
    for opset, expected in ((29, 24), (22, 22)):
        model = make_model([PACKED], 29)
        function = helper.make_function("com.example", "F", ["a"], ["b"], body, [helper.make_opsetid("", opset)])
        model.functions.append(function)
        if opset == 29:
            lowered = for_runtime(model)
            assert imports(lowered) == [("", 24)]
            assert lowered.functions[0].opset_import[0].version == expected
        else:
            with pytest.raises(UnsupportedError, match="knows no operator 'Swish' of opset 22"):
                for_runtime(model)


def test_operators_that_onnx_does_not_know() -> None:
    node = helper.make_node("Nonsense", ["y"], ["z"], name="n")
    with pytest.raises(UnsupportedError, match=rf"node 'n': the installed onnx {onnx.__version__} knows no operator"):
        for_runtime(make_model([PACKED, node], 29))
