"""Packed weights in place of float initializers: the same results, the rest of the graph untouched, mistakes named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gguf_builder as gb
import quantform as qf
from onnx_builder import external, model, raw, write
from quantform.errors import (
    ArgumentError,
    FileError,
    OutputExistsError,
    QuantformError,
    UnknownNameError,
    UnsupportedError,
)
from quantform.onnx import DequantizePacked, Weight, attach, check_model
from quantform.sources.onnx_model import OnnxSource

TYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.DOUBLE: np.float64,
}


def q8(rows: int, columns: int, seed: int) -> bytes:
    """Q8_0 blocks with scales of 1/64."""
    rng = np.random.default_rng(seed)
    made = np.empty((rows, columns // 32), [("d", "<f2"), ("q", "i1", 32)])
    made["d"], made["q"] = 1 / 64, rng.integers(-128, 128, made["q"].shape)
    return made.tobytes()


TENSORS = [
    gb.tensor("blk.0.up.weight", (64, 32), gb.Q8_0, q8(64, 32, 1)),
    gb.tensor("blk.0.down.weight", (32, 64), gb.Q8_0, q8(32, 64, 2)),
    gb.tensor("blk.0.square.weight", (32, 32), gb.Q8_0, q8(32, 32, 3)),
    gb.tensor("blk.0.norm.weight", (32,), gb.F32, bytes(128)),
]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.gguf"
    path.write_bytes(gb.build(TENSORS))
    return path


def info(name: str, kind: int, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def zeros(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, TYPES[kind]), name)


def block(*, kind: int = TensorProto.FLOAT, opset: int = 17) -> onnx.ModelProto:
    """y = relu(x @ up) @ down + bias: columns first, as exporters write it."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "down"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["y"]),
    ]
    weights = [zeros("up", 32, 64, kind=kind), zeros("down", 64, 32, kind=kind), zeros("bias", 32, kind=kind)]
    return model(nodes, weights, [info("y", kind, None, 32)], inputs=[info("x", kind, "n", 32)], opset=opset)


NAMES = {"up": "blk.0.up.weight", "down": "blk.0.down.weight"}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write(tmp_path / "g.onnx", block())


def decoded(weights: Path, name: str) -> np.ndarray:
    with qf.open(weights) as source:
        return np.asarray(source[name].decode())


def evaluate(path: Path, **inputs: np.ndarray) -> list[Any]:
    return list(ReferenceEvaluator(onnx.load(path), new_ops=[DequantizePacked]).run(None, inputs))


