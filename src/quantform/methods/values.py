"""Source values on their way into arithmetic: rounded once, checked, in bounded pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import are_finite, convert
from quantform.errors import ArgumentError, ValuesError

__all__ = ["PIECE_VALUES", "Faults", "finite_pieces", "pieces"]

Array = npt.NDArray[Any]

PIECE_VALUES = 1 << 16
"""Values worked on at a time: the temporaries of one piece stay in the second-level cache."""


def pieces(rows: int, columns: int) -> Iterator[slice]:
    """Slices of whole rows, about `PIECE_VALUES` values each."""
    step = max(1, PIECE_VALUES // max(columns, 1))
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


@dataclass(slots=True)
class Faults:
    """Values that cannot be encoded: how many there are, and the error of the first."""

    count: int = 0
    error: ValuesError | None = None

    def add(self, bad: npt.NDArray[np.bool_], describe: Callable[[int, int], ValuesError]) -> None:
        """Count the bad places of one piece, a boolean matrix, and keep the error of the first one's row and column."""
        number = int(np.count_nonzero(bad))
        if number and self.error is None:
            self.error = describe(*divmod(int(np.argmax(bad)), bad.shape[1]))
        self.count += number

    def settle(self) -> None:
        """Raise the first error, if there is one.

        Raises:
            ValuesError: Names the first place and how many there are.
        """
        if self.error is not None:
            number = "the only one" if self.count == 1 else f"the first of {self.count}"
            self.error.found = f"{self.error.found}, {number}"
            raise self.error


def finite_pieces(values: Array, place: tuple[int, int], dtype: npt.DTypeLike) -> Iterator[tuple[slice, Array]]:
    """`values` piece by piece, as `dtype`, each rounded once from the type it is stored in.

    Args:
        values: `[n, K]` of any number type but booleans.
        place: What the first row and column are called in an error.
        dtype: A floating-point type.

    Yields:
        The slice of rows and their values, as long as all so far are finite.

    Raises:
        ValuesError: A value is not finite, or not in `dtype`; names the first and counts them.
        ArgumentError: Booleans.
    """
    wanted = np.dtype(dtype)
    if values.dtype == np.bool_:
        raise ArgumentError("truth values are not quantized", expected="floating-point values", found="bool")
    faults = Faults()
    for rows in pieces(*values.shape):
        piece = convert(values[rows], wanted)

        def refused(row: int, column: int, start: int = rows.start) -> ValuesError:
            value = values[start + row, column]
            problem = f"the value does not fit {wanted.name}" if are_finite(value) else "the value is not finite"
            where = f"row {place[0] + start + row}, column {place[1] + column}"
            return ValuesError(problem, where=where, expected=f"finite {wanted.name} values", found=str(value))

        faults.add(~are_finite(piece), refused)
        if not faults.count:
            yield rows, piece
    faults.settle()
