"""Stretches of bytes: where they begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantform._sizes import ceil_div

__all__ = ["Span", "moved", "units_of"]

Span = tuple[int, int]
"""The first byte of a stretch, and the one behind its last."""


def moved(spans: Iterable[Span], by: int) -> Iterator[Span]:
    """Spans counted from another byte."""
    for begin, end in spans:
        yield begin + by, end + by


def units_of(spans: Iterable[Span], unit: int) -> Iterator[Span]:
    """The units that spans of bytes touch, as spans of units, in order and apart; the spans may overlap."""
    first = end = 0
    for begin, last in sorted(spans):
        if begin // unit > end:
            if first < end:
                yield first, end
            first = begin // unit
        end = max(end, ceil_div(last, unit))
    if first < end:
        yield first, end
