"""What `onnx` raises of a model, whatever it is, is an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from onnx_builder import model
from quantform.errors import FileError
from quantform.onnx import check_model


def in_function(operator: bytes) -> bytes:
    made = model([helper.make_node("F", ["x"], ["y"], domain="d")], [])
    imports = [helper.make_opsetid("", 21)]
    node = helper.make_node("MARK", ["x"], ["y"])
    made.functions.append(helper.make_function("d", "F", ["x"], ["y"], [node], imports))
    made.opset_import.append(helper.make_opsetid("d", 1))
    data: bytes = made.SerializeToString()
    return data.replace(b"MARK", operator)


@pytest.mark.parametrize("data", [b"\x3a\xff\xff", in_function(b"Nope"), in_function(b"\xa0ope")])
def test_what_onnx_says_is_passed_on(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(FileError, match="onnx refuses the model; found ") as caught:
        check_model(path)
    assert str(caught.value).startswith(str(path))
