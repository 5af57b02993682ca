"""What a path can be besides a plain file, for every reader: pipes, devices, links, sparse terabytes, lost pages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

import gguf_builder as gb
import ninfer_builder as nb
import onnx_builder as ob
import quantform as qf
import safetensors_builder as sb
from quantform._files import MappedFile
from quantform._native import kernels
from quantform.cli import app
from quantform.errors import FileError, QuantformError
from quantform.sources._pool import FilePool
from reader_files import FILES, data_of

TERABYTE = 1 << 40
NAMES = ("a.gguf", "a.ninfer", "a.safetensors", "a.safetensors.index.json", "a.onnx", "a")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [_pipe, _socket, _device, _loop, _dangling], ids=lambda make: make.__name__[1:])
def test_what_is_no_file(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path / name)
    for call in (qf.open, qf.verify):
        with pytest.raises(FileError) as caught:
            call(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "p")
    (tmp_path / "f").write_bytes(b"x")
    seen = (tmp_path / "f").stat()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda _: seen)
        with pytest.raises(FileError, match="not a regular file"):
            MappedFile(tmp_path / "p")


@pytest.mark.parametrize("name", NAMES)
def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    plain = os.open

    def refused(path: Any, *arguments: Any, **named: Any) -> int:
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied")
        return plain(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FileError, match="cannot be opened; found Permission denied"):
        qf.open(tmp_path / name)


# --- names inside files -------------------------------------------------------------------------------------------

TRICKS = ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b", "x" * 300, "\\\\server\\x"]


@pytest.mark.parametrize("name", TRICKS)
def test_parts_of_an_artifact(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_bytes(bytes(8192))
    made = nb.Artifact(nb.in_two_files())
    made.directory["files"][1]["path"] = name
    (tmp_path / "in" / "a.ninfer").write_bytes(made.entry())
    with pytest.raises(FileError), qf.open(tmp_path / "in" / "a.ninfer") as source:
        source["w"].payload()


@pytest.mark.parametrize("name", TRICKS)
def test_shards_of_an_index(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_bytes(sb.build({"w": np.zeros(2, np.float32)}))
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(FileError, match=r"index|cannot be opened"):
        qf.open(tmp_path / "in")


@pytest.mark.parametrize("name", TRICKS)
def test_external_data_of_a_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_bytes(bytes(36))
    weight = ob.external("x", TensorProto.FLOAT, (9,), location=name)
    with pytest.raises(QuantformError), qf.open(ob.write(tmp_path / "in" / "m.onnx", ob.model([], [weight]))) as source:
        source["x"].payload()


def test_a_split_model_looks_nowhere_else(tmp_path: Path) -> None:
    """The name decides about siblings, and a path's directory is no part of it."""
    part = gb.build([gb.tensor("w", (4,), gb.F32, bytes(16))], gb.split_metadata(0, 2, 2))
    for name in ("m.gguf", "..-00001-of-00002.gguf", f"{'m' * 230}-00001-of-00002.gguf"):
        (tmp_path / name).write_bytes(part)
        with pytest.raises(FileError):
            qf.open(tmp_path / name)


# --- terabytes of nothing ------------------------------------------------------------------------------------------


def _gguf(path: Path) -> None:
    path.write_bytes(gb.build([gb.tensor("w", (2**20, 2**18), gb.F32)]))


def _safetensors(path: Path) -> None:
    path.write_bytes(sb.raw({"w": sb.entry("F32", [2**20, 2**18], 0, TERABYTE)}))


def _ninfer(path: Path) -> None:
    directory = nb.small_directory() | {
        "objects": [
            nb.tensor("w", [2**20, 2**18], "fp32", "contiguous_le_v1", 0, TERABYTE),
            nb.resource("chat", TERABYTE, 5),
        ],
        "bindings": {"w": {"object": "w"}},
        "uses": [],
        "files": [{"path": None, "payload_bytes": TERABYTE + 5}],
    }
    path.write_bytes(nb.Artifact(directory, b"").entry())


def _onnx(path: Path) -> None:
    ob.write(path, ob.model([], [ob.external("w", TensorProto.FLOAT, (2**20, 2**18), location="data")]))
    (path.parent / "data").touch()
    os.truncate(path.parent / "data", TERABYTE)


