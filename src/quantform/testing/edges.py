"""Scales under which products lie at the edges of binary16 and bfloat16, where conversions go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EDGES", "Edge", "edge_words"]


@dataclass(frozen=True, slots=True)
class Edge:
    """Numbers between two others that a narrower type rounds alike: `low < x < high`, or the tie `x == low == high`."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """A number of them."""
        return (self.low + self.high) / 2

    def holds(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which values are among them."""
        held: npt.NDArray[np.bool_] = (self.low < values) & (values < self.high)
        return held | (values == self.low) if self.low == self.high else held


def _edges(fraction_bits: int, lowest: int, highest: int) -> Iterator[Edge]:
    """Those of an IEEE-like type whose normal numbers have exponents from `lowest` to `highest`."""
    step, end = 2.0 ** (highest - fraction_bits), 2.0 ** (highest + 1)  # one step beyond the largest number
    yield Edge(end - step / 2, end - step / 2)  # infinity
    yield Edge(step / 2 - end, step / 2 - end)  # the same below zero
    yield Edge(end - step / 2, end)  # infinity, though less than the next power of two
    yield Edge(end - step, end - step / 2)  # still the largest number
    small, normal = 2.0 ** (lowest - fraction_bits), 2.0**lowest
    yield Edge(normal - small / 2, normal - small / 2)  # the smallest normal number
    yield Edge(normal - small / 2, normal)
    yield Edge(normal - small, normal - small / 2)  # the largest subnormal one
    yield Edge(small / 2, small / 2)  # zero
    yield Edge(small / 2, small)  # the smallest subnormal number
    yield Edge(0.0, small / 2)  # zero
    yield Edge(1.5 * small, 1.5 * small)  # twice the smallest


EDGES: dict[str, tuple[Edge, ...]] = {"float16": tuple(_edges(10, -14, 15)), "bfloat16": tuple(_edges(7, -126, 127))}
"""The edges by the type that they are of."""


def edge_words(
    multipliers: npt.NDArray[np.float64], dtype: np.dtype[Any], *, signed: bool = True
) -> list[tuple[int, int]]:
    """For every edge that can be reached, the first multiplier and a scale's word whose product is there.

    Args:
        multipliers: What codes are worth under a scale of one.
        dtype: The scale's type.
        signed: Whether scales may be negative.

    Returns:
        Positions in `multipliers`, and words.
    """
    kind, found = np.dtype(f"u{dtype.itemsize}"), []
    for edge in (edge for edges in EDGES.values() for edge in edges):
        with np.errstate(all="ignore"):
            nearest = (edge.middle / multipliers).astype(dtype).view(kind)
            words = np.stack([nearest, nearest - kind.type(1), nearest + kind.type(1)], axis=1)
            scales = words.view(dtype).astype(np.float64)
            products = scales * multipliers[:, None]
            reached = np.isfinite(products) & edge.holds(products) & (signed | (scales > 0))
        if reached.any():
            at = np.unravel_index(int(np.argmax(reached)), reached.shape)
            found.append((int(at[0]), int(words[at])))
    return found
