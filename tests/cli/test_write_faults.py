"""Every command that writes, on an operating system that fails at each of its steps: nothing of the user's is lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from faulty_os import faulty, raising
from quantform import _publish

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
COMMANDS: dict[str, tuple[str, ...]] = {
    "convert": ("convert", str(EXAMPLE), "{}/m.ninfer"),
    "convert, in parts": ("convert", str(EXAMPLE), "{}/m.ninfer", "--max-file-bytes", "24576"),
    "convert to GGUF": ("convert", "{}/../../a.ninfer", "{}/m.gguf"),
    "convert to ONNX": ("convert", str(EXAMPLE), "{}/m.onnx", "--data", "copy"),
    "decode": ("decode", str(EXAMPLE), "{tensor}", "-o", "{}/x.npy"),
    "imatrix": ("imatrix", "{}/../../i.gguf", "-o", "{}/i.safetensors"),
}
# Steps whose failure has another way round, or which only tidy up.
MAY_FAIL = {"link", "unlink", "rename"}


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory beside those that are written to."""
    top = tmp_path_factory.mktemp("inputs")
    qf.convert(EXAMPLE, top / "a.ninfer")
    sums = [gb.tensor("w.in_sum2", (4,), gb.F32, np.ones(4, "<f4").tobytes())]
    sums += [gb.tensor("w.counts", (1,), gb.F32, np.ones(1, "<f4").tobytes())]
    (top / "i.gguf").write_bytes(gb.build(sums, {"general.type": "imatrix"}))
    return top


def steps_of(taken: list[str]) -> list[int]:
    """All steps but writes, of which the first, one in the middle and the last are enough."""
    writes = [index for index, step in enumerate(taken) if step == "pwrite"]
    some = {writes[0], writes[len(writes) // 2], writes[-1]}
    return [index for index, step in enumerate(taken) if step != "pwrite" or index in some]


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "hidden names"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_step_that_fails_loses_anything(
    run: Callable[..., Any], inputs: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: bool, replacing: bool
) -> None:
    with qf.open(EXAMPLE) as source:
        tensor = max(source.values(), key=lambda one: one.nbytes).name
    top = inputs / "-".join((name.replace(", ", "-"), str(named), str(replacing)))
    first, directory = top / "first", top / "now"
    first.mkdir(parents=True)
    words = [word.replace("{tensor}", tensor).replace("{}", str(directory)) for word in COMMANDS[name]]
    if named:
        monkeypatch.setattr(_publish, "_has_unnamed", lambda _: False)
    monkeypatch.setenv("QUANTFORM_THREADS", "1")
    (first / "mine").write_bytes(b"keep")
    if replacing:
        first.rename(directory)
        assert run(*words).code == 0
        directory.rename(first)
        words.append("--force")
    before = tree(first)
    shutil.copytree(first, directory)
    with faulty(-1, raising(0)) as steps:
        assert run(*words).code == 0
    complete = tree(directory).keys()
    for step in steps_of(steps.taken):
        shutil.rmtree(directory)
        shutil.copytree(first, directory)
        code = CODES[step % len(CODES)]
        with faulty(step, raising(code)) as steps:
            ran = run(*words)
        failed = steps.taken[step]
        if ran.code == 0:
            # The first step may ask for a file without a name; the last one makes a directory survive a power failure.
            assert failed in MAY_FAIL or step == 0 or (failed == "fsync" and "fsync" not in steps.taken[step + 1 :])
            if failed != "unlink":
                assert tree(directory).keys() == complete
            continue
        assert ran.code == 1, (step, steps.taken, ran)
        assert tree(directory) == before, (step, steps.taken)
        assert ran.err.startswith(f"quantform: error: {directory}/") or "temporary directory" in ran.err
        assert os.strerror(code) in ran.err
        assert len(ran.err.splitlines()) == 1
        assert run(*words).code == 0
        assert tree(directory).keys() == complete


def test_a_limit_of_the_shell_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """The kernel's own refusal, not an injected one: no file may be longer than 8 KiB."""
    script = "from quantform.cli import main; main()"
    words = [sys.executable, "-c", script, "convert", str(EXAMPLE), str(tmp_path / "m.ninfer")]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    done = subprocess.run(words, preexec_fn=limit, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert f"{tmp_path / 'm.ninfer'}: cannot be written; found File too large. Split it" in done.stderr
    assert list(tmp_path.iterdir()) == []
