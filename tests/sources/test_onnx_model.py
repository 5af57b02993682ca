"""ONNX models as sources: packed weights as logical tensors, everything bounded, and hostile models refused clearly."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantform as qf
from onnx_builder import external, model, packed_node, raw, write
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, FileError, MissingExtraError, QuantformError, UnsupportedError
from quantform.onnx import lower
from quantform.packed import PROFILES
from quantform.sources.onnx_contract import OUTPUT_TYPES
from quantform.sources.onnx_model import OnnxPacked, OnnxPlain, OnnxSource

U8 = TensorProto.UINT8
Q4 = bytes(range(36))  # two blocks of Q4_0


def small(**more: Any) -> onnx.ModelProto:
    """One packed weight `w` of shape [2, 32]."""
    return model([packed_node("x", "w", "gguf:q4_0", (2, 32), **more)], [raw("x", U8, (36,), Q4)])


def opened(tmp_path: Path, made: onnx.ModelProto) -> OnnxSource:
    return OnnxSource(write(tmp_path / "m.onnx", made))


# --- right models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", PROFILES)
def test_packed_weights_decode_as_the_operator_does(
    format: str, tmp_path: Path, packed_vectors: dict[str, np.ndarray]
) -> None:
    profile = PROFILES[format]
    payload = packed_vectors[f"{format.removeprefix('gguf:')}/payload"].reshape(-1)[: 4 * profile.bytes]
    shape = (2, 2 * profile.values)
    made = model([packed_node("x", "w", format, shape)], [raw("x", U8, payload.shape, payload.tobytes())])
    expected = qf.dequantize_packed(payload, format, shape)
    with qf.open(write(tmp_path / "m.onnx", made)) as source:
        (tensor,) = source.values()
        assert isinstance(tensor, OnnxPacked)
        assert (tensor.name, tensor.shape, tensor.format, tensor.nbytes) == ("w", shape, format, payload.size)
        assert tensor.initializer == "x"
        assert tensor.payload().tobytes() == payload.tobytes()
        assert tensor.decode().tobytes() == expected.tobytes()
        assert tensor.decode("float64", rows=[1, 1]).tobytes() == expected[[1, 1]].astype(np.float64).tobytes()
        assert tensor.decode(rows=slice(1, 2)).tobytes() == expected[1:].tobytes()


def test_the_mapping_and_what_it_says(tmp_path: Path) -> None:
    made = small(output_dtype=TensorProto.FLOAT16)
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "plain"))
    helper.set_model_props(made, {"general.name": "Toy"})
    with opened(tmp_path, made) as source:
        assert list(source) == ["w", "plain"]
        assert getattr(source["w"], "output_type", None) == "float16"
        assert source["w"].decode().dtype == np.float32  # rounds nothing unless asked
        assert source.kind == "onnx"
        assert source.opset == 29
        assert source.describe() == "ONNX, IR version 10, opset 29, 2 tensors"
        assert source.metadata == {"general.name": "Toy"}
        assert source.files == (tmp_path / "m.onnx",)
        assert "m.onnx" in repr(source)


TYPES = {
    "FLOAT": np.float32,
    "FLOAT16": np.float16,
    "BFLOAT16": ml_dtypes.bfloat16,
    "DOUBLE": np.float64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "FLOAT8E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("listed", [False, True], ids=["raw", "listed"])
@pytest.mark.parametrize("name", TYPES)
def test_plain_initializers(name: str, listed: bool, tmp_path: Path) -> None:
    values = np.array([[1, 0, 1], [0, 1, 1]]).astype(TYPES[name])
    kind = getattr(TensorProto, name)
    proto = (
        helper.make_tensor("t", kind, (2, 3), values.flatten()) if listed else raw("t", kind, (2, 3), values.tobytes())
    )
    with opened(tmp_path, model((), [proto])) as source:
        tensor = source["t"]
        assert isinstance(tensor, OnnxPlain)
        assert tensor.dtype_name == name
        assert SCALARS[tensor.format].dtype == values.dtype
        assert tensor.nbytes == values.nbytes
        tensor.check()
        out = np.empty(values.itemsize, np.uint8)
        tensor.read_into(values.itemsize, out)
        assert out.tobytes() == values.tobytes()[values.itemsize : 2 * values.itemsize]
        assert tensor.decode().tobytes() == values.tobytes()
        assert tensor.decode(rows=[1]).tobytes() == values[1:].tobytes()


def test_four_bit_floats_take_two_to_a_byte(tmp_path: Path) -> None:
    with opened(tmp_path, model((), [raw("t", TensorProto.FLOAT4E2M1, (3,), b"\x21\x04")])) as source:
        assert source["t"].decode("float32").tolist() == [0.5, 1.0, 2.0]
        assert source["t"].nbytes == 2


SIX_BITS = [name for name in ("FLOAT6E2M3", "FLOAT6E3M2") if hasattr(TensorProto, name)]  # since onnx 1.23


@pytest.mark.parametrize("name", SIX_BITS)
def test_six_bit_floats_take_four_to_three_bytes(name: str, tmp_path: Path) -> None:
    proto = raw("t", getattr(TensorProto, name), (5,), b"\x81\x42\x20\x3f")
    with opened(tmp_path, model((), [proto])) as source:
        assert source["t"].nbytes == 4
        words = np.array([0x01, 0x0A, 0x04, 0x08, 0x3F], np.uint8)
        assert source["t"].decode().view(np.uint8).tolist() == words.tolist()
        assert numpy_helper.to_array(proto).view(np.uint8).tolist() == words.tolist()


@pytest.mark.parametrize(
    ("proto", "format", "nbytes"),
    [
        (raw("t", TensorProto.INT4, (3,), b"\x21\x03"), "onnx:INT4", 2),
        (raw("t", TensorProto.UINT2, (5,), b"\x21\x03"), "onnx:UINT2", 2),
        (raw("t", TensorProto.COMPLEX64, (1,), bytes(8)), "onnx:COMPLEX64", 8),
        (TensorProto(name="t", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"bc"]), "onnx:STRING", 3),
    ],
    ids=["int4", "uint2", "complex", "texts"],
)
def test_other_types_are_listed_and_not_decoded(
    proto: onnx.TensorProto, format: str, nbytes: int, tmp_path: Path
) -> None:
    with opened(tmp_path, model((), [proto])) as source:
        tensor = source["t"]
        assert (tensor.format, tensor.nbytes, tensor.payload().size) == (format, nbytes, nbytes)
        with pytest.raises(UnsupportedError, match="cannot be read"):
            tensor.check()
        with pytest.raises(UnsupportedError):
            tensor.decode()


def test_scalars_and_tensors_without_elements(tmp_path: Path) -> None:
    made = model(
        [packed_node("x", "w", "gguf:q4_k", (0, 256))],
        [raw("x", U8, (0,), b""), raw("one", TensorProto.FLOAT, (), b"\0\0\x80\x3f"), raw("e", 1, (0, 3), b"")],
    )
    with opened(tmp_path, made) as source:
        assert source["w"].decode().shape == (0, 256)
        assert source["one"].decode() == 1.0
        assert source["e"].decode().shape == (0, 3)
    assert qf.verify(tmp_path / "m.onnx", deep=True).ok


def test_one_payload_may_be_two_weights(tmp_path: Path) -> None:
    nodes = [packed_node("x", "a", "gguf:q4_0", (2, 32)), packed_node("x", "b", "gguf:iq4_nl", (1, 64))]
    with opened(tmp_path, model(nodes, [raw("x", U8, (36,), Q4)])) as source:
        assert [(t.name, t.format, t.shape) for t in source.values()] == [
            ("a", "gguf:q4_0", (2, 32)),
            ("b", "gguf:iq4_nl", (1, 64)),
        ]


def test_a_payload_that_is_an_input_of_the_graph_is_no_weight(tmp_path: Path) -> None:
    given = helper.make_tensor_value_info("x", U8, [36])
    with opened(tmp_path, model([packed_node("x", "w", "gguf:q4_0", (2, 32))], inputs=[given])) as source:
        assert not source


def test_a_reshape_gives_name_and_shape(tmp_path: Path) -> None:
    made = small()
    made.graph.initializer.append(numpy_helper.from_array(np.array([4, 4, 4], np.int64), "s"))
    made.graph.node.append(helper.make_node("Reshape", ["w", "s"], ["cube"]))
    with opened(tmp_path, made) as source:
        assert list(source) == ["cube"]
        assert source["cube"].shape == (4, 4, 4)
        assert source["cube"].matrix == (2, 32)
        assert source["cube"].decode().tobytes() == qf.dequantize_packed(Q4, "gguf:q4_0", (4 * 4 * 4,)).tobytes()
        assert source["cube"].decode(rows=[1]).shape == (1, 32)
    made.graph.output.append(helper.make_tensor_value_info("w", 1, [2, 32]))  # then the first shape is wanted too
    with opened(tmp_path, made) as source:
        assert list(source) == ["w", "s"]


def reshaped(domain: str = "") -> onnx.ModelProto:
    made = small()
    made.graph.initializer.append(numpy_helper.from_array(np.array([64], np.int64), "s"))
    made.graph.node.append(helper.make_node("Reshape", ["w", "s"], ["flat"], domain=domain))
    return made


def test_a_reshape_of_another_domain_is_none(tmp_path: Path) -> None:
    with opened(tmp_path, reshaped("ai.onnx")) as source:
        assert list(source) == ["flat"]
    with opened(tmp_path, reshaped("com.example")) as source:
        assert list(source) == ["w", "s"]


@pytest.mark.parametrize(("used", "names"), [("w", ["w", "s"]), ("s", ["flat", "s"]), ("z", ["flat"])])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("as_output", [False, True])
def test_uses_inside_nodes_are_uses(as_output: bool, depth: int, used: str, names: list[str], tmp_path: Path) -> None:
    made = reshaped()
    nodes = [] if as_output else [helper.make_node("Identity", [used], ["inner"])]
    for _ in range(depth):
        outputs = [helper.make_tensor_value_info(used if as_output else "inner", 1, None)]
        body = helper.make_graph(nodes, "body", [], outputs)
        nodes = [helper.make_node("If", ["condition"], ["inner"], then_branch=body, else_branch=body)]
    made.graph.node.extend(nodes)
    with opened(tmp_path, made) as source:
        assert list(source) == names


def test_sparse_initializers_are_counted_and_not_listed(tmp_path: Path) -> None:
    made = small()
    sparse = made.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "thin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "at"))
    with opened(tmp_path, made) as source:
        assert list(source) == ["w"]
        assert source.sparse == ("thin",)
        assert source.describe() == "ONNX, IR version 10, opset 29, 1 tensor, 1 sparse initializer not listed"
    sparse.values.name = ""
    report = qf.verify(write(tmp_path / "m.onnx", made))
    assert [(one.rule, one.object) for one in report.remarks] == [("undecoded", "")]


def test_external_data_is_read_in_ranges(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"head" + Q4 + np.array([1, 2], np.float32).tobytes())
    made = model(
        [packed_node("x", "w", "gguf:q4_0", (2, 32))],
        [
            external("x", U8, (36,), location="sub/w.bin", offset=4, length=36),
            external("f", TensorProto.FLOAT, (2,), location="sub/w.bin", offset=40),
        ],
    )
    with opened(tmp_path, made) as source:
        assert source.files == (tmp_path / "m.onnx", tmp_path / "sub" / "w.bin")
        assert source["w"].payload().tobytes() == Q4
        assert source["f"].decode().tolist() == [1, 2]
        out = np.empty(3, np.uint8)
        source["w"].read_into(33, out)
        assert out.tobytes() == Q4[33:]
        with pytest.raises(ArgumentError, match="outside the tensor"):
            source["w"].read_into(34, out)
    with pytest.raises(FileError, match="closed"):
        source["w"].payload()


def test_a_model_of_three_gigabytes_opens_and_reads_without_loading_it(tmp_path: Path) -> None:
    size = 3 << 30
    rows = size // 18 // 8
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
        file.seek((rows - 1) * 144)
        file.write(bytes([0, 60]) + bytes([0x99]) * 16)
    made = model(
        [packed_node("x", "w", "gguf:q4_0", (rows, 256))],
        [external("x", U8, (rows * 144,), location="w.bin", offset=0, length=rows * 144)],
    )
    write(tmp_path / "m.onnx", made)
    program = (
        "import re, sys, quantform as qf\n"
        "with qf.open(sys.argv[1]) as f: print(f['w'].decode(rows=[-1])[0, :4].tolist())\n"
        "print(int(re.search(r'RssAnon:\\s*(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "m.onnx"], capture_output=True, check=True, text=True
    )
    values, used = done.stdout.splitlines()
    assert values == "[1.0, 1.0, 1.0, 1.0]"
    assert int(used) < 300


def test_links_of_a_download_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "1").write_bytes(Q4)
    made = model([packed_node("x", "w", "gguf:q4_0", (2, 32))], [external("x", U8, (36,), location="w.bin", length=36)])
    write(blobs / "2", made)
    (snapshot / "w.bin").symlink_to(blobs / "1")
    (snapshot / "m.onnx").symlink_to(blobs / "2")
    with OnnxSource(snapshot / "m.onnx") as source:
        assert source["w"].payload().tobytes() == Q4


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("quantform.sources.onnx_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'quantform\[onnx\]'"):
        qf.open(write(tmp_path / "m.onnx", small()))


@pytest.mark.parametrize("kind", OUTPUT_TYPES)
def test_calls_of_lowered_models_are_the_weights_that_they_decode(kind: int, tmp_path: Path) -> None:
    nodes = [
        packed_node(f"x{p.ggml_type}", p.name, name, (2, p.values), output_dtype=kind) for name, p in PROFILES.items()
    ]
    payloads = [raw(f"x{p.ggml_type}", U8, (2 * p.bytes,), bytes(2 * p.bytes)) for p in PROFILES.values()]
    with opened(tmp_path, lower(model(nodes, payloads))) as source:
        assert {tensor.name: tensor.format for tensor in source.values()} == {p.name: n for n, p in PROFILES.items()}
        for tensor in source.values():
            assert isinstance(tensor, OnnxPacked)
            assert tensor.output_type == OUTPUT_TYPES[kind]
            assert tensor.shape == (2, PROFILES[tensor.format].values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.graph.initializer[0].ClearField("raw_data"), "do not fit the type"),
        (lambda m: setattr(shape_of(m), "raw_data", np.array([2, 31]).tobytes()), "not whole Q4_0 blocks"),
        (lambda m: setattr(shape_of(m), "raw_data", np.array([2**62, 2**62]).tobytes()), "too many bytes"),
        (lambda m: setattr(shape_of(m), "raw_data", np.array([3, 32]).tobytes()), "wrong type or length"),
        (lambda m: setattr(shape_of(m), "raw_data", b"abc"), "rank 0"),
        (lambda m: setattr(shape_of(m), "data_type", TensorProto.FLOAT), "rank 0"),
    ],
)
def test_wrong_calls_of_lowered_models(change: Callable[[onnx.ModelProto], Any], message: str, tmp_path: Path) -> None:
    made = lower(small())
    change(made)
    with pytest.raises(FileError, match=message), opened(tmp_path, made) as source:
        source["w"].decode()


def shape_of(made: onnx.ModelProto) -> onnx.TensorProto:
    (call,) = made.graph.node
    found: onnx.TensorProto = next(proto for proto in made.graph.initializer if proto.name == call.input[1])
    return found


# --- hostile models -------------------------------------------------------------------------------------------------


def changed(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    made = small()
    change(made)
    return made


def attribute(index: int, **members: Any) -> onnx.ModelProto:
    made = small()
    for name, value in members.items():
        setattr(made.graph.node[0].attribute[index], name, value)
    return made


def packed(format: str | None, shape: tuple[int, ...] | None, nbytes: int = 36, **more: Any) -> onnx.ModelProto:
    return model([packed_node("x", "w", format, shape, **more)], [raw("x", U8, (nbytes,), bytes(nbytes))])


def elsewhere(**entries: Any) -> onnx.ModelProto:
    return model((), [external("t", U8, (36,), **entries)])


def twice() -> onnx.TensorProto:
    proto = external("t", U8, (1,), location="a")
    proto.external_data.add(key="location", value="b")
    return proto


DECLARED = {
    "no format": (packed(None, (2, 32)), "attribute format is missing"),
    "no shape": (packed("gguf:q4_0", None), "attribute shape is missing"),
    "unknown format": (packed("gguf:q4_00", (2, 32)), "no packed profile.*Did you mean 'gguf:q4_0'"),
    "parameterized format": (packed("gguf:q4_0?x=1", (2, 32)), "no packed profile"),
    "format of another case": (packed("gguf:Q4_0", (2, 32)), "no packed profile"),
    "format that is no text": (attribute(0, s=b"\xff\xfe"), "no packed profile"),
    "format of another kind": (attribute(0, type=onnx.AttributeProto.INT), "wrong kind"),
    "shape of another kind": (attribute(1, type=onnx.AttributeProto.FLOATS), "wrong kind"),
    "shape by reference": (attribute(1, ref_attr_name="a"), "left to the caller of a function"),
    "an attribute more": (packed("gguf:q4_0", (2, 32), axis=1), "does not know"),
    "an attribute twice": (
        changed(lambda m: m.graph.node[0].attribute.append(helper.make_attribute("shape", [2, 32]))),
        "or one twice",
    ),
    "output_dtype": (packed("gguf:q4_0", (2, 32), output_dtype=TensorProto.INT8), "not an output type"),
    "rank 0": (packed("gguf:q4_0", ()), "rank 0"),
    "negative dimension": (packed("gguf:q4_0", (-2, 32)), "negative"),
    "last dimension not whole blocks": (packed("gguf:q4_0", (2, 33)), "not whole Q4_0 blocks"),
    "payload too short": (packed("gguf:q4_0", (2, 32), 35), r"wrong type or length; expected UINT8 \[36\]"),
    "payload too long": (packed("gguf:q4_0", (2, 32), 37), r"found UINT8 \[37\]"),
    "payload of another type": (
        changed(lambda m: setattr(m.graph.initializer[0], "data_type", TensorProto.INT8)),
        r"found INT8 \[36\]",
    ),
    "huge dimensions": (packed("gguf:q4_0", (2**62, 2**62)), "too many bytes"),
    "huge empty dimensions": (packed("gguf:q4_0", (0, 2**62), 0), "below 2\\^60"),
    "two inputs": (changed(lambda m: m.graph.node[0].input.append("x")), "one input and one output"),
    "no output": (changed(lambda m: m.graph.node[0].ClearField("output")), "one input and one output"),
    "two weights of one name": (
        changed(lambda m: m.graph.node.append(packed_node("x", "w", "gguf:q4_0", (2, 32)))),
        "two values",
    ),
    "a weight with the name of an initializer": (
        changed(lambda m: m.graph.initializer.append(raw("w", 1, (), bytes(4)))),
        "two values",
    ),
    "two initializers of one name": (
        changed(lambda m: m.graph.initializer.append(raw("x", 1, (), bytes(4)))),
        "has no name, or one that another has",
    ),
    "an initializer without a name": (
        changed(lambda m: m.graph.initializer.append(raw("", 1, (), bytes(4)))),
        "has no name",
    ),
    "unknown element type": (model((), [raw("t", 99, (1,), b"a")]), "element type is unknown"),
    "negative dimension of numbers": (model((), [raw("t", U8, (-1,), b"")]), "shape cannot be"),
    "huge dimensions of numbers": (model((), [raw("t", U8, (2**40, 2**40), b"")]), "shape cannot be"),
    "fewer texts than elements": (
        model((), [TensorProto(name="t", data_type=TensorProto.STRING, dims=[2**40])]),
        "not as many texts",
    ),
    "texts outside": (model((), [external("t", TensorProto.STRING, (1,), location="a")]), "texts cannot be"),
    "no location": (elsewhere(offset=0), "no location"),
    "empty location": (elsewhere(location=""), "no location"),
    "absolute location": (elsewhere(location="/etc/passwd"), "without '..'"),
    "location on another drive": (elsewhere(location="C:\\data"), "without '..'"),
    "location above": (elsewhere(location="../data"), "without '..'"),
    "location above in the middle": (elsewhere(location="a/../../data"), "without '..'"),
    "location above for Windows": (elsewhere(location="a\\..\\..\\data"), "without '..'"),
    "location with NUL": (elsewhere(location="a\0b"), "without '..'"),
    "location twice": (model((), [twice()]), "gives 'location' twice"),
    "negative offset": (elsewhere(location="a", offset=-1), "offset is not a number"),
    "offset that is no number": (elsewhere(location="a", offset="1e3"), "offset is not a number"),
    "offset of other digits": (elsewhere(location="a", offset="\u0661"), "offset is not a number"),
    "huge offset": (elsewhere(location="a", offset=2**63), "offset is not a number"),
    "negative length": (elsewhere(location="a", length=-36), "length is not a number"),
    "length of another size": (elsewhere(location="a", length=35), "wrong length; expected 36 bytes"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_what_a_model_declares_wrongly_is_refused_on_opening(case: str, tmp_path: Path) -> None:
    made, message = DECLARED[case]
    with pytest.raises(FileError, match=message) as caught:
        opened(tmp_path, made)
    assert str(tmp_path / "m.onnx") in str(caught.value)


FOUND = {
    "raw data too short": (model((), [raw("t", 1, (2,), bytes(7))]), "expected 8 bytes.*found 7"),
    "raw data too long": (model((), [raw("t", 1, (2,), bytes(9))]), "expected 8 bytes.*found 9"),
    "no data": (model((), [TensorProto(name="t", data_type=1, dims=[2])]), "do not fit|wrong length"),
    "much data declared, none there": (model((), [TensorProto(name="t", data_type=1, dims=[2**40])]), "do not fit"),
    "numbers too few": (model((), [TensorProto(name="t", data_type=1, dims=[3], float_data=[1, 2])]), "do not fit"),
    "no such file": (elsewhere(location="absent"), "not there.*Put the file beside the model"),
    "a directory": (elsewhere(location="directory"), "not a regular file"),
    "a pipe": (elsewhere(location="pipe"), "not a regular file"),
    "beyond the end": (elsewhere(location="short", offset=1), "ends too early; expected 36 bytes at byte 1"),
    "far beyond the end": (elsewhere(location="short", offset=2**62), "ends too early"),
    "a link away": (elsewhere(location="link"), "a link out of the model's directory"),
    "a directory that is a link away": (elsewhere(location="away/outside"), "a link out of the model's directory"),
    "a loop of links": (elsewhere(location="loop"), "not there"),
    "a very long name": (elsewhere(location="a" * 5000), "not there"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_not_there_is_refused_when_it_is_read(case: str, tmp_path: Path) -> None:
    made, message = FOUND[case]
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside").write_bytes(bytes(36))
    (home / "directory").mkdir()
    (home / "short").write_bytes(bytes(36))
    (home / "link").symlink_to("../outside")
    (home / "away").symlink_to("..")
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "pipe")
    with opened(home, made) as source:
        for act in (source["t"].check, source["t"].payload, source["t"].decode):
            with pytest.raises(FileError, match=message) as caught:
                act()
            assert "m.onnx, initializer 't'" in str(caught.value)
    assert [finding.rule for finding in qf.verify(home / "m.onnx").findings] == ["structure"]


def test_no_bytes_are_no_model(tmp_path: Path) -> None:
    whole = small().SerializeToString()
    path = tmp_path / "m.onnx"
    for data in (b"", b"\0", b"GGUF" * 8, whole + b"\0", b"\x0a" * 4096, b"\x3a\xff\xff\xff\xff\x7f"):
        path.write_bytes(data)
        with pytest.raises(FileError, match="not an ONNX model"):
            qf.open(path)


def marked(change: Callable[[onnx.ModelProto], Any]) -> bytes:
    """A model with a function, a graph in a node and all the rest, with what was set to "MARK" no text any more."""
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["i"])], "inner", [], [])
    made = small()
    made.graph.node.append(helper.make_node("If", ["c"], ["o"], then_branch=inner))
    made.graph.initializer.append(external("t", U8, (36,), location="a"))
    made.graph.initializer[0].metadata_props.add(key="k", value="v")
    made.graph.node[0].metadata_props.add(key="k", value="v")
    made.graph.sparse_initializer.add(dims=[1]).values.name = "s"
    made.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n"]))
    made.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, ["n", 32]))
    made.graph.metadata_props.add(key="k", value="v")
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=1),
        helper.make_node("If", ["c"], ["y"], then_branch=inner),
        helper.make_node("Elu", ["c"], ["z"]),
    ]
    nodes[2].attribute.add(name="alpha", ref_attr_name="a", type=onnx.AttributeProto.FLOAT)
    made.functions.append(helper.make_function("d", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 21)], ["a"]))
    made.functions[0].metadata_props.add(key="k", value="v")
    made.functions[0].attribute_proto.append(helper.make_attribute("b", 1))
    made.metadata_props.add(key="k", value="v")
    change(made)
    data: bytes = made.SerializeToString()
    assert data.count(b"MARK") == 1
    return data.replace(b"MARK", b"\xa0ARK")


NO_TEXTS = (
    "producer_name",
    "domain",
    "opset_import[0].domain",
    "metadata_props[0].key",
    "metadata_props[0].value",
    "graph.name",
    "graph.metadata_props[0].key",
    "graph.initializer[0].name",
    "graph.initializer[0].metadata_props[0].value",
    "graph.initializer[1].external_data[0].key",
    "graph.initializer[1].external_data[0].value",
    "graph.sparse_initializer[0].values.name",
    "graph.value_info[0].name",
    "graph.value_info[0].type.tensor_type.shape.dim[0].dim_param",
    "graph.output[0].name",
    "graph.node[0].op_type",
    "graph.node[0].domain",
    "graph.node[0].name",
    "graph.node[0].input[0]",
    "graph.node[0].output[0]",
    "graph.node[0].attribute[0].name",
    "graph.node[0].metadata_props[0].key",
    "graph.node[1].attribute[0].g.name",
    "graph.node[1].attribute[0].g.node[0].op_type",
    "functions[0].name",
    "functions[0].domain",
    "functions[0].overload",
    "functions[0].input[0]",
    "functions[0].output[0]",
    "functions[0].attribute[0]",
    "functions[0].attribute_proto[0].name",
    "functions[0].opset_import[0].domain",
    "functions[0].metadata_props[0].key",
    "functions[0].metadata_props[0].value",
    "functions[0].node[0].op_type",
    "functions[0].node[0].domain",
    "functions[0].node[0].overload",
    "functions[0].node[0].name",
    "functions[0].node[0].input[0]",
    "functions[0].node[0].output[0]",
    "functions[0].node[0].attribute[0].name",
    "functions[0].node[1].attribute[0].g.node[0].op_type",
    "functions[0].node[1].attribute[0].g.node[0].output[0]",
    "functions[0].node[2].attribute[0].ref_attr_name",
)


def mark(place: str, message: Any) -> None:
    """Set the text at `a[0].b` of a message."""
    *steps, last = place.split(".")
    for step in steps:
        name, _, index = step.rstrip("]").partition("[")
        message = getattr(message, name)[int(index)] if index else getattr(message, name)
    name, _, index = last.rstrip("]").partition("[")
    if index:
        getattr(message, name)[int(index)] = "MARK"
    else:
        setattr(message, name, "MARK")


@pytest.mark.parametrize("place", NO_TEXTS)
def test_texts_that_are_not_utf_8_are_named_wherever_they_are(place: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(marked(functools.partial(mark, place)))
    with pytest.raises(FileError) as caught:
        qf.open(path)
    assert str(caught.value) == f"{path}, {place}: a text of the model is not UTF-8; found b'\\xa0ARK'"
    assert [finding.rule for finding in qf.verify(path).findings] == ["open"]


@pytest.mark.parametrize("place", ["doc_string", "functions[0].node[0].doc_string"])
def test_descriptions_may_be_anything(place: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(marked(functools.partial(mark, place)))
    with qf.open(path) as source:
        assert "w" in source


def test_every_shortening_of_a_model_is_an_error_of_ours_or_a_model(tmp_path: Path) -> None:
    whole = small().SerializeToString()
    path = tmp_path / "m.onnx"
    complete = 0
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with contextlib.suppress(FileError), qf.open(path) as source:
            assert list(source) == ["w"]
            complete += 1
    assert complete == 1  # what follows the graph, the import of operators, is one field


def test_every_changed_byte_is_an_error_of_ours_or_none(tmp_path: Path) -> None:
    made = small()
    made.graph.initializer.append(external("t", U8, (36,), location="a", offset=0, length=36))
    whole = made.SerializeToString()
    (tmp_path / "a").write_bytes(bytes(36))
    rng = np.random.default_rng(5)
    path = tmp_path / "m.onnx"
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        with contextlib.suppress(QuantformError), qf.open(path) as source:
            for tensor in source.values():
                tensor.decode()


def test_a_file_longer_than_any_message_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(FileError, match=r"no ONNX model is that long.*found 2147483648 bytes"):
        qf.open(path)


def test_pipes_and_directories_are_no_models(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(FileError, match="not a regular file"):
        qf.open(tmp_path / "pipe.onnx")
