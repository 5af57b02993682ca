"""Uses: auxiliaries of the wrong format, shape or value, and parameters that do not take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_builder as nb
import quantform as qf
from ninfer_legality import why_broken

K = 1024


def artifact(
    path: Path,
    role: str,
    data: np.ndarray,
    format: str,
    *,
    shape: Sequence[int] | None = None,
    weight: str = "gguf_q8_0",
    parts: Any = None,
    matrix: tuple[int, int] = (2, K),
    uses: Sequence[Any] | None = None,
) -> Path:
    """One weight `[2, 1024]` and one auxiliary, bound to a use of it twice, or `uses` of other bindings."""
    nbytes, layout = {"gguf_q8_0": (2 * K // 32 * 34, "gguf_blocks_v1"), "bf16": (4 * K, "contiguous_le_v1")}[weight]
    at = -(-nbytes // 256) * 256
    stored = data.tobytes()
    directory = {
        "components": {"text": {"config": {}}},
        "objects": [
            nb.tensor("w", matrix, weight, layout, 0, nbytes),
            nb.tensor("x", data.shape if shape is None else shape, format, "contiguous_le_v1", at, len(stored)),
        ],
        "bindings": {"w": {"object": "w"}},
        "uses": [
            {"parameter": "w", "input": f"{index}", "auxiliaries": {role: binding}}
            for index, binding in enumerate(uses or [parts or {"object": "x"}] * 2)
        ],
        "files": [{"path": None, "payload_bytes": at + len(stored)}],
    }
    return nb.Artifact(directory=directory, payload=bytes(at) + stored).write(path)


def order(*changes: tuple[int, int]) -> np.ndarray:
    columns = np.arange(K, dtype="<i4")[::-1].copy()
    for at, value in changes:
        columns[at] = value
    return columns


SIGNS = np.full(K, 0xBF80, "<u2")
ONE = np.array(0.5, "<f4")
PARTS = {"parts": [{"object": "x", "range": [512, 1024]}, {"object": "x", "range": [0, 512]}]}
TWO = {"parts": [{"object": "x", "range": [0, 2]}]}
SOUND: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "divisor": ("activation_input_divisor", ONE, "fp32", {}),
    "a divisor of several": (
        "activation_input_divisor",
        np.array([0, 2], "<f4"),
        "fp32",
        {"parts": {"parts": [{"object": "x", "range": [1, 2]}]}},
    ),
    "signs": ("hadamard_signs", SIGNS, "bf16", {}),
    "columns": ("input_columns", order(), "int32", {}),
    "columns in parts": ("input_columns", order(), "int32", {"parts": PARTS}),
}
# What is wrong for the use, and what found says.
MISFITS: dict[str, tuple[str, Any, str, dict[str, Any], str]] = {
    "format": ("activation_input_divisor", ONE.astype("<i4"), "int32", {}, "int32"),
    "rank": ("activation_input_divisor", ONE.reshape(1), "fp32", {}, "[1]"),
    "two": (
        "activation_input_divisor",
        np.ones(2, "<f4"),
        "fp32",
        {"parts": TWO},
        "[2]",
    ),
    "length": ("hadamard_signs", SIGNS[:512], "bf16", {}, "[512]"),
    "matrix": ("input_columns", order().reshape(1, K), "int32", {}, f"[1, {K}]"),
    "no blocks": ("input_columns", order(), "int32", {"weight": "bf16"}, "bf16"),
}
# The value that is wrong, the element where it is, and what found says.
ILLEGAL = {
    "zero": ("activation_input_divisor", np.array(0, "<f4"), "fp32", 0, "0x00000000"),
    "negative": ("activation_input_divisor", np.array(-1, "<f4"), "fp32", 0, "0xBF800000"),
    "infinite": ("activation_input_divisor", np.array(np.inf, "<f4"), "fp32", 0, "0x7F800000"),
    "NaN": ("activation_input_divisor", np.array(np.nan, "<f4"), "fp32", 0, "0x7FC00000"),
    "sign": ("hadamard_signs", np.where(np.arange(K) == 9, 0x3F81, SIGNS).astype("<u2"), "bf16", 9, "0x3F81"),
    "repeated": ("input_columns", order((5, K - 1)), "int32", 5, f"{K - 1}, again"),
    "too large": ("input_columns", order((7, K)), "int32", 7, str(K)),
    "below zero": ("input_columns", order((7, -1)), "int32", 7, "-1"),
}


def oracle(path: Path) -> str | None:
    return why_broken({path.name: path.read_bytes()}, path.name)


@pytest.mark.parametrize("case", SOUND)
def test_sound_auxiliaries(tmp_path: Path, case: str) -> None:
    role, data, format, more = SOUND[case]
    path = artifact(tmp_path / "m.ninfer", role, data, format, **more)
    assert oracle(path) is None
    report = qf.verify(path, deep=True)
    assert report.ok, report.findings
    assert report.checked["uses"] == 2


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_found_without_reading(tmp_path: Path, case: str) -> None:
    role, data, format, more, said = MISFITS[case]
    path = artifact(tmp_path / "m.ninfer", role, data, format, **more)
    assert oracle(path) is not None
    for deep in (False, True):
        findings = qf.verify(path, deep=deep).findings
        assert [finding.rule for finding in findings] == ["use", "use"]
        assert findings[0].object == f"$.uses[0] ('w', input '0'), {role}"
        assert findings[0].found == said


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_values_are_found_where_they_are(tmp_path: Path, case: str) -> None:
    """Once, though two uses have them."""
    role, data, format, element, said = ILLEGAL[case]
    path = artifact(tmp_path / "m.ninfer", role, data, format)
    assert oracle(path) is not None
    assert qf.verify(path).ok
    (finding,) = qf.verify(path, deep=True).findings
    place = path.stat().st_size - data.nbytes + element * data.itemsize
    assert (finding.rule, finding.offset, finding.column, finding.found) == ("auxiliary", place, element, said)


def test_signs_need_whole_transforms(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer", "hadamard_signs", SIGNS[:512], "bf16", weight="bf16", matrix=(4, 512))
    assert oracle(path) is not None
    assert [finding.expected for finding in qf.verify(path, deep=True).findings] == ["K a multiple of 1024"] * 2


def parts_of(*ranges: tuple[int, int]) -> dict[str, Any]:
    return {"parts": [{"object": "x", "range": list(one)} for one in ranges]}


def test_as_many_are_listed_as_asked_for(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer", "hadamard_signs", np.zeros(K, "<u2"), "bf16")
    for limit in (1, 100, 1000, 5000):
        report = qf.verify(path, deep=True, max_findings=limit)
        assert len(report.findings) == min(limit, K)
        assert [one.column for one in report.findings] == list(range(min(limit, K)))
        assert report.total == report.broken["auxiliary"] == K


SHARED: dict[str, tuple[str, Any, str, list[Any], list[tuple[str, int]]]] = {
    "signs, whole and cut": (
        "hadamard_signs",
        np.where(np.arange(K) == 700, 0, SIGNS).astype("<u2"),
        "bf16",
        [parts_of((0, at), (at, K)) for at in range(1, 200)] + [{"object": "x"}, parts_of((512, K), (0, 512))],
        [("0", 700)],
    ),
    "signs that overlap": (
        "hadamard_signs",
        np.where(np.isin(np.arange(3 * K), [100, K, K + 600, 3 * K - 1]), 0, 0x3F80).astype("<u2"),
        "bf16",
        [parts_of((at, at + K)) for at in (700, 800, 0, K, 2 * K - 100)],
        [("2", 100), ("0", K - 700), ("0", K + 600 - 700)],
    ),
    "divisors": (
        "activation_input_divisor",
        np.array([1, 0, -1, 0], "<f4"),
        "fp32",
        [parts_of((at, at + 1)) for at in (0, 1, 1, 1, 2)],
        [("1", 0), ("4", 0)],
    ),
    "columns, cut and turned": (
        "input_columns",
        order((700, 0)),
        "int32",
        [parts_of((0, at), (at, K)) for at in range(1, 200)] + [{"object": "x"}, parts_of((512, K), (0, 512))],
        [("0", K - 1)],
    ),
    "columns of several lists": (
        "input_columns",
        np.concatenate([order(), order((5, -1))]),
        "int32",
        [parts_of((0, K)), parts_of((K, 2 * K)), parts_of((K, 2 * K)), parts_of((K + 9, 2 * K), (0, 9))],
        [("1", 5)],
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_values_that_many_uses_have_are_wrong_once(tmp_path: Path, case: str) -> None:
    role, data, format, uses, expected = SHARED[case]
    path = artifact(tmp_path / "m.ninfer", role, data, format, uses=uses)
    assert oracle(path) is not None
    report = qf.verify(path, deep=True)
    assert report.total == len(report.findings)
    assert [(one.object, one.column) for one in report.findings] == [
        (f"$.uses[{use}] ('w', input '{use}'), {role}", column) for use, column in expected
    ]


def test_an_auxiliary_of_half_words_is_not_looked_at(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer", "hadamard_signs", np.zeros(2 * K - 1, np.uint8), "bf16", shape=[K])
    assert [one.rule for one in qf.verify(path, deep=True).findings] == ["structure"]
