"""Reading: what a valid artifact gives, and that every broken one is refused with its place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ninfer_builder as build
from quantform._files import MappedFile
from quantform.container import Artifact, Binding, Part
from quantform.container import reader as reader_module
from quantform.errors import (
    ArgumentError,
    ArtifactError,
    FileError,
    QuantformError,
    TruncatedFileError,
    UnknownNameError,
)

PAYLOAD = build.small_payload()


def test_a_valid_artifact(tmp_path: Path) -> None:
    path = build.Artifact().write(tmp_path / "m.ninfer")
    with Artifact(path) as artifact:
        assert artifact.artifact_id == "000102030405060708090a0b0c0d0e0f"
        assert list(artifact.objects) == ["a", "b", "chat"]
        assert artifact.payload_bytes == 1024
        assert artifact.file_bytes == path.stat().st_size
        assert artifact.files == (path,)
        assert artifact.view("a").tobytes() == PAYLOAD[:256]
        assert artifact.view("chat").tobytes() == PAYLOAD[384:389]
        assert artifact.directory.components["mtp"].target == "text"
        assert artifact.directory.components["text"].config == {"layers": 1}
        assert artifact.directory.bindings["w"] == Binding(object="a")
        assert artifact.directory.bindings["w.top"] == Binding(parts=(Part(object="a", range=(0, 64)),))
        assert artifact.directory.uses[0].activation_policy == "AllowA8"
        assert artifact.directory.uses[1].activation_policy is None
        assert artifact.directory.metadata == {"name": "small"}
        assert artifact.record("a").nbytes == 256


def test_views_share_the_file_and_outlive_it(tmp_path: Path) -> None:
    artifact = Artifact(build.Artifact().write(tmp_path / "m.ninfer"))
    view = artifact.view("a")
    assert not view.flags.writeable
    assert not view.flags.owndata
    artifact.close()
    assert view.tobytes() == PAYLOAD[:256]
    with pytest.raises(ArgumentError, match="closed"):
        artifact.view("a")


def test_white_space_after_the_directory_counts(tmp_path: Path) -> None:
    text = json.dumps(build.small_directory()).encode() + b" \t\r\n" * 1500
    with Artifact(build.Artifact(json=text).write(tmp_path / "m")) as artifact:
        assert artifact.view("b").tobytes() == PAYLOAD[256:384]


def test_an_object_across_files_is_joined(tmp_path: Path) -> None:
    path = build.Artifact(directory=build.in_two_files()).write(tmp_path / "m.ninfer")
    with Artifact(path) as artifact:
        assert artifact.files == (path, tmp_path / "second")
        assert artifact.view("a").tobytes() == PAYLOAD[:256]
        assert not artifact.view("a").flags.writeable
        artifact.check_file(1)


def test_range_reads_end_where_the_payload_ends(tmp_path: Path) -> None:
    path = build.Artifact(directory=build.in_two_files()).write(tmp_path / "m.ninfer")
    with Artifact(path) as artifact:
        out = np.zeros(20, np.uint8)
        artifact.read_into(90, out)
        assert out.tobytes() == PAYLOAD[90:110]
        artifact.read_into(1024, np.zeros(0, np.uint8))
        for offset, count in ((1024, 1), (1005, 20), (-1, 1)):
            with pytest.raises(ArtifactError, match="exceeds payload"):
                artifact.read_into(offset, np.zeros(count, np.uint8))


def test_object_reader_keeps_to_its_object(tmp_path: Path) -> None:
    with Artifact(build.Artifact().write(tmp_path / "m.ninfer")) as artifact:
        read = artifact.object_reader("b")
        out = np.zeros(8, np.uint8)
        read(120, out)
        assert out.tobytes() == PAYLOAD[376:384]
        with pytest.raises(ArgumentError, match="exceeds the object"):
            read(121, out)
        with pytest.raises(ArgumentError, match="exceeds the object"):
            read(-1, out)


def test_an_unknown_object_lists_near_matches(tmp_path: Path) -> None:
    with (
        Artifact(build.Artifact().write(tmp_path / "m.ninfer")) as artifact,
        pytest.raises(UnknownNameError, match="'chat'"),
    ):
        artifact.view("chit")


def test_opening_reads_no_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = build.small_directory()
    directory["files"] = [{"path": None, "payload_bytes": 1 << 30}]
    path = build.Artifact(directory=directory).write(tmp_path / "m.ninfer")
    os.truncate(path, 4096 + (1 << 30))
    read: list[int] = []
    original = MappedFile.read_into

    def counting(self: Any, offset: int, out: Any) -> None:
        read.append(out.nbytes)
        original(self, offset, out)

    monkeypatch.setattr(MappedFile, "read_into", counting)
    with Artifact(path):
        assert sum(read) < 8192


# --- parts --------------------------------------------------------------------------------------------------------


def test_a_missing_part_fails_only_what_needs_it(tmp_path: Path) -> None:
    directory = build.in_two_files()
    directory["files"] = [{"path": None, "payload_bytes": 300}, {"path": "second", "payload_bytes": 724}]
    path = build.Artifact(directory=directory).write(tmp_path / "m.ninfer")
    (tmp_path / "second").unlink()
    with Artifact(path) as artifact:
        assert artifact.view("a").tobytes() == PAYLOAD[:256]
        for touch in (lambda: artifact.view("b"), lambda: artifact.view("chat"), lambda: artifact.check_file(1)):
            with pytest.raises(ArtifactError, match=r"second.*part 1 of the artifact is missing"):
                touch()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"part_magic": b"NINFER\x00\x03"}, ArtifactError, "not a part"),
        ({"part_magic": b"NINPRT\x00\x02"}, ArtifactError, "not a part"),
        ({"part_index": 2}, ArtifactError, "another index; expected 1, found 2"),
        ({"part_id": bytes(16)}, ArtifactError, "belongs to another artifact"),
        ({"part_tail": b"x"}, ArtifactError, "expected 5020 bytes, found 5021 bytes"),
        ({"part_gap": bytes(4000) + b"x" + bytes(63)}, ArtifactError, r"byte 4032.*not zeros"),
        ({"part_gap": bytes(4063)}, TruncatedFileError, "expected 5020 bytes, found 5019 bytes"),
        ({"part_gap": b"", "payload": PAYLOAD[:200]}, TruncatedFileError, "ends within its header"),
    ],
)
def test_a_wrong_part(tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str) -> None:
    path = build.Artifact(directory=build.in_two_files(), **change).write(tmp_path / "m.ninfer")
    with Artifact(path) as artifact, pytest.raises(error, match=message) as caught:
        artifact.view("b")
    assert str(tmp_path / "second") in str(caught.value)


def test_a_part_that_is_no_file(tmp_path: Path) -> None:
    path = build.Artifact(directory=build.in_two_files()).write(tmp_path / "m.ninfer")
    (tmp_path / "second").unlink()
    (tmp_path / "second").mkdir()
    with Artifact(path) as artifact, pytest.raises(FileError, match="not a regular file"):
        artifact.view("b")


# --- objects that cannot be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "q3_g64"}, "format 'q3_g64' is not known"),
        ({"layout": "contiguous_le_v2"}, "layout 'contiguous_le_v2' is not known"),
        ({"layout": "gguf_blocks_v1"}, "does not accept"),
        ({"layout": "raw_bytes_v1"}, "not tensors"),
        ({"shape": [4, 31]}, "member 'bytes' is not what the layout computes; expected 248, found 256"),
        ({"offset": 4, "bytes": 252}, "expected 256, found 252"),
        ({"format": "gguf_q8_0", "layout": "gguf_blocks_v1", "shape": [4, 31]}, "not whole blocks"),
        ({"format": "gguf_q8_0", "layout": "gguf_blocks_v1", "shape": [4, 8, 32]}, "rank"),
    ],
)
def test_unusable_objects_are_listed_and_refused_when_used(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    directory = build.small_directory()
    directory["objects"][0].update(change)
    with Artifact(build.Artifact(directory=directory).write(tmp_path / "m.ninfer")) as artifact:
        assert artifact.record("a").id == "a"
        assert artifact.view("b").nbytes == 128
        for use in (artifact.check, artifact.view, artifact.object_reader):
            with pytest.raises(ArtifactError, match=message) as caught:
                use("a")
            assert r"m.ninfer, $.objects[0] (object 'a')" in str(caught.value)


def test_alignment_is_checked_on_use(tmp_path: Path) -> None:
    directory = build.small_directory()
    directory["objects"][1]["offset"] = 260
    directory["objects"][2]["offset"] = 400
    with (
        Artifact(build.Artifact(directory=directory).write(tmp_path / "m.ninfer")) as artifact,
        pytest.raises(ArtifactError, match=r"\$\.objects\[1\].*a multiple of 256, found 260"),
    ):
        artifact.view("b")


# --- malformed entries --------------------------------------------------------------------------------------------


def _entry(**change: Any) -> Callable[[Path], Path]:
    return lambda path: build.Artifact(**change).write(path)


def _raw(data: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


HEADERS: dict[str, tuple[Callable[[Path], Path], type[QuantformError], str]] = {
    "empty file": (_raw(b""), ArtifactError, "not the entry file"),
    "magic cut": (_raw(b"NINFER\x00"), ArtifactError, "not the entry file"),
    "header cut": (_raw(build.Artifact().entry()[:31]), TruncatedFileError, "within its header"),
    "GGUF": (_raw(b"GGUF" + bytes(100)), ArtifactError, "This is a GGUF file"),
    "version 2": (_entry(magic=b"NINFER\x00\x02"), ArtifactError, "another version"),
    "a part": (_entry(magic=b"NINPRT\x00\x03"), ArtifactError, "open the entry file"),
    "json_bytes 0": (_entry(json_bytes=0), ArtifactError, "byte 8.*out of range"),
    "json_bytes beyond the file": (_entry(json_bytes=100_000), TruncatedFileError, "within its directory"),
    "json_bytes absurd": (_entry(json_bytes=2**64 - 1), ArtifactError, "byte 8.*out of range"),
    "json_bytes wraps": (_entry(json_bytes=2**64 - 32), ArtifactError, "byte 8.*out of range"),
    "json_bytes too short": (_entry(json_bytes=100), ArtifactError, "not JSON"),
    "payload too short": (_entry(payload=PAYLOAD[:-1]), TruncatedFileError, "expected 5120 bytes, found 5119 bytes"),
    "file too long": (_entry(tail=b"\0"), ArtifactError, "expected 5120 bytes, found 5121 bytes"),
    "gap not zeros": (
        lambda path: (
            build.Artifact(json=json.dumps(build.small_directory()).encode()).write(path) and _poke(path, 4095, b"\x01")
        ),
        ArtifactError,
        "byte 4095.*not zeros; expected 0x00, found 0x01",
    ),
}


def _poke(path: Path, offset: int, data: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("case", HEADERS)
def test_malformed_headers(tmp_path: Path, case: str) -> None:
    make, error, message = HEADERS[case]
    path = make(tmp_path / "m.ninfer")
    with pytest.raises(error, match=message) as caught:
        Artifact(path)
    assert str(path) in str(caught.value)


def test_the_limit_of_directories_holds_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(ArtifactError, match="expected 1 to 100"):
        Artifact(build.Artifact().write(tmp_path / "m.ninfer"))


@pytest.mark.parametrize("path", ["missing", "x\0y", "."])
def test_paths_that_are_no_files(tmp_path: Path, path: str) -> None:
    with pytest.raises(FileError):
        Artifact(tmp_path / path)


# --- flips --------------------------------------------------------------------------------------------------------


def _use_everything(path: Path) -> None:
    with Artifact(path) as artifact:
        for id in artifact.objects:
            artifact.view(id)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_byte_gives_success_or_an_error_of_ours(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(build.Artifact(directory=build.in_two_files()).write(tmp_path / "m.ninfer").read_bytes())
    size = int.from_bytes(raw[8:16], "little") + 40
    at = data.draw(st.integers(0, size))
    raw[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "m.ninfer").write_bytes(raw)
    error = None
    try:
        _use_everything(tmp_path / "m.ninfer")
    except QuantformError as caught:
        error = str(caught)
    assert error is None or "m.ninfer" in error or "second" in error


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.booleans())
def test_random_directories_give_errors_of_ours(tmp_path: Path, text: bytes, framed: bool) -> None:
    path = build.Artifact(json=text or b" ").write(tmp_path / "m.ninfer") if framed else _raw(text)(tmp_path / "m")
    with pytest.raises(QuantformError):
        Artifact(path)