SPARSE: dict[str, Callable[[Path], None]] = {
    "a.gguf": _gguf,
    "a.safetensors": _safetensors,
    "a.ninfer": _ninfer,
    "a.onnx": _onnx,
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_terabyte_is_opened_and_read_in_bounds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    SPARSE[name](path)
    if name != "a.onnx":
        os.truncate(path, path.stat().st_size + TERABYTE + (5 if name == "a.ninfer" else 0))
    for traced in (False, True):  # what is imported late is no memory of the file's
        if traced:
            tracemalloc.start()
        try:
            with qf.open(path) as source:
                w = source["w"]
                assert w.nbytes == TERABYTE
                assert not w.decode(rows=slice(2**20 - 1, None)).any()
                assert not w.words([0]).decode().any()
                with pytest.raises(QuantformError, match="rows"):
                    _too_large(w)
            assert qf.verify(path).ok
            peak = tracemalloc.get_traced_memory()[1] if traced else 0
        finally:
            tracemalloc.stop()
    assert peak < 32 << 20


def _too_large(w: Any) -> None:
    """All values at once, on a machine that does not promise memory it lacks."""
    with pytest.MonkeyPatch.context() as patch:
        plain = np.empty

        def empty(shape: Any, *arguments: Any, **named: Any) -> Any:
            if np.prod(np.atleast_1d(np.asarray(shape, object))) > 2**32:
                raise MemoryError
            return plain(shape, *arguments, **named)

        patch.setattr(np, "empty", empty)
        w.decode()


@pytest.mark.parametrize("name", [*NAMES[:-1], "config.json"])
def test_a_terabyte_of_zeros_is_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    os.truncate(path, TERABYTE)
    if name == "config.json":
        (tmp_path / "model.safetensors").write_bytes(sb.build({"w": ("F8_E4M3", (2, 2), bytes(4))}))
        path = tmp_path
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            qf.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


# --- files that change ---------------------------------------------------------------------------------------------

SHRINKING = """
import os, sys
from quantform import _files
from quantform.cli import main
name, calls = os.environ["SHRINKS"], 0
plain = getattr(_files.MappedFile, name)
def shrink(self, *arguments):
    global calls
    result = plain(self, *arguments)
    if arguments[1] >= 1 << 16 if name == "view" else arguments[1].nbytes >= 1 << 16:
        calls += 1
        os.truncate(self.path, 4096)
    return result
setattr(_files.MappedFile, name, shrink)
main()
"""


def _big(path: Path) -> Path:
    rows = np.tile(np.frombuffer(np.float16(1).tobytes() + bytes(16), np.uint8), 1 << 18)
    path.write_bytes(gb.build([gb.tensor("w", (1 << 13, 1 << 10), gb.Q4_0, rows.tobytes())]))
    return path


def _shrunk(tmp_path: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHRINKING, *words],
        env={**os.environ, "SHRINKS": name, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_view_that_shrinks_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    if kernels is None:
        pytest.skip("no compiled kernels: the process ends by a signal, as every program that maps files")
    path = _big(tmp_path / "m.gguf")
    done = _shrunk(tmp_path, "view", "decode", str(path), "w", "-o", "x.npy")
    assert done.returncode == 1, done
    assert done.stderr.startswith("quantform: error: a file became shorter while it was read")
    assert len(done.stderr.splitlines()) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    "words",
    [("convert", "m.gguf", "m.ninfer"), ("verify", "m.gguf", "--against", "n.gguf")],
)
def test_a_file_that_shrinks_between_reads_is_an_error_of_ours(tmp_path: Path, words: tuple[str, ...]) -> None:
    _big(tmp_path / "m.gguf")
    _big(tmp_path / "n.gguf")
    done = _shrunk(tmp_path, "read_into", *words)
    assert done.returncode == 1, done
    assert ".gguf: the file became shorter while it was open" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.gguf", "n.gguf"]


COMMANDS = {
    "verify": ("verify", "{a}", "--deep"),
    "verify --against": ("verify", "{a}", "--deep", "--against", "{b}"),
    "verify --against it": ("verify", "{b}", "--deep", "--against", "{a}"),
    "convert": ("convert", "{a}", "out.ninfer", "--format", "q8_g32_fp16"),
    "compare": ("compare", "{a}", "{b}"),
    "compare with it": ("compare", "{b}", "{a}"),
    "decode": ("decode", "{a}", "w", "-o", "out.npy"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", FILES)
def test_every_reader_notices_a_file_that_became_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    """When its tensor is first asked for, by whatever way."""
    paths = {name: FILES[kind](tmp_path / name) for name in ("a", "b")}
    before = {one.name for one in tmp_path.iterdir()}
    victim = data_of(paths["a"])
    shrunk: list[str] = []

    def shrinking(name: str, size: Callable[[Any], int]) -> None:
        plain = getattr(MappedFile, name)

        def access(self: MappedFile, offset: int, what: Any) -> Any:
            if not shrunk and self.path == victim and size(what) >= 1 << 15:
                shrunk.append(name)
                os.truncate(victim, 4096)
            return plain(self, offset, what)

        monkeypatch.setattr(MappedFile, name, access)

    shrinking("view", int)
    shrinking("read", int)
    shrinking("read_into", lambda out: int(out.nbytes))
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, [word.format(**paths) for word in COMMANDS[command]])
    assert shrunk
    assert ran.exit_code == 1, (ran.output, ran.exception)
    assert isinstance(ran.exception, (SystemExit, QuantformError)), ran.exception
    assert "shorter" in f"{ran.output} {ran.exception}"
    assert {one.name for one in tmp_path.iterdir()} == before


def test_a_file_that_is_replaced_while_the_pool_has_closed_it(tmp_path: Path) -> None:
    """The same length is not enough to be the same file."""
    for name in ("a", "b", "new"):
        (tmp_path / name).write_bytes(b"12345678")
    pool = FilePool(limit=1)
    for name in ("a", "b"):
        with pool.using(tmp_path / name) as file:
            assert file.read(0, 8) == b"12345678"
    (tmp_path / "new").replace(tmp_path / "a")
    with pytest.raises(FileError, match="changed since it was opened"), pool.using(tmp_path / "a"):
        pass
    pool.close()
