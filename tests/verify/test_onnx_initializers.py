"""Verification of ONNX models: initializers of types that are legal and not decoded, and bytes of no initializer."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnx_builder as ob
import quantform as qf
from quantform.sources.onnx_file import SCALAR_TYPES
from quantform.sources.onnx_model import OnnxSource

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
OTHERS = {
    name: number
    for name, number in TensorProto.DataType.items()
    if number not in SCALAR_TYPES.values() and name != "UNDEFINED"
}


def initializer(name: str) -> TensorProto:
    """Two elements."""
    if name == "STRING":
        return TensorProto(name="t", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff\x00"])
    size = {"COMPLEX64": 16, "COMPLEX128": 32}.get(name, 1)
    return ob.raw("t", OTHERS[name], [2], bytes(size))


@pytest.mark.parametrize("name", OTHERS)
def test_types_that_are_not_decoded_are_remarks(name: str, tmp_path: Path) -> None:
    made = ob.model([], [initializer(name)])
    made.ir_version = 13 if "INT2" in name else 10
    path = ob.write(tmp_path / "m.onnx", made)
    onnx.checker.check_model(made, full_check=True)
    for deep in (False, True):
        report = qf.verify(path, deep=deep)
        assert report.ok, report.findings
        assert [str(one) for one in report.remarks] == [f"t: values of type {name} are not decoded [undecoded]"]
    with qf.open(path) as source:
        assert source["t"].format == f"onnx:{name}"


def test_bytes_of_such_types_must_be_there_all_the_same(tmp_path: Path) -> None:
    path = ob.write(tmp_path / "m.onnx", ob.model([], [ob.raw("t", TensorProto.INT4, [3], bytes(1))]))
    report = qf.verify(path, deep=True)
    assert [(one.rule, one.object) for one in report.findings] == [("structure", "t")]
    assert not report.remarks


def test_sparse_initializers_are_remarks(tmp_path: Path) -> None:
    made = ob.model([], [ob.raw("t", TensorProto.UINT8, [1], b"a")])
    sparse = made.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "thin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64)))
    report = qf.verify(ob.write(tmp_path / "m.onnx", made))
    assert report.ok, report.findings
    assert [str(one) for one in report.remarks] == [
        "thin: a sparse initializer is neither listed nor decoded [undecoded]"
    ]


# --- bytes of external data that no tensor has ---------------------------------------------------------------------

# What the file has beside two tensors of 8 bytes: before, between and behind them; and how many of these are not zero.
REST: dict[str, tuple[bytes, bytes, bytes, int | None]] = {
    "nothing": (b"", b"", b"", None),
    "padding": (b"", bytes(4088), b"", None),
    "padding of Windows": (bytes(100), bytes((1 << 16) - 8), bytes(9), None),
    "more than padding": (b"", bytes(1 << 16), b"", 0),
    "not zero between": (b"", b"\0\1\2", b"", 2),
    "not zero before": (b"\3", b"", b"", 1),
    "not zero behind": (b"", bytes(8), b"\0\0\7", 1),
    "everywhere": (bytes(3) + b"\5", b"\1\0", bytes(1 << 17), 2),
}


def with_rest(path: Path, before: bytes, between: bytes, behind: bytes) -> Path:
    (path / "data").write_bytes(before + b"\1" * 8 + between + b"\1" * 8 + behind)
    offsets = len(before), len(before) + 8 + len(between)
    some = [ob.external(f"t{at}", TensorProto.FLOAT, (2,), location="data", offset=at) for at in offsets]
    return ob.write(path / "m.onnx", ob.model([], some))


@pytest.mark.parametrize("case", REST)
def test_bytes_that_no_tensor_has(tmp_path: Path, case: str) -> None:
    *rest, others = REST[case]
    path = with_rest(tmp_path, *rest)
    assert not qf.verify(path).total_remarks
    seen: list[tuple[int, int]] = []
    report = qf.verify(path, deep=True, progress=lambda done, total, _: seen.append((done, total)))
    assert report.ok, report.findings
    assert report.checked["bytes"] == (tmp_path / "data").stat().st_size
    assert {total for _, total in seen} == {seen[-1][0]}
    if others is None:
        assert not report.remarks
        return
    (remark,) = report.remarks
    assert (remark.rule, remark.object, remark.file) == ("unused", *[str(tmp_path / "data")] * 2)
    total, places = sum(map(len, rest)), sum(map(bool, rest))
    said = f"{total} bytes in {places} place{'s' if places > 1 else ''} belong to no tensor of the model, "
    assert remark.problem.startswith(f"{said}{others} of them not zero")
    first = (tmp_path / "data").read_bytes().replace(b"\1" * 8, bytes(8), 2).lstrip(b"\0")
    if others:
        assert remark.offset == (tmp_path / "data").stat().st_size - len(first)


def test_holes_take_no_time(tmp_path: Path) -> None:
    path = with_rest(tmp_path, b"", b"", b"")
    os.truncate(tmp_path / "data", 1 << 40)
    with (tmp_path / "data").open("r+b") as file:
        file.seek(20)
        file.write(b"x")
    (remark,) = qf.verify(path, deep=True).remarks
    assert "1 of the first 67108864 not zero" in remark.problem
    assert remark.offset == 20


def test_files_of_tensors_have_bytes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(EXAMPLE.read_bytes())
    qf.convert(tmp_path / "m.gguf", tmp_path / "m.onnx", data="reference")
    report = qf.verify(tmp_path / "m.onnx", deep=True)
    assert report.ok
    assert "unused" not in report.broken


def test_tensors_inside_nodes_have_their_bytes(tmp_path: Path) -> None:
    """Of subgraphs, functions, attributes, and sparse ones; each byte with its value is somebody's."""
    (tmp_path / "data").write_bytes(bytes(range(1, 49)))

    def weight(at: int, kind: int = TensorProto.FLOAT) -> TensorProto:
        return ob.external(f"t{at}", kind, (8 // (8 if kind == TensorProto.INT64 else 4),), location="data", offset=at)

    inner = onnx.helper.make_graph([], "inner", [], [], [weight(8)])
    constant = onnx.helper.make_node("Constant", [], ["c"], value=weight(16))
    branch = onnx.helper.make_node("If", ["b"], ["y"], then_branch=inner, else_branch=inner)
    made = ob.model([constant, branch], [weight(0)])
    sparse = made.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(weight(24))
    sparse.indices.CopyFrom(weight(32, TensorProto.INT64))
    nodes = [onnx.helper.make_node("Constant", [], ["d"], value=weight(40))]
    made.functions.append(onnx.helper.make_function("own", "f", [], ["d"], nodes, []))
    with qf.open(ob.write(tmp_path / "m.onnx", made)) as source:
        assert isinstance(source, OnnxSource)
        assert source.unused_spans() == {tmp_path / "data": []}
    made.graph.node.pop(0)
    with qf.open(ob.write(tmp_path / "m.onnx", made)) as source:
        assert isinstance(source, OnnxSource)
        assert source.unused_spans() == {tmp_path / "data": [(16, 24)]}
