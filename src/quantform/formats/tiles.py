"""Matrices cut into pieces, so that checking, packing and decoding a large tensor needs little memory beside it."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["tiles"]

# Values a tile: temporaries of a few bytes a value stay in the second-level cache, and the loop's own cost is hidden.
_TILE_VALUES = 1 << 16


def tiles(rows: int, columns: int, multiple: int = 1, values: int = _TILE_VALUES) -> Iterator[tuple[slice, slice]]:
    """`(rows, columns)` of the pieces of a matrix, in row-major order.

    Args:
        rows: Rows of the matrix.
        columns: Columns of the matrix.
        multiple: What the first column of a piece is a multiple of, such as a group of values under one scale.
        values: About how many values a piece has; whole rows, or part of one row where a single row has more.
    """
    if columns <= values:
        height, width = max(1, values // max(1, columns)), columns
    else:
        height, width = 1, max(multiple, values // multiple * multiple)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, min(row + height, rows)), slice(column, min(column + width, columns))
