"""The compiled operator in onnxruntime: the same bits, weights left packed, and refusals that say what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import quantform
from quantform import _native
from quantform.errors import ArgumentError, UnsupportedError
from quantform.onnx import custom_op_library, import_gguf, run, runtime, session, session_options
from quantform.packed import PROFILES, Profile, dequantize_packed
from quantform.sources import GGUFSource

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
OUTPUTS: dict[int, npt.DTypeLike] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.DOUBLE: np.float64,
}
LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "on": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def packed_node(output: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node("DequantizePacked", ["x"], [output], **attributes)


def make_model(
    nodes: list[NodeProto],
    outputs: dict[str, int],
    x: npt.NDArray[np.uint8] | TensorProto | None = None,
    opset: int = 24,
) -> ModelProto:
    """A model whose `x` is an initializer, or an input of any length where it is None."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, [None])] if x is None else []
    weights = [numpy_helper.from_array(x, "x") if isinstance(x, np.ndarray) else x] if x is not None else []
    values = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "graph", inputs, values, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def four_types(identifier: str, shape: list[int], x: npt.NDArray[np.uint8] | None, opset: int = 24) -> ModelProto:
    nodes = [packed_node(f"y{kind}", format=identifier, shape=shape, output_dtype=kind) for kind in OUTPUTS]
    return make_model(nodes, {f"y{kind}": kind for kind in OUTPUTS}, x, opset)


