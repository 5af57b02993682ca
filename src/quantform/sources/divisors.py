"""Which divisor each row of an NVFP4 tensor has, said without reading its codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["DivisorRuns"]


@dataclass(frozen=True, slots=True)
class DivisorRuns:
    """Consecutive runs of rows with one divisor each.

    Attributes:
        rows: The number of rows of each run, int64 `[n]`, all positive.
        words: Its binary32 divisor word, uint32 `[n]`.
    """

    rows: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint32]

    @classmethod
    def even(cls, rows: int, words: npt.NDArray[np.uint32]) -> Self:
        """Equal shares of `rows` rows; no runs of no rows."""
        words = words if rows else words[:0]
        return cls(np.full(words.size, rows // max(1, words.size), np.int64), words)

    @classmethod
    def joined(cls, parts: list[DivisorRuns]) -> Self:
        """The runs of several tensors, one after another."""
        return cls(np.concatenate([part.rows for part in parts]), np.concatenate([part.words for part in parts]))

    def part(self, first: int, end: int) -> Self:
        """The runs of rows `first` to `end`."""
        ends = np.minimum(np.cumsum(self.rows), end)
        rows = ends - np.maximum(np.cumsum(self.rows) - self.rows, first)
        some = rows > 0
        return type(self)(rows[some], self.words[some])

    def merged(self) -> Self:
        """Neighbours of equal divisors as one run."""
        begins = np.flatnonzero(np.append(True, self.words[1:] != self.words[:-1])[: self.words.size])
        return type(self)(np.add.reduceat(self.rows, begins), self.words[begins])

    def shares(self) -> npt.NDArray[np.uint32]:
        """The fewest divisor words that say it in equal shares of the rows."""
        if not self.rows.size:
            return self.words
        share = np.gcd.reduce(self.rows)
        return np.repeat(self.words, self.rows // share)
