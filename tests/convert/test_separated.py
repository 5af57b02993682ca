"""Parameters of an artifact that leave the objects that they are stacked in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
from quantform.sources import NinferSource


@pytest.mark.parametrize("format", ["q4_g64_fp16", "nvfp4", "bf16"])
@pytest.mark.parametrize("leaving", [["q"], ["q", "k"]])
def test_stacked_parameters_are_separated(tmp_path: Path, format: str, leaving: list[str]) -> None:
    def stack(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign(["q", "k"], format=format)
        recipe.group(["q", "k"])

    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=(128, 64)).astype(np.float32) for name in ("q", "k")}
    qf.convert(arrays, tmp_path / "a.ninfer", recipe=stack)
    report = qf.convert(tmp_path / "a.ninfer", tmp_path / "b.ninfer", recipe=lambda _m, r, _s: r.separate(leaving))
    assert qf.verify(tmp_path / "b.ninfer", deep=True).ok
    with NinferSource(tmp_path / "a.ninfer") as old, NinferSource(tmp_path / "b.ninfer") as new:
        for name, tensor in old.items():
            assert new[name].format == format
            assert np.array_equal(new[name].decode(), tensor.decode())
            assert (new.directory.bindings[name] != old.directory.bindings[name]) == (name in leaving)
        whole = any(note.startswith("1 object copied whole") and "weight/q+k" in note for note in report.notes)
        assert whole == (leaving == ["q"])
        assert ("weight/q+k" in new.objects) == whole


def test_the_old_object_of_an_assigned_parameter_is_noted(tmp_path: Path) -> None:
    arrays = {name: np.ones((4, 64), np.float32) for name in ("q", "k")}
    qf.convert(arrays, tmp_path / "a.ninfer", recipe=lambda _m, r, _s: r.group(["q", "k"]))
    report = qf.convert(
        tmp_path / "a.ninfer", tmp_path / "b.ninfer", recipe=lambda _m, r, _s: r.assign("q", format="bf16")
    )
    assert any("copied whole" in note for note in report.notes)
    report = qf.convert(tmp_path / "a.ninfer", tmp_path / "c.ninfer")
    assert not report.notes
