"""Resources, configuration and frames of artifacts are held to the GGUF file that they say, or that is beside them."""

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
from quantform.convert.gguf_skeleton import Skeleton
from quantform.errors import FileError
from quantform.sources import NinferSource

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
Q4 = bytes(range(18)) * 6


def plain(path: Path, *, name: str = "toy", **metadata: Any) -> Path:
    tensors = [gb.tensor("w", (3, 2, 32), gb.Q4_0, Q4), gb.tensor("b", (4,), gb.F32, bytes(16))]
    path.write_bytes(gb.build(tensors, {"general.name": name, "tokenizer.chat_template": "{{ x }}", **metadata}))
    return path


def made(tmp_path: Path, **metadata: Any) -> tuple[Path, Path]:
    """A GGUF file, and the artifact that is made from it."""
    source = plain(tmp_path / "o.gguf", **metadata)
    qf.convert(source, tmp_path / "m.ninfer")
    return source, tmp_path / "m.ninfer"


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change the directory, which has room for a little more."""
    data = path.read_bytes()
    end = 32 + int.from_bytes(data[8:16], "little")
    document = json.loads(data[32:end])
    change(document)
    changed = json.dumps(document, separators=(",", ":")).encode().ljust(end - 32)
    assert len(changed) == end - 32
    path.write_bytes(data[:32] + changed + data[end:])


def damage(path: Path, id: str, at: int, bits: int = 1) -> int:
    """Change a byte of an object; where it is in the file."""
    with NinferSource(path) as source:
        _, offset = source.artifact.locate(source.artifact.record(id).offset + at)
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)
    return offset


def found(path: Path, **options: Any) -> list[tuple[str, str]]:
    report = qf.verify(path, **options)
    json.dumps(report.as_dict(), allow_nan=False)
    return [(one.rule, one.object) for one in (*report.findings, *report.remarks)]


# --- frames, without the source -------------------------------------------------------------------------------------


def test_frames_are_counted(tmp_path: Path) -> None:
    _, path = made(tmp_path)
    assert qf.verify(path, deep=True).checked["frames"] == 1
    assert "frames" not in qf.verify(path).checked


@pytest.mark.parametrize("format", ["bf16", "q4_g64_fp16"])
def test_tensors_that_were_quantized_fit_their_frame(tmp_path: Path, format: str) -> None:
    qf.convert(EXAMPLE, tmp_path / "m.ninfer", format=format, fallback="bf16")
    assert found(tmp_path / "m.ninfer", deep=True) == []


def test_frames_of_further_components(tmp_path: Path) -> None:
    other = plain(tmp_path / "v.gguf", name="other")
    qf.convert(plain(tmp_path / "o.gguf"), tmp_path / "m.ninfer", components={"vision": other})
    assert found(tmp_path / "m.ninfer", deep=True) == []
    assert qf.verify(tmp_path / "m.ninfer", deep=True).checked["frames"] == 2
    qf.convert(tmp_path / "m.ninfer", tmp_path / "again.ninfer")
    assert found(tmp_path / "again.ninfer", deep=True) == []
    damage(tmp_path / "again.ninfer", "resource/vision/gguf_frame", 0)
    assert found(tmp_path / "again.ninfer", deep=True) == [("frame", "resource/vision/gguf_frame")]


HEADER = {
    "magic": (b"GGUF", b"GGVF", "resource/gguf_frame"),
    "a tensor's name": (b"\x01\0\0\0\0\0\0\0w", b"\x01\0\0\0\0\0\0\0x", "x"),
    "a shape": (b"\x20\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03", b"\x20\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02", "w"),
    "a type": (b"\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0b", b"\x14\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0b", "w"),
    "a name": (b"toy", b"tOy", '$.components.text.config["general.name"]'),
    "a template": (b"{{ x }}", b"{{ y }}", "resource/chat_template"),
}


@pytest.mark.parametrize("what", HEADER)
def test_frames_that_do_not_fit(tmp_path: Path, what: str) -> None:
    _, path = made(tmp_path)
    before, after, blamed = HEADER[what]
    with NinferSource(path) as source:
        frame = source.resources["gguf_frame"]
    assert frame.count(before) == 1
    data = path.read_bytes()
    path.write_bytes(data.replace(frame, frame.replace(before, after)))
    assert qf.verify(path).ok
    assert ("frame", blamed) in found(path, deep=True)


PROVENANCE: dict[str, Callable[[Any], object]] = {
    "nothing": lambda document: document.pop("provenance"),
    "no files": lambda document: document["provenance"]["source"].pop("files"),
    "another length": lambda document: document["provenance"]["source"]["files"][0].update(bytes=99),
    "no length": lambda document: document["provenance"]["source"]["files"][0].update(bytes=0),
    "beyond any file": lambda document: document["provenance"]["source"]["files"][0].update(bytes=2**64 - 1),
}


@pytest.mark.parametrize("what", PROVENANCE)
def test_provenance_that_does_not_fit_the_frame(tmp_path: Path, what: str) -> None:
    _, path = made(tmp_path)
    edit(path, PROVENANCE[what])
    assert qf.verify(path).ok
    assert found(path, deep=True) == [("frame", "resource/gguf_frame")]


def test_blocks_of_further_sources_are_no_fault(tmp_path: Path) -> None:
    """A recipe may take the blocks of another file."""
    data = gb.build([gb.tensor("w", (3, 2, 32), gb.Q8_0, bytes(34 * 6)), gb.tensor("b", (4,), gb.F32, bytes(16))])
    (tmp_path / "other.gguf").write_bytes(data)

    def configure(_: Any, recipe: Any, sources: Any) -> None:
        recipe.assign("w", source=sources["more"]["w"])

    qf.convert(
        plain(tmp_path / "o.gguf"), tmp_path / "m.ninfer", recipe=configure, sources={"more": tmp_path / "other.gguf"}
    )
    assert found(tmp_path / "m.ninfer", deep=True) == []


def test_a_frame_that_is_not_there_is_not_looked_at(tmp_path: Path) -> None:
    source = plain(tmp_path / "o.gguf", more=gb.typed("uint64", list(range(1200))))
    qf.convert(source, tmp_path / "m.ninfer", max_file_bytes=8192)
    (tmp_path / "m.ninfer.part-0001").unlink()
    assert {rule for rule, _ in found(tmp_path / "m.ninfer", deep=True)} == {"files"}


def test_no_room_for_frames_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FileError("no room")

    _, path = made(tmp_path)
    monkeypatch.setattr(Skeleton, "take", full)
    with pytest.raises(FileError, match="no room"):
        qf.verify(path, deep=True)
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(FileError, match="no temporary directory"):
        qf.verify(path, deep=True)


# --- with the source --------------------------------------------------------------------------------------------------


def test_the_first_byte_of_a_resource_that_differs(tmp_path: Path) -> None:
    source, path = made(tmp_path)
    assert found(path, against=source) == []
    places = [damage(path, "resource/gguf_frame", 40), damage(path, "resource/chat_template", 3)]
    findings = qf.verify(path, against=source).findings
    assert [(one.rule, one.offset) for one in findings] == [("carried", place) for place in places]
    assert {one.file for one in findings} == {str(path)}
    assert "byte 40 differs" in findings[0].problem


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "the name": (lambda document: document["metadata"].update(name="Toy"), "$.metadata.name"),
    "no name": (lambda document: document.pop("metadata"), "$.metadata.name"),
    "a number": (
        lambda document: document["components"]["text"]["config"].update({"a.n": 7.0}),
        '$.components.text.config["a.n"]',
    ),
    "no number": (
        lambda document: document["components"]["text"]["config"].pop("a.n"),
        '$.components.text.config["a.n"]',
    ),
    "one more": (lambda document: document["components"]["text"]["config"].update(x=[]), "$.components.text.config.x"),
    "no template": (
        lambda document: document["components"]["text"]["resources"].pop("chat_template"),
        "$.components.text.resources.chat_template",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_the_directory_says_of_the_source(tmp_path: Path, what: str) -> None:
    source, path = made(tmp_path, **{"a.n": 7})
    change, blamed = CHANGES[what]
    edit(path, change)
    assert ("carried", blamed) in found(path, against=source)
    assert ("frame", blamed) in found(path, deep=True)


def test_another_file_of_the_same_length(tmp_path: Path) -> None:
    source, path = made(tmp_path)
    data = bytearray(source.read_bytes())
    data[-20] ^= 1
    source.write_bytes(data)
    rules = [rule for rule, _ in found(path, against=source)]
    assert rules == ["against", "digest"]
    source.write_bytes(data + b"x")
    assert [rule for rule, _ in found(path, against=source)] == ["origin", "large-error"]


def test_a_more_precise_file_is_only_remarked_upon(tmp_path: Path) -> None:
    _, path = made(tmp_path)
    with NinferSource(path) as opened:
        values = opened["w"].decode().astype("<f4").tobytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(gb.build([gb.tensor("w", (3, 2, 32), gb.F32, values), gb.tensor("b", (4,), gb.F32, bytes(16))]))
    report = qf.verify(path, against=other)
    assert report.ok
    assert [one.name for one in report.errors] == ["w"]
    (remark,) = report.remarks
    assert remark.rule == "origin"
    assert remark.expected == f"1 file of {(tmp_path / 'o.gguf').stat().st_size} bytes"


def test_artifacts_of_artifacts(tmp_path: Path) -> None:
    source, path = made(tmp_path)
    again = tmp_path / "again.ninfer"
    qf.convert(path, again)
    assert found(again, deep=True, against=path) == []
    assert found(again, deep=True, against=source) == []
    damage(again, "resource/chat_template", 0)
    for origin in (path, source):
        assert found(again, against=origin) == [("carried", "resource/chat_template")]


def test_the_files_beside_a_checkpoint(tmp_path: Path) -> None:
    model = sb.model(tmp_path, {"w": np.ones((2, 4), np.float32)}, {"layers": 1, "nested": {"a": [1, 2]}})
    (tmp_path / "tokenizer.json").write_text('{"version": 1}')
    qf.convert(model, tmp_path / "m.ninfer")
    assert found(tmp_path / "m.ninfer", deep=True, against=model) == []
    place = damage(tmp_path / "m.ninfer", "resource/tokenizer", 5)
    (finding,) = qf.verify(tmp_path / "m.ninfer", against=model).findings
    assert (finding.rule, finding.object, finding.offset) == ("carried", "resource/tokenizer", place)
    (tmp_path / "tokenizer.json").write_text('{"version": 1}  ')
    edit(tmp_path / "m.ninfer", lambda document: document["components"]["text"]["config"]["nested"]["a"].append(3))
    assert found(tmp_path / "m.ninfer", against=model) == [
        ("carried", "$.components.text.config.nested.a"),
        ("carried", "resource/tokenizer"),
    ]


# --- with a source that is not recorded ---------------------------------------------------------------------------


def checkpoint(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint with a tokenizer, and the artifact that is made from it."""
    model = sb.model(tmp_path, {"w": np.ones((2, 4), np.float32)}, {"layers": 1})
    (tmp_path / "tokenizer.json").write_text('{"version": 1}')
    qf.convert(model, tmp_path / "m.ninfer")
    return model, tmp_path / "m.ninfer"


