"""Verification of ONNX models whose initializers are of types that are legal and not decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnx_builder as ob
import quantform as qf
from quantform.sources.onnx_file import SCALAR_TYPES

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