def words(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bits, with every NaN written alike, since NaN payloads are unspecified."""
    bits = values.view(f"u{values.itemsize}").copy()
    bits[np.isnan(values)] = 1
    return bits


def assert_same(found: list[Any], expected: npt.NDArray[np.float32]) -> None:
    assert len(found) == len(OUTPUTS)
    for values, dtype in zip(found, OUTPUTS.values(), strict=True):
        with np.errstate(all="ignore"):
            rounded = expected.astype(dtype)
        assert values.dtype == rounded.dtype
        assert values.shape == rounded.shape
        assert np.array_equal(words(values), words(rounded))


# --- values ---------------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("constant", [True, False], ids=["initializer", "input"])
def test_golden_blocks(
    profile: Profile, threads: int, level: str, constant: bool, packed_vectors: dict[str, np.ndarray]
) -> None:
    key = profile.name.lower()
    payload = packed_vectors[f"{key}/payload"].reshape(-1)
    expected = packed_vectors[f"{key}/bits"].view(np.float32).reshape(2, -1, profile.values)
    options = session_options()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = LEVELS[level]
    model = four_types(profile.identifier, list(expected.shape), payload if constant else None)
    loaded = session(model, options)
    assert [output.shape for output in loaded.get_outputs()] == [list(expected.shape)] * len(OUTPUTS)
    assert_same(run(loaded, {} if constant else {"x": payload}), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["gguf:q6_k", "gguf:mxfp4"])
def test_outputs_that_threads_share(name: str, threads: int) -> None:
    # many pieces of the runtime's pool, and a last one that is not whole; MXFP4 has subnormal numbers
    profile, shape = PROFILES[name], [1021, 1280]
    size = shape[0] * shape[1] // profile.values * profile.bytes
    payload = np.random.default_rng(3).integers(0, 256, size).astype(np.uint8)
    options = session_options()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.set_denormal_as_zero", "1")  # no business of the operator's
    loaded = session(four_types(name, shape, None), options)
    expected = dequantize_packed(payload, name, shape)
    assert_same(run(loaded, {"x": payload}), expected)
    assert_same(run(loaded, {"x": payload[::-1][::-1]}), expected)


@pytest.mark.parametrize("shape", [[0, 256], [3, 0], [2, 0, 512], [0], [0, 2**40]])
def test_empty_outputs(shape: list[int]) -> None:
    model = four_types("gguf:q4_k", shape, np.zeros(0, np.uint8))
    for values in run(session(model), {}):
        assert values.shape == tuple(shape)


def test_the_default_type_is_float() -> None:
    model = make_model([packed_node(format="gguf:q4_0", shape=[32])], {"y": 1}, np.zeros(18, np.uint8))
    (values,) = session(model).run(None, {})
    assert values.dtype == np.float32


def test_types_and_shapes_are_inferred() -> None:
    # Nothing but inference tells the runtime what the inner value is.
    nodes = [
        packed_node("packed", format="gguf:q8_0", shape=[2, 3, 32], output_dtype=TensorProto.FLOAT16),
        helper.make_node("Transpose", ["packed"], ["y"]),
    ]
    payload = np.arange(6 * 34).astype(np.uint8)
    loaded = session(make_model(nodes, {"y": TensorProto.FLOAT16}, payload))
    assert loaded.get_outputs()[0].shape == [32, 3, 2]
    expected = dequantize_packed(payload, "gguf:q8_0", [2, 3, 32], "float16").T
    assert np.array_equal(words(loaded.run(None, {})[0]), words(np.ascontiguousarray(expected)))


def test_bfloat16_goes_in_and_out() -> None:
    # Values of a packed weight, added to an input of the same type by way of float32.
    nodes = [
        packed_node(format="gguf:q8_0", shape=[32]),
        helper.make_node("Cast", ["b"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["y", "wide"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["z"], to=TensorProto.BFLOAT16),
    ]
    model = make_model(nodes, {"z": TensorProto.BFLOAT16, "y": TensorProto.FLOAT}, np.full(34, 0x3C, np.uint8))
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.BFLOAT16, [32]))
    b = np.arange(32).astype(ml_dtypes.bfloat16)
    loaded = session(model)
    z, y = run(loaded, {"b": b})
    assert np.array_equal(z, (y + b.astype(np.float32)).astype(ml_dtypes.bfloat16))
    assert np.array_equal(run(loaded, {"b": b}, ["y"])[0], y)


# --- weights stay packed --------------------------------------------------------------------------------------------


def test_weights_are_not_decoded_at_load(tmp_path: Path) -> None:
    options = session_options()
    options.graph_optimization_level = LEVELS["on"]
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    nodes = [packed_node(format="gguf:q4_0", shape=[4, 32]), helper.make_node("MatMul", ["a", "y"], ["z"])]
    model = make_model(nodes, {"z": TensorProto.FLOAT}, np.zeros(4 * 18, np.uint8))
    model.graph.input.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [3, 4]))
    session(model, options)
    optimized = onnx.load(tmp_path / "optimized.onnx")
    assert [node.op_type for node in optimized.graph.node] == ["DequantizePacked", "MatMul"]
    assert [(weight.name, list(weight.dims)) for weight in optimized.graph.initializer] == [("x", [4 * 18])]


def test_hundreds_of_weights() -> None:
    count = 400
    nodes = [packed_node(f"y{i}", format="gguf:q4_k", shape=[2, 256]) for i in range(count)]
    nodes.append(helper.make_node("Sum", [f"y{i}" for i in range(count)], ["z"]))
    payload = np.full(2 * 144, 0x3C, np.uint8)
    (total,) = session(make_model(nodes, {"z": 1}, payload)).run(None, {})
    assert np.allclose(total, count * dequantize_packed(payload, "gguf:q4_k", [2, 256]), rtol=1e-5)


# --- files and opsets -----------------------------------------------------------------------------------------------


def external(location: str, offset: int, length: int) -> TensorProto:
    tensor = TensorProto(
        name="x", data_type=TensorProto.UINT8, dims=[length], data_location=TensorProto.DataLocation.EXTERNAL
    )
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def two_operators(x: TensorProto, opset: int) -> ModelProto:
    nodes = [packed_node("w", format="gguf:q4_0", shape=[2, 32]), helper.make_node("Neg", ["w"], ["y"])]
    return make_model(nodes, {"y": 1}, x, opset)


@pytest.mark.parametrize("opset", [21, 24, 29])
def test_models_in_files(opset: int, tmp_path: Path) -> None:
    payload = np.arange(36).astype(np.uint8)
    (tmp_path / "weights.bin").write_bytes(bytes(33) + payload.tobytes())
    model = two_operators(external("weights.bin", 33, 36), opset)
    onnx.save(model, tmp_path / "model.onnx")
    expected = -dequantize_packed(payload, "gguf:q4_0", [2, 32])
    (found,) = session(tmp_path / "model.onnx").run(None, {})
    assert np.array_equal(words(found), words(expected))
    inline = two_operators(numpy_helper.from_array(payload, "x"), opset)
    for given in (inline, inline.SerializeToString()):
        assert np.array_equal(words(session(given).run(None, {})[0]), words(expected))


def test_an_imported_model_runs_on_the_bytes_of_its_gguf_file(tmp_path: Path) -> None:
    source = tmp_path / "mixed.gguf"
    source.write_bytes((Path(__file__).parents[2] / "examples" / "mixed.gguf").read_bytes())
    with quantform.open(source) as file:
        assert isinstance(file, GGUFSource)
        import_gguf(file, tmp_path / "mixed.onnx")
        loaded = session(tmp_path / "mixed.onnx")
        found = dict(zip((output.name for output in loaded.get_outputs()), run(loaded, {}), strict=True))
        assert set(found) == set(file)
        for name, tensor in file.items():
            expected = tensor.decode()
            assert found[name].dtype == expected.dtype
            assert np.array_equal(words(found[name]), words(expected))


@pytest.mark.parametrize("opset", [24, 29])
@pytest.mark.parametrize(
    ("location", "offset", "length"),
    [("../weights.bin", 0, 36), ("absent.bin", 0, 36), ("weights.bin", 0, 37), ("weights.bin", 2**40, 36)],
)
def test_external_data_that_is_not_there(location: str, offset: int, length: int, opset: int, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(36))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "weights.bin").write_bytes(bytes(36))
    onnx.save(two_operators(external(location, offset, length), opset), tmp_path / "inner" / "model.onnx")
    with pytest.raises(Exception, match=r"ONNXRuntimeError.*(xternal|length|file)"):
        session(tmp_path / "inner" / "model.onnx")


# --- what is wrong --------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"format": "gguf:q4_0", "shape": [2, 32]}
# The runtime reads a list of integers from an attribute of any kind.
NO_SHAPE = "shape [] has no dimension, or is no list of integers; expected one integer or more"
LENGTH = "payload of gguf:q4_0 [2, 32] has the wrong length; expected 36 bytes, found"
WRONG: list[tuple[dict[str, Any], list[int], str]] = [
    ({"shape": [32]}, [18], "attribute format is missing"),
    ({"format": "gguf:q4_0"}, [18], "attribute shape is missing"),
    ({**GOOD, "format": 2}, [36], "attribute format is missing, or is no string"),
    ({**GOOD, "shape": 32}, [36], NO_SHAPE),
    ({**GOOD, "shape": [1.0, 32.0]}, [36], NO_SHAPE),
    ({**GOOD, "format": "gguf:Q4_0"}, [36], "no format is called 'gguf:Q4_0'. Formats are case-sensitive"),
    ({**GOOD, "format": "gguf:q4_0(32)"}, [36], "no format is called 'gguf:q4_0(32)'"),
    ({**GOOD, "format": "x" * 1_000_000}, [36], "xxxx'.... Formats are case-sensitive"),
    ({**GOOD, "format": b"\xff\x00'\n"}, [36], r"'\xff\x00\x27\x0a'"),
    ({**GOOD, "shape": [2, 33]}, [36], "expected a multiple of 32, found 33"),
    ({**GOOD, "shape": [0, 31]}, [0], "expected a multiple of 32, found 31"),
    ({**GOOD, "shape": [-2, 32]}, [36], "has a negative dimension; found -2"),
    ({**GOOD, "shape": [-(2**63), -32]}, [36], "has a negative dimension"),
    ({**GOOD, "shape": [2**62, 32]}, [36], "more bytes than a tensor can have"),
    ({**GOOD, "shape": [2**63 - 1, 2**63 - 32]}, [36], "more bytes than a tensor can have"),
    ({**GOOD, "shape": [1] * 100_000 + [64]}, [18], "wrong length; expected 36 bytes, found 18"),
    ({**GOOD, "output_dtype": 7}, [36], "expected 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE) or 16 (BFLOAT16), found 7"),
    ({**GOOD, "output_dtype": -(2**63)}, [36], "found -9223372036854775808"),
    ({**GOOD, "output_dtype": "FLOAT"}, [36], "output_dtype is no integer"),
    ({**GOOD, "output_dtype": [1]}, [36], "output_dtype is no integer"),
    ({**GOOD, "output_dtype": 1.0}, [36], "output_dtype is no integer"),
    (GOOD, [35], LENGTH + " 35"),
    (GOOD, [0], LENGTH + " 0"),
    (GOOD, [6, 6], "x is not a vector of bytes; expected uint8 [n], found uint8 [6, 6]"),
]
# Loads each line's model and runs it with its feed, and prints what the runtime says, or "ran".
CHILD = """
import json, sys
import numpy as np, onnxruntime
from quantform.onnx import session_options
for line in sys.stdin:
    model, feed = json.loads(line)
    try:
        loaded = onnxruntime.InferenceSession(bytes.fromhex(model), session_options())
        loaded.run(None, {} if feed is None else {"x": np.zeros(feed, np.uint8)})
    except Exception as error:
        print(json.dumps(str(error)))
    else:
        print(json.dumps("ran"))
"""


def said(cases: list[tuple[ModelProto, list[int] | None]]) -> list[str]:
    """What a process of its own says of each case: a crash would be a failed test, not the end of all tests."""
    lines = "".join(json.dumps([model.SerializeToString().hex(), feed]) + "\n" for model, feed in cases)
    source = str(Path(_native.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_wrong_nodes() -> None:
    models = []
    for attributes, dims, _ in WRONG:
        node = packed_node(**attributes)
        node.name = "layer"
        models.append(make_model([node], {"y": 1}, np.zeros(dims, np.uint8)))
    answers = said([(model, None) for model in models])
    for answer, (_, _, expected) in zip(answers, WRONG, strict=True):
        assert expected in answer
        assert "DequantizePacked node 'layer': " in answer


def test_wrong_payloads_at_run_time() -> None:
    model = make_model([packed_node(**GOOD)], {"y": 1})
    answers = said([(model, [size]) for size in (0, 18, 35, 37, 36)])
    assert all(LENGTH in answer for answer in answers[:4])
    assert answers[4] == "ran"


def test_other_malformed_graphs() -> None:
    empty = packed_node(**GOOD)
    empty.attribute[1].ClearField("ints")
    twice = packed_node(**GOOD)
    twice.attribute.add().CopyFrom(helper.make_attribute("shape", [1, 32]))
    referring = packed_node(**GOOD)
    referring.attribute.add(name="output_dtype", ref_attr_name="kind", type=onnx.AttributeProto.INT)
    no_input = helper.make_node("DequantizePacked", [], ["y"], **GOOD)
    two_inputs = helper.make_node("DequantizePacked", ["x", "x"], ["y"], **GOOD)
    no_name = helper.make_node("DequantizePacked", [""], ["y"], **GOOD)
    no_output = helper.make_node("DequantizePacked", ["x"], [], **GOOD)
    nodes = [empty, twice, referring, no_input, two_inputs, no_name, no_output]
    cases = [make_model([node], {"y": 1}, np.zeros(36, np.uint8)) for node in nodes]
    typed = make_model([packed_node(**GOOD)], {"y": 1}, numpy_helper.from_array(np.zeros(36, np.int8), "x"))
    declared = make_model([packed_node(**GOOD)], {"y": TensorProto.INT32}, np.zeros(36, np.uint8))
    answers = said([(model, None) for model in [*cases, typed, declared]])
    assert "shape [] has no dimension" in answers[0]
    assert all("ONNXRuntimeError" in answer for answer in answers)


def test_the_wrong_node_is_blamed() -> None:
    # nothing but inference tells the type of what the second node takes
    for attributes in ({"format": "gguf:q4_0"}, {**GOOD, "shape": [2, 33]}):
        node = packed_node("w", **attributes)
        node.name = "weight"
        nodes = [node, helper.make_node("Transpose", ["w"], ["y"], perm=[1, 0])]
        (answer,) = said([(make_model(nodes, {"y": 1}, np.zeros(36, np.uint8)), None)])
        assert "weight" in answer
        assert "DequantizePacked" in answer


def test_nodes_in_functions_run_once_they_are_inlined() -> None:
    kinds = {"format": onnx.AttributeProto.STRING, "shape": onnx.AttributeProto.INTS}
    node = packed_node("w")
    for name, kind in kinds.items():
        node.attribute.add(name=name, ref_attr_name=name, type=kind)
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.example", 1)]
    function = helper.make_function("com.example", "F", ["x"], ["w"], [node], imports[:1], attributes=[*kinds])
    call = helper.make_node("F", ["x"], ["y"], domain="com.example", **GOOD)
    model = make_model([call], {"y": 1}, np.zeros(36, np.uint8))
    model.functions.append(function)
    model.opset_import.append(imports[1])
    (values,) = session(onnx.inliner.inline_local_functions(model)).run(None, {})
    assert values.shape == (2, 32)


def test_an_installation_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert custom_op_library().is_absolute()
    monkeypatch.setattr(runtime, "_LIBRARY", "absent.so")
    with pytest.raises(UnsupportedError, match=r"no compiled operator for onnxruntime.*Install a C\+\+20 compiler"):
        session_options()
    # sessions are there all the same, of standard operators
    payload = np.arange(36).astype(np.uint8)
    (tmp_path / "weights.bin").write_bytes(payload.tobytes())
    for opset in (24, 29):
        model = two_operators(external("weights.bin", 0, 36), opset)
        onnx.save(model, tmp_path / "model.onnx")
        (found,) = session(tmp_path / "model.onnx").run(None, {})
        assert np.array_equal(words(found), words(-dequantize_packed(payload, "gguf:q4_0", [2, 32])))


def test_a_library_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_LIBRARY", "__init__.py")
    with pytest.raises(UnsupportedError, match=r"does not take the operator's library; found .*__init__\.py"):
        session_options()


@pytest.mark.parametrize("name", ["portable", "z80"])
def test_the_instruction_set_may_be_named(name: str) -> None:
    script = "from quantform.onnx import session_options; session_options(); print('registered')"
    environment = {"PYTHONPATH": str(Path(_native.__file__).parents[2]), "QUANTFORM_NATIVE": "0", "QUANTFORM_ISA": name}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    if name == "portable":
        assert done.stdout == "registered\n"
    else:
        assert "QUANTFORM_ISA names no instruction set that is compiled in" in done.stderr
        assert "found 'z80'" in done.stderr


# --- options, functions, feeds ---------------------------------------------------------------------------------------


def in_directories(tmp_path: Path, opsets: dict[str, int]) -> dict[Path, npt.NDArray[np.uint8]]:
    """Models of one name for their weights, each in a directory of its own, and the weights."""
    found = {}
    for number, (name, opset) in enumerate(opsets.items()):
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        payload = np.full(36, 0x30 + number, np.uint8)
        (path.parent / "weights.bin").write_bytes(payload.tobytes())
        onnx.save(two_operators(external("weights.bin", 0, 36), opset), path)
        found[path] = payload
    return found


@pytest.mark.parametrize("opsets", [(29, 26), (26, 29), (29, 29), (26, 26)])
@pytest.mark.parametrize("way", ["file", "relative", "link", "bytes"])
def test_one_set_of_options_serves_models_in_many_directories(
    way: str, opsets: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = session_options()
    models = in_directories(tmp_path, dict(zip("ab", opsets, strict=True)))
    for path, payload in [*models.items(), *models.items()]:
        given: Any = path
        monkeypatch.chdir(tmp_path)
        if way == "relative":
            given = path.relative_to(tmp_path)
        elif way == "link":
            link = tmp_path / f"link_{path.parent.name}"
            if not link.exists():
                link.symlink_to(path.parent)
            given = link / path.name
        elif way == "bytes":
            monkeypatch.chdir(path.parent)
            given = path.read_bytes()
        (found,) = session(given, options).run(None, {})
        assert np.array_equal(words(found), words(-dequantize_packed(payload, "gguf:q4_0", [2, 32])))


def test_the_folder_of_an_option_that_was_there_is_written_anew(tmp_path: Path) -> None:
    options = session_options()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    (tmp_path / "weights.bin").write_bytes(bytes(36))
    ((path, payload),) = in_directories(tmp_path, {"a": 26}).items()
    (found,) = session(path, options).run(None, {})
    assert np.array_equal(words(found), words(-dequantize_packed(payload, "gguf:q4_0", [2, 32])))


def test_new_options_fold_no_large_constants() -> None:
    key = "optimization.constant_folding_max_output_size_in_bytes"
    assert session_options().get_session_config_entry(key) == "1048576"
    given = onnxruntime.SessionOptions()
    session_options(given)
    with pytest.raises(RuntimeError, match=key):
        given.get_session_config_entry(key)


def test_without_the_library_new_options_leave_functions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_LIBRARY", "absent.so")
    model = two_operators(numpy_helper.from_array(np.zeros(36, np.uint8), "x"), 29)
    key = "session.disable_aot_function_inlining"
    assert session(model).get_session_options().get_session_config_entry(key) == "1"
    given = onnxruntime.SessionOptions()
    session(model, given)
    with pytest.raises(RuntimeError, match=key):
        given.get_session_config_entry(key)


def calling(inner: list[str], shape: list[int]) -> ModelProto:
    """A model whose functions call one another, `inner` from the outside in; the last one has the node."""
    kinds = {"format": onnx.AttributeProto.STRING, "shape": onnx.AttributeProto.INTS}
    imports = [helper.make_opsetid("", 29), helper.make_opsetid("com.example", 1)]
    functions = []
    for name, target in zip(inner, [*inner[1:], "DequantizePacked"], strict=True):
        domain = "" if target == "DequantizePacked" else "com.example"
        node = helper.make_node(target, ["x"], ["w"], domain=domain)
        for attribute, kind in kinds.items():
            node.attribute.add(name=attribute, ref_attr_name=attribute, type=kind)
        functions.append(helper.make_function("com.example", name, ["x"], ["w"], [node], imports, attributes=[*kinds]))
    other = helper.make_function(
        "com.example", "Other", ["x"], ["w"], [helper.make_node("Neg", ["x"], ["w"])], imports[:1]
    )
    nodes = [
        helper.make_node(inner[0], ["x"], ["w"], domain="com.example", format="gguf:q4_0", shape=shape),
        helper.make_node("Other", ["w"], ["y"], domain="com.example"),
    ]
    model = make_model(nodes, {"y": 1}, np.full(36, 0x31, np.uint8), 29)
    model.functions.extend([*functions, other])
    model.opset_import.append(imports[1])
    return model


@pytest.mark.parametrize("library", ["quantform_ort.so", "absent.so"])
@pytest.mark.parametrize("inner", [["F"], ["G", "F"], ["H", "G", "F"]])
def test_sessions_take_nodes_out_of_functions(inner: list[str], library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_LIBRARY", library)
    (values,) = session(calling(inner, [2, 32])).run(None, {})
    payload = np.full(36, 0x31, np.uint8)
    assert np.array_equal(words(values), words(-dequantize_packed(payload, "gguf:q4_0", [2, 32])))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a path, the bytes of a model, or an onnx.ModelProto, found int"):
        session(3)  # type: ignore[arg-type]


def test_feeds_may_be_lists_and_options_of_a_run_are_handed_on() -> None:
    kinds = {"a": TensorProto.INT64, "b": TensorProto.FLOAT, "c": TensorProto.BFLOAT16}
    nodes = [helper.make_node("Cast", [name], [f"{name}_out"], to=TensorProto.FLOAT) for name in kinds]
    nodes.append(helper.make_node("Cast", ["b"], ["d_out"], to=TensorProto.BFLOAT16))
    outputs = {**{f"{name}_out": int(TensorProto.FLOAT) for name in kinds}, "d_out": int(TensorProto.BFLOAT16)}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, [2]) for name, kind in kinds.items()],
        [helper.make_tensor_value_info(name, kind, [2]) for name, kind in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    loaded = session(model)
    found = run(loaded, {"a": [1, 2], "b": [3, 4.5], "c": [5, 6]})
    assert [values.tolist() for values in found] == [[1, 2], [3, 4.5], [5, 6], [3, 4.5]]
    plain = session(make_model([packed_node(**GOOD)], {"y": 1}))
    assert run(plain, {"x": [0] * 36})[0].shape == (2, 32)
    stopped = onnxruntime.RunOptions()
    stopped.terminate = True
    cases: list[tuple[onnxruntime.InferenceSession, dict[str, Any]]] = [
        (plain, {"x": [0] * 36}),
        (loaded, {"a": [1, 2], "b": [3, 4.5], "c": [5, 6]}),
    ]
    for loaded_one, feeds in cases:
        with pytest.raises(Exception, match="terminate"):
            run(loaded_one, feeds, run_options=stopped)
