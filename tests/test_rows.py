"""Which rows a caller means, and how what is no row number is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantform._rows import as_rows
from quantform.errors import ArgumentError
from quantform.layouts import LAYOUTS


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (slice(1, 100), [1, 2, 3]),
        (range(4), [0, 1, 2, 3]),
        (range(3, -1, -2), [3, 1]),
        (range(-1, -5, -1), [3, 2, 1, 0]),
        (range(-2, 2), [2, 3, 0, 1]),
        (range(1, 1), []),
        (range(10**30, 0), []),
        ([], []),
        ([3, -4, 3], [3, 0, 3]),
        (np.array([2], np.uint8), [2]),
    ],
    ids=str,
)
def test_rows_that_are_meant(rows: Any, numbers: list[int]) -> None:
    assert list(as_rows(rows, 4)) == numbers


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], [2, 3]], r"not a slice or a list of row numbers; found \[\[1\], \[2, 3\]\]"),
        ([1.5] * 300_000, "list of row numbers"),
        ([10**30], "list of row numbers"),
        (slice("a" * 1000), "not a slice of integers"),
        (range(10**10), "outside the tensor; expected 0 to 3, found 9999999999"),
        (range(10**30), "outside the tensor"),
        (range(-5, 2), "found -5"),
        (range(4, 0, -1), "found 4"),
        ([0, 4], "found 4"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_row_is_refused(rows: Any, message: str) -> None:
    layout = LAYOUTS["contiguous_le_v1"]
    payload = np.zeros(4 * 2 * 4, np.uint8)
    with pytest.raises(ArgumentError, match=message) as caught:
        layout.decode(payload, "fp32", (4, 2), rows=rows)
    assert len(str(caught.value)) < 250
