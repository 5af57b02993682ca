"""Files that another program changes during verification: one finding, and all that was found before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import gguf_builder as gb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform._files import MappedFile
from quantform.verify import Report

SHAPE = (64, 256)
VALUES = np.full(SHAPE, np.inf, np.float32)
NAMES = [f"t{index}" for index in range(8)]


def gguf(path: Path) -> tuple[Path, Path]:
    path /= "m.gguf"
    path.write_bytes(gb.build([gb.tensor(name, SHAPE, gb.F32, VALUES.tobytes()) for name in NAMES]))
    return path, path


def gguf_parts(path: Path) -> tuple[Path, Path]:
    parts = []
    for index in (0, 1):
        names = NAMES[4 * index :][:4]
        tensors = [gb.tensor(name, SHAPE, gb.F32, VALUES.tobytes()) for name in names]
        parts.append(path / gb.part_name("m", index, 2))
        parts[-1].write_bytes(gb.build(tensors, gb.split_metadata(index, 2, len(NAMES))))
    return parts[0], parts[1]


def ninfer(path: Path) -> tuple[Path, Path]:
    source, _ = gguf(path)
    qf.convert(source, path / "m.ninfer")
    return path / "m.ninfer", path / "m.ninfer"


def ninfer_parts(path: Path) -> tuple[Path, Path]:
    source, _ = gguf(path)
    qf.convert(source, path / "m.ninfer", max_file_bytes=300_000)
    return path / "m.ninfer", path / "m.ninfer.part-0001"


def safetensors(path: Path) -> tuple[Path, Path]:
    path /= "m.safetensors"
    path.write_bytes(sb.build(dict.fromkeys(NAMES, VALUES)))
    return path, path


def onnx(path: Path) -> tuple[Path, Path]:
    (path / "data").write_bytes(VALUES.tobytes() * len(NAMES))
    some = [
        ob.external(name, TensorProto.FLOAT, SHAPE, location="data", offset=index * VALUES.nbytes)
        for index, name in enumerate(NAMES)
    ]
    return ob.write(path / "m.onnx", ob.model([], some)), path / "data"


MAKERS = [gguf, gguf_parts, ninfer, ninfer_parts, safetensors, onnx]


def changed(
    path: Path, victim: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, **options: object
) -> Report:
    """The report where a file changes before its third long read."""
    calls = 0
    plain = MappedFile.read_into

    def read_into(self: MappedFile, offset: int, out: np.ndarray) -> None:
        nonlocal calls
        calls += self.path == victim and out.nbytes >= VALUES.nbytes
        if calls == 3:
            change(victim)
        plain(self, offset, out)

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "read_into", read_into)
        report = qf.verify(path, **{"deep": True, **options})  # type: ignore[arg-type]
    assert calls >= 3
    return report


def shorter(path: Path) -> None:
    os.truncate(path, 1000)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_file_that_becomes_shorter_is_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], tuple[Path, Path]]
) -> None:
    path, victim = make(tmp_path)
    report = changed(path, victim, shorter, monkeypatch)
    (finding,) = report.findings
    assert (report.total, finding.rule) == (1, "files" if path.suffix == ".ninfer" else "structure")
    assert finding.object == str(victim)
    assert "became shorter while it was open" in finding.problem
    before = NAMES.index("t4") if victim != path and "part" in victim.name else 0
    found = [one.object.rpartition("/")[2] for one in report.remarks if one.rule == "nonfinite-value"]
    assert found == NAMES[: len(found)]
    assert len(found) >= before + 2 - (path.suffix == ".ninfer")
    assert report.checked["bytes"] >= len(found) * VALUES.nbytes


@pytest.mark.parametrize("make", [gguf, ninfer, safetensors, onnx], ids=lambda make: make.__name__)
@pytest.mark.parametrize("which", ["it", "the source"])
def test_while_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], tuple[Path, Path]], which: str
) -> None:
    (tmp_path / "source").mkdir()
    path, victim = make(tmp_path)
    source, changing = make(tmp_path / "source")
    report = changed(path, victim if which == "it" else changing, shorter, monkeypatch, deep=False, against=source)
    (finding,) = report.findings
    rule = {"it": "files" if path.suffix == ".ninfer" else "structure", "the source": "against"}[which]
    assert (finding.rule, finding.object) == (rule, str(victim if which == "it" else changing))


def test_a_disk_that_fails_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the rest is looked at."""
    path, _ = gguf(tmp_path)
    plain, failed = os.preadv, 0
    with qf.open(path) as source:
        bad = source["t3"].offset

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal failed
        if offset <= bad < offset + buffers[0].nbytes:
            failed += 1
            raise OSError(5, "Input/output error")
        return plain(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    report = qf.verify(path, deep=True)
    assert failed
    assert [(one.rule, one.object) for one in report.findings] == [("structure", "t3")]
    assert "Input/output error" in report.findings[0].problem
    assert [one.object for one in report.remarks] == [name for name in NAMES if name != "t3"]