# --- right graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["reference", "copy", "inline"])
def test_the_graph_computes_with_the_decoded_weights(data: str, graph: Path, weights: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    report = attach(graph, weights, target, names=NAMES, data=data)
    assert report.tensors == {"gguf:q8_0 as FLOAT, transposed": 2}
    assert report.notes == ["4.4 kB of packed weights in place of 16.4 kB"]
    check_model(target)
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    up, down = (decoded(weights, name) for name in NAMES.values())
    (y,) = evaluate(target, x=x)
    assert np.array_equal(y, np.maximum(x @ up.T, 0) @ down.T)
    with OnnxSource(target) as made:
        assert {name: tensor.format for name, tensor in made.items()} == {
            "bias": "fp32",
            "blk.0.up.weight": "gguf:q8_0",
            "blk.0.down.weight": "gguf:q8_0",
        }
        assert made.opset == 29
    assert qf.verify(target).ok


@pytest.mark.parametrize("kind", TYPES)
def test_weights_have_the_type_of_the_initializer(kind: int, weights: Path, tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = write(tmp_path / "g.onnx", model([node], [zeros("w", 64, 32, kind=kind)], [info("y", kind, 64, 32)]))
    attach(graph, weights, tmp_path / "out.onnx", names={"w": "blk.0.up.weight"})
    check_model(tmp_path / "out.onnx")
    (y,) = evaluate(tmp_path / "out.onnx")
    assert y.dtype == TYPES[kind]
    assert y.tobytes() == decoded(weights, "blk.0.up.weight").astype(TYPES[kind]).tobytes()


def test_equal_names_need_no_map(weights: Path, tmp_path: Path) -> None:
    names = ("blk.0.up.weight", "blk.0.down.weight", "blk.0.norm.weight", "other")
    nodes = [helper.make_node("Identity", [name], [f"y{n}"]) for n, name in enumerate(names)]
    tensors = [zeros(names[0], 64, 32), zeros(names[1], 64, 32), zeros(names[2], 32), zeros(names[3], 5)]
    outputs = [info(f"y{n}", 1, None) for n in range(1, 4)] + [info("y0", 1, None, None)]
    outputs[0] = info("y1", 1, None, None)
    graph = write(tmp_path / "g.onnx", model(nodes, tensors, outputs))
    report = attach(graph, weights, tmp_path / "out.onnx")
    assert report.tensors == {"gguf:q8_0 as FLOAT": 1, "gguf:q8_0 as FLOAT, transposed": 1}
    check_model(tmp_path / "out.onnx")
    values = dict(zip(("y1", "y2", "y3", "y0"), evaluate(tmp_path / "out.onnx"), strict=True))
    assert np.array_equal(values["y0"], decoded(weights, names[0]))
    assert np.array_equal(values["y1"], decoded(weights, names[1]).T)
    assert not values["y2"].any()


def test_a_map_file_says_what_a_square_is(weights: Path, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [f"y.{name}"]) for name in ("a", "b", "c.d")]
    tensors = [zeros("a", 32, 32), zeros("b", 32, 32), zeros("c.d", 64, 32)]
    outputs = [info(f"y.{name}", 1, None, None) for name in ("a", "b", "c.d")]
    graph = write(tmp_path / "g.onnx", model(nodes, tensors, outputs))
    names = tmp_path / "names.toml"
    names.write_text(
        'a = { tensor = "blk.0.square.weight", transpose = true }\n'
        'b = { tensor = "blk.0.square.weight", transpose = false }\n'
        '"c.d" = "blk.0.up.weight"\n'
    )
    attach(graph, weights, tmp_path / "out.onnx", names=names)
    a, b, c = evaluate(tmp_path / "out.onnx")
    square = decoded(weights, "blk.0.square.weight")
    assert np.array_equal(a, square.T)
    assert np.array_equal(b, square)
    assert np.array_equal(c, decoded(weights, "blk.0.up.weight"))
    payloads = [proto.name for proto in onnx.load(tmp_path / "out.onnx").graph.initializer]
    assert payloads == ["blk.0.square.weight.packed", "blk.0.up.weight.packed"]  # one payload serves both


def test_a_square_that_nobody_explains_is_refused(weights: Path, tmp_path: Path) -> None:
    graph = write(tmp_path / "g.onnx", model((), [zeros("s", 32, 32)]))
    with pytest.raises(
        ArgumentError, match=r'square.*Say so: "s" = \{ tensor = "blk.0.square.weight", transpose = true'
    ):
        attach(graph, weights, tmp_path / "out.onnx", names={"s": "blk.0.square.weight"})
    attach(graph, weights, tmp_path / "out.onnx", names={"s": Weight("blk.0.square.weight", transpose=False)})


def test_an_original_shape_and_a_transpose(tmp_path: Path) -> None:
    weights = tmp_path / "w.gguf"
    data = q8(4, 32, 5)
    keys = {"comfy.gguf.orig_shape.w": gb.typed("int32", [8, 16])}
    weights.write_bytes(gb.build([gb.tensor("w", (4, 32), gb.Q8_0, data)], keys))
    nodes = [helper.make_node("Identity", [name], [f"y{name}"]) for name in ("straight", "turned")]
    outputs = [info("ystraight", 1, 8, 16), info("yturned", 1, 16, 8)]
    graph = write(tmp_path / "g.onnx", model(nodes, [zeros("straight", 8, 16), zeros("turned", 16, 8)], outputs))
    attach(graph, weights, tmp_path / "out.onnx", names={"straight": "w", "turned": "w"})
    check_model(tmp_path / "out.onnx")
    straight, turned = evaluate(tmp_path / "out.onnx")
    assert np.array_equal(straight, decoded(weights, "w"))
    assert np.array_equal(turned, straight.T)


def test_weights_inside_branches_are_found(weights: Path, tmp_path: Path) -> None:
    """A graph in a node sees the names of the graph around it."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", "up"], [f"{name}.y"])], name, [], [info(f"{name}.y", 1, None, 64)]
        )
        for name in ("then", "else")
    }
    made = model(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        [zeros("up", 32, 64), numpy_helper.from_array(np.array(True), "c")],
        [info("y", 1, None, 64)],
        inputs=[info("x", 1, "n", 32)],
        opset=21,
    )
    attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names={"up": "blk.0.up.weight"})
    check_model(tmp_path / "out.onnx")
    (y,) = evaluate(tmp_path / "out.onnx", x=np.eye(32, dtype=np.float32))
    assert np.array_equal(y, decoded(weights, "blk.0.up.weight").T)


def test_an_initializer_that_is_also_an_input_becomes_neither(weights: Path, tmp_path: Path) -> None:
    made = block()
    made.graph.input.append(info("up", 1, 32, 64))
    attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names=NAMES)
    check_model(tmp_path / "out.onnx")
    assert [one.name for one in onnx.load(tmp_path / "out.onnx").graph.input] == ["x"]


def test_everything_else_is_kept(weights: Path, tmp_path: Path) -> None:
    made = block(opset=29)
    helper.set_model_props(made, {"author": "someone"})
    made.graph.doc_string = "a block"
    made.graph.node[1].metadata_props.add(key="k", value="v")
    made.opset_import.add(domain="com.example", version=3)
    made.graph.node.append(helper.make_node("Special", ["y"], ["z"], domain="com.example"))
    attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names=NAMES)
    result = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert list(result.graph.node)[4:] == list(made.graph.node)
    assert (result.metadata_props, result.opset_import) == (made.metadata_props, made.opset_import)
    assert (result.graph.doc_string, result.graph.output) == ("a block", made.graph.output)
    assert result.graph.initializer[0] == made.graph.initializer[2]


def test_names_of_the_graph_are_not_taken(weights: Path, tmp_path: Path) -> None:
    made = block()
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "blk.0.up.weight.packed"
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = "blk.0.up.weight"
    attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names=NAMES)
    check_model(tmp_path / "out.onnx")


# --- versions of operators ------------------------------------------------------------------------------------------


def test_operators_are_raised_to_the_version_with_the_operator(weights: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("ReduceMean", ["h"], ["y"], axes=[1]),  # axes became an input in version 18
    ]
    made = model(nodes, [zeros("up", 32, 64)], [info("y", 1, None, 1)], inputs=[info("x", 1, "n", 32)], opset=13)
    attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names={"up": "blk.0.up.weight"})
    check_model(tmp_path / "out.onnx")
    (y,) = evaluate(tmp_path / "out.onnx", x=np.eye(32, dtype=np.float32))
    assert np.array_equal(y, decoded(weights, "blk.0.up.weight").mean(0, keepdims=True).T)


@pytest.mark.parametrize("opset", [21, 26])
def test_an_earlier_version_gets_the_lowered_form(opset: int, weights: Path, tmp_path: Path) -> None:
    graph = write(tmp_path / "g.onnx", block(opset=21))
    attach(graph, weights, tmp_path / "out.onnx", names=NAMES, opset=opset)
    check_model(tmp_path / "out.onnx")
    with OnnxSource(tmp_path / "out.onnx") as made:
        assert made.opset == opset
        assert set(made) == {"bias", *NAMES.values()}
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    up, down = (decoded(weights, name) for name in NAMES.values())
    (y,) = evaluate(tmp_path / "out.onnx", x=x)
    assert np.array_equal(y, np.maximum(x @ up.T, 0) @ down.T)


def test_a_version_below_the_lowered_form_is_refused(graph: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="from 21 on for the lowered form, found 20"):
        attach(graph, weights, tmp_path / "out.onnx", names=NAMES, opset=20)


@pytest.mark.parametrize("opset", [-1, 0, 30, 99])
def test_versions_that_do_not_exist_are_refused(opset: int, graph: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"one from 21 on for the lowered form, found {opset}"):
        attach(graph, weights, tmp_path / "m.onnx", names={"up": "blk.0.up.weight"}, opset=opset)
    assert not (tmp_path / "m.onnx").exists()


def test_new_nodes_have_the_names_of_their_outputs(graph: Path, weights: Path, tmp_path: Path) -> None:
    attach(graph, weights, tmp_path / "m.onnx", names={"up": "blk.0.up.weight"})
    new = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.node[:2]
    assert [(node.op_type, node.name) for node in new] == [
        ("DequantizePacked", "blk.0.up.weight"),
        ("Transpose", "up"),
    ]


def test_a_graph_with_functions_is_raised_only_where_nothing_changed(weights: Path, tmp_path: Path) -> None:
    made = block(opset=17)
    opsets = [helper.make_opsetid("", 17)]
    call = helper.make_node("Squash", ["y"], ["z"], domain="local")
    body = [helper.make_node("ReduceMean", ["a"], ["b"], axes=[1])]
    made.functions.append(helper.make_function("local", "Squash", ["a"], ["b"], body, opsets))
    made.graph.node.append(call)
    made.opset_import.add(domain="local", version=1)
    graph = write(tmp_path / "g.onnx", made)
    with pytest.raises(UnsupportedError, match=r"model with functions cannot be raised.*with other tools$"):
        attach(graph, weights, tmp_path / "out.onnx", names=NAMES)


def test_a_graph_that_cannot_be_raised_is_refused(weights: Path, tmp_path: Path) -> None:
    made = block(opset=21)
    made.graph.node.append(helper.make_node("Reshape", ["nowhere", "bias"], ["z"]))
    with pytest.raises(UnsupportedError, match=r"cannot be raised from version 21.*undefined.*--opset 21"):
        attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names=NAMES)


def test_a_later_version_is_kept(weights: Path, tmp_path: Path) -> None:
    graph = write(tmp_path / "g.onnx", block(opset=30))
    attach(graph, weights, tmp_path / "out.onnx", names=NAMES)
    with OnnxSource(tmp_path / "out.onnx") as made:
        assert made.opset == 30
    with pytest.raises(UnsupportedError, match=r"later version than the one asked for.*Name no version"):
        attach(graph, weights, tmp_path / "out.onnx", names=NAMES, opset=29, force=True)


def test_a_model_without_operators_is_refused(weights: Path, tmp_path: Path) -> None:
    made = block()
    del made.opset_import[:]
    with pytest.raises(FileError, match="does not say which version"):
        attach(write(tmp_path / "g.onnx", made), weights, tmp_path / "out.onnx", names=NAMES)


# --- other external data --------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The block with all its weights outside; that of `up` is not even there."""
    (tmp_path / "bias.bin").write_bytes(bytes(4) + np.arange(32, dtype=np.float32).tobytes())
    made = block()
    del made.graph.initializer[:]
    made.graph.initializer.extend(
        [
            external("up", 1, (32, 64), location="absent.bin"),
            external("down", 1, (64, 32), location="absent.bin", offset=8192),
            external("bias", 1, (32,), location="bias.bin", offset=4, length=128),
        ]
    )
    return write(tmp_path / "g.onnx", made)


def test_external_data_of_others_stays_where_it_is(outside: Path, weights: Path, tmp_path: Path) -> None:
    before = onnx.load(outside, load_external_data=False).graph.initializer[2]
    attach(outside, weights, tmp_path / "out.onnx", names=NAMES)
    assert onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer[0] == before
    check_model(tmp_path / "out.onnx")
    (y,) = evaluate(tmp_path / "out.onnx", x=np.zeros((1, 32), np.float32))
    assert y.tolist() == [list(range(32))]


@pytest.mark.parametrize("data", ["copy", "inline"])
def test_or_goes_along_with_the_weights(data: str, outside: Path, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    target = tmp_path / "else" / "out.onnx"
    with pytest.raises(UnsupportedError, match="not beside the GGUF file"):
        attach(outside, weights, target, names=NAMES)
    attach(outside, weights, target, names=NAMES, data=data)
    for path in (outside, weights, tmp_path / "bias.bin"):
        path.unlink()
    check_model(target)
    (y,) = evaluate(target, x=np.zeros((1, 32), np.float32))
    assert y.tolist() == [list(range(32))]


def test_a_reference_needs_both_files_beside_it(outside: Path, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    moved = tmp_path / "else" / "w.gguf"
    weights.rename(moved)
    with pytest.raises(UnsupportedError, match=r"external data would not be beside the new model.*--data copy"):
        attach(outside, moved, tmp_path / "else" / "out.onnx", names=NAMES)


def test_external_data_inside_nodes_cannot_move(weights: Path, tmp_path: Path) -> None:
    made = block()
    constant = helper.make_node("Constant", [], ["k"], value=external("", 1, (2,), location="k.bin"))
    made.graph.node.append(constant)
    graph = write(tmp_path / "g.onnx", made)
    (tmp_path / "else").mkdir()
    with pytest.raises(UnsupportedError, match=r"Write the model there$"):
        attach(graph, weights, tmp_path / "else" / "out.onnx", names=NAMES, data="copy")


# --- mistakes -------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Any, type[QuantformError], str]] = {
    "no such initializer": ({"upp": "blk.0.up.weight"}, UnknownNameError, "no initializer called 'upp'.*'up'"),
    "no such tensor": ({"up": "blk.0.upp.weight"}, UnknownNameError, "no tensor called.*'blk.0.up.weight'"),
    "not packed": ({"bias": "blk.0.norm.weight"}, ArgumentError, "not packed.*found F32"),
    "another shape": ({"bias": "blk.0.up.weight"}, ArgumentError, r"does not fit; expected \[32\].*found \[64, 32\]"),
    "wrongly transposed": (
        {"up": Weight("blk.0.up.weight", transpose=False)},
        ArgumentError,
        r"does not fit; expected \[32, 64\].*found \[64, 32\]",
    ),
    "no text": ({"up": 5}, ArgumentError, "names"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_named(case: str, graph: Path, weights: Path, tmp_path: Path) -> None:
    names, error, message = MISTAKES[case]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        attach(graph, weights, tmp_path / "out.onnx", names=names)
    assert sorted(tmp_path.iterdir()) == before


def test_other_types_are_not_replaced(weights: Path, tmp_path: Path) -> None:
    graph = write(tmp_path / "g.onnx", model((), [raw("t", TensorProto.INT8, (64, 32), bytes(2048))]))
    with pytest.raises(ArgumentError, match=r"expected FLOAT, FLOAT16, BFLOAT16 or DOUBLE, found INT8"):
        attach(graph, weights, tmp_path / "out.onnx", names={"t": "blk.0.up.weight"})


def test_without_a_map_names_must_agree(graph: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"such as 'blk.0.up.weight', found such as 'up'.*--map"):
        attach(graph, weights, tmp_path / "out.onnx")
    with pytest.raises(ArgumentError, match="names nothing"):
        attach(graph, weights, tmp_path / "out.onnx", names={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"up = ", "no TOML"),
        (b"\xff", "no TOML"),
        (b"up = 5", "no name.*INITIALIZER"),
        (b'a.b = "x"', "quotation marks"),
        (b'up = { tensor = "x", turn = true }', "no name"),
        (b'up = { tensor = "x", transpose = 1 }', "no name"),
        (b"", "names nothing"),
    ],
)
def test_a_wrong_map_file(text: bytes, message: str, graph: Path, weights: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.toml"
    names.write_bytes(text)
    with pytest.raises(QuantformError, match=message) as caught:
        attach(graph, weights, tmp_path / "out.onnx", names=names)
    assert "names.toml" in str(caught.value)


def test_nothing_is_replaced_unasked(graph: Path, weights: Path, tmp_path: Path) -> None:
    before = graph.read_bytes()
    for output in (graph, weights):
        with pytest.raises(OutputExistsError, match="being read"):
            attach(graph, weights, output, names=NAMES, force=True)
    assert graph.read_bytes() == before
    attach(graph, weights, tmp_path / "out.onnx", names=NAMES)
    with pytest.raises(OutputExistsError, match="exists already"):
        attach(graph, weights, tmp_path / "out.onnx", names=NAMES)
    attach(graph, weights, tmp_path / "out.onnx", names=NAMES, force=True)
