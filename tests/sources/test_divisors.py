"""Runs of rows with one divisor each."""

from __future__ import annotations

import numpy as np
import pytest

from quantform.sources.divisors import DivisorRuns

WORDS = np.array([4, 4, 2], np.uint32)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_rows_are_no_runs(count: int) -> None:
    """Runs have positive rows, also where a tensor has divisors but no rows."""
    runs = DivisorRuns.even(0, WORDS[:count])
    for one in (runs, runs.merged(), runs.part(0, 0), DivisorRuns.joined([runs, runs])):
        assert one.rows.tolist() == one.words.tolist() == one.shares().tolist() == []


def test_equal_neighbours_are_one_run() -> None:
    runs = DivisorRuns.even(6, WORDS)
    assert runs.rows.tolist() == [2, 2, 2]
    assert (runs.merged().rows.tolist(), runs.merged().words.tolist()) == ([4, 2], [4, 2])
    assert runs.merged().shares().tolist() == [4, 4, 2]
    assert runs.part(3, 5).rows.tolist() == [1, 1]
