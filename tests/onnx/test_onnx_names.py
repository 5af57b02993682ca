"""The public names of `quantform.onnx`, and what is said where an extra is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quantform.onnx
from quantform.errors import MissingExtraError


def test_every_name_is_there() -> None:
    for name in quantform.onnx.__all__:
        assert getattr(quantform.onnx, name).__doc__
    assert set(quantform.onnx.__all__) <= set(dir(quantform.onnx))


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match=r"'quantform\.onnx' has no attribute 'nonsense'"):
        _ = quantform.onnx.nonsense


def test_importing_takes_no_extras() -> None:
    script = "import sys, quantform.onnx; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert not {"onnx", "onnxruntime"} & set(done.stdout.split())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="onnx.helper")

    monkeypatch.setattr(quantform.onnx, "_MODULES", {"anything": "somewhere"})
    monkeypatch.setattr(quantform.onnx, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"needs the package onnx\.helper.*pip install 'quantform\[onnx\]'"):
        _ = quantform.onnx.anything


def test_other_missing_modules_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantform.onnx, "_MODULES", {"anything": "absent"})
    with pytest.raises(ModuleNotFoundError):
        _ = quantform.onnx.anything
