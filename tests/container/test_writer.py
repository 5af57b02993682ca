"""Writing: what comes out is what the text says, in one file or many; whatever fails leaves no trace."""

# ruff: noqa: PT012, SIM117 - a writer is a context manager, and leaving it is what raises

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ninfer_builder as build
from quantform import _publish
from quantform.container import Artifact, ArtifactWriter, Binding, Component, Part, PlannedResource, PlannedTensor, Use
from quantform.errors import (
    ArgumentError,
    ArtifactError,
    FileError,
    OutputExistsError,
    QuantformError,
    UnknownNameError,
)

TEXT = {"text": Component(config={})}
PATTERN = (np.arange(1 << 20) * 7 % 251).astype(np.uint8)


def _plan(path: Path, *sizes: int, **options: Any) -> ArtifactWriter:
    """A writer of resources `r0`, `r1`, ... of these sizes."""
    objects = [PlannedResource(id=f"r{index}", nbytes=size) for index, size in enumerate(sizes)]
    return ArtifactWriter(path, components=TEXT, objects=objects, bindings={}, **options)


def _fill(writer: ArtifactWriter, shift: int = 0) -> None:
    for id, record in writer.objects.items():
        writer.write(id, 0, PATTERN[shift : shift + record.nbytes])


def _write(path: Path, *sizes: int, shift: int = 0, **options: Any) -> ArtifactWriter:
    with _plan(path, *sizes, **options) as writer:
        _fill(writer, shift)
    return writer


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- what is written ----------------------------------------------------------------------------------------------


