"""GGUF models as ONNX models: complete, packed, accepted by onnx, and written whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import gguf_builder as gb
import quantform as qf
from gguf_to_onnx import beside, bits, blocks, evaluated
from quantform.errors import (
    ArgumentError,
    FileError,
    OutputExistsError,
    UnsupportedError,
)
from quantform.onnx import check_model, register
from quantform.onnx.storage import message_size

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
MB = 1 << 20
WAYS = ("reference", "copy", "inline")


def big_endian_model() -> bytes:
    return gb.build([gb.tensor("w", (2, 3), gb.F32, np.arange(6, dtype=">f4").tobytes())], big_endian=True)


# --- what is in the model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", WAYS)
def test_every_tensor_is_an_output_with_its_values(data: str, gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    report = qf.convert(gguf, target, data=data)
    assert sum(report.tensors.values()) == 40
    assert [path for path, _ in report.files] == [target, *([tmp_path / "model.onnx.data"] if data == "copy" else [])]
    check_model(target)
    model = onnx.load(target)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes = {
        info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim) for info in inferred.graph.output
    }
    names = [info.name for info in model.graph.output]
    with np.errstate(all="ignore"):
        values = evaluated(model)
    with qf.open(gguf) as source:
        assert names == list(source)
        for tensor, value in zip(source.values(), values, strict=True):
            assert shapes[tensor.name] == tensor.shape
            assert bits(value) == bits(np.asarray(tensor.decode())), tensor.name


@pytest.mark.parametrize("data", WAYS)
def test_a_model_is_a_source_with_the_same_words(data: str, gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    qf.convert(gguf, target, data=data)
    report = qf.verify(target, deep=True, against=gguf)
    assert report.ok, report.findings
    assert "40 of 40 tensors have equal bytes" in report.notes
    with qf.open(target) as made, qf.open(gguf) as source:
        assert list(made) == list(source)
        assert made.metadata["general.name"] == "toy"
        assert {t.name: (t.shape, t.format) for t in made.values()} == {
            t.name: (t.shape, t.format) for t in source.values()
        }


def test_shape_inference_gives_shapes_that_the_file_does_not_state(gguf: Path, tmp_path: Path) -> None:
    qf.convert(gguf, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    expected = {}
    for output in model.graph.output:
        expected[output.name] = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        output.type.tensor_type.ClearField("shape")
    register()
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    packed = {name for node in inferred.graph.node for name in node.output}
    assert len(packed) == 30
    for output in inferred.graph.output:
        if output.name in packed:
            assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == expected[output.name]


def test_an_original_shape_comes_back(tmp_path: Path) -> None:
    """Image models keep convolutions flattened, since their own last dimension is no whole block."""
    path = tmp_path / "m.gguf"
    data = blocks("gguf:q4_0", 9)
    keys = {f"comfy.gguf.orig_shape.{name}": gb.typed("int32", [8, 4, 3, 3]) for name in ("conv", "plain")}
    keys["comfy.gguf.orig_shape.rows"] = gb.typed("int32", [3, 3, 32])
    tensors = [
        gb.tensor("conv", (9, 32), gb.Q4_0, data),
        gb.tensor("plain", (288,), gb.F16, bytes(576)),
        gb.tensor("rows", (9, 32), gb.Q4_0, data),
    ]
    path.write_bytes(gb.build(tensors, keys))
    target = tmp_path / "m.onnx"
    qf.convert(path, target)
    check_model(target)
    model = onnx.load(target)
    assert [node.op_type for node in model.graph.node] == ["DequantizePacked", "Reshape", "DequantizePacked"]
    values = evaluated(model)
    assert [value.shape for value in values] == [(8, 4, 3, 3), (8, 4, 3, 3), (3, 3, 32)]
    with qf.open(target) as made, qf.open(path) as source:
        assert bits(values[0]) == bits(source["conv"].decode()) == bits(made["conv"].decode())
        assert list(made) == ["conv", "plain", "rows"]
    assert qf.verify(target, against=path).ok


def test_names_that_a_payload_would_take_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    names = ("w", "w.packed", "w.packed_", "w.blocks", "w.shape")
    path.write_bytes(gb.build([gb.tensor(name, (1, 32), gb.Q4_0, blocks("gguf:q4_0", 1)) for name in names]))
    qf.convert(path, tmp_path / "m.onnx")
    check_model(tmp_path / "m.onnx")
    assert qf.verify(tmp_path / "m.onnx", against=path).ok


def test_metadata_is_kept_as_text_or_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    keys = {
        "general.name": "Tüy",
        "number": gb.typed("uint64", 2**64 - 1),
        "negative": -5,
        "third": gb.typed("float32", 1 / 3),
        "flag": True,
        "nan": gb.typed("float64", float("nan")),
        "list": gb.typed("int32", [1, 2, 3]),
        "texts": gb.typed("string", ["a", 'b"c']),
        "long": "x" * 70_000,
        "many": gb.typed("string", ["token"] * 20_000),
        "few bytes, long text": gb.typed("float64", [1 / 3] * 5_000),
        "no text": gb.typed("string", b"\xff"),
    }
    path.write_bytes(gb.build([gb.tensor("w", (1,), gb.F32, bytes(4))], keys))
    report = qf.convert(path, tmp_path / "m.onnx")
    left = ["long", "many", "few bytes, long text", "no text"]
    with qf.open(tmp_path / "m.onnx") as made:
        assert dict(made.metadata) == {
            "general.name": "Tüy",
            "number": str(2**64 - 1),
            "negative": "-5",
            "third": repr(float(np.float32(1 / 3))),
            "flag": "true",
            "nan": '"nan"',
            "list": "[1, 2, 3]",
            "texts": '["a", "b\\"c"]',
            "quantform.metadata_left_out": json.dumps(left),
        }
    assert report.notes == [f"4 metadata values left out, too long or no text: {', '.join(left)}"]
    assert (tmp_path / "m.onnx").stat().st_size < 2000


def test_a_model_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.build([], {"general.name": "vocabulary"}))
    for data in WAYS:
        report = qf.convert(path, tmp_path / "m.onnx", data=data, force=True)
        assert len(report.files) == 1
        check_model(tmp_path / "m.onnx")


# --- where the weights are ------------------------------------------------------------------------------------------


def test_by_reference_nothing_is_copied(gguf: Path, tmp_path: Path) -> None:
    qf.convert(gguf, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    with qf.open(gguf) as source:
        for proto in model.graph.initializer:
            name = proto.name.removesuffix(".packed")
            if not source[name].nbytes:
                assert proto.raw_data == b""
                continue
            entries = {entry.key: entry.value for entry in proto.external_data}
            tensor = source[name]
            assert entries == {"location": "model.gguf", "offset": str(tensor.offset), "length": str(tensor.nbytes)}


def test_a_copy_is_aligned_and_complete(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    target = tmp_path / "else" / "m.onnx"
    report = qf.convert(gguf, target, data="copy")
    data = target.with_name("m.onnx.data")
    assert report.files == [(target, target.stat().st_size), (data, data.stat().st_size)]
    assert stat_mode(data) == stat_mode(target)
    model = onnx.load(target, load_external_data=False)
    end = 0
    for proto in model.graph.initializer:
        entries = {entry.key: entry.value for entry in proto.external_data}
        if entries:
            assert entries["location"] == "m.onnx.data"
            assert int(entries["offset"]) % 4096 == 0
            assert end <= int(entries["offset"]) < end + 4096
            end = int(entries["offset"]) + int(entries["length"])
    assert data.stat().st_size == end
    gguf.unlink()
    assert qf.verify(target, deep=True).ok


def stat_mode(path: Path) -> int:
    return path.stat().st_mode


def simple() -> bytes:
    return gb.build([gb.tensor("w", (2, 32), gb.Q4_0, blocks("gguf:q4_0", 2))])


def a_split_model(home: Path) -> tuple[Path, Path]:
    for number in range(2):
        spec = gb.tensor(f"w{number}", (1, 32), gb.Q4_0, blocks("gguf:q4_0", 1))
        (home / gb.part_name("m", number, 2)).write_bytes(gb.build([spec], gb.split_metadata(number, 2, 2)))
    return home / gb.part_name("m", 0, 2), home / "m.onnx"


def a_big_endian_model(home: Path) -> tuple[Path, Path]:
    source, target = beside(home)
    source.write_bytes(big_endian_model())
    return source, target


def another_directory(home: Path) -> tuple[Path, Path]:
    source, _ = beside(home)
    source.write_bytes(simple())
    (home / "else").mkdir()
    return source, home / "else" / "m.onnx"


def a_symbolic_link(home: Path) -> tuple[Path, Path]:
    source, target = beside(home)
    (home / "real.gguf").write_bytes(simple())
    source.symlink_to("real.gguf")
    return source, target


def a_hard_link(home: Path) -> tuple[Path, Path]:
    source, target = beside(home)
    source.write_bytes(simple())
    os.link(source, home / "other.gguf")
    return source, target


def a_strange_name(home: Path) -> tuple[Path, Path]:
    source = home / "m:a\\b.gguf"
    source.write_bytes(simple())
    return source, home / "m.onnx"


def a_name_that_is_no_text(home: Path) -> tuple[Path, Path]:
    source = home / os.fsdecode(b"m\xff.gguf")
    source.write_bytes(simple())
    return source, home / "m.onnx"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (a_split_model, "split model.*expected one file, found 2 files"),
        (a_big_endian_model, "big-endian"),
        (another_directory, "not beside the GGUF file.*expected an output in"),
        (a_symbolic_link, "is a symbolic link"),
        (a_hard_link, "is a hard link"),
        (a_strange_name, "cannot be a location"),
        (a_name_that_is_no_text, "cannot be a location"),
    ],
)
def test_where_a_reference_cannot_work_the_error_says_copy(
    case: Callable[[Path], tuple[Path, Path]], message: str, tmp_path: Path
) -> None:
    source, target = case(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsupportedError, match=f"{message}.*--data copy"):
        qf.convert(source, target)
    assert sorted(tmp_path.rglob("*")) == before
    qf.convert(source, target, data="copy")
    check_model(target)
    assert qf.verify(target, deep=True, against=source).ok


def test_a_link_to_the_directory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    source, target = beside(tmp_path / "real")
    source.write_bytes(simple())
    (tmp_path / "link").symlink_to("real")
    qf.convert(tmp_path / "link" / "m.gguf", target)
    assert qf.verify(tmp_path / "link" / "m.onnx", against=source).ok


def test_big_endian_fields_become_little_endian(tmp_path: Path) -> None:
    source, target = a_big_endian_model(tmp_path)
    qf.convert(source, target, data="inline")
    (proto,) = onnx.load(target).graph.initializer
    assert numpy_helper.to_array(proto).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_existing_output_is_kept_unless_forced(gguf: Path, tmp_path: Path) -> None:
    target, data = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    data.write_bytes(b"precious")
    with pytest.raises(OutputExistsError):
        qf.convert(gguf, target, data="copy")
    assert not target.exists()
    assert data.read_bytes() == b"precious"
    qf.convert(gguf, target, data="copy", force=True)
    assert qf.verify(target, against=gguf).ok
    with pytest.raises(OutputExistsError, match="exists already"):
        qf.convert(gguf, target)


def test_the_source_is_never_the_output(gguf: Path, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx.data"
    gguf.rename(source)
    with pytest.raises(OutputExistsError, match="being read"):
        qf.convert(source, tmp_path / "m.onnx", data="copy", force=True)


def test_a_failed_copy_leaves_nothing(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def fail(done: int, total: int, what: str) -> None:  # noqa: ARG001 - a progress's own signature
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qf.convert(gguf, tmp_path / "out" / "m.onnx", data="copy", progress=fail)
    assert not list((tmp_path / "out").iterdir())


def test_sizes_of_messages_are_exact(gguf: Path, tmp_path: Path) -> None:
    qf.convert(gguf, tmp_path / "m.onnx", data="inline")
    model = onnx.load(tmp_path / "m.onnx")
    size, added = model.ByteSize(), {}
    for proto in model.graph.initializer:
        if proto.raw_data:
            added[proto.name] = len(proto.raw_data)
            proto.ClearField("raw_data")
    for nbytes in (127, 128, 129, 16383, 16384, 2_100_000):
        model.graph.initializer.append(TensorProto(name=f"n{nbytes}"))
        added[f"n{nbytes}"] = nbytes
    predicted = message_size(model, added)
    for proto in model.graph.initializer:
        if proto.name in added:
            proto.raw_data = bytes(added[proto.name])
    assert predicted == model.ByteSize() > size


def test_more_than_a_message_holds_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    rows = 2**31 // 18
    source, target = beside(tmp_path)
    head = gb.build([gb.tensor("w", (rows, 32), gb.Q4_0)])
    with source.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + rows * 18)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsupportedError, match=r"longer than an ONNX file.*at most 2147483647 bytes.*--data reference"):
        qf.convert(source, target, data="inline")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert sorted(tmp_path.iterdir()) == [source]
    qf.convert(source, target)  # no limit of the weights themselves
    assert qf.verify(target, against=None).ok


def test_a_copy_takes_little_memory(tmp_path: Path) -> None:
    source, target = beside(tmp_path)
    head = gb.build([gb.tensor("w", (240 << 13, 32), gb.F32)])
    with source.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + (240 << 20))
    program = (
        "import re, sys, quantform as qf\n"
        "qf.convert(sys.argv[1], sys.argv[2], data='copy')\n"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, source, target], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 200


def test_a_thousand_weights(tmp_path: Path) -> None:
    source, target = beside(tmp_path)
    data = blocks("gguf:q4_0", 2)
    source.write_bytes(gb.build([gb.tensor(f"blk.{n}.w", (2, 32), gb.Q4_0, data) for n in range(1000)]))
    qf.convert(source, target)
    assert target.stat().st_size < 300_000
    assert qf.verify(target, against=source).ok


# --- what is refused ------------------------------------------------------------------------------------------------


def test_types_without_a_form_are_listed(tmp_path: Path) -> None:
    source, target = beside(tmp_path)
    source.write_bytes(gb.build([gb.tensor("old", (1, 32), 31, bytes(18)), gb.tensor("f", (1,), gb.F32, bytes(4))]))
    with pytest.raises(UnsupportedError, match=r"1 tensor of types that have no form in ONNX: 'old' \(Q4_0_4_4\)"):
        qf.convert(source, target)


def test_a_name_is_needed(tmp_path: Path) -> None:
    source, target = beside(tmp_path)
    source.write_bytes(gb.build([gb.tensor("", (1,), gb.F32, bytes(4))]))
    with pytest.raises(UnsupportedError, match="empty name"):
        qf.convert(source, target)


def test_options_that_do_not_fit(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    with pytest.raises(ArgumentError, match="data is no place for weights; expected reference, copy, inline"):
        qf.convert(gguf, target, data="there")
    with pytest.raises(ArgumentError, match="recipe does not fit a conversion to ONNX"):
        qf.convert(gguf, target, recipe=lambda *_: None)
    for option in ({"data": "copy"}, {"opset": 26}, {"qdq": True}):
        with pytest.raises(ArgumentError, match="only fits a conversion to ONNX"):
            qf.convert(gguf, tmp_path / "m.ninfer", **option)
    with pytest.raises(UnsupportedError, match=r"no conversion from arrays to \.onnx"):
        qf.convert({"a": np.zeros(2, np.float32)}, target)
    qf.convert(gguf, target)
    with pytest.raises(UnsupportedError, match=r"no conversion from onnx to \.gguf"):
        qf.convert(target, tmp_path / "back.gguf")


def test_onnx_is_a_source_of_conversions(tmp_path: Path) -> None:
    source = tmp_path / "mixed.gguf"
    source.write_bytes(EXAMPLE.read_bytes())
    qf.convert(source, tmp_path / "m.onnx")
    qf.convert(tmp_path / "m.onnx", tmp_path / "m.ninfer")
    report = qf.verify(tmp_path / "m.ninfer", deep=True, against=source)
    assert report.ok, report.findings


def test_what_onnx_refuses_is_a_finding(gguf: Path, tmp_path: Path) -> None:
    qf.convert(gguf, tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    model.graph.node[0].input[0] = "nowhere"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FileError, match=r"onnx refuses the model.*nowhere"):
        check_model(tmp_path / "m.onnx")
    (finding,) = qf.verify(tmp_path / "m.onnx").findings
    assert finding.rule == "onnx"
    assert "\n" not in str(finding)
    assert str(finding).count("m.onnx") == 1


@pytest.mark.parametrize("name", ["we ird..name", "a:b", "a\\b", "C:a", "tab\tname", "..a"])
def test_names_that_no_location_can_have_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.gguf"
    source.write_bytes(simple())
    (tmp_path / "w.gguf").write_bytes(simple())
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UnsupportedError, match=r"cannot be a location.*Rename it, or copy"):
        qf.convert(source, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=r"cannot be a location.*Give the model another name"):
        qf.convert(tmp_path / "w.gguf", tmp_path / f"{name}.onnx", data="copy")
    assert sorted(tmp_path.iterdir()) == before
    qf.convert(source, tmp_path / "m.onnx", data="copy")
    check_model(tmp_path / "m.onnx")
    qf.convert(tmp_path / "w.gguf", tmp_path / f"{name}.onnx", data="inline")
    assert qf.verify(tmp_path / f"{name}.onnx").ok


@pytest.mark.parametrize("options", [{}, {"opset": 26}, {"qdq": True, "data": "inline"}], ids=str)
def test_nodes_have_the_names_of_their_outputs(options: dict[str, Any], gguf: Path, tmp_path: Path) -> None:
    qf.convert(gguf, tmp_path / "m.onnx", **options)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    assert nodes
    assert [node.name for node in nodes] == [node.output[0] for node in nodes]


# --- lowered models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [21, 26, 28])
def test_an_earlier_version_gets_the_lowered_form(opset: int, gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    report = qf.convert(gguf, target, opset=opset)
    assert sum(count for way, count in report.tensors.items() if way.startswith("DequantizePacked")) == 30
    check_model(target)
    model = onnx.load(target, load_external_data=False)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset, "quantform": 1}
    verified = qf.verify(target, deep=True, against=gguf)
    assert verified.ok, verified.findings
    assert "40 of 40 tensors have equal bytes" in verified.notes
    with qf.open(target) as made, qf.open(gguf) as source:
        assert list(made) == list(source)
        assert {tensor.shape for tensor in made.values()} == {tensor.shape for tensor in source.values()}


def test_a_lowered_model_runs_in_onnxruntime_by_reference(gguf: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    qf.convert(gguf, tmp_path / "m.onnx", opset=26)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    with qf.open(gguf) as source:
        names = [name for name, tensor in source.items() if tensor.format != "bf16"]  # run() has no such array
        for name, value in zip(names, session.run(names, {}), strict=True):
            assert bits(value) == bits(np.asarray(source[name].decode())), name


def test_lowered_and_standard_operators_go_together(gguf: Path, tmp_path: Path) -> None:
    for opset in (25, 26, 28):
        qf.convert(gguf, tmp_path / "m.onnx", opset=opset, qdq=True, data="inline", force=True)
        check_model(tmp_path / "m.onnx")
        assert qf.verify(tmp_path / "m.onnx", against=gguf).ok


def test_versions_that_no_form_has_are_refused(gguf: Path, tmp_path: Path) -> None:
    for opset in (-1, 0, 1, 20, 30, 99, True, 2**70):
        with pytest.raises(ArgumentError, match=f"one from 21 on for the lowered form, found {opset}"):
            qf.convert(gguf, tmp_path / "m.onnx", opset=opset)
    assert not (tmp_path / "m.onnx").exists()