def gguf(tmp_path: Path) -> tuple[Path, Path]:
    return made(tmp_path, layers=1)


def artifact(tmp_path: Path) -> tuple[Path, Path]:
    _, path = checkpoint(tmp_path)
    qf.convert(path, tmp_path / "again.ninfer")
    return path, tmp_path / "again.ninfer"


def files_of(document: Any) -> Any:
    return document["provenance"]["source"]["files"][0]


UNRECORDED: dict[str, Callable[[Any], object]] = {
    "no provenance": lambda document: document.pop("provenance"),
    "no source": lambda document: document["provenance"].pop("source"),
    "no files": lambda document: document["provenance"]["source"].pop("files"),
    "a bit of the key sha256": lambda document: files_of(document).update(shb256=files_of(document).pop("sha256")),
    "a bit of the key bytes": lambda document: files_of(document).update(cytes=files_of(document).pop("bytes")),
    "a length that is a text": lambda document: files_of(document).update(bytes=str(files_of(document)["bytes"])[1:]),
    "a bit of the kind too": lambda document: (
        document["provenance"]["source"].update(kind="other"),
        files_of(document).pop("sha256"),
    ),
}


@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
@pytest.mark.parametrize("what", UNRECORDED)
@pytest.mark.parametrize("make", [checkpoint, gguf, artifact])
def test_what_nothing_is_recorded_of_is_compared_all_the_same(
    tmp_path: Path, make: Callable[[Path], tuple[Path, Path]], what: str, deep: bool
) -> None:
    source, path = make(tmp_path)
    edit(path, UNRECORDED[what])
    rules = found(path, against=source)
    assert rules == [("origin", str(source))]
    (remark,) = qf.verify(path, against=source).remarks
    assert "does not record length and SHA-256" in remark.problem
    with NinferSource(path) as opened:
        resources = [id for component in opened.components.values() for id in component.resources.values()]
    for id in resources:
        damage(path, id, 3)
    edit(path, lambda document: document["components"]["text"]["config"].update(layers=2))
    rules = found(path, against=source, deep=deep)
    assert {*(("carried", id) for id in resources), ("carried", "$.components.text.config.layers")} <= {*rules}


