"""Processes that are killed at any step of writing: nothing half-written has its name, nothing of the user's is lost.

After a kill, the same command run again succeeds and leaves nothing hidden; and what the killed run wrote down brings
all of the old files back, or finishes what was published already.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kill_points
from quantform import testing
from quantform._files import MappedFile
from quantform._journal import Journal, Record, hidden
from quantform._publish import NewFiles
from quantform.errors import FileError, OutputExistsError

TOKEN = "0123456789abcdef" * 2


def test_kills_at_every_step(tmp_path: Path) -> None:
    """In forks of a process of its own, since this one may have threads."""
    done = subprocess.run(
        [sys.executable, kill_points.__file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout[done.stdout.index(b"{\n") :])
    assert found == {name: [] for name in kill_points.SCENARIOS}


def test_a_killed_export_of_vectors_is_cleared_away(tmp_path: Path) -> None:
    script = """
import importlib, os, signal, sys
export = importlib.import_module("quantform.testing.export")
calls, plain = 0, export._Writer._put
def put(*arguments):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(*arguments)
export._Writer._put = put
export.export(sys.argv[1], "gguf:q4_0")
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "vectors")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path.suffix for path in tmp_path.iterdir()} == {".journal", ".staged"}
    testing.export(tmp_path / "vectors", "gguf:q4_0")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    first, second = (NewFiles([tmp_path / "p", tmp_path / "m"]) for _ in range(2))
    journal = Journal.open(tmp_path / "m")
    assert journal is not None
    with pytest.raises(FileError, match="another process is writing this output") as caught:
        first.create([1, 1])
    assert str(tmp_path / "m") in str(caught.value)
    journal.end()
    second.create([1, 1])
    second.publish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]
    with pytest.raises(OutputExistsError):
        first.create([1, 1])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0\xff",
        b"[]\n",
        b'{"token": "x", "files": []}\n',
        b'{"token": "' + TOKEN.encode() + b'", "files": []}\n',
        b'{"token": "' + TOKEN.encode() + b'", "files": [{"name": "../mine", "file": null}]}\n',
        b'{"token": "' + TOKEN.encode() + b'", "files": [{"name": "mine", "file": [1, 2, 3, 4]}]}\n',
        b'{"token": "' + TOKEN.encode() + b'", "files": [{"name": "mine"}]}',
        b"[" * 100_000,
    ],
)
def test_a_journal_that_is_not_ours_harms_nothing(tmp_path: Path, text: bytes) -> None:
    """Nor does one of files that have been replaced since."""
    directory = tmp_path / "out"
    directory.mkdir()
    for path in (tmp_path / "mine", directory / "mine"):
        path.write_bytes(b"keep")
    journal = Journal.open(directory / "m")
    assert journal is not None
    journal.leave()
    (path,) = directory.glob(".quantform-*")
    path.write_bytes(text)
    files = NewFiles([directory / "m"])
    files.create([3])
    files.write(0, 0, memoryview(b"new"))
    files.publish()
    assert sorted(path.name for path in directory.iterdir()) == ["m", "mine"]
    assert (directory / "m").read_bytes() == b"new"
    assert (directory / "mine").read_bytes() == (tmp_path / "mine").read_bytes() == b"keep"


def test_what_cannot_be_put_back_is_named_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = hidden(tmp_path, TOKEN, 0).old
    old.write_bytes(b"old")
    journal = Journal.open(tmp_path / "m")
    assert journal is not None
    journal.write(TOKEN, [Record("m", (1, 2, 3, 4))])
    journal.leave()

    def refused(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        with pytest.raises(FileError, match=rf"the old one cannot be put back\. Rename {old.name} to m yourself"):
            NewFiles([tmp_path / "m"]).create([1])
    with pytest.raises(OutputExistsError):
        NewFiles([tmp_path / "m"]).create([1])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"m": b"old"}


def test_a_link_instead_of_a_journal_is_not_followed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "m")
    assert journal is not None
    journal.leave()
    (path,) = tmp_path.glob(".quantform-*")
    path.unlink()
    (tmp_path / "mine").write_bytes(b"keep")
    path.symlink_to("mine")
    with pytest.raises(FileError, match="cannot be written"):
        NewFiles([tmp_path / "p", tmp_path / "m"]).create([1, 1])
    assert (tmp_path / "mine").read_bytes() == b"keep"


def test_reading_goes_on_while_a_file_is_replaced(tmp_path: Path) -> None:
    """Whoever has the old file open reads the old file."""
    (tmp_path / "m").write_bytes(b"old")
    with MappedFile(tmp_path / "m") as file:
        files = NewFiles([tmp_path / "m"], force=True)
        files.create([3])
        files.write(0, 0, memoryview(b"new"))
        files.publish()
        assert file.view(0, 3).tobytes() == b"old"
    assert (tmp_path / "m").read_bytes() == b"new"
