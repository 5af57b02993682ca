"""What the formats with codes and scales have in common: values are computed in binary32, a piece at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._native import kernels
from quantform._outputs import empty_output
from quantform._rows import matrix_shape
from quantform._scalars import convert
from quantform.formats.record import Format
from quantform.formats.rows import RowWords, decode_rows
from quantform.formats.tiles import tiles
from quantform.formats.words import Words

__all__ = ["FillTile", "TiledFormat"]

FillTile = Callable[[slice, slice, npt.NDArray[np.float32]], None]
"""Writes the values of some rows and columns of the matrix into a float32 array of their shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledFormat(Format):
    """A format whose values are products of codes and scales."""

    def decode(self, words: Words, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The values, each operation rounded once to binary32, the result converted once to `dtype`.

        Illegal words are not looked for: see `validate`.
        """
        wanted = self.value_dtype(dtype)
        together = self.row_words(words)
        out = empty_output(words.shape, wanted)
        matrix = out.reshape(matrix_shape(words.shape))
        if kernels is not None and together is not None:
            decode_rows(together, range(len(matrix)), matrix)
            return out
        fill = self._decoder(words)
        with np.errstate(all="ignore"):  # infinities and lost bits are part of the arithmetic, not accidents
            for rows, columns in tiles(*matrix.shape, self._columns_together):
                if wanted == np.float32:
                    fill(rows, columns, matrix[rows, columns])
                else:
                    values = np.empty(matrix[rows, columns].shape, np.float32)
                    fill(rows, columns, values)
                    matrix[rows, columns] = convert(values, wanted)
        return out

    @abstractmethod
    def row_words(self, words: Words) -> RowWords | None:
        """Where the words lie, once their arrays are checked; None where the bytes of a row do not lie side by side."""

    @property
    @abstractmethod
    def _columns_together(self) -> int:
        """What the first column of a piece is a multiple of."""

    @abstractmethod
    def _decoder(self, words: Words) -> FillTile:
        """Checks the arrays of `words` and gives the function that decodes pieces of them."""
