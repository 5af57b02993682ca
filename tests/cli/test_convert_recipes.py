"""The command line of recipes: plans, formats, importance matrices, and errors of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb

Run = Callable[..., Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    arrays = {"a.weight": rng.normal(size=(8, 64)), "b.weight": rng.normal(size=(4, 64)), "norm": rng.normal(size=64)}
    directory = tmp_path / "model"
    directory.mkdir()
    sb.model(directory, {name: array.astype(np.float32) for name, array in arrays.items()}, {"layers": 1})
    return directory


def formats(path: Path) -> dict[str, str]:
    with qf.open(path) as source:
        return {name: tensor.format for name, tensor in source.items()}


def test_a_dry_run_prints_the_plan_and_writes_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    arguments = ["convert", model, tmp_path / "a.ninfer", "--format", "q4_g64_fp16", "--method", "grouped_search"]
    ran = run(*arguments, "--dry-run")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["parameter", "shape", "source", "method", "format", "layout", "size"]
    assert "a.weight" in lines[2]
    assert "safetensors F32  grouped_search  q4_g64_fp16" in lines[2]
    assert lines[-1].startswith("3 objects, ")
    assert not (tmp_path / "a.ninfer").exists()
    document = json.loads(run(*arguments, "--dry-run", "--json").out)
    assert [one["fragments"][0]["parameter"] for one in document["objects"]] == ["a.weight", "b.weight", "norm"]
    report = json.loads(run(*arguments, "--json").out)
    assert report["tensors"] == {"grouped_search to q4_g64_fp16": 2, "cast_direct to fp32": 1}
    assert formats(tmp_path / "a.ninfer")["a.weight"] == "q4_g64_fp16"
    assert run("convert", model, tmp_path / "x.gguf", "--dry-run").code == 2
    assert run("convert", model, tmp_path / "x.ninfer", "--dry-run", "--max-file-bytes", "10").code == 2
    (tmp_path / "x.ninfer").touch()
    assert run("convert", model, tmp_path / "x.ninfer", "--dry-run").code == 2
    assert run("convert", model, tmp_path / "x.ninfer", "--dry-run", "--force").code == 0


def test_options_reach_the_method(run: Run, model: Path, tmp_path: Path) -> None:
    ran = run(
        "convert", model, tmp_path / "a.ninfer", "--format", "q4_g64_fp16", "--method", "grouped_search",
        "--parameter", "negative_scales=true", "--threads", "1",
    )  # fmt: skip
    assert ran.code == 0
    with qf.open(model) as source, qf.open(tmp_path / "a.ninfer") as made:
        values = source["a.weight"].decode()
        expected = qf.encode(values, "q4_g64_fp16", "grouped_search", negative_scales=True)
        assert np.array_equal(made["a.weight"].decode(), expected.decode())


def test_recipes_sources_and_components(run: Run, model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.py"
    recipe.write_text(
        "def configure(model, recipe, sources):\n"
        "    recipe.assign('a.*', format='q8_g32_fp16', source=sources['other'])\n"
        "def small(model, recipe, sources):\n"
        "    recipe.assign('*.weight', format='q4_g64_fp16')\n"
    )
    target = tmp_path / "a.ninfer"
    ran = run("convert", model, target, "--recipe", recipe, "--source", f"other={model}", "--component", f"mtp={model}")
    assert ran.code == 0, ran.err
    found = formats(target)
    assert found["a.weight"] == "q8_g32_fp16"
    assert found["mtp/a.weight"] == "fp32"
    assert run("convert", model, target, "--force", "--recipe", f"{recipe}:small").code == 0
    assert formats(target)["b.weight"] == "q4_g64_fp16"
    toml = tmp_path / "r.toml"
    toml.write_text('[[assign]]\nselect = "b.*"\nformat = "bf16"\n')
    assert run("convert", model, target, "--force", "--recipe", toml).code == 0
    assert formats(target) == {"a.weight": "fp32", "b.weight": "bf16", "norm": "fp32"}


def test_importance_matrices(run: Run, model: Path, tmp_path: Path) -> None:
    sums = np.random.default_rng(2).random(64).astype("<f4")
    tensors = [
        gb.tensor("a.weight.in_sum2", (64,), gb.F32, sums.tobytes()),
        gb.tensor("a.weight.counts", (1,), gb.F32, np.array([4], "<f4").tobytes()),
    ]
    source = tmp_path / "i.gguf"
    source.write_bytes(gb.build(tensors))
    ran = run("imatrix", source, "-o", tmp_path / "i.safetensors")
    assert ran.code == 0
    assert ran.out.endswith("i.safetensors: 1 vector\n")
    made = []
    for file in (source, tmp_path / "i.safetensors"):
        target = tmp_path / "a.ninfer"
        options = ("--format", "q4_g64_fp16", "--method", "grouped_search", "--imatrix", file, "--force")
        ran = run("convert", model, target, *options)
        assert ran.code == 0, ran.err
        assert "1 matrix not in the importance matrix" in ran.out
        with qf.open(target) as opened:
            made.append(opened["a.weight"].payload().tobytes())
    assert made[0] == made[1]
    assert run("imatrix", source, "-o", tmp_path / "i.safetensors").code == 2
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1}')
    ran = run("imatrix", source, "-o", tmp_path / "r.safetensors", "--config", tmp_path / "config.json")
    assert ran.code == 1
    assert "no role of the config's layers has an importance vector" in ran.err
    names = ["blk.0.ffn_up", *(f"blk.0.ssm_{index}" for index in range(9))]
    tensors = [
        gb.tensor(f"{name}.weight{suffix}", (1,), gb.F32, np.ones(1, "<f4").tobytes())
        for name in names
        for suffix in (".in_sum2", ".counts")
    ]
    source.write_bytes(gb.build(tensors))
    ran = run("imatrix", source, "-o", tmp_path / "r.safetensors", "--config", tmp_path / "config.json")
    assert ran.code == 0
    assert "r.safetensors: 1 vector\n" in ran.out
    assert "9 vectors left out, without a role in the config's layers: 'blk.0.ssm_0.weight', " in ran.out
    assert ran.out.endswith("'blk.0.ssm_7.weight', ...\n")
    assert run("imatrix", model, "-o", tmp_path / "j.safetensors").code in {0, 1}


WRONG: dict[str, tuple[list[str], int, str]] = {
    "a recipe's line": (["--recipe", "bad.py"], 1, "bad.py, line 2, in configure: NameError"),
    "a recipe's path": (["--recipe", "bad.toml"], 1, "bad.toml, $.assign[0]"),
    "no such recipe": (["--recipe", "missing.py"], 1, "missing.py: no such file"),
    "no such source": (["--recipe", "source.py"], 1, "--source other=PATH"),
    "method alone": (["--method", "grouped_search"], 2, "a method needs a format"),
    "no such method": (["--format", "bf16", "--method", "cast"], 2, "Known: cast_direct"),
    "no such format": (["--format", "q4"], 2, "no format is called"),
    "bad source": (["--source", "x"], 2, "no NAME=PATH"),
    "bad component": (["--component", "=x"], 2, "no NAME=PATH"),
    "bad parameter": (["--format", "bf16", "--method", "cast_direct", "--parameter", "x"], 2, "no K=V"),
    "unknown parameter": (["--format", "bf16", "--method", "cast_direct", "--parameter", "x=1"], 2, "takes none"),
    "no threads": (["--threads", "0"], 2, "threads"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_goes_wrong_is_one_line_and_a_code(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("def configure(model, recipe, sources):\n    nothing\n")
    Path("bad.toml").write_text("[[assign]]\nformat = 'bf16'\n")
    Path("source.py").write_text("def configure(model, recipe, sources):\n    sources['other']\n")
    options, code, fragment = WRONG[case]
    ran = run("convert", model, "a.ninfer", *options)
    assert ran.code == code, ran.err
    assert fragment in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.startswith("quantform: error: ")
    assert ran.err.count("\n") == 1
    assert not Path("a.ninfer").exists()
