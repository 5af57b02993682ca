"""What the environment decides: kernels or not, which instruction set, how many threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quantform
from quantform import _native
from quantform.errors import ArgumentError
from quantform.packed import dequantize_packed

SOURCE = str(Path(quantform.__file__).parent.parent)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUANTFORM_")}
    environment = {**inherited, "PYTHONPATH": SOURCE, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_numpy_path_on_demand() -> None:
    code = "from quantform import _native; print(_native.kernels, _native.cpu_features(), _native.summary())"
    assert run(code, QUANTFORM_NATIVE="0").stdout == "None () NumPy path (QUANTFORM_NATIVE=0)\n"


def test_required_kernels() -> None:
    done = run("from quantform import _native; print(_native.summary())", QUANTFORM_NATIVE="1")
    if _native.kernels is None and os.environ.get("QUANTFORM_NATIVE") != "0":
        assert "QUANTFORM_NATIVE=1, but this installation has no compiled kernels" in done.stderr
    elif _native.kernels is not None:
        assert done.stdout.startswith("compiled kernels (")


@pytest.mark.skipif(_native.kernels is None, reason="no compiled kernels here")
def test_every_instruction_set_by_name() -> None:
    assert _native.kernels is not None
    for name in _native.kernels.instruction_sets():
        done = run("from quantform import _native; print(_native.summary())", QUANTFORM_ISA=name)
        assert done.stdout == f"compiled kernels ({name})\n"


# What computes something, and the command line; both without kernels that the environment asks for.
WITHOUT = {
    "no such set": {"QUANTFORM_ISA": "z80"},
    "no kernels": {"QUANTFORM_NATIVE": "1"},
}
HIDDEN = "import sys; sys.modules['quantform._native._kernels'] = None\n"


@pytest.mark.skipif(_native.kernels is None, reason="no compiled kernels here")
@pytest.mark.parametrize("case", WITHOUT)
@pytest.mark.parametrize(
    "use",
    ["qf.dequantize_packed(bytes(18), 'gguf:q4_0', [32])", "qf.encode([[1.0]], 'q4_g64_fp16')"],
)
def test_kernels_that_are_not_here_are_an_error_when_they_are_used(case: str, use: str) -> None:
    before = HIDDEN if case == "no kernels" else ""
    done = run(f"{before}import quantform as qf; print('imported')\n{use}", **WITHOUT[case])
    assert done.stdout == "imported\n"
    error = done.stderr.splitlines()[-1]
    if case == "no kernels":
        assert error.startswith("quantform.errors.MissingExtraError: QUANTFORM_NATIVE=1, but this installation")
    else:
        assert error.startswith("quantform.errors.ArgumentError: QUANTFORM_ISA names no instruction set")
        assert "expected portable" in error
        assert "found 'z80'" in error


@pytest.mark.skipif(_native.kernels is None, reason="no compiled kernels here")
@pytest.mark.parametrize("case", WITHOUT)
@pytest.mark.parametrize("arguments", [["--version"], ["formats"]])
def test_the_command_line_says_so_in_one_line(case: str, arguments: list[str]) -> None:
    before = HIDDEN if case == "no kernels" else "import sys\n"
    code = f"{before}sys.argv[1:] = {arguments}\nfrom quantform.cli import main\nmain()"
    done = run(code, **WITHOUT[case])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"quantform: error: {next(iter(WITHOUT[case]))}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025", "9" * 5000, "\u0662"])
def test_wrong_thread_counts_of_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTFORM_THREADS", text)
    with pytest.raises(ArgumentError, match="QUANTFORM_THREADS is not a number of threads"):
        dequantize_packed(bytes(18), "gguf:q4_0", [32])
    assert not dequantize_packed(bytes(18), "gguf:q4_0", [32], threads=2).any()


def test_thread_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUANTFORM_THREADS", raising=False)
    assert _native.thread_limit(None) == 0
    assert _native.thread_limit(3) == 3
    monkeypatch.setenv("QUANTFORM_THREADS", "7")
    assert _native.thread_limit(None) == 7
    assert _native.thread_limit(2) == 2
