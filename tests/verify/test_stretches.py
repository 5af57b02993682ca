"""Bytes that must be zeros and are not: one finding for each stretch of them, and all of them counted."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gguf_builder as gb
import ninfer_builder as nb
import quantform as qf
from quantform.cli import app
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from words_maker import make_words


def artifact(path: Path, payload: bytes, *tensors: dict[str, Any]) -> Path:
    directory = {
        "components": {"text": {"config": {}}},
        "objects": list(tensors),
        "bindings": {one["id"]: {"object": one["id"]} for one in tensors},
        "uses": [],
        "files": [{"path": None, "payload_bytes": len(payload)}],
    }
    return nb.Artifact(directory=directory, payload=payload).write(path)


def filled(between: bytearray) -> bytes:
    """With two stretches that are not zero."""
    between[100:3000], between[3500:3510] = bytes([7]) * 2900, bytes([8]) * 10
    return bytes(between)


def gap(path: Path) -> tuple[Path, str]:
    """Bytes between two objects."""
    payload = bytes(8) + filled(bytearray(4088)) + bytes(8)
    tensors = (nb.tensor(name, [2], "fp32", "contiguous_le_v1", at, 8) for name, at in (("a", 0), ("b", 4096)))
    return artifact(path / "m.ninfer", payload, *tensors), "gap"


def padding_of_gguf(path: Path) -> tuple[Path, str]:
    """Bytes up to the alignment between two tensors."""
    stored = (b"\1" * 8, b"\2" * 8)
    tensors = [gb.tensor(str(at), (2,), gb.F32, data, offset=4096 * at) for at, data in enumerate(stored)]
    data = gb.build(tensors, alignment=4096)
    begin, end = (data.index(one) for one in stored)
    path /= "m.gguf"
    path.write_bytes(data[: begin + 8] + filled(bytearray(end - begin - 8)) + data[end:])
    return path, "padding"


@pytest.mark.parametrize("piece", [1 << 19, 64])
@pytest.mark.parametrize("make", [gap, padding_of_gguf])
def test_a_stretch_is_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], tuple[Path, str]], piece: int
) -> None:
    monkeypatch.setattr(importlib.import_module("quantform.layouts.faults"), "CHECKED_BYTES", piece)
    path, rule = make(tmp_path)
    first = path.read_bytes().index(b"\7" * 2900)
    report = qf.verify(path, deep=True)
    assert [(one.rule, one.offset, one.count, one.found) for one in report.findings] == [
        (rule, first, 2900, "0x07"),
        (rule, first + 3400, 10, "0x08"),
    ]
    assert f"byte {first} of {path.name} and 2899 bytes behind it; expected 0x00" in report.findings[0].problem
    assert report.total == report.broken[rule] == 2910


@pytest.mark.parametrize(("name", "shape"), [("q5_g64_fp16", (1, 128)), ("fp8_e4m3fn_row_bf16", (1, 10))])
def test_padding_between_planes(tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
    record, layout = FORMATS[name], LAYOUTS[FORMATS[name].default_layout]
    begin, count = layout.gaps(record, shape)[0]
    payload = layout.pack(make_words(record, shape, np.random.default_rng(1)))
    payload[begin + 1 : begin + count] = 3
    tensor = nb.tensor("w", list(shape), name, layout.name, 0, payload.size)
    path = artifact(tmp_path / "m.ninfer", payload.tobytes(), tensor)
    (finding,) = qf.verify(path, deep=True).findings
    assert (finding.rule, finding.count) == ("padding", count - 1)


def test_the_command_ends_with_counts_where_it_does_not_list_all(tmp_path: Path) -> None:
    path = gap(tmp_path)[0]
    ran = CliRunner().invoke(app, ["verify", str(path), "--deep", "--max-findings", "1"])
    lines = ran.output.splitlines()
    assert lines[1:3] == ["wrong: 10 more, not listed", "wrong in all: gap 2910"]
    assert "in all" not in CliRunner().invoke(app, ["verify", str(path), "--deep"]).output
