"""Importance matrices: llama.cpp's file, the import, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import safetensors_builder as sb
from quantform.errors import FileError, OutputExistsError
from quantform.recipes import Importance, import_importance
from quantform.sources import SafetensorsSource


def f32(name: str, values: Any) -> Any:
    array = np.asarray(values, "<f4")
    return gb.tensor(name, array.shape, gb.F32, array.tobytes())


def imatrix(path: Path, **more: Any) -> Path:
    tensors = [
        f32("blk.0.attn_q.weight.in_sum2", [6.0, 0.5, 0.0, 8.0]),
        f32("blk.0.attn_q.weight.counts", [2.0]),
        f32("never.weight.in_sum2", [1.5, 2.5]),
        f32("never.weight.counts", [0.0]),
        f32("experts.in_sum2", [[3.0, 9.0], [0.0, 0.0], [1.0, 2.0]]),
        f32("experts.counts", [[3.0], [0.0], [4.0]]),
        *(f32(name, values) for name, values in more.items()),
    ]
    path.write_bytes(gb.build(tensors, {"general.type": "imatrix"}))
    return path


EXPECTED = {
    "blk.0.attn_q.weight": [3.0, 0.25, 0.0, 4.0],
    "never.weight": [1.5, 2.5],
    "experts": [[1.0, 3.0], [0.0, 0.0], [0.25, 0.5]],
}


def test_sums_are_divided_by_counts(tmp_path: Path) -> None:
    source = imatrix(tmp_path / "i.gguf")
    target = tmp_path / "i.safetensors"
    imported = import_importance(source, target)
    assert imported.unused == ()
    assert imported.shapes == {"blk.0.attn_q.weight": (4,), "never.weight": (2,), "experts": (3, 2)}
    for path in (source, target):
        with Importance(path) as importance:
            assert {name: vector.tolist() for name, vector in importance.items()} == EXPECTED
            assert all(vector.dtype == np.float32 for vector in importance.values())
    with SafetensorsSource(target) as file:
        assert file.metadata == {"source": "i.gguf"}


def test_the_safetensors_package_reads_the_import(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    import_importance(imatrix(tmp_path / "i.gguf"), tmp_path / "i.safetensors")
    found = package.load_file(tmp_path / "i.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == EXPECTED


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source, target = imatrix(tmp_path / "i.gguf"), tmp_path / "i.safetensors"
    target.write_bytes(b"precious")
    with pytest.raises(OutputExistsError):
        import_importance(source, target)
    assert target.read_bytes() == b"precious"
    import_importance(source, target, force=True)
    assert json.loads(target.read_bytes()[8:].split(b"}}")[0] + b"}}")["experts"]["shape"] == [3, 2]


def test_the_source_is_never_replaced(tmp_path: Path) -> None:
    source = imatrix(tmp_path / "i.gguf")
    before = source.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(source)
    for target in (source, tmp_path / "link.safetensors"):
        with pytest.raises(OutputExistsError, match="being read"):
            import_importance(source, target, force=True)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"x.in_sum2": [1.0]}, "the sums have no counts.*'x.counts'"),
        ({"x.in_sum2": [1.0, 2.0], "x.counts": [1.0, 2.0, 3.0]}, "do not fit"),
        ({"x.in_sum2": [1.0, 2.0, 3.0, 4.0], "x.counts": [1.0, 2.0]}, "do not fit"),
        ({"x.in_sum2": [1.0, -2.0], "x.counts": [1.0]}, "element 1: an importance is not finite and nonnegative"),
        ({"x.in_sum2": [1.0, np.nan], "x.counts": [1.0]}, "not finite and nonnegative"),
        ({"x.in_sum2": [1.0, np.inf], "x.counts": [1.0]}, "not finite and nonnegative"),
        ({"x.in_sum2": [1.0, 1.0], "x.counts": [np.nan]}, "not finite and nonnegative"),
    ],
)
def test_wrong_files(tmp_path: Path, more: dict[str, Any], expected: str) -> None:
    source = imatrix(tmp_path / "i.gguf", **more)
    with pytest.raises(FileError, match=expected):
        import_importance(source, tmp_path / "i.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["i.gguf"]


def test_files_without_vectors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.build([f32("w", [1.0])]))
    with pytest.raises(FileError, match="holds no importance vectors"):
        Importance(path)
    for name, array in (("f64", np.ones(4)), ("rank 3", np.ones((2, 2, 2), np.float32)), ("empty", np.ones(0, "f4"))):
        target = tmp_path / f"{name}.safetensors"
        target.write_bytes(sb.build({"w": array}))
        with pytest.raises(FileError, match="not an importance vector"):
            Importance(target)