def test_bytes_of_a_small_artifact(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    with ArtifactWriter(
        tmp_path / "m.ninfer",
        components={"text": Component(config={"é": 1}, resources={"template": "chat"})},
        objects=[
            PlannedTensor(id="t", shape=(2, 3), format="fp32", layout="contiguous_le_v1"),
            PlannedTensor(id="s", shape=(), format="bf16", layout="contiguous_le_v1"),
            PlannedResource(id="chat", nbytes=4),
        ],
        bindings={"w": Binding(object="t"), "half": Binding(parts=(Part(object="t", range=(0, 3)),))},
        uses=[Use(parameter="w", input="x", activation_policy="AllowA8")],
        metadata={"name": "tiny"},
        provenance={"by": "test"},
    ) as writer:
        writer.write("chat", 0, b"hey!")
        writer.write("s", 0, np.array(1.0, ml_dtypes.bfloat16))
        writer.write("t", 0, values)
    raw = (tmp_path / "m.ninfer").read_bytes()
    magic, json_bytes, id = struct.unpack("<8sQ16s", raw[:32])
    text = raw[32 : 32 + json_bytes]
    assert magic == b"NINFER\x00\x03"
    assert id.hex() == writer.artifact_id
    assert 32 + json_bytes == 4096
    assert text.rstrip(b" ").decode() == (
        '{"components":{"text":{"config":{"é":1},"resources":{"template":"chat"}}},"objects":['
        '{"id":"t","shape":[2,3],"format":"fp32","layout":"contiguous_le_v1","offset":0,"bytes":24,"kind":"tensor"},'
        '{"id":"s","shape":[],"format":"bf16","layout":"contiguous_le_v1","offset":256,"bytes":2,"kind":"tensor"},'
        '{"id":"chat","encoding":"raw_bytes_v1","offset":258,"bytes":4,"kind":"resource"}],'
        '"bindings":{"w":{"object":"t"},"half":{"parts":[{"object":"t","range":[0,3]}]}},'
        '"uses":[{"parameter":"w","input":"x","activation_policy":"AllowA8"}],'
        '"metadata":{"name":"tiny"},"provenance":{"by":"test"},"files":[{"path":null,"payload_bytes":262}]}'
    )
    assert raw[4096:] == values.tobytes() + bytes(232) + b"\x80\x3fhey!"
    assert _names(tmp_path) == ["m.ninfer"]


def test_27610_bytes_in_files_of_12288(tmp_path: Path) -> None:
    writer = _write(tmp_path / "m.ninfer", 27_610, max_file_bytes=12_288)
    names = ["m.ninfer", "m.ninfer.part-0001", "m.ninfer.part-0002", "m.ninfer.part-0003"]
    assert [path.name for path in writer.paths] == names
    assert _names(tmp_path) == names
    assert [path.stat().st_size for path in writer.paths] == [12_288, 12_288, 12_288, 7130]
    payload = b""
    for index, path in enumerate(writer.paths):
        raw = path.read_bytes()
        magic = b"NINPRT\x00\x03" if index else b"NINFER\x00\x03"
        assert raw[:32] == magic + struct.pack("<Q", index or 4064) + bytes.fromhex(writer.artifact_id)
        assert not index or not any(raw[32:4096])
        payload += raw[4096:]
    assert payload == PATTERN[:27_610].tobytes()


def test_ids_are_fresh(tmp_path: Path) -> None:
    assert _write(tmp_path / "a", 1).artifact_id != _write(tmp_path / "b", 1).artifact_id


def test_a_new_file_has_the_mode_of_a_new_file(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        _write(tmp_path / "m.ninfer", 5000, max_file_bytes=8192)
    finally:
        os.umask(previous)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_a_longer_table_of_files_can_need_another_page(tmp_path: Path) -> None:
    config = {"fill": "x" * (4064 - 250)}
    plan: dict[str, Any] = {
        "components": {"text": Component(config=config)},
        "objects": [PlannedResource(id="r", nbytes=20_000)],
        "bindings": {},
    }
    alone = ArtifactWriter(tmp_path / "m", **plan)
    assert len(alone.directory.files) == 1
    with ArtifactWriter(tmp_path / "m", **plan, max_file_bytes=12_288) as writer:
        writer.write("r", 0, PATTERN[:20_000])
    raw = writer.path.read_bytes()
    assert int.from_bytes(raw[8:16], "little") == 8192 - 32
    assert [file.payload_bytes for file in writer.directory.files] == [4096, 8192, 7712]
    with Artifact(writer.path) as artifact:
        assert artifact.view("r").tobytes() == PATTERN[:20_000].tobytes()


def test_provenance_is_known_at_the_end(tmp_path: Path) -> None:
    with _plan(tmp_path / "m", 3, provenance={"sha256": "0" * 64}) as writer:
        _fill(writer)
        writer.finish(provenance={"sha256": "f" * 64})
    assert writer.directory.provenance == {"sha256": "f" * 64}
    with Artifact(tmp_path / "m") as artifact:
        assert artifact.directory.provenance == {"sha256": "f" * 64}


def test_provenance_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="does not fit"), _plan(tmp_path / "m", 3, provenance={}) as writer:
        _fill(writer)
        writer.finish(provenance={"x": "y" * 4096})
    assert not _tree(tmp_path)


objects = st.lists(
    st.one_of(
        st.integers(1, 9000).map(lambda size: ("resource", size)),
        st.lists(st.integers(1, 40), max_size=3).map(lambda shape: ("tensor", tuple(shape))),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects, st.none() | st.integers(8192, 40_000), st.randoms(use_true_random=False), st.data())
def test_round_trip_in_any_order(tmp_path: Path, plan: Any, limit: int | None, random: Any, data: Any) -> None:
    planned: list[PlannedTensor | PlannedResource] = []
    for index, (kind, what) in enumerate(plan):
        if kind == "resource":
            planned.append(PlannedResource(id=f"é{index}", nbytes=what))
        else:
            planned.append(PlannedTensor(id=f"é{index}", shape=what, format="int32", layout="contiguous_le_v1"))
    writer = ArtifactWriter(
        tmp_path / "m.ninfer",
        components=TEXT,
        objects=planned,
        bindings={},
        max_file_bytes=limit,
        force=True,
    )
    wanted = {id: bytes(random.randbytes(record.nbytes)) for id, record in writer.objects.items()}
    pieces = []
    for id, payload in wanted.items():
        cuts = sorted({0, len(payload), *(random.randrange(len(payload) + 1) for _ in range(4))})
        pieces += [(id, begin, payload[begin:end]) for begin, end in itertools.pairwise(cuts)]
    random.shuffle(pieces)
    with writer:
        for id, begin, piece in pieces:
            writer.write(id, begin, piece)
    assert limit is None or max(path.stat().st_size for path in writer.paths) <= limit
    assert sorted(tmp_path.iterdir()) == sorted(writer.paths)
    with Artifact(writer.path) as artifact:
        assert artifact.directory == writer.directory
        for id, payload in wanted.items():
            assert artifact.view(id).tobytes() == payload
            begin = data.draw(st.integers(0, len(payload)))
            out = np.zeros(data.draw(st.integers(0, len(payload) - begin)), np.uint8)
            artifact.object_reader(id)(begin, out)
            assert out.tobytes() == payload[begin : begin + out.size]


# --- wrong calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "offset", "data", "error", "message"),
    [
        ("r9", 0, b"x", UnknownNameError, "no object is called 'r9'"),
        ("r0", 100, b"x", ArgumentError, "exceeds the object; expected an end of at most 100"),
        ("r0", -1, b"x", ArgumentError, "exceeds the object"),
        ("r0", 0, bytes(101), ArgumentError, "exceeds the object"),
        ("r0", 49, b"xx", ArgumentError, "written before"),
        ("r0", 59, b"x", ArgumentError, "written before"),
        ("r0", 0, bytes(100), ArgumentError, "written before"),
        ("r0", 0, "text", ArgumentError, "not a contiguous buffer"),
        ("r0", 0, 5, ArgumentError, "not a contiguous buffer"),
        ("r0", 0, np.zeros((4, 4))[:, 1], ArgumentError, "not contiguous"),
        ("r0", 0, memoryview(bytes(8))[::2], ArgumentError, "not a contiguous buffer"),
    ],
)
def test_wrong_writes(tmp_path: Path, id: str, offset: int, data: Any, error: type[Exception], message: str) -> None:
    with _plan(tmp_path / "m", 100) as writer:
        writer.write("r0", 50, bytes(10))
        with pytest.raises(error, match=message):
            writer.write(id, offset, data)
        writer.write("r0", 60, PATTERN[:40])
        writer.write("r0", 0, b"")
        writer.write("r0", 0, np.zeros(50, np.uint8))
    assert Artifact(tmp_path / "m").view("r0").tobytes() == bytes(60) + PATTERN[:40].tobytes()


def test_incomplete_objects(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"object 'r1', byte 5: .*expected 10 bytes, found 9 bytes"):
        with _plan(tmp_path / "m", 10, 10) as writer:
            writer.write("r0", 0, bytes(10))
            writer.write("r1", 0, bytes(5))
            writer.write("r1", 6, bytes(4))
    assert not _tree(tmp_path)


def test_a_writer_is_used_once_and_in_order(tmp_path: Path) -> None:
    writer = _plan(tmp_path / "m", 1)
    with pytest.raises(ArgumentError, match="not open but planned"):
        writer.write("r0", 0, b"x")
    with pytest.raises(ArgumentError, match="not open but planned"):
        writer.finish()
    with writer:
        writer.write("r0", 0, b"x")
        writer.finish()
        with pytest.raises(ArgumentError, match="not open but finished"):
            writer.write("r0", 0, b"x")
    with pytest.raises(ArgumentError, match="the writer is finished"), writer:
        pass
    writer.abort()
    assert (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objects": []}, "at least one object"),
        ({"objects": [PlannedResource(id="r", nbytes=0)]}, "object 'r'.*no bytes"),
        ({"objects": [PlannedResource(id="", nbytes=1)]}, r"\$\.objects\[0\]\.id"),
        ({"objects": [PlannedResource(id="r", nbytes=1)] * 2}, r"\$\.objects\[1\]\.id.*one id"),
        ({"objects": [PlannedResource(id="r", nbytes=2**64)]}, "64-bit"),
        ({"objects": [PlannedResource(id="r", nbytes=2**64 - 1)]}, "64-bit"),
        (
            {"objects": [PlannedResource(id="r", nbytes=2**63), PlannedResource(id="s", nbytes=2**63)]},
            "size of the payload.*64-bit",
        ),
        ({"objects": [PlannedTensor(id="t", shape=(1,), format="q", layout="contiguous_le_v1")]}, "'t'.*format.*'q'"),
        ({"objects": [PlannedTensor(id="t", shape=(1,), format="bf16", layout="x")]}, "'t'.*layout is called 'x'"),
        (
            {"objects": [PlannedTensor(id="t", shape=(0,), format="bf16", layout="contiguous_le_v1")]},
            r"shape\[0\]|bytes",
        ),
        ({"bindings": {"w": Binding(object="z")}}, r"\$\.bindings\.w\.object"),
        ({"components": {}}, r"\$\.components"),
        ({"components": {"text": Component(config={"x": float("nan")})}}, "not JSON"),
        ({"metadata": {"name": ""}}, r"\$\.metadata\.name"),
        ({"max_file_bytes": 4096}, "no room for payload"),
    ],
)
def test_wrong_plans_touch_nothing(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    plan: dict[str, Any] = {
        "components": TEXT,
        "objects": [PlannedResource(id="r", nbytes=5000)],
        "bindings": {},
        **change,
    }
    with pytest.raises(QuantformError, match=message):
        ArtifactWriter(tmp_path / "m", **plan)
    assert not _tree(tmp_path)


# --- existing files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m", "m.part-0001", "m.part-0002"])
def test_an_existing_output_is_refused_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match="--force") as caught:
        _plan(tmp_path / "m", 10_000, max_file_bytes=8192)
    assert str(tmp_path / name) in str(caught.value)
    assert _tree(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("name", ["m", "m.part-0001", "m.part-0002"])
def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputExistsError), _plan(tmp_path / "m", 10_000, max_file_bytes=8192) as writer:
        _fill(writer)
        (tmp_path / name).write_bytes(b"mine")
    assert _tree(tmp_path) == {name: b"mine"}


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    (tmp_path / "m").symlink_to("nowhere")
    with pytest.raises(OutputExistsError):
        _plan(tmp_path / "m", 1)


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(FileError, match="not a regular file"):
        _plan(tmp_path / "m", 1, force=force)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("none/m", "file/m", "x" * 300, "x" * 250):
        with pytest.raises(FileError):
            _plan(tmp_path / path, 10_000, max_file_bytes=8192)
    with pytest.raises(FileError, match="not a file name"):
        _plan(tmp_path / "a\0b", 1)
    assert _names(tmp_path) == ["file"]


