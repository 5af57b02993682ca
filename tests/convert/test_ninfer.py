"""Artifacts as sources: encoded again, split, and with everything that they had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
from quantform.errors import ArgumentError, UnsupportedError
from quantform.sources import NinferSource

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original.ninfer"
    arrays = {"q": values(128, 64), "k": values(128, 64, seed=1), "e": values(256, 64, seed=2), "t": values(256, 64)}

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign(["q", "k"], format="nvfp4")
        recipe.group(["q", "k"])
        recipe.share("t", "e")
        recipe.assign("e", format="q8_g32_fp16", rows=(0, 100))
        recipe.use("q", "hidden", activation_policy="AllowA4", auxiliaries={"activation_input_divisor": 3.0})

    qf.convert(arrays, path, recipe=configure)
    return path


def again(source: Path, target: Path, **options: Any) -> NinferSource:
    qf.convert(source, target, force=True, **options)
    report = qf.verify(target, deep=True)
    assert report.ok, report.findings
    return NinferSource(target)


def test_an_artifact_stays_what_it_is(tmp_path: Path, original: Path) -> None:
    with NinferSource(original) as old, again(original, tmp_path / "b.ninfer", max_file_bytes=40_960) as new:
        assert len(new.files) > 1
        assert new.directory.bindings == old.directory.bindings
        for id, tensor in old.objects.items():
            if not id.startswith("auxiliary/"):
                assert new.objects[id].payload().tobytes() == tensor.payload().tobytes()
        for name, tensor in old.items():
            assert new[name].shape == tensor.shape
            assert np.array_equal(new[name].decode(), tensor.decode())
        (use,) = new.uses
        assert (use.parameter, use.input, use.activation_policy) == ("q", "hidden", "AllowA4")
        (binding,) = use.auxiliaries.values()
        assert float(new.objects[str(binding.object)].decode()) == 3.0
        assert new.directory.provenance is not None
        assert new.directory.provenance["source"]["provenance"] == old.directory.provenance


def test_a_format_encodes_again(tmp_path: Path, original: Path) -> None:
    with NinferSource(original) as old, again(original, tmp_path / "b.ninfer", format="q4_g64_fp16") as new:
        for name, tensor in old.items():
            assert new[name].format == "q4_g64_fp16"
            assert np.array_equal(new[name].decode(), qf.encode(tensor.decode(), "q4_g64_fp16").decode())
        assert new.directory.bindings["t"] == new.directory.bindings["e"]  # what was one object is one again
        assert len(new.objects) == 4  # three and the divisor


def test_a_recipe_changes_one(tmp_path: Path, original: Path) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("t", format="bf16")

    with NinferSource(original) as old, again(original, tmp_path / "b.ninfer", recipe=configure) as new:
        assert new["t"].format == "bf16"
        assert new["e"].format == old["e"].format
        assert new.directory.bindings["q"] == old.directory.bindings["q"]


def test_words_of_artifacts_are_imported(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "a.ninfer")

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("token_embd.weight", format="gguf_q8_0", rows=(7, 9))
        recipe.assign("blk.0.attn_q.weight", format="gguf_q4_k", rows=(0, 8))

    with (
        NinferSource(tmp_path / "a.ninfer") as old,
        again(tmp_path / "a.ninfer", tmp_path / "b.ninfer", recipe=configure) as new,
    ):
        for name in ("token_embd.weight", "blk.0.attn_q.weight"):
            assert np.array_equal(new[name].decode(), old[name].decode())
        assert len(new["token_embd.weight"].objects) == 3
        assert len(new["blk.0.attn_q.weight"].objects) == 2
        assert new.resources["gguf_frame"] == old.resources["gguf_frame"]


def test_a_gguf_comes_back_by_way_of_two_artifacts(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "a.ninfer")
    qf.convert(tmp_path / "a.ninfer", tmp_path / "b.ninfer")
    qf.convert(tmp_path / "b.ninfer", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == EXAMPLE.read_bytes()
    qf.convert(tmp_path / "a.ninfer", tmp_path / "c.ninfer", format="q4_g64_fp16")
    with pytest.raises(UnsupportedError, match="original words are not in the artifact"):
        qf.convert(tmp_path / "c.ninfer", tmp_path / "c.gguf")


def test_nvfp4_is_stacked_again_and_its_rows_taken(tmp_path: Path) -> None:
    arrays = {"q": values(256, 64), "k": values(256, 64, seed=1)}
    qf.convert(arrays, tmp_path / "a.ninfer", format="nvfp4")

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.group(["k", "q"])

    with (
        NinferSource(tmp_path / "a.ninfer") as old,
        again(tmp_path / "a.ninfer", tmp_path / "b.ninfer", recipe=configure) as new,
    ):
        (id,) = new.objects
        assert new.objects[id].divisors == 2
        for name in arrays:
            assert np.array_equal(new[name].decode(), old[name].decode())

    def split(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("q", format="nvfp4", rows=(0, 128))

    with (
        NinferSource(tmp_path / "a.ninfer") as old,
        again(tmp_path / "a.ninfer", tmp_path / "c.ninfer", recipe=split) as new,
    ):
        assert np.array_equal(new["q"].decode(), old["q"].decode())
        assert len(new["q"].objects) == 2


def test_an_artifact_is_no_component(tmp_path: Path, original: Path) -> None:
    with pytest.raises(UnsupportedError, match="no component of another"):
        qf.convert({"w": values(2, 2)}, tmp_path / "b.ninfer", components={"vision": original})


def test_no_option_fits_the_way_back(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "a.ninfer")
    for options in ({"format": "bf16"}, {"recipe": "r.py"}, {"max_file_bytes": 1}, {"sources": {"a": "b"}}):
        with pytest.raises(ArgumentError, match="does not fit a conversion back to GGUF"):
            qf.convert(tmp_path / "a.ninfer", tmp_path / "back.gguf", **options)
