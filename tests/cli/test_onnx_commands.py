"""ONNX models on the command line: convert, inspect, decode, verify, attach."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper, numpy_helper

import quantform as qf
from onnx_builder import model, write

if TYPE_CHECKING:
    from cli.conftest import Run  # the fixture's type

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return Path(shutil.copy(EXAMPLE, tmp_path / "mixed.gguf"))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """y = x @ w, with w as [K, N]."""
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [numpy_helper.from_array(np.zeros((256, 32), np.float32), "w")],
        [helper.make_tensor_value_info("y", 1, [None, 32])],
        inputs=[helper.make_tensor_value_info("x", 1, [None, 256])],
        opset=20,
    )
    return write(tmp_path / "graph.onnx", made)


def test_convert_says_what_became_of_the_tensors(run: Run, gguf: Path) -> None:
    target = gguf.with_suffix(".onnx")
    ran = run("convert", gguf, target)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert "1 tensor: DequantizePacked of gguf:q4_k" in lines
    assert "1 tensor: initializer of FLOAT16" in lines
    assert lines[-1].startswith(f"{target}: ")
    ran = run("convert", gguf, target, "--data", "copy", "--force", "--json")
    document = json.loads(ran.out)
    assert [Path(file["path"]).name for file in document["files"]] == ["mixed.onnx", "mixed.onnx.data"]


def test_inspect_shows_logical_tensors(run: Run, gguf: Path) -> None:
    target = gguf.with_suffix(".onnx")
    for options in ((), ("--qdq", "--data", "copy", "--force")):
        assert run("convert", gguf, target, *options).code == 0
        ran = run("inspect", target)
        assert ran.code == 0
        assert ran.out.startswith(f"{target}: ONNX, IR version 10, opset 29, 12 tensors, ")
        rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line.startswith("blk.")}
        assert rows["blk.0.attn_q.weight"] == ["32x256", "gguf:q4_k", "4.5", "4.6", "kB"]
        assert "name: Toy mixed" in ran.out
        document = json.loads(run("inspect", target, "--json").out)
        assert {tensor["name"] for tensor in document["tensors"]} == set(qf.open(gguf))
        assert document["metadata"]["general.architecture"] == "toy"
        assert "toy.block_count" in run("inspect", target, "--metadata").out


def test_decode_takes_rows(run: Run, gguf: Path, tmp_path: Path) -> None:
    target = gguf.with_suffix(".onnx")
    run("convert", gguf, target)
    ran = run("decode", target, "blk.0.attn_q.weight", "-o", tmp_path / "q.npy", "--rows", "3:5", "--dtype", "float16")
    assert ran.code == 0, ran.err
    with qf.open(gguf) as source:
        expected = source["blk.0.attn_q.weight"].decode("float16", rows=slice(3, 5))
    assert np.load(tmp_path / "q.npy").tobytes() == expected.tobytes()


def test_verify_compares_with_the_original(run: Run, gguf: Path) -> None:
    target = gguf.with_suffix(".onnx")
    run("convert", gguf, target)
    ran = run("verify", target, "--deep", "--against", gguf)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"{target}: all right")
    assert "12 of 12 tensors have equal bytes" in ran.out
    data = bytearray(gguf.read_bytes())
    data[-40] ^= 1
    (gguf.parent / "original.gguf").write_bytes(gguf.read_bytes())
    gguf.write_bytes(data)
    ran = run("verify", target, "--against", gguf.parent / "original.gguf")
    assert ran.code == 1
    assert "differs" in ran.out
    gguf.unlink()
    ran = run("verify", target)
    assert ran.code == 1
    assert "the external data is not there" in ran.out
    assert f"missing: {gguf}" in run("inspect", target).out


def test_attach_puts_packed_weights_into_a_graph(run: Run, gguf: Path, graph: Path, tmp_path: Path) -> None:
    names, target = tmp_path / "names.toml", tmp_path / "packed.onnx"
    names.write_text('w = "blk.0.attn_q.weight"\n')
    ran = run("onnx", "attach", graph, gguf, "--map", names, "-o", target)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[:2] == [
        "1 tensor: gguf:q4_k as FLOAT, transposed",
        "4.6 kB of packed weights in place of 32.8 kB",
    ]
    assert run("verify", target).code == 0
    document = json.loads(run("onnx", "attach", graph, gguf, "--map", names, "-o", target, "--force", "--json").out)
    assert document["tensors"] == {"gguf:q4_k as FLOAT, transposed": 1}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("onnx", "attach", "GRAPH", "GGUF", "-o", "OUT"), 2, "no float initializer has the name of a packed tensor"),
        (("onnx", "attach", "GGUF", "GGUF", "-o", "OUT"), 1, "not an ONNX model"),
        (("onnx", "attach", "GRAPH", "GRAPH", "-o", "OUT"), 1, "not a GGUF file"),
        (("onnx", "attach", "GRAPH", "GGUF", "-o", "OUT", "--map", "absent.toml"), 1, "no such file"),
        (("onnx", "attach", "GRAPH", "GGUF", "-o", "OUT", "--data", "there"), 2, "no place for weights"),
        (("convert", "GGUF", "OUT", "--data", "there"), 2, "no place for weights"),
        (("convert", "GGUF", "OUT", "--qdq"), 1, "--data copy"),
        (("convert", "GGUF", "OUT", "--format", "bf16"), 2, "format does not fit a conversion to ONNX"),
        (("convert", "GGUF", "OUT", "--dry-run"), 2, "only a conversion to .ninfer is planned"),
        (("convert", "GRAPH", "OUT"), 1, "no conversion from onnx to .onnx"),
        (("convert", "GGUF", "OUT.ninfer", "--qdq"), 2, "qdq only fits a conversion to ONNX"),
        (("inspect", "EMPTY"), 1, "not an ONNX model"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: int, message: str, run: Run, gguf: Path, graph: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.onnx").touch()
    places = {"GGUF": gguf, "GRAPH": graph, "OUT": tmp_path / "out.onnx", "EMPTY": tmp_path / "empty.onnx"}
    places["OUT.ninfer"] = tmp_path / "out.ninfer"
    ran = run(*(places.get(argument, argument) for argument in arguments))
    assert ran.code == code
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "out.onnx").exists()
