"""Exported vectors: the same bytes every time, digests that are true, and arrays that a plain program reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantform import testing
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import FileError, OutputExistsError, UnknownNameError
from quantform.packed import dequantize_packed

SOME = ["gguf:q4_0", "gguf_q4_0", "nvfp4", "bf16", "q4_g64_fp16"]


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kit") / "vectors"
    testing.export(directory, SOME)
    return directory


def read(directory: Path, record: dict[str, Any]) -> Any:
    dtype = "uint16" if record["dtype"] == "bfloat16" else record["dtype"]
    words = np.frombuffer((directory / record["file"]).read_bytes(), np.dtype(dtype).newbyteorder("<"))
    return words.reshape(record["shape"])


def manifest(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "manifest.json").read_text("ascii"))
    return document


def test_the_manifest_tells_the_truth(exported: Path) -> None:
    document = manifest(exported)
    assert (document["schema"], document["version"]) == ("quantform-conformance", 2)
    known = {"manifest.json"}
    records = [record for entry in document["vectors"] for record in entry["arrays"].values()]
    for record in [*records, *document["archives"].values()]:
        data = (exported / record["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (record["bytes"], record["sha256"])
        known.add(record["file"])
    assert known == set(files(exported))
    for entry in document["vectors"]:
        assert document["rules"][entry["rule"]]["meaning"] == testing.RULES[entry["rule"]].meaning
    expected = [str(vector) for vector in (*testing.vectors(SOME), *testing.encoder_vectors(SOME))]
    assert [entry["id"] for entry in document["vectors"]] == expected


def test_plain_files_are_the_vectors(exported: Path) -> None:
    entries = {entry["id"]: entry for entry in manifest(exported)["vectors"]}
    for vector in testing.vectors(SOME):
        entry = entries[vector.identifier]
        assert tuple(entry["shape"]) == vector.shape
        assert entry["divisors"] == vector.divisors
        assert read(exported, entry["arrays"]["payload"]).tobytes() == vector.payload.tobytes()
        for name in FLOAT_OUTPUTS:
            assert read(exported, entry["arrays"][name]).tobytes() == vector.values[name].tobytes()
        for name in vector.words.keys() - {"blocks"}:
            np.testing.assert_array_equal(read(exported, entry["arrays"][name]), vector.words[name])
    for source in testing.encoder_vectors(SOME):
        entry = entries[source.identifier]
        assert entry["refused"] == (source.payload is None) == ("payload" not in entry["arrays"])
        assert read(exported, entry["arrays"]["values"]).tobytes() == source.values.tobytes()


def compare_archives(directory: Path) -> None:
    """Every array of every vector is in the archive of what its identifier begins with, and nothing else is."""
    document = manifest(directory)
    held = {
        stem: dict(np.load(directory / record["file"], allow_pickle=False))
        for stem, record in document["archives"].items()
    }
    seen = dict[str, set[str]]()
    for entry in document["vectors"]:
        subject, _, name = entry["id"].rpartition("/")
        stem = subject.replace(":", "/")
        for key, record in entry["arrays"].items():
            found = held[stem][f"{name}.{key}"]
            assert found.tobytes() == read(directory, record).tobytes(), (entry["id"], key)
            if not stem.startswith("gguf_"):
                assert list(found.shape) == record["shape"]
            seen.setdefault(document["archives"][stem]["file"], set()).add(f"{name}.{key}")
    assert seen == {document["archives"][stem]["file"]: arrays.keys() for stem, arrays in held.items()}
    assert {str(path.relative_to(directory)) for path in directory.rglob("*.npz")} == seen.keys()


@pytest.mark.parametrize("formats", [SOME, ["gguf_q4_0"], ["q6_g64_fp16"], ["gguf:q4_1"]])
def test_archives_have_the_same(formats: list[str], tmp_path: Path) -> None:
    testing.export(tmp_path / "kit", formats)
    compare_archives(tmp_path / "kit")


def test_a_format_that_keeps_blocks_shares_its_profiles_files(exported: Path) -> None:
    entries = {entry["id"]: entry for entry in manifest(exported)["vectors"]}
    own, packed = entries["gguf_q4_0/q-order"], entries["gguf:q4_0/q-order"]
    assert own["arrays"]["payload"] == packed["arrays"]["payload"]
    archives = manifest(exported)["archives"]
    assert archives["gguf_q4_0"] == archives["gguf/q4_0"]
    assert packed["arrays"]["payload"]["file"] == "gguf/q4_0/q-order.payload"


def test_a_program_needs_the_manifest_and_the_files_only(exported: Path) -> None:
    for entry in manifest(exported)["vectors"]:
        if entry["format"] == "gguf:q4_0":
            payload = (exported / entry["arrays"]["payload"]["file"]).read_bytes()
            values = dequantize_packed(payload, entry["format"], entry["shape"])
            np.testing.assert_array_equal(values, read(exported, entry["arrays"]["float32"]))


def test_the_bytes_are_the_same_again(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    testing.export(tmp_path / "empty", SOME)
    assert files(tmp_path / "empty") == files(exported)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_the_whole_kit_is_small_and_the_same_on_every_machine(tmp_path: Path) -> None:
    """When vectors are meant to change, `MANIFEST_VERSION` goes up, and this digest changes with it."""
    testing.export(tmp_path / "kit")
    found = files(tmp_path / "kit")
    assert sum(map(len, found.values())) < 18 << 20
    compare_archives(tmp_path / "kit")
    document = json.loads(found["manifest.json"])
    assert document["rules"].keys() == testing.RULES.keys()
    assert (
        hashlib.sha256(found["manifest.json"]).hexdigest()
        == "98811f5fbaee27ff44be30253ee772cc8839ebcbe7c5f1354c5aba0ca5893451"
    )


def test_nothing_is_overwritten_and_nothing_half_written_stays(exported: Path, tmp_path: Path) -> None:
    before = files(exported)
    with pytest.raises(OutputExistsError, match="not empty"):
        testing.export(exported, "bf16")
    assert files(exported) == before
    with pytest.raises(FileError, match="no directory"):
        testing.export(tmp_path / "absent" / "kit", "bf16")
    with pytest.raises(UnknownNameError):
        testing.export(tmp_path / "kit", "bf17")

    def interrupt(done: int, total: int, what: str) -> None:  # noqa: ARG001
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        testing.export(tmp_path / "kit", "bf16", interrupt)
    assert not list(tmp_path.iterdir())
