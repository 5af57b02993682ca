"""`quantform compare`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb

if TYPE_CHECKING:
    from cli.conftest import Run  # the fixture's type

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.ninfer"
    qf.convert(EXAMPLE, path, format="q4_g64_fp16")
    return path


def test_a_table_with_the_worst_first_and_a_total(run: Run, small: Path) -> None:
    ran = run("compare", EXAMPLE, small)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == f"A {EXAMPLE}: GGUF version 3, 12 tensors, 38.6 kB, 5.768 bits/weight"
    assert lines[1].startswith(f"B {small}: .ninfer version 3, ")
    first = lines.index(next(line for line in lines if line.startswith("-"))) + 1
    errors = [float(line.split()[6]) for line in lines[first : first + 7]]
    assert errors == sorted(errors, reverse=True)
    assert lines[first + 11].split()[0] == "total"
    assert "same bytes" in ran.out
    assert lines[-1] == "only in A: blk.0.ffn_unused"
    by_name = run("compare", EXAMPLE, small, "--sort", "name").out.splitlines()
    assert [line.split()[0] for line in by_name[first : first + 2]] == ["blk.0.attn_k.weight", "blk.0.attn_norm.weight"]


def test_one_json_document(run: Run, small: Path) -> None:
    document = json.loads(run("compare", EXAMPLE, small, "--json").out)
    assert document["ok"]
    assert document["a"]["bits_per_weight"] == pytest.approx(5.768, abs=1e-3)
    assert len(document["tensors"]) == document["total"]["tensors"] == 11
    assert document["tensors"][0]["relative_rms"] > document["tensors"][1]["relative_rms"]
    assert "beyond" not in document
    ran = run("compare", EXAMPLE, small, "--json", "--max-error", 0.0945)
    assert ran.code == 1
    assert json.loads(ran.out)["beyond"] == ["blk.0.attn_v.weight"]


def test_an_error_that_is_allowed(run: Run, small: Path, tmp_path: Path) -> None:
    assert run("compare", small, small, "--max-error", 0).code == 0
    loose = run("compare", small, EXAMPLE, "--max-error", 0.2)
    assert loose.code == 0
    ran = run("compare", small, EXAMPLE, "--max-error", 0.09)
    assert ran.code == 1
    assert "not within 0.09: blk.0.attn_v.weight" in ran.out
    for wrong in ("nan", "-1", "inf"):
        ran = run("compare", small, EXAMPLE, "--max-error", wrong)
        assert (ran.code, ran.out) == (2, "")
        assert "--max-error" in ran.err
    (tmp_path / "map.toml").write_text("none = 'none'")
    assert run("compare", small, EXAMPLE, "--map", tmp_path / "map.toml").code == 2
    assert run("compare", small, EXAMPLE, "--sort", "colour").code == 2
    assert run("compare", small, EXAMPLE, "--tensor", "token_embd.weight").code == 2


def test_broken_files(run: Run, small: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"GGUF")
    ran = run("compare", tmp_path / "x", small)
    assert (ran.code, ran.out) == (1, "")
    codes = np.zeros((2, 32), np.uint8)
    scales = np.array([[1.0], [np.inf]], np.float32)
    path = tmp_path / "w.gguf"
    weight = sb.model(tmp_path, {"w.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "w.weight_scale": scales})
    path.write_bytes(gb.build([gb.tensor("w.weight", (2, 32), gb.F32, bytes(256))]))
    ran = run("compare", path, weight)
    assert ran.code == 1
    assert "broken: w.weight: " in ran.out


def test_names_cannot_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    name = "\x1b]0;owned\x07\u202e"
    for place, value in (("a", 1.0), ("b", 2.0)):
        data = np.array([value, np.inf], "<f4").tobytes()
        tensors = [gb.tensor(name, (2,), gb.F32, data), gb.tensor(name + place, (1,), gb.F32, data[:4])]
        (tmp_path / place).write_bytes(gb.build(tensors))
    ran = run("compare", tmp_path / "a", tmp_path / "b", "--max-error", 0.1)
    assert ran.code == 1
    assert "only in A" in ran.out
    assert "1 infinite in A" in ran.out
    assert not {"\x1b", "\x07", "\u202e"} & set(ran.out)


def test_long_names_lose_their_middle_in_the_table_only(run: Run, tmp_path: Path) -> None:
    names = ["a" * 2500 + tail * 2500 for tail in "bc"] + ["\x1b" * 5000, "w" * 80]
    for place, value in (("a", 1.0), ("b", 2.0)):
        tensors = [gb.tensor(name, (1,), gb.F32, np.array([value], "<f4").tobytes()) for name in names]
        (tmp_path / place).write_bytes(gb.build(tensors))
    ran = run("compare", tmp_path / "a", tmp_path / "b")
    table = [line for line in ran.out.splitlines() if "fp32" in line]
    assert len(table) == 4
    assert max(map(len, table)) < 200
    assert [line.split()[0] for line in table[:2]] == ["a" * 38 + "..." + tail * 39 for tail in "bc"]
    assert table[3].split()[0] == "w" * 80
    document = json.loads(run("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert [one["name"] for one in document["tensors"]] == names


@pytest.mark.parametrize(("left", "right"), [(1.0, np.nan), (np.nan, 1.0), (np.inf, -np.inf)])
def test_what_is_not_finite_on_one_side_does_not_look_perfect(
    run: Run, tmp_path: Path, left: float, right: float
) -> None:
    for place, value in (("a", left), ("b", right)):
        data = np.array([[0.5, 3, value, 4]], "<f4").tobytes()
        (tmp_path / place).write_bytes(
            gb.build([gb.tensor("e", (1,), gb.F32, bytes(4)), gb.tensor("n", (1, 4), gb.F32, data)])
        )
    ran = run("compare", tmp_path / "a", tmp_path / "b", "--max-error", 1e9)
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[5].split() == ["n", "1x4", "fp32", "fp32", "32", "32", "1", "not", "finite", "-", "-", "0,2", "-"]
    assert lines[7].split() == ["total", "5", "32", "32", "1", "not", "finite", "-", "-", "-", "-"]
    assert any(line.startswith("not finite: n: ") and "1 difference; " in line for line in lines)
    assert lines[-1] == "not within 1e+09: n"


def test_a_report(run: Run, small: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    path = tmp_path / "r.html"
    ran = run("compare", EXAMPLE, small, "--html", path, "--tensor", "token_embd.weight")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == f"{path}: the report"
    assert "token_embd.weight</code></h2>" in path.read_text("utf-8")
    assert run("compare", EXAMPLE, small, "--html", path).code == 2
    assert run("compare", EXAMPLE, small, "--html", path, "--force").code == 0
    for name in ("r.pdf", "r", "r.ninfer", ".html"):
        ran = run("compare", EXAMPLE, small, "--html", tmp_path / name, "--force")
        assert (ran.code, ran.out) == (2, "")
        assert f"expected .html or .htm. Call it {name}.html" in ran.err
        assert not (tmp_path / name).exists()
    assert run("compare", EXAMPLE, small, "--html", tmp_path / "r.HTM").code == 0
