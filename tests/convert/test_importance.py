"""Importance matrices in conversions: which vector weighs which parameter, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
import safetensors_builder as sb
from conversions import made, same, values
from quantform.errors import (
    ArgumentError,
)
from quantform.formats import Words


def an_imatrix(tmp_path: Path, vectors: Mapping[str, np.ndarray]) -> Path:
    path = tmp_path / "i.safetensors"
    path.write_bytes(sb.build({name: vector.astype(np.float32) for name, vector in vectors.items()}))
    return path


def test_importance_by_parameter_and_by_expert(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrays = {"w": values(4, 128), "bank": values(3, 2, 128), "plain": values(4, 128, seed=5)}
    weights = {"w": rng.random(128) * 9, "bank": rng.random((3, 128)) * 9}
    path = an_imatrix(tmp_path, weights)

    def searched(array: np.ndarray, vector: np.ndarray | None) -> Words:
        more: dict[str, Any] = {} if vector is None else {"importance": vector.astype(np.float32)}
        return qf.encode(array, "q4_g64_fp16", "grouped_search", **more)

    options: dict[str, Any] = {"format": "q4_g64_fp16", "method": "grouped_search"}
    with made(tmp_path, arrays, **options, imatrix=path) as source:
        assert same(source["w"].words(), searched(arrays["w"], weights["w"]))
        assert same(source["plain"].words(), searched(arrays["plain"], None))
        for expert in range(3):
            rows = slice(2 * expert, 2 * expert + 2)
            assert same(source["bank"].words(rows), searched(arrays["bank"][expert], weights["bank"][expert]))
        assert not same(source["w"].words(), searched(arrays["w"], None))
        provenance = source.directory.provenance
    assert provenance is not None
    assert provenance["methods"][0]["parameters"] == {"imatrix": "i.safetensors"}
    assert provenance["sources"]["imatrix"]["files"][0]["path"] == "i.safetensors"
    report = qf.convert(arrays, tmp_path / "n.ninfer", **options, imatrix=path)
    assert any(line.startswith("1 matrix not in the importance matrix") for line in report.notes)
    with made(tmp_path, arrays, **options, imatrix=weights) as source:  # vectors by name
        assert same(
            source["w"].words(), qf.encode(arrays["w"], "q4_g64_fp16", "grouped_search", importance=weights["w"])
        )


def test_a_recipes_own_importance_wins(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).random(128)

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("w", format="q4_g64_fp16", method="grouped_search", parameters={"importance": weights})

    path = an_imatrix(tmp_path, {"w": np.ones(128)})
    with made(tmp_path, {"w": values(4, 128)}, recipe=configure, imatrix=path) as source:
        expected = qf.encode(values(4, 128), "q4_g64_fp16", "grouped_search", importance=weights)
        assert same(source["w"].words(), expected)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ({"other": np.ones(64)}, "knows none of the parameters"),
        ({"w": np.ones(32)}, "one value per input channel"),
        ({"w": np.ones((3, 64))}, "do not fit"),
    ],
)
def test_importance_that_does_not_fit(tmp_path: Path, vectors: dict[str, np.ndarray], expected: str) -> None:
    path = an_imatrix(tmp_path, vectors)
    with pytest.raises(ArgumentError, match=expected):
        qf.convert(
            {"w": values(4, 64)}, tmp_path / "a.ninfer", format="q4_g64_fp16", method="grouped_search", imatrix=path
        )


def test_an_importance_matrix_that_nothing_uses(tmp_path: Path) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("w", format="q4_g64_fp16", method="grouped_absmax")

    with pytest.raises(ArgumentError, match="nothing uses the importance matrix"):
        qf.convert({"w": values(4, 64)}, tmp_path / "a.ninfer", recipe=configure, imatrix={"w": np.ones(64)})


@pytest.mark.parametrize(
    ("method", "parameters", "problem", "hint"),
    [
        ("grouped_absmax", {"imatrix": "i"}, "unknown grouped_absmax parameters: imatrix", "takes none"),
        ("grouped_search", {"imatrx": "i"}, "unknown grouped_search parameters: imatrx", "'imatrix'"),
        ("grouped_search", {"zzz": 1}, "unknown grouped_search parameters: zzz", "imatrix, importance, negative"),
    ],
)
def test_unknown_parameters(tmp_path: Path, method: str, parameters: dict[str, Any], problem: str, hint: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        qf.convert(
            {"w": values(4, 64)}, tmp_path / "a.ninfer", format="q4_g64_fp16", method=method, parameters=parameters
        )
    assert caught.value.problem == problem
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("vectors", [(128,), (1, 128), (2, 128), (4, 128), (12, 128), (3, 1, 128)])
def test_a_bank_has_one_importance_vector_for_each_expert(tmp_path: Path, vectors: tuple[int, ...]) -> None:
    expected = r"'bank'.*3 vectors of 128.*\[3, 4, 128\], found .*" + ", ".join(map(str, vectors))
    with pytest.raises(ArgumentError, match=expected):
        qf.convert(
            {"bank": values(3, 4, 128)},
            tmp_path / "a.ninfer",
            format="q4_g64_fp16",
            method="grouped_search",
            imatrix={"bank": np.ones(vectors)},
        )
