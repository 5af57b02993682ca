"""The files beside a checkpoint: verification refuses what conversion refuses, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
import safetensors_builder as sb
from quantform.errors import QuantformError

PLAIN = {"a.weight": np.ones((2, 64), np.float32)}
QUANTIZED = {"a.weight": sb.f8([[0x38] * 4] * 2), "a.weight_scale": np.ones((2, 1), np.float32)}
TEMPLATE = b'{"chat_template": "hi"}'


def _sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


# The file, what it holds, whether that is refused: where there are codes, and where there are none.
CASES: dict[str, tuple[str, bytes | Callable[[Path], None], bool]] = {
    "config": ("config.json", b'{"model_type": "llama"}', False),
    "config cut off": ("config.json", b'{"model_type": ', True),
    "config empty": ("config.json", b"", True),
    "config no object": ("config.json", b"[]", True),
    "config twice a member": ("config.json", b'{"a": 1, "a": 2}', True),
    "config not UTF-8": ("config.json", b'{"a": "\xff"}', True),
    "config NaN": ("config.json", b'{"a": NaN, "b": -Infinity}', False),
    "config deep": ("config.json", b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", True),
    "config long": ("config.json", _sparse((16 << 20) + 1), True),
    "config a directory": ("config.json", Path.mkdir, True),
    "config a dangling link": ("config.json", lambda path: path.symlink_to("nowhere"), False),
    "quantization no object": ("config.json", b'{"quantization_config": 3}', True),
    "quantization malformed": ("config.json", b'{"quantization_config": {"config_groups": 7}}', True),
    "quant config cut off": ("hf_quant_config.json", b"{", True),
    "template cut off": ("chat_template.json", b"{", True),
    "template elsewhere cut off": ("tokenizer_config.json", b"{", True),
    "template": ("tokenizer_config.json", TEMPLATE, False),
    "template of bytes": ("chat_template.jinja", b"\xff", False),
    "tokenizer": ("tokenizer.json", b"{", False),
    "tokenizer too long": ("tokenizer.json", _sparse((256 << 20) + 1), True),
    "tokenizer a directory": ("tokenizer.json", Path.mkdir, False),
    "generation config": ("generation_config.json", b"{", False),
    "another file": ("notes.json", b"{", False),
}


def refused(path: Path, made: Path) -> str:
    try:
        qf.convert(path, made)
    except QuantformError as error:
        return error.where or ""
    return ""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tensors", [PLAIN, QUANTIZED], ids=["plain", "quantized"])
def test_what_conversion_refuses_is_found(tmp_path: Path, tensors: dict[str, Any], case: str) -> None:
    name, content, wrong = CASES[case]
    path = tmp_path / "model"
    path.mkdir()
    sb.model(path, tensors)
    if isinstance(content, bytes):
        (path / name).write_bytes(content)
    else:
        content(path / name)
    where = refused(path, tmp_path / "m.ninfer")
    assert bool(where) == wrong, where
    for target in (path, path / "model.safetensors"):
        for deep in (False, True):
            report = qf.verify(target, deep=deep)
            assert report.ok != wrong, report.findings
            if wrong:
                (finding,) = report.findings
                assert finding.rule in {"metadata", "open"}
                assert name in str(finding)


def test_what_is_carried_along_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb.model(tmp_path, PLAIN)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 1000)
    report = qf.verify(tmp_path, deep=True)
    assert report.checked["bytes"] == 2 * 64 * 4 + 1000
    plain = os.open

    def refused(path: Any, *arguments: Any, **named: Any) -> int:
        if Path(path).name == "tokenizer.json":
            raise PermissionError(13, "Permission denied")
        return plain(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refused)
    assert qf.verify(tmp_path).ok
    (finding,) = qf.verify(tmp_path, deep=True).findings
    assert (finding.rule, finding.object) == ("metadata", str(tmp_path / "tokenizer.json"))
    assert "Permission denied" in finding.problem
