"""Errors against the source that are larger than asked for are findings, the same that `compare --max-error` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform.cli import app
from quantform.errors import ArgumentError

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


def findings(path: Path, source: Path, max_error: float | None) -> tuple[set[str], set[str]]:
    report = qf.verify(path, against=source, max_error=max_error)
    assert {one.rule for one in report.findings} <= {"error"}
    assert {one.rule for one in report.remarks} <= {"large-error"}
    return {one.object for one in report.findings}, {one.object for one in report.remarks}


@pytest.mark.parametrize("options", [{}, {"format": "q4_g64_fp16"}, {"format": "bf16"}], ids=str)
@pytest.mark.parametrize("max_error", [0, 0.002, 0.0945, 1])
def test_the_same_tensors_as_compare(tmp_path: Path, options: dict[str, Any], max_error: float) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, **options)
    beyond = qf.compare(EXAMPLE, path).beyond(max_error)
    assert findings(path, EXAMPLE, max_error) == (set(beyond), set())
    assert qf.verify(path, against=EXAMPLE).ok
    largest = {"q4_g64_fp16": 0.096, "bf16": 2**-9}.get(options.get("format", ""), 0)
    assert bool(beyond) == (max_error < largest)


def test_rounded_scales_are_measured(tmp_path: Path) -> None:
    codes = np.full((2, 32), 0x7E, np.uint8)
    model = sb.model(
        tmp_path,
        {
            "a.weight": ("F8_E4M3", codes.shape, codes.tobytes()),
            "a.weight_scale": np.array([[1], [1 + 2**-9]], np.float32),
        },
    )
    qf.convert(model, tmp_path / "m.ninfer")
    assert findings(tmp_path / "m.ninfer", model, 0.01) == (set(), set())
    assert findings(tmp_path / "m.ninfer", model, 0.0001) == ({"a.weight"}, set())
    assert qf.verify(tmp_path / "m.ninfer", against=model).errors == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((2, 32), 0.25), "found 3"),
        (np.zeros((2, 32)), "no number"),
        (np.full((2, 32), np.inf), "64 elements not finite on one side"),
    ],
    ids=["larger", "of zeros", "infinite"],
)
def test_large_errors_are_remarks(tmp_path: Path, values: Any, said: str) -> None:
    model = sb.model(tmp_path, {"w": values.astype(np.float32)})
    qf.convert({"w": np.ones((2, 32), np.float32)}, tmp_path / "m.ninfer", format="q8_g32_fp16")
    report = qf.verify(tmp_path / "m.ninfer", against=model)
    assert report.ok
    _, remark = report.remarks
    assert report.broken == {"origin": 1, "large-error": 1}
    assert (remark.rule, remark.object, remark.expected) == ("large-error", "w", "less than 1")
    assert said in remark.problem
    (finding,) = qf.verify(tmp_path / "m.ninfer", against=model, max_error=0.5).findings
    assert (finding.rule, finding.object, finding.expected) == ("error", "w", "at most 0.5")
    assert qf.verify(tmp_path / "m.ninfer", against=model, max_error=0.5).broken == {"origin": 1, "error": 1}


def test_words_of_another_file_have_errors(tmp_path: Path) -> None:
    """Equal ones have none; what differs is measured, and is a finding where no error is allowed."""
    blocks = bytearray(range(18)) * 2
    tensors = [gb.tensor("w", (2, 32), gb.Q4_0, bytes(blocks)), gb.tensor("v", (2, 32), gb.Q4_0, bytes(36))]
    (tmp_path / "o.gguf").write_bytes(gb.build(tensors))
    qf.convert(tmp_path / "o.gguf", tmp_path / "m.ninfer")
    blocks[2] ^= 1
    tensors[0] = gb.tensor("w", (2, 32), gb.Q4_0, bytes(blocks))
    (tmp_path / "p.gguf").write_bytes(gb.build(tensors, {"general.name": "another"}))
    report = qf.verify(tmp_path / "m.ninfer", against=tmp_path / "p.gguf")
    assert report.ok
    assert [one.rule for one in report.remarks] == ["origin"]
    assert [(one.name, one.row, one.column) for one in report.errors] == [("w", 0, 0)]
    assert "1 of 2 tensors are gguf_q4_0 of other gguf:q4_0" in report.notes
    report = qf.verify(tmp_path / "m.ninfer", against=tmp_path / "p.gguf", max_error=0)
    assert [(one.rule, one.object) for one in report.findings] == [("error", "w")]


def test_what_cannot_be_measured_is_beyond(tmp_path: Path) -> None:
    """A quantized artifact beside a file whose type is not decoded."""
    values = np.ones((2, 32), np.float32)
    (tmp_path / "o.gguf").write_bytes(gb.build([gb.tensor("w", (2, 32), gb.F32, values.tobytes())]))
    (tmp_path / "p.gguf").write_bytes(gb.build([gb.tensor("w", (2, 32), 99, bytes(64))]))
    qf.convert(tmp_path / "o.gguf", tmp_path / "m.ninfer", format="q8_g32_fp16")
    for path in (tmp_path / "o.gguf", tmp_path / "m.ninfer"):
        assert qf.verify(path, against=tmp_path / "p.gguf").ok
        (finding,) = qf.verify(path, against=tmp_path / "p.gguf", max_error=1).findings
        assert (finding.rule, finding.object) == ("error", "w")


@pytest.mark.parametrize("max_error", [-1, float("inf"), float("nan")])
def test_numbers_that_are_no_error(max_error: float) -> None:
    with pytest.raises(ArgumentError, match="no error"):
        qf.verify(EXAMPLE, against=EXAMPLE, max_error=max_error)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, format="q4_g64_fp16")
    command = ["verify", str(path), "--against", str(EXAMPLE), "--max-error"]
    assert CliRunner().invoke(app, [*command, "0.2"]).exit_code == 0
    ran = CliRunner().invoke(app, [*command, "0.0945"])
    assert ran.exit_code == 1
    assert "wrong: blk.0.attn_v.weight: the relative RMS error of q4_g64_fp16 is large; expected at most" in ran.output
    with pytest.raises(ArgumentError, match="nothing to measure against"):
        CliRunner().invoke(app, ["verify", str(path), "--max-error", "1"], catch_exceptions=False)