def test_force_replaces_and_removes_only_parts_of_the_old_one(tmp_path: Path) -> None:
    old = _write(tmp_path / "m", 20_000, max_file_bytes=8192)
    assert len(old.paths) == 5
    (tmp_path / "m.part-0003").write_bytes(b"not a part any more")
    (tmp_path / "m.part-0099").write_bytes(b"mine")
    new = _write(tmp_path / "m", 5000, shift=1, max_file_bytes=8192, force=True)
    assert len(new.paths) == 2
    assert _names(tmp_path) == ["m", "m.part-0001", "m.part-0003", "m.part-0099"]
    with Artifact(tmp_path / "m") as artifact:
        assert artifact.view("r0").tobytes() == PATTERN[1:5001].tobytes()


def test_force_where_nothing_is_or_something_else(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"no artifact")
    for name in ("a", "b"):
        _write(tmp_path / name, 10, force=True)
        assert Artifact(tmp_path / name).view("r0").tobytes() == PATTERN[:10].tobytes()


def test_force_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "behind").write_bytes(b"mine")
    (tmp_path / "m").symlink_to("behind")
    _write(tmp_path / "m", 10, force=True)
    assert not (tmp_path / "m").is_symlink()
    assert (tmp_path / "behind").read_bytes() == b"mine"


