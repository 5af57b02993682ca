"""Members of a stacked NVFP4 object: verified against their checkpoint, and imported again from the artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
import safetensors_builder as sb
from quantform.formats import Nvfp4Words
from quantform.sources import Checkpoint, NinferSource, SafetensorsSource

ROWS, COLUMNS = 384, 64
DIVISORS = {"q": 2.0, "k": 3.0, "v": 3.0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three weights of NVFP4 as compressed-tensors keeps them."""
    tensors: dict[str, Any] = {}
    for seed, (name, divisor) in enumerate(DIVISORS.items()):
        rng = np.random.default_rng(seed)
        scales = rng.integers(0, 0x7F, (ROWS, COLUMNS // 16), np.uint8)
        tensors |= {
            f"{name}.weight_packed": rng.integers(0, 256, (ROWS, COLUMNS // 2), np.uint8),
            f"{name}.weight_scale": ("F8_E4M3", scales.shape, scales.tobytes()),
            f"{name}.weight_global_scale": np.array([divisor], np.float32),
        }
    return sb.model(tmp_path_factory.mktemp("checkpoint"), tensors)


def grouped(*names: str) -> Any:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.group([f"{name}.weight" for name in names])

    return configure


@pytest.fixture(scope="module")
def stacked(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stacked") / "m.ninfer"
    qf.convert(checkpoint, path, recipe=grouped("q", "k"))
    return path


def words_of(tensor: Any, rows: Any = None) -> Nvfp4Words:
    words = tensor.words(rows)
    assert isinstance(words, Nvfp4Words)
    return words


def same(found: Nvfp4Words, expected: Nvfp4Words) -> bool:
    return all(
        np.array_equal(getattr(found, part), getattr(expected, part)) for part in ("codes", "scales", "divisors")
    )


def test_members_are_verified_against_the_checkpoint(checkpoint: Path, stacked: Path) -> None:
    report = qf.verify(stacked, deep=True, against=checkpoint)
    assert report.ok, report.findings
    assert "3 of 3 tensors have equal words" in report.notes


def test_a_wrong_divisor_is_found(checkpoint: Path, stacked: Path, tmp_path: Path) -> None:
    data = stacked.read_bytes()
    word = np.array([2, 3], "<f4").tobytes()
    assert data.count(word) == 1
    path = tmp_path / "m.ninfer"
    path.write_bytes(data.replace(word, np.array([2, 5], "<f4").tobytes()))
    (finding,) = qf.verify(path, against=checkpoint).findings
    place = data.index(word) + 6
    assert (finding.object, finding.row, finding.offset, finding.count) == ("k.weight", 0, place, 1)
    assert finding.problem == (
        f"a divisor differs, row 0, byte {place} of m.ninfer; expected 0x40400000, found 0x40A00000"
    )


def test_members_whose_shape_is_not_recorded(checkpoint: Path, stacked: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    data = stacked.read_bytes()
    assert data.count(b'"shapes"') == 1
    path.write_bytes(data.replace(b'"shapes"', b'"others"'))
    with NinferSource(path) as source:
        assert source["q.weight"].shape == (ROWS * COLUMNS,)
        assert source["q.weight"].as_stored().shape == source["q.weight"].words().shape == (ROWS, COLUMNS)
    report = qf.verify(path, against=checkpoint)
    assert report.ok, report.findings


def test_members_have_words_and_a_payload(checkpoint: Path, stacked: Path) -> None:
    with NinferSource(stacked) as source, Checkpoint(SafetensorsSource(checkpoint)) as original:
        for name in ("q.weight", "k.weight"):
            assert same(words_of(source[name]), words_of(original[name]))
            assert source[name].payload().size == ROWS * COLUMNS // 2 + ROWS * COLUMNS // 16 + 4


@pytest.mark.parametrize("names", [("q", "k", "v"), ("k", "q"), ("v", "k")], ids=str)
def test_members_are_stacked_again(checkpoint: Path, stacked: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "again.ninfer"
    qf.convert(stacked, path, recipe=grouped(*names))
    report = qf.verify(path, deep=True, against=checkpoint)
    assert report.ok, report.findings
    assert "3 of 3 tensors have equal words" in report.notes


def test_rows_of_members(checkpoint: Path, stacked: Path, tmp_path: Path) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("k.weight", format="nvfp4", rows=(128, 256))

    path = tmp_path / "rows.ninfer"
    qf.convert(stacked, path, recipe=configure)
    report = qf.verify(path, deep=True, against=checkpoint)
    assert report.ok, report.findings
    with NinferSource(path) as source, Checkpoint(SafetensorsSource(checkpoint)) as original:
        _, rows, _ = (source.objects[id] for id in source["k.weight"].objects)
        assert same(words_of(rows), words_of(original["k.weight"], slice(128, 256)))
        found = words_of(source["k.weight"])  # three objects, so that three divisors are told apart
        assert found.divisors.view(np.float32).tolist() == [3.0] * 3
        assert np.array_equal(found.codes, words_of(original["k.weight"]).codes)
