"""Conversions that are verified, and what they are compared by."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import quantform as qf
from quantform.formats import Words
from quantform.sources import NinferSource

__all__ = ["made", "same", "values"]


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def same(one: Words, other: Words) -> bool:
    fields = [field.name for field in dataclasses.fields(one)][2:]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)


def made(tmp_path: Path, source: Any, **options: Any) -> NinferSource:
    """The artifact, deeply verified."""
    path = tmp_path / "made.ninfer"
    qf.convert(source, path, force=True, **options)
    report = qf.verify(path, deep=True)
    assert report.ok, report.findings
    return NinferSource(path)
