"""GGUF weights as codes and scales of ONNX's standard operators, and such models as sources again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gguf_builder as gb
import quantform as qf
from gguf_to_onnx import beside, bits, blocks, evaluated
from quantform.errors import ArgumentError, UnsupportedError
from quantform.onnx import check_model
from quantform.packed import PROFILES
from quantform.packed.linear import LINEAR


def linear_tensors() -> list[gb.GGUFTensorSpec]:
    tensors: list[gb.GGUFTensorSpec] = []
    for name in LINEAR:
        p = PROFILES[name]
        for what, shape in (
            ("matrix", (3, 2 * p.values)),
            ("vector", (2 * p.values,)),
            ("bank", (2, 3, p.values)),
            ("empty", (0, p.values)),
            ("flat", (2, p.values)),
        ):
            data = blocks(name, int(np.prod(shape)) // p.values, len(tensors))
            tensors.append(gb.tensor(f"{p.name}.{what}", shape, p.ggml_type, data))
    return tensors


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    path = tmp_path / "linear.gguf"
    keys = {
        f"comfy.gguf.orig_shape.{PROFILES[n].name}.flat": gb.typed("int32", [PROFILES[n].values, 2]) for n in LINEAR
    }
    path.write_bytes(gb.build(linear_tensors(), keys))
    return path


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("data", ["copy", "inline"])
def test_linear_formats_as_standard_operators(data: str, linear: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    report = qf.convert(linear, target, data=data, qdq=True)
    assert report.tensors == {f"DequantizeLinear of {name}": 5 for name in LINEAR}
    check_model(target)
    model = onnx.load(target)
    assert [entry.version for entry in model.opset_import] == [26]
    assert {node.op_type for node in model.graph.node} == {"DequantizeLinear", "Cast", "Add", "Reshape"}
    values = evaluated(model)
    with qf.open(linear) as source, qf.open(target) as made:
        assert list(made) == list(source)
        for tensor, value in zip(source.values(), values, strict=True):
            assert bits(value) == bits(tensor.decode()), tensor.name
            assert made[tensor.name].payload().tobytes() == tensor.payload().tobytes()
            out = np.empty(min(5, tensor.nbytes), np.uint8)
            made[tensor.name].read_into(tensor.nbytes // 2 - out.size // 2, out)
            rows = [] if "empty" in tensor.name else [0, 0]
            assert bits(made[tensor.name].decode(rows=rows)) == bits(tensor.decode(rows=rows))
    verified = qf.verify(target, deep=True, against=linear)
    assert verified.ok, verified.findings
    assert f"{len(values)} of {len(values)} tensors have equal bytes" in verified.notes


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_standard_operators_run_in_onnxruntime(level: str, linear: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    target = tmp_path / "m.onnx"
    qf.convert(linear, target, data="copy", qdq=True)
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    session = runtime.InferenceSession(target, options)
    with qf.open(linear) as source:
        for tensor, value in zip(source.values(), session.run(list(source), {}), strict=True):
            assert bits(value) == bits(tensor.decode()), tensor.name


def test_zero_points_are_shared_by_weights_of_one_shape(tmp_path: Path) -> None:
    source, target = beside(tmp_path)
    data = blocks("gguf:q2_0", 12)
    source.write_bytes(gb.build([gb.tensor(f"w{n}", (3, 256), gb.Q2_0, data) for n in range(4)]))
    qf.convert(source, target, data="inline", qdq=True)
    model = onnx.load(target)
    names = [proto.name for proto in model.graph.initializer]
    assert [name for name in names if name.startswith("zero_points")] == ["zero_points.UINT2.3x4"]
    (points,) = (proto for proto in model.graph.initializer if proto.name.startswith("zero_points"))
    assert numpy_helper.to_array(points).astype(int).tolist() == [[1] * 4] * 3


def test_other_formats_stay_packed_beside_them(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    report = qf.convert(gguf, target, data="copy", qdq=True)
    assert sum(count for way, count in report.tensors.items() if way.startswith("DequantizeLinear")) == 7
    assert sum(count for way, count in report.tensors.items() if way.startswith("DequantizePacked")) == 23
    check_model(target)
    assert qf.verify(target, deep=True, against=gguf).ok


def test_a_reference_has_no_codes_and_scales(linear: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"codes and scales apart.*--data copy"):
        qf.convert(linear, tmp_path / "m.onnx", qdq=True)


def test_versions_too_early_for_the_weights_are_refused(linear: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected version 25 or later, found 24"):
        qf.convert(linear, tmp_path / "m.onnx", qdq=True, data="copy", opset=24)


def test_what_only_looks_like_blocks_stays_what_it_is(linear: Path, tmp_path: Path) -> None:
    """Each change makes the values others than those of packed blocks, or the type another."""
    target = tmp_path / "m.onnx"
    changes: dict[str, Callable[[onnx.NodeProto, onnx.GraphProto], Any]] = {
        "Q8_0.matrix": lambda node, _: node.attribute[2].__setattr__("i", TensorProto.FLOAT16),
        "Q4_0.matrix": lambda node, _: node.attribute[1].__setattr__("i", 16),
        "Q4_0.vector": lambda node, _: node.input.append("Q4_0.vector.codes"),
        "TQ2_0.matrix": lambda node, _: node.input.__delitem__(2),
        "Q2_0.bank": lambda node, graph: _named(graph, node.input[2]).__setattr__("raw_data", b"\x54\x05"),
        "Q8_0.bank": lambda node, graph: _named(graph, node.input[1]).__setattr__("data_type", TensorProto.BFLOAT16),
        "Q8_0.vector": lambda node, _: node.attribute[0].__setattr__("i", -2),
    }
    qf.convert(linear, target, data="inline", qdq=True)
    whole = onnx.load(target)
    for name, change in changes.items():
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        (node,) = (node for node in model.graph.node if name in node.output)
        assert [attribute.name for attribute in node.attribute] == ["axis", "block_size", "output_dtype"]
        change(node, model.graph)
        target.write_bytes(model.SerializeToString())
        with qf.open(target) as made:
            assert name not in made, name
            assert f"{name}.codes" in made


def _chain(graph: onnx.GraphProto, name: str) -> dict[str, onnx.NodeProto]:
    """The nodes of an affine weight by operator."""
    made = {node.output[0]: node for node in graph.node}
    reshape = made[name]
    add = made[reshape.input[0]]
    return {node.op_type: node for node in (reshape, add, *(made[one] for one in add.input))}


def _of_another_domain(operator: str) -> Callable[[onnx.GraphProto, str], None]:
    def change(graph: onnx.GraphProto, name: str) -> None:
        _chain(graph, name)[operator].domain = "com.example"

    return change


def _seen_as_output(operator: str) -> Callable[[onnx.GraphProto, str], None]:
    def change(graph: onnx.GraphProto, name: str) -> None:
        value = _chain(graph, name)[operator].output[0]
        graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))

    return change


def _seen_inside_a_node(operator: str) -> Callable[[onnx.GraphProto, str], None]:
    def change(graph: onnx.GraphProto, name: str) -> None:
        value = _chain(graph, name)[operator].output[0]
        inner = helper.make_graph([helper.make_node("Neg", [value], ["n"])], "inner", [], [])
        graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))

    return change


CHANGES = (_of_another_domain, _seen_as_output, _seen_inside_a_node)


@pytest.mark.parametrize("operator", ["DequantizeLinear", "Cast", "Add", "Reshape"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__[1:])
def test_nodes_of_others_and_values_that_others_see_make_no_weight(
    operator: str, change: Any, linear: Path, tmp_path: Path
) -> None:
    """The last step is the weight itself, which anybody may see."""
    target, name = tmp_path / "m.onnx", "Q4_1.matrix"
    qf.convert(linear, target, data="inline", qdq=True)
    model = onnx.load(target)
    steps = _chain(model.graph, name)
    change(operator)(model.graph, name)
    target.write_bytes(model.SerializeToString())
    own = {f"{name}.{part}" for part in ("codes", "scales", "minima")}
    with qf.open(target) as made:
        if operator == "Reshape" and change is not _of_another_domain:
            assert name in made
            assert own.isdisjoint(made)
        elif operator in {"Add", "Reshape"} and not (operator == "Add" and change is _of_another_domain):
            assert name not in made  # the weight before it is reshaped
            assert made[steps["Add"].output[0]].format == "gguf:q4_1"
            assert own.isdisjoint(made)
        else:
            assert name not in made
            assert steps["Add"].output[0] not in made
            assert own < set(made)


@pytest.mark.parametrize("part", ["codes", "scales", "minima"])
def test_parts_that_others_use_are_tensors_as_well(part: str, linear: Path, tmp_path: Path) -> None:
    target, name = tmp_path / "m.onnx", "Q4_1.matrix"
    qf.convert(linear, target, data="inline", qdq=True)
    model = onnx.load(target)
    model.graph.node.append(helper.make_node("Shape", [f"{name}.{part}"], ["s"]))
    target.write_bytes(model.SerializeToString())
    with qf.open(target) as made:
        assert made[name].format == "gguf:q4_1"
        assert [one for one in made if one.startswith(f"{name}.")] == [f"{name}.{part}"]


def _named(graph: onnx.GraphProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(proto for proto in graph.initializer if proto.name == name)
    return found
