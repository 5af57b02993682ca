"""Deep verification of checkpoints finds what conversion refuses, each word where it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
import safetensors_builder as sb
from quantform.errors import WordsError
from quantform.sources import Checkpoint
from quantform.verify import Report

MAX = float(np.finfo(np.float32).max)
FP8_BLOCK = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 4]}}


def grouped(kind: str, bits: int, size: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": "group", "group_size": size}
    return {"quantization_config": {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}}


def verified(path: Path, tensors: dict[str, Any], config: Any = None) -> Report:
    return qf.verify(sb.model(path, tensors, config), deep=True)


def found(report: Report) -> list[tuple[str, int | None, int | None]]:
    return [(one.rule, one.row, one.column) for one in report.findings]


def decoded_or_refused(path: Path) -> bool:
    """Whether every weight has words, or, where it has none that are registered, values."""
    with qf.open(path) as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        for weight in checkpoint.weights.values():
            try:
                if weight.importable:
                    weight.words()
                else:
                    weight.decode()
            except WordsError:
                return False
    return True


@pytest.mark.parametrize("zero", [0.0, 1e-45], ids=["zero", "rounded to zero"])
def test_codes_under_a_zero_scale(tmp_path: Path, zero: float) -> None:
    codes = sb.f8([[0x38, 0x80, 0x00], [0x00, 0x80, 0x81], [0x38, 0x38, 0x38]])
    scales = np.array([[zero], [zero], [1]], np.float32)
    report = verified(tmp_path, {"p.weight": codes, "p.weight_scale": scales})
    assert found(report) == [("zero-scale", 0, 0), ("zero-scale", 1, 2)]
    data = (tmp_path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert [one.offset for one in report.findings] == [start, start + 5]
    assert {one.object for one in report.findings} == {"p.weight"}
    assert not decoded_or_refused(tmp_path)
    assert verified(tmp_path, {"p.weight": sb.f8([[0x80, 0]]), "p.weight_scale": scales[:1]}).ok


def test_scales_that_bf16_does_not_hold(tmp_path: Path) -> None:
    below, tie = (np.array(word, np.uint32).view(np.float32) for word in (0x7F7F7FFF, 0x7F7F8000))
    codes = sb.f8([[0x00]] * 3)
    scales = np.array([below, tie, MAX], np.float32)
    report = verified(tmp_path, {"p.weight": codes, "p.weight_scale": scales})
    assert [(one.rule, one.group) for one in report.findings] == [("scale", 1), ("scale", 2)]
    assert "infinite in BF16" in report.findings[0].problem
    assert not decoded_or_refused(tmp_path)
    assert verified(tmp_path, {"p.weight": codes, "p.weight_scale": np.full(3, below)}).ok
    assert decoded_or_refused(tmp_path)


def test_values_of_words_that_overflow_are_a_remark(tmp_path: Path) -> None:
    """The words are legal, and are imported; only their values are refused."""
    codes = sb.f8([[0x7E, 0x38], [0xFE, 0x7E]])
    scales = sb.bf16(np.array([2.0**120, 2.0**127], np.float32))
    report = verified(tmp_path, {"p.weight": codes, "p.weight_scale": scales})
    assert report.ok, report.findings
    assert [str(one) for one in report.remarks] == ["p.weight: 3 values not finite [nonfinite-value]"]
    assert decoded_or_refused(tmp_path)
    with qf.open(tmp_path) as checkpoint, pytest.raises(WordsError, match="overflows"):
        checkpoint["p.weight"].decode()


def overflowing_blocks() -> tuple[dict[str, Any], Any, list[tuple[str, int, int]]]:
    codes = np.full((5, 10), 0x38, np.uint8)
    codes[1, 7] = codes[4, 9] = 0x7E
    codes[0, 0] = 0x7E
    scales = np.ones((3, 3), np.float32)
    scales[0, 1] = scales[2, 2] = MAX / 447
    scales[0, 0] = MAX / 448
    tensors = {"p.weight": sb.f8(codes.tolist()), "p.weight_scale_inv": scales}
    return tensors, FP8_BLOCK, [("overflow", 1, 7), ("overflow", 4, 9)]


def overflowing_banks() -> tuple[dict[str, Any], Any, list[tuple[str, int, int]]]:
    """Matrices of three rows, whose second band is one row."""
    codes = np.full((3, 3, 10), 0x38, np.uint8)
    codes[1, 2, 3] = 0xFE
    scales = np.ones((3, 2, 3), np.float32)
    scales[1, 1, 0] = MAX
    tensors = {"p.up": ("F8_E4M3", codes.shape, codes.tobytes()), "p.up_scale_inv": scales}
    return tensors, FP8_BLOCK, [("overflow", 5, 3)]


def overflowing_exponents() -> tuple[dict[str, Any], Any, list[tuple[str, int, int]]]:
    """2^127 times 1 fits, and times 2 does not."""
    codes = np.full((2, 32), 0x22, np.uint8)  # ones
    codes[1, 17], codes[1, 18] = 0x42, 0xC4  # one, two; two, minus two
    scales = np.full((2, 2), 254, np.uint8)
    tensors = {"p.weight_packed": codes, "p.weight_scale": scales}
    return tensors, grouped("float", 4, 32), [("overflow", 1, 35), ("overflow", 1, 36), ("overflow", 1, 37)]


CASES = [overflowing_blocks, overflowing_banks, overflowing_exponents]


@pytest.mark.parametrize("piece", [1 << 19, 40, 12], ids=["whole", "pieces", "windows"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_products_that_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[], Any], piece: int
) -> None:
    scaled, faults = (importlib.import_module(f"quantform.{name}") for name in ("verify.scaled", "layouts.faults"))
    monkeypatch.setattr(scaled, "CHECKED_BYTES", piece)
    monkeypatch.setattr(faults, "CHECKED_BYTES", piece)
    monkeypatch.setattr(scaled, "WINDOW_COLUMNS", piece if piece != 12 else 4)
    tensors, config, places = case()
    report = verified(tmp_path, tensors, config)
    assert sorted(found(report)) == places
    assert report.total == len(places)
    assert report.checked["bytes"] == sum(len(sb.stored(one)[2]) for one in tensors.values())
    assert "expected a finite binary32 value, found" in report.findings[0].problem
    assert not decoded_or_refused(tmp_path)


def test_every_weight_is_right_or_refused_as_verification_says(tmp_path: Path) -> None:
    """Random words of the scaled conventions: verification finds something where words or values are refused."""
    rng = np.random.default_rng(1)
    special = np.array([0, 1e-45, 1, MAX, MAX / 300, np.inf, -1, 2.0**-130], np.float32)
    seen = set()
    for _ in range(120):
        rows, columns = (int(one) for one in rng.integers(1, 6, 2))
        scales = np.ones((rows, 1), np.float32)
        if rng.random() < 0.5:
            scales[rng.integers(rows)] = rng.choice(special)
        codes = rng.choice([0, 0x80, 0x38, 0x7E], (rows, columns)).astype(np.uint8)
        if rng.random() < 0.1:
            codes[0, 0] = 0x7F
        for config in (None, grouped("float", 8, 2)):
            width = 1 if config is None else -(-columns // 2)
            kind = "wide" if config is not None else "row"
            tensors = {"p.weight": sb.f8(codes.tolist()), "p.weight_scale": np.repeat(scales, width, axis=1)}
            (tmp_path / "config.json").unlink(missing_ok=True)
            report = verified(tmp_path, tensors, config)
            assert report.ok == decoded_or_refused(tmp_path), (report.findings, codes, scales)
            seen.add((kind, report.ok))
    assert len(seen) == 4


def test_long_rows_are_looked_at_in_windows(tmp_path: Path) -> None:
    columns = (1 << 20) + 70
    codes = np.full((2, columns), 0x38, np.uint8)
    codes[1, columns - 3] = 0x7F
    codes[0, columns - 5] = 0
    scales = np.array([[0], [1]], np.float32)
    report = verified(tmp_path, {"p.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "p.weight_scale": scales})
    assert report.broken == {"zero-scale": columns - 1, "code": 1}
    assert ("zero-scale", 0, 0) in found(report)
