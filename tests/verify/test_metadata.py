"""What two files of one kind say beside their tensors: the same is noted, and each thing that differs is a remark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import gguf_builder as gb
import quantform as qf
import quantized_weights as qw
import safetensors_builder as sb
from quantform.cli import app
from quantform.convert.checkpoint_carried import RESOURCES
from quantform.verify import Report

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")


def remarks(report: Report) -> list[tuple[str, str | None, str | None]]:
    assert report.ok, report.findings
    json.dumps(report.as_dict(), allow_nan=False)
    assert {one.rule for one in report.remarks} <= {"other-metadata"}
    return [(one.object, one.expected, one.found) for one in report.remarks]


def gguf(path: Path, metadata: dict[str, Any], **options: Any) -> Path:
    path.write_bytes(gb.build([gb.tensor("w", (2,), gb.F32, bytes(8))], metadata, **options))
    return path


VALUES: dict[str, tuple[Any, Any, str, str | None, str | None]] = {
    **{
        name: (gb.typed(name, 1), gb.typed(name, 2), "k", f"{name} {one(1)}", f"{name} {one(2)}")
        for name in NUMBERS
        for one in (float if name.startswith("float") else int,)
    },
    **{
        f"array of {name}": (gb.typed(name, [1, 2, 3]), gb.typed(name, [1, 9, 3]), "k[1]", f"{one(2)}", f"{one(9)}")
        for name in NUMBERS
        for one in (float if name.startswith("float") else int,)
    },
    "zero's sign": (gb.typed("float32", 0.0), gb.typed("float32", -0.0), "k", "float32 0.0", "float32 -0.0"),
    "bool": (True, False, "k", "bool True", "bool False"),
    "bools": ([True, False], [True, True], "k[1]", "False", "True"),
    "text": ("one", "two", "k", "string 'one'", "string 'two'"),
    "no UTF-8": (b"\xff", b"\xfe", "k", r"string b'\xff'", r"string b'\xfe'"),
    "texts": (["a", "bc", "d"], ["a", "xx", "d"], "k[1]", "'bc'", "'xx'"),
    "texts of other lengths": (["a", "bc"], ["ab", "c"], "k[0]", "'a'", "'ab'"),
    "more": ([1, 2], [1, 2, 3], "k", "array of 2 uint32", "array of 3 uint32"),
    "type": (gb.typed("uint32", 7), gb.typed("int32", 7), "k", "uint32 7", "int32 7"),
    "type of an array": (gb.typed("uint32", [7]), gb.typed("int32", [7]), "k", None, None),
}


@pytest.mark.parametrize("orders", [(False, False), (True, True), (False, True)], ids=["little", "big", "both"])
@pytest.mark.parametrize("what", VALUES)
def test_keys_of_gguf_files(tmp_path: Path, what: str, orders: tuple[bool, bool]) -> None:
    one, two, key, expected, found = VALUES[what]
    path = gguf(tmp_path / "m.gguf", {"a": 1, "k": two, "z": "z"}, big_endian=orders[0])
    other = gguf(tmp_path / "o.gguf", {"a": 1, "k": one, "z": "z"}, big_endian=orders[1])
    order = [("byte order", "big", "little")] if orders[0] != orders[1] else []
    (remark,) = [one for one in remarks(qf.verify(path, against=other)) if one not in order]
    assert remark[0] == key
    assert expected is None or remark[1:] == (expected, found)
    same = gguf(tmp_path / "s.gguf", {"a": 1, "k": two, "z": "z"}, big_endian=orders[1])
    report = qf.verify(path, against=same)
    assert remarks(report) == order
    assert ("metadata equal: 3 keys" in report.notes) == (not order)
    less = gguf(tmp_path / "l.gguf", {"z": "z", "a": 1}, big_endian=orders[0])
    assert [(name, have) for name, _, have in remarks(qf.verify(less, against=path))] == [("k", "nothing")]
    assert [(name, want) for name, want, _ in remarks(qf.verify(path, against=less))] == [("k", "nothing")]


def nested(value: int) -> gb.Raw:
    inner = [(4).to_bytes(4, "little") + (1).to_bytes(8, "little") + (n).to_bytes(4, "little") for n in (5, value)]
    return gb.Raw(9, (9).to_bytes(4, "little") + (2).to_bytes(8, "little") + b"".join(inner))


def test_arrays_of_arrays(tmp_path: Path) -> None:
    one, two = (gguf(tmp_path / f"{value}.gguf", {"k": nested(value)}) for value in (6, 7))
    assert remarks(qf.verify(two, against=one)) == [("k[1][0]", "6", "7")]
    assert remarks(qf.verify(one, against=one)) == []


def test_long_texts_are_shown_where_they_differ(tmp_path: Path) -> None:
    texts = ["x" * 5000 + "{{ one }}" + "y" * 5000, "x" * 5000 + "{{ two }}" + "y" * 5000]
    one, two = (gguf(tmp_path / f"{number}.gguf", {"k": text}) for number, text in enumerate(texts))
    (remark,) = qf.verify(two, against=one).remarks
    assert remark.problem.startswith("differs from byte 5003 on; expected ...'xxx")
    assert "{{ one }}" in str(remark.expected)
    assert "{{ two }}" in str(remark.found)
    assert len(remark.problem) < 250


def test_versions_and_parts_of_gguf_files(tmp_path: Path) -> None:
    one, two = gguf(tmp_path / "1.gguf", {}), gguf(tmp_path / "2.gguf", {}, version=2)
    assert remarks(qf.verify(two, against=one)) == [("GGUF version", "3", "2")]
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
        for number in range(2):
            metadata = {"k": directory if number else "same", **gb.split_metadata(number, 2, 2)}
            tensor = gb.tensor(f"w{number}", (2,), gb.F32, bytes(8))
            (tmp_path / directory / gb.part_name("m", number, 2)).write_bytes(gb.build([tensor], metadata))
    first = gb.part_name("m", 0, 2)
    assert remarks(qf.verify(tmp_path / "two" / first, against=tmp_path / "one" / first)) == [
        (f"{gb.part_name('m', 1, 2)}, k", "string 'one'", "string 'two'")
    ]
    tensors = [gb.tensor(f"w{number}", (2,), gb.F32, bytes(8)) for number in range(2)]
    (tmp_path / "whole.gguf").write_bytes(gb.build(tensors, {"k": "same"}))
    assert remarks(qf.verify(tmp_path / "two" / first, against=tmp_path / "whole.gguf")) == []


def test_a_changed_token_is_all_right_and_said(tmp_path: Path) -> None:
    data = EXAMPLE.read_bytes()
    assert data.count(b"<word-23>") == 1
    path = tmp_path / "m.gguf"
    path.write_bytes(data.replace(b"<word-23>", b"<wond-23>"))
    assert [(want, have) for _, want, have in remarks(qf.verify(path, against=EXAMPLE))] == [
        ("'<word-23>'", "'<wond-23>'")
    ]
    assert CliRunner().invoke(app, ["verify", str(path), "--against", str(EXAMPLE)]).exit_code == 0
    assert CliRunner().invoke(app, ["verify", str(path), "--against", str(EXAMPLE), "--strict"]).exit_code == 1


# --- checkpoints --------------------------------------------------------------------------------------------------


def checkpoint(path: Path, quantized: bool) -> Path:
    tensors = {"p.weight": np.ones((2, 32), np.float32)}
    config: dict[str, Any] = {"layers": 1, "nested": {"a": [1, 2]}}
    stored: dict[str, Any] = dict(tensors)
    if quantized:
        stored = {"p.weight": sb.f8([[0x38] * 32] * 2), "p.weight_scale": np.ones((2, 1), np.float32)}
        config |= qw.FP8_CHANNEL
    path.mkdir()
    sb.model(path, stored, config)
    (path / "model.safetensors").write_bytes(sb.build(stored, {"format": "pt"}))
    for name in (*RESOURCES, "hf_quant_config.json", "chat_template.json"):
        (path / name).write_text('{"a": 1}')
    (path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    return path


def edited(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "quantized"])
def test_files_beside_checkpoints(tmp_path: Path, quantized: bool) -> None:
    one, two = (checkpoint(tmp_path / name, quantized) for name in ("one", "two"))
    report = qf.verify(two, against=one)
    assert remarks(report) == []
    assert f"metadata equal: 1 key and {len(RESOURCES) + 3} files beside the tensors" in report.notes
    edited(two / "config.json", lambda document: document["nested"]["a"].__setitem__(1, 3))
    edited(two / "hf_quant_config.json", lambda document: document.update(b=2))
    expected = [("config.json, $.nested.a[1]", "2", "3"), ("hf_quant_config.json, $.b", "nothing", "2")]
    assert remarks(qf.verify(two, against=one)) == expected
    for name in RESOURCES:
        (two / name).write_text('{"a": 2}')
    report = qf.verify(two, against=one)
    assert remarks(report) == [*expected, *((name, "0x31", "0x32") for name in RESOURCES)]
    assert {(one.file, one.offset) for one in report.remarks[2:]} == {(str(two / name), 6) for name in RESOURCES}
    (two / "tokenizer.json").write_text('{"a": 1} ')
    (two / "vocab.json").unlink()
    changed = remarks(qf.verify(two, against=one))
    assert ("tokenizer.json", "8 bytes", "9 bytes") in changed
    assert ("vocab.json", "a file", "nothing") in changed
    assert ("vocab.json", "nothing", "a file") in remarks(qf.verify(one, against=two))
    data = (two / "model.safetensors").read_bytes()
    (two / "model.safetensors").write_bytes(data.replace(b'"pt"', b'"tf"'))
    assert ("__metadata__.format", "'pt'", "'tf'") in remarks(qf.verify(two, against=one))


def test_a_config_that_is_none_is_equal_to_itself(tmp_path: Path) -> None:
    one, two = (checkpoint(tmp_path / name, quantized=False) for name in ("one", "two"))
    for path in (one, two):
        (path / "config.json").write_text("{")
    assert {one.rule for one in qf.verify(two, against=one).remarks} == set()
    (two / "config.json").write_text("[")
    (remark,) = qf.verify(two, against=one).remarks
    assert (remark.rule, remark.object) == ("other-metadata", "config.json")


# --- ONNX -----------------------------------------------------------------------------------------------------------


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a value": (lambda model: setattr(model.metadata_props[0], "value", "x"), "metadata_props"),
    "a key more": (lambda model: model.metadata_props.add(key="k", value="v"), "metadata_props.k"),
    "version": (lambda model: setattr(model, "model_version", 7), "model.model_version"),
    "producer": (lambda model: setattr(model, "producer_name", "x"), "model.producer_name"),
    "a node": (lambda model: setattr(model.graph.node[1], "doc_string", "x"), "graph.node[1]"),
    "no node": (lambda model: model.graph.output.pop(), "graph.output["),
    "name": (lambda model: setattr(model.graph, "name", "x"), "graph.name"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_onnx_models(tmp_path: Path, what: str) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    qf.convert(EXAMPLE, one, data="inline")
    shutil.copyfile(one, two)
    assert any(note.startswith("metadata equal: ") for note in qf.verify(two, against=one).notes)
    model = onnx.load(two)
    change, place = CHANGES[what]
    change(model)
    onnx.save(model, two)
    (remark,) = remarks(qf.verify(two, against=one))
    assert remark[0].startswith(place)


def test_files_of_two_kinds_have_no_metadata_in_common(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "m.onnx", data="copy")
    qf.convert(EXAMPLE, tmp_path / "m.ninfer")
    for path, other in (("m.onnx", EXAMPLE), ("m.ninfer", EXAMPLE)):
        report = qf.verify(tmp_path / path, against=other)
        assert remarks(report) == []
        assert not any("metadata" in note for note in report.notes)