# --- failures -----------------------------------------------------------------------------------------------------


def _failing(calls: int, code: int = errno.ENOSPC) -> Callable[..., int]:
    """A `pwrite` that writes a little the first times and then fails."""
    state = {"left": calls}

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        state["left"] -= 1
        if state["left"] < 0:
            raise OSError(code, os.strerror(code))
        return os.pwrite(fd, data[: max(1, len(data) // 2)], offset)

    return pwrite


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("calls", [0, 3, 40])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, force: bool
) -> None:
    if force:
        _write(tmp_path / "m", 20_000, max_file_bytes=8192)
    before = _tree(tmp_path)
    monkeypatch.setattr(_publish, "_pwrite", _failing(calls))
    with (
        pytest.raises(FileError, match=r"No space left on device\. Free some space") as caught,
        _plan(tmp_path / "m", 10_000, max_file_bytes=8192, force=force) as writer,
    ):
        _fill(writer, 1)
    assert str(tmp_path / "m") in str(caught.value)
    assert "tmp" not in (caught.value.where or "").replace(str(tmp_path), "")
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("max_file_bytes", [None, 8192])
def test_what_does_not_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_file_bytes: int | None
) -> None:
    _write(tmp_path / "m", 20_000, max_file_bytes=max_file_bytes)
    needed = sum(path.stat().st_size for path in tmp_path.iterdir())
    (tmp_path / "n").mkdir()

    def system(free: int, blocks: int = 1000) -> object:
        return SimpleNamespace(f_bfree=free, f_bavail=free, f_frsize=1, f_blocks=blocks)

    monkeypatch.setattr(os, "statvfs", lambda _: system(needed - 1))  # of the last part, one byte is too many
    with pytest.raises(
        FileError, match=r"there is too little space; expected .* kB for the output, found .* free\. Free"
    ):
        _write(tmp_path / "n" / "m", 20_000, max_file_bytes=max_file_bytes)
    assert not _tree(tmp_path / "n")
    for enough in (system(needed), system(0, blocks=0)):  # some file systems do not tell
        monkeypatch.setattr(os, "statvfs", lambda _, enough=enough: enough)
        _write(tmp_path / "n" / "m", 20_000, max_file_bytes=max_file_bytes, force=True)
    assert _tree(tmp_path / "n").keys() == {path.name for path in tmp_path.iterdir() if path.is_file()}


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publish, "_pwrite", _failing(10**9))
    _write(tmp_path / "m", 10_000, max_file_bytes=8192)
    assert Artifact(tmp_path / "m").view("r0").tobytes() == PATTERN[:10_000].tobytes()


