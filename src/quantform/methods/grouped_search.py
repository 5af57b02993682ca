"""`grouped_search`: of 68 candidate scales a group, the one with the least weighted squared error (Section 7).

Each group starts from its `grouped_absmax` result. The candidates come in a fixed order, and one replaces the best so
far only where its error is strictly smaller, so that the first of equals stays. Codes for a scale are always those of
`grouped_absmax`: product with the rounded reciprocal, ties to even, clamp.

Groups are worked on lanes first, `[G, n]`: the last axis runs over groups. The errors and the sums of the least-squares
fits are binary64, and their order is part of the method here: **the lanes are folded in halves**, lane `i` of the first
half taking lane `i + G / 2`, until one is left. Lanes beyond K add zeros. The result therefore depends neither on how
rows are cut nor on how an array lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.errors import ArgumentError
from quantform.formats import GroupedWords
from quantform.formats.grouped import GroupedFormat
from quantform.methods.grouped_absmax import (
    ENCODED_FORMATS,
    SMALLEST,
    absmax_scales,
    codes_of,
    encode_grouped,
    grouped_format,
    grouped_kernel,
    reciprocals,
)
from quantform.methods.kernel import ValuesJob
from quantform.methods.method import Job, Method, Options, Parameter
from quantform.methods.request import Request

__all__ = ["GROUPED_SEARCH", "RATIOS", "search_scales"]

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

RATIOS = tuple(percent / 100 for percent in range(70, 120, 2))
"""0.70, 0.72 ... 1.18, in binary64: the multiples of the max-abs and of the full-range scale that compete."""

_GROUPS_TOGETHER = 512
_SIGN, _LARGEST = np.uint16(0x8000), 0x7BFF
_WEIGHTS = frozenset(scalar.dtype for scalar in SCALARS.values() if scalar.name != "bool")
# A fit whose weights are all but zero is divided by this rather than by a subnormal.
_LEAST_DIVISOR = 1e-300


def fold(lanes: F64) -> F64:
    """The sums `[n]` of `[G, n]`, halves onto halves; `lanes` is overwritten. G is a power of two."""
    half = len(lanes) // 2
    while half:
        np.add(lanes[:half], lanes[half : 2 * half], out=lanes[:half])
        half //= 2
    sums: F64 = lanes[0]
    return sums


def rounded_scales(candidates: F64) -> F16:
    """binary64 to binary32 to binary16; what is lost to zero becomes the smallest scale of its sign."""
    scales = candidates.astype(np.float32).astype(np.float16)
    lost = (scales == 0) & (candidates != 0)
    scales[lost] = np.copysign(SMALLEST, candidates[lost].astype(np.float32)).astype(np.float16)
    return scales


def neighbours(scales: F16, step: int) -> F16:
    """The scales `step` magnitude words away, signs kept; zero where there is none."""
    words = scales.view(np.uint16)
    magnitudes = (words & ~_SIGN).astype(np.int32)
    moved = magnitudes + step
    legal = (magnitudes > 0) & (moved >= 1) & (moved <= _LARGEST)
    return np.where(legal, moved.astype(np.uint16) | words & _SIGN, np.uint16(0)).view(np.float16)


class Groups:
    """Groups of one piece, and the arithmetic of a candidate on all of them.

    Args:
        values: Finite binary32 `[G, n]`.
        importance: binary64 `[G, n]`, or None where every lane weighs 1.
        target: The format.
    """

    def __init__(self, values: F32, importance: F64 | None, target: GroupedFormat) -> None:
        self.values = values
        self.importance = importance
        self.target = target
        self._exact = values.astype(np.float64)
        self._codes = np.empty_like(values)
        self._terms = np.empty_like(self._exact)
        self._wide = np.empty_like(self._exact)

    def codes(self, scales: F16) -> F32:
        """Their codes for one scale each; the array is overwritten by the next call."""
        return codes_of(self.values, reciprocals(scales), self.target.qmin, self.target.qmax, out=self._codes)

    def errors(self, scales: F16) -> F64:
        """`sum_k imp[k] * (w[k] - s * q[k])^2` in binary64, `(imp * r) * r` folded over the lanes, `[n]`."""
        codes = self.codes(scales)
        # A scale has 11 significant bits and a code at most 7: their product is exact in binary32.
        np.multiply(codes, scales.astype(np.float32), out=codes)
        np.copyto(self._wide, codes)
        residuals = np.subtract(self._exact, self._wide, out=self._wide)
        if self.importance is None:
            terms = np.multiply(residuals, residuals, out=self._terms)
        else:
            terms = np.multiply(self.importance, residuals, out=self._terms)
            terms *= residuals
        return fold(terms).copy()

    def least_squares(self, scales: F16) -> F16:
        """`sum(imp * w * q) / sum(imp * q * q)` for the codes of `scales`, rounded; 0 where the codes weigh nothing."""
        np.copyto(self._wide, self.codes(scales))
        codes = self._wide
        weighted = self._exact if self.importance is None else self.importance * self._exact
        above = fold(np.multiply(weighted, codes, out=self._terms)).copy()
        weighted = codes if self.importance is None else self.importance * codes
        below = fold(np.multiply(weighted, codes, out=self._terms))
        return rounded_scales(np.where(below > 0, above / np.maximum(below, _LEAST_DIVISOR), 0.0))


def search_scales(groups: Groups, *, negative: bool) -> F16:
    """The winning scale of each group, `[n]`; an infinite one where `grouped_absmax` has none.

    Args:
        groups: The groups.
        negative: Whether negative scales compete.
    """
    magnitudes = np.abs(groups.values)
    amax = magnitudes.max(axis=0)
    lane = magnitudes.argmax(axis=0)
    extreme = np.take_along_axis(groups.values, lane[None, :], axis=0)[0]
    target = groups.target
    start = absmax_scales(amax, target.qmax)
    searched = (amax > 0) & np.isfinite(start)
    if not searched.any():
        return start
    best = start.copy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        safe = np.where(searched, start, np.float16(1))
        least = groups.errors(safe)

        def compete(candidates: F16) -> None:
            legal = searched & np.isfinite(candidates) & (candidates != 0 if negative else candidates > 0)
            if not legal.any():
                return
            errors = groups.errors(np.where(legal, candidates, np.float16(1)))
            wins = legal & (errors < least)
            best[wins] = candidates[wins]
            least[wins] = errors[wins]

        for candidates in _first_candidates(groups, amax, extreme, safe):
            compete(candidates)
        refit = groups.least_squares(np.where(searched, best, np.float16(1)))
        for candidates in (refit, neighbours(refit, -1), neighbours(refit, 1)):
            compete(candidates)
    return best


def _first_candidates(groups: Groups, amax: F32, extreme: F32, start: F16) -> Iterator[F16]:
    """The 65 candidates that do not depend on which of them win, in order."""
    whole = amax.astype(np.float64) / groups.target.qmax
    for ratio in RATIOS:
        yield rounded_scales(whole * ratio)
    full = extreme.astype(np.float64) / groups.target.qmin
    for ratio in RATIOS:
        yield rounded_scales(full * ratio)
    for factor in (0.25, 0.5, 2.0, 4.0):
        yield rounded_scales(start.astype(np.float64) * factor)
    for step in (-2, -1, 1, 2):
        yield neighbours(start, step)
    fit = groups.least_squares(start)
    yield fit
    for factor in (0.5, 2.0):
        yield rounded_scales(fit.astype(np.float64) * factor)
    for step in (-2, -1, 1, 2):
        yield neighbours(fit, step)


def _importance(value: Any, request: Request) -> F64 | None:  # noqa: ANN401 - whatever the user passed
    if value is None:
        return None
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        given = np.asarray(None)
    if given.shape != (request.columns,) or given.dtype.newbyteorder("=") not in _WEIGHTS:
        raise ArgumentError(
            "importance takes one value per input channel",
            expected=f"{request.columns} numbers",
            found=f"{given.dtype} {list(given.shape)}",
        )
    vector = given.astype(np.float64)
    bad = ~(np.isfinite(vector) & (vector >= 0))
    if bad.any():
        column = int(np.argmax(bad))
        raise ArgumentError(
            "an importance is not finite and nonnegative",
            where=f"column {column}",
            found=f"{given[column]}, {'the only one' if bad.sum() == 1 else f'the first of {bad.sum()}'}",
        )
    return vector


def _negative_scales(value: Any, request: Request) -> bool:  # noqa: ANN401, ARG001 - whatever the user passed
    if not isinstance(value, bool):
        raise ArgumentError("negative_scales must be a bool", expected="True or False", found=repr(value))
    return value


def _begin(request: Request, options: Options) -> Job:
    target = grouped_format(request)
    count = target.groups(request.columns)
    padded: F64 | None = None
    lanes: F64 | None = None
    if options["importance"] is not None:
        padded = np.zeros(count * target.group)
        padded[: request.columns] = options["importance"]
        lanes = np.ascontiguousarray(padded.reshape(count, target.group).T)

    def search(groups: F32) -> tuple[npt.NDArray[np.int8], F16]:
        codes, scales = np.empty(groups.shape, np.int8), np.empty(len(groups), np.float16)
        for first in range(0, len(groups), _GROUPS_TOGETHER):
            some = slice(first, min(first + _GROUPS_TOGETHER, len(groups)))
            # `groups` are whole rows, so that a group's number modulo `count` is its place in the row.
            weights = None if lanes is None else lanes[:, np.arange(some.start, some.stop) % count]
            piece = Groups(np.ascontiguousarray(groups[some].T), weights, target)
            scales[some] = search_scales(piece, negative=options["negative_scales"])
            codes[some] = piece.codes(scales[some]).T
        return codes, scales

    def define(values: npt.NDArray[Any], place: tuple[int, int]) -> GroupedWords:
        return encode_grouped(values, place, target, search)

    kernel = grouped_kernel(target, search=True, importance=padded, negative=options["negative_scales"])
    return ValuesJob(request, define, kernel)


GROUPED_SEARCH = Method(
    name="grouped_search",
    summary="Tries 68 scales a group and keeps the one with the least weighted squared error; never worse than absmax.",
    takes="values",
    targets=tuple(record.name for record in ENCODED_FORMATS),
    section="7",
    by_column=True,
    parameters=(
        Parameter(
            name="importance",
            type="K numbers",
            default=None,
            per_column=True,
            meaning="The weight of each column's squared error, finite and nonnegative; without it every one is 1.",
            check=_importance,
        ),
        Parameter(
            name="negative_scales",
            type="boolean",
            default=False,
            meaning="Whether negative scales compete, which reach the code one beyond the largest.",
            check=_negative_scales,
        ),
    ),
    begin=_begin,
)
