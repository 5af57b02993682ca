"""Which rows of a tensor a caller asks for.

A *row* is everything along the last axis; the rows of a tensor of any rank are numbered through its leading axes in C
order. Every format keeps whole rows together, so rows are the unit of partial reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._sizes import product
from quantform.errors import ArgumentError

__all__ = ["ChosenRows", "Rows", "as_integers", "as_kernel_rows", "as_rows", "matrix_shape", "runs", "stray_end"]

Rows = slice | range | Sequence[int] | npt.NDArray[np.integer]
"""A slice (clipped to the tensor, as Python's are) or integers in any order, repeats allowed."""

ChosenRows = range | npt.NDArray[np.int64]
"""Row numbers that were checked."""


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """`(rows, columns)` of a tensor of any rank; a scalar is one row of one column."""
    if not shape:
        return 1, 1
    return product(shape[:-1]), shape[-1]


def as_integers(numbers: Any) -> npt.NDArray[np.integer] | None:  # noqa: ANN401 - whatever a caller gave
    """A list of integers as an array, `[n]`; None of anything else. An empty list is one, whatever its type."""
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError, OverflowError):  # lists of unequal lists are no arrays
        return None
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        return None
    return array


def stray_end(numbers: range, low: int, high: int) -> int | None:
    """The first or last number of a range where it is not in `low .. high - 1`, found without making the others."""
    ends = (numbers[0], numbers[-1]) if numbers else ()
    return next((end for end in ends if not low <= end < high), None)


def as_rows(rows: Rows, count: int) -> ChosenRows:
    """The row numbers meant by `rows` among `count`: a range, or an int64 array where the order is arbitrary.

    Raises:
        ArgumentError: Not integers, or a number outside `-count .. count - 1`.
    """
    if isinstance(rows, slice):
        try:
            return range(count)[rows]
        except (TypeError, ValueError) as error:
            raise ArgumentError("rows is not a slice of integers", found=repr(rows)[:80]) from error
    if isinstance(rows, range):
        if (end := stray_end(rows, -count, count)) is not None:
            raise ArgumentError("row is outside the tensor", expected=f"0 to {count - 1}", found=end)
        if stray_end(rows, 0, count) is None:
            return rows
    array = as_integers(rows)
    if array is None:
        raise ArgumentError("rows is not a slice or a list of row numbers", found=repr(rows)[:80])
    outside = (array >= count) | (array < -count)
    if outside.any():
        raise ArgumentError(
            "row is outside the tensor", expected=f"0 to {count - 1}", found=int(array[np.argmax(outside)])
        )
    indices = array.astype(np.int64)
    return np.where(indices < 0, indices + count, indices)


def runs(rows: ChosenRows) -> Iterator[tuple[int, int]]:
    """`(first, end)` of each stretch of consecutive rows, in the order asked for."""
    if len(rows) == 0:
        return
    if isinstance(rows, range) and rows.step == 1:
        yield rows.start, rows.stop
        return
    array = np.asarray(rows, np.int64)
    breaks = np.flatnonzero(np.diff(array) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(array)]))
    for start, end in zip(starts, ends, strict=True):
        yield int(array[start]), int(array[end - 1]) + 1


def as_kernel_rows(rows: ChosenRows) -> tuple[npt.NDArray[np.int64] | None, int, int]:
    """`rows` as the compiled kernels take them: their numbers, or None, the first of consecutive rows, and how many."""
    if isinstance(rows, range) and (rows.step == 1 or len(rows) <= 1):
        return None, rows.start if rows else 0, len(rows)
    return np.ascontiguousarray(rows, np.int64), 0, len(rows)