def test_a_failed_write_that_was_caught_still_prevents_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="a write failed before"), _plan(tmp_path / "m", 10) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(_publish, "_pwrite", _failing(0, errno.EIO))
            with pytest.raises(FileError, match="Input/output error"):
                writer.write("r0", 0, bytes(10))
    assert not _tree(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), _plan(tmp_path / "m", 10_000, max_file_bytes=8192) as writer:
        _fill(writer)
        assert not (tmp_path / "m").exists()
        raise error
    assert not _tree(tmp_path)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("function", ["link", "replace", "fsync"])
@pytest.mark.parametrize("calls", range(5))
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_failure_during_publication_restores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    calls: int,
    force: bool,
    error: BaseException,
) -> None:
    """Every step of publication fails once, before and after it took effect; then the old files are back."""
    for after in (False, True):
        target = tmp_path / f"{after}"
        target.mkdir()
        if force:
            _write(target / "m", 15_000, max_file_bytes=8192)
        before = _tree(target)
        state = {"left": calls}
        owner: Any = Path if function == "replace" else os
        original = getattr(owner, function)

        def step(*args: Any, owner: Any = original, after: bool = after, state: Any = state, **named: Any) -> Any:
            state["left"] -= 1
            if state["left"] != -1:
                return owner(*args, **named)
            if after:
                owner(*args, **named)
            raise error

        writer = _plan(target / "m", 10_000, max_file_bytes=8192, force=force)
        with monkeypatch.context() as patch:
            patch.setattr(owner, function, step)
            try:
                with writer:
                    _fill(writer, 1)
            except (FileError, KeyboardInterrupt):
                if (function, calls) != ("fsync", 4):  # of the directory
                    assert _tree(target) == before
                    continue
        # Else the step is not part of this path, something else could be done instead, or it was the last one, after
        # publication.
        assert Artifact(target / "m").view("r0").tobytes() == PATTERN[1:10_001].tobytes()
        assert not [name for name in _names(target) if name.startswith(".")]


@pytest.mark.parametrize("force", [False, True])
def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if force:
        _write(tmp_path / "m", 20_000, max_file_bytes=8192)
    monkeypatch.setattr(os, "link", link)
    writer = _write(tmp_path / "m", 10_000, shift=1, max_file_bytes=8192, force=force)
    assert sorted(tmp_path.iterdir()) == sorted(writer.paths)
    assert Artifact(tmp_path / "m").view("r0").tobytes() == PATTERN[1:10_001].tobytes()


@pytest.mark.parametrize("name", ["m", "m.part-0002"])
def test_without_hard_links_nothing_is_overwritten_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OutputExistsError), _plan(tmp_path / "m", 10_000, max_file_bytes=8192) as writer:
        _fill(writer)
        (tmp_path / name).write_bytes(b"mine")
    assert _tree(tmp_path) == {name: b"mine"}


def test_a_size_that_no_file_system_holds(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no file can be that long"), _plan(tmp_path / "m", 2**63):
        pass
    assert not _tree(tmp_path)


def test_the_builder_and_the_writer_agree(tmp_path: Path) -> None:
    """An artifact made by the independent builder, read and written again, holds the same directory and payload."""
    source = build.Artifact().write(tmp_path / "source")
    with Artifact(source) as old:
        planned: list[PlannedTensor | PlannedResource] = [
            PlannedResource(id=record.id, nbytes=record.nbytes)
            if record.id == "chat"
            else PlannedTensor(id=record.id, shape=record.shape, format=record.format, layout=record.layout)  # type: ignore[union-attr]
            for record in old.directory.objects
        ]
        directory = old.directory
        with ArtifactWriter(
            tmp_path / "copy",
            components=directory.components,
            objects=planned,
            bindings=directory.bindings,
            uses=directory.uses,
            metadata=directory.metadata,
            provenance=directory.provenance,
        ) as writer:
            for id in old.objects:
                writer.write(id, 0, old.view(id))
        with Artifact(tmp_path / "copy") as new:
            assert new.directory.objects == directory.objects
            assert (new.directory.bindings, new.directory.uses) == (directory.bindings, directory.uses)
            assert all(new.view(id).tobytes() == old.view(id).tobytes() for id in old.objects)