def test_arrays_have_no_resources(tmp_path: Path) -> None:
    """Provenance says that it was made from arrays: what is beside the file that these came from did not go along."""
    model, _ = checkpoint(tmp_path)
    qf.convert({"w": np.ones((2, 4), np.float32)}, tmp_path / "a.ninfer")
    assert found(tmp_path / "a.ninfer", against=model) == [("origin", str(model))]
    (remark,) = qf.verify(tmp_path / "a.ninfer", against=model).remarks
    assert "only tensors are compared" in remark.problem


def test_an_artifact_beside_its_copy(tmp_path: Path) -> None:
    """It has the same id: nothing may differ."""
    _, path = made(tmp_path, **{"a.n": 7})
    copy = tmp_path / "copy.ninfer"
    copy.write_bytes(path.read_bytes())
    assert found(copy, against=path) == []
    damage(copy, "resource/gguf_frame", 40)
    damage(copy, "weight/w", 7)
    edit(copy, lambda document: document["components"]["text"]["config"].update({"a.n": 8}))
    edit(copy, lambda document: document["provenance"]["converter"].update(name="quamtform"))
    assert found(copy, against=path) == [
        ("against", "w"),
        ("carried", "$.provenance.converter.name"),
        ("carried", '$.components.text.config["a.n"]'),
        ("carried", "resource/gguf_frame"),
    ]


def test_a_config_that_nobody_can_read_is_a_finding(tmp_path: Path) -> None:
    model, path = checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert found(path, against=model) == [("carried", str(model))]
