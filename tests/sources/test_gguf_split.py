"""Split GGUF models: found from any part, ordered by their metadata, complete or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import F32, build, part_name, split_metadata, tensor, typed
from quantform.errors import FileError, GGUFError, QuantformError
from quantform.sources.gguf import GGUFSource

COUNT = 3


def part(number: int, *, total: int = COUNT, metadata: Mapping[str, Any] | None = None, **options: Any) -> bytes:
    """Part `number`, with one tensor."""
    order = ">" if options.get("big_endian") else "<"
    data = number.to_bytes(4, "big" if order == ">" else "little")
    pairs = split_metadata(number, COUNT, total) if metadata is None else metadata
    return build([tensor(f"t{number}", (1,), 26, data)], {**pairs, "part": number}, **options)


@pytest.fixture
def model(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / part_name("toy", number, COUNT) for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(part(number))
    return paths


def refused(path: Path, *fragments: str) -> None:
    with pytest.raises(QuantformError) as caught:
        GGUFSource(path)
    for fragment in (str(path.parent), *fragments):
        assert fragment in str(caught.value)


@pytest.mark.parametrize("start", range(COUNT))
def test_found_from_any_part(model: list[Path], start: int) -> None:
    with GGUFSource(model[start]) as source:
        assert source.path == model[start]
        assert source.files == tuple(model)
        assert list(source) == ["t0", "t1", "t2"]
        assert [item.decode().item() for item in source.values()] == [0, 1, 2]
        assert source.metadata["part"] == 0
        assert [shard.metadata["part"] for shard in source.shards] == [0, 1, 2]
        assert source["t2"].file.path == model[2]
        assert source.describe() == "GGUF version 3, 3 tensors in 3 files"


def test_ordered_by_metadata_not_by_name(model: list[Path]) -> None:
    for path, number in zip(model, (2, 0, 1), strict=True):
        path.write_bytes(part(number))
    with GGUFSource(model[0]) as source:
        assert source.files == (model[1], model[2], model[0])
        assert list(source) == ["t0", "t1", "t2"]


def test_parts_may_differ_in_form(model: list[Path]) -> None:
    model[1].write_bytes(part(1, big_endian=True, alignment=64))
    model[2].write_bytes(part(2, version=2))
    with GGUFSource(model[0]) as source:
        assert [item.decode().item() for item in source.values()] == [0, 1, 2]
        assert (source.big_endian, source.version, source.alignment) == (False, 3, 32)


def test_original_shapes_stand_in_the_first_part(model: list[Path]) -> None:
    shape = {"comfy.gguf.orig_shape.t2": typed("int32", [1, 1])}
    model[0].write_bytes(part(0, metadata={**split_metadata(0, COUNT, COUNT), **shape}))
    with GGUFSource(model[0]) as source:
        assert source["t2"].shape == (1, 1)
        assert source["t1"].shape == (1,)


def test_disputes_count_for_all_parts(model: list[Path]) -> None:
    model[0].write_bytes(build([tensor("a", (1, 64), 42, bytes(18))], split_metadata(0, COUNT, COUNT)))
    model[1].write_bytes(build([tensor("b", (8, 64), 42, bytes(96))], split_metadata(1, COUNT, COUNT)))
    with GGUFSource(model[0]) as source:
        assert not source["a"].decodable


def test_missing_parts_are_named(model: list[Path]) -> None:
    model[1].unlink()
    refused(model[0], "1 of 3 parts of the model are missing", "toy-00002-of-00003.gguf")
    model[0].unlink()
    refused(model[2], "2 of 3 parts", "toy-00001-of-00003.gguf, toy-00002-of-00003.gguf")


def test_many_missing_parts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / part_name("toy", 0, 60000)
    path.write_bytes(build([], split_metadata(0, 60000, 1)))
    refused(path, "59999 of 60000 parts", "toy-00005-of-60000.gguf and 59995 more")


def test_a_broken_part_is_named(model: list[Path]) -> None:
    model[1].write_bytes(b"GGUF")
    refused(model[0], str(model[1]), "ends within its first fields")


def test_a_directory_in_place_of_a_part(model: list[Path]) -> None:
    model[1].unlink()
    model[1].mkdir()
    with pytest.raises(FileError, match="not a regular file"):
        GGUFSource(model[0])


def test_names_that_do_not_lead_to_the_others(model: list[Path]) -> None:
    renamed = model[0].rename(model[0].with_name("model.gguf"))
    refused(renamed, "one of 3 parts", "NAME-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"split.count": 4}, ["toy-00002-of-00003.gguf", "the parts disagree", "split.count 3, found 4"]),
        ({"split.count": 1}, ["the parts disagree", "found 1"]),
        ({"split.no": 0}, ["two parts say that they are number 0", "toy-00001-of-00003.gguf"]),
        ({"split.no": 3}, ["does not say which one it is", "0 to 2, found 3"]),
        ({"split.no": typed("int32", -1)}, ["does not say which one it is"]),
        ({"split.no": "one"}, ["'split.no' has the wrong type", "expected an integer, found string"]),
        ({"split.no": 1.0}, ["'split.no' has the wrong type"]),
        ({"split.tensors.count": 4}, ["do not hold all tensors", "split.tensors.count 4, found 3 tensors in 3 files"]),
        ({"split.tensors.count": 2}, ["too many tensors"]),
        ({"split.tensors.count": [3]}, ["'split.tensors.count' has the wrong type"]),
    ],
    ids=repr,
)
def test_contradictions(model: list[Path], changes: dict[str, Any], fragments: list[str]) -> None:
    model[1].write_bytes(part(1, metadata={**split_metadata(1, COUNT, COUNT), **changes}))
    refused(model[0], *fragments)


@pytest.mark.parametrize("key", ["split.no", "split.count"])
def test_a_part_without_its_keys(model: list[Path], key: str) -> None:
    pairs = split_metadata(1, COUNT, COUNT)
    del pairs[key]
    model[1].write_bytes(part(1, metadata=pairs))
    refused(model[0], "toy-00002-of-00003.gguf")


def test_name_and_metadata_disagree(model: list[Path]) -> None:
    model[0].write_bytes(part(0, metadata={**split_metadata(0, 5, COUNT)}))
    refused(model[0], "disagree on the number of parts", "split.count 3 of part 1, found 5")
    beyond = model[1].rename(model[1].with_name("toy-00004-of-00003.gguf"))
    refused(beyond, "disagree on the number of parts", "of part 4, found 3")


def test_the_number_of_tensors_may_be_left_out(model: list[Path]) -> None:
    for number, path in enumerate(model):
        pairs = split_metadata(number, COUNT, COUNT)
        del pairs["split.tensors.count"]
        path.write_bytes(part(number, metadata=pairs))
    with GGUFSource(model[0]) as source:
        assert len(source) == COUNT


def test_duplicates_across_parts(model: list[Path]) -> None:
    model[2].write_bytes(build([tensor("t1", (1,), F32, bytes(4))], split_metadata(2, COUNT, COUNT)))
    with pytest.raises(GGUFError, match=r"00003-of-00003.gguf: tensor 't1' appears in two parts.*00002-of-00003"):
        GGUFSource(model[0])


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_of_one_part(tmp_path: Path, count: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build([tensor("t", (1,), F32, bytes(4))], split_metadata(0, count, 1)))
    with GGUFSource(path) as source:
        assert source.files == (path,)


def test_a_name_alone_makes_no_part(tmp_path: Path) -> None:
    path = tmp_path / part_name("toy", 0, 3)
    path.write_bytes(build([tensor("t", (1,), F32, bytes(4))]))
    with GGUFSource(path) as source:
        assert list(source) == ["t"]


def test_every_file_is_closed_when_opening_fails(model: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model[2].write_bytes(build([tensor("t1", (1,), F32, bytes(4))], split_metadata(2, COUNT, COUNT)))
    opened = []
    original = GGUFSource.__init__.__globals__["open_files"]

    def remember(path: Path) -> Any:
        opened.extend(original(path))
        return opened

    monkeypatch.setitem(GGUFSource.__init__.__globals__, "open_files", remember)
    with pytest.raises(GGUFError):
        GGUFSource(model[0])
    assert len(opened) == COUNT
    assert all(file.closed for file, _ in opened)
