"""`cast_direct`: one scalar word an element, the same bits where the type stays, one rounding where it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, Scalar, convert
from quantform.errors import ValuesError
from quantform.formats import DirectFormat, DirectWords
from quantform.formats.direct import DIRECT_FORMATS
from quantform.methods.method import Job, Method, Options, SpanJob
from quantform.methods.request import Request, Span
from quantform.methods.values import Faults, finite_pieces, pieces

__all__ = ["CAST_DIRECT", "direct_words"]


def direct_words(values: npt.NDArray[Any], place: tuple[int, int], target: Scalar) -> npt.NDArray[Any]:
    """The words of `target` for values `[n, K]`, whose first row and column errors call `place`.

    The target's own type passes bit for bit, NaN payloads included. Everything else must be finite and fit: a
    floating-point target takes the nearest value, ties to even; `int32` takes integers of its range and nothing else.

    Raises:
        ValuesError: A value has no word; names the first and counts them.
    """
    if values.dtype == target.dtype:
        return np.ascontiguousarray(values).view(target.word_dtype)
    words = np.empty(values.shape, target.word_dtype)
    if target == SCALARS["int32"]:
        for rows, integers in _exact_int32(values, place):
            words[rows] = integers.view(np.uint32)
    else:
        numbers = values.astype(np.uint8) if values.dtype == np.bool_ else values
        for rows, piece in finite_pieces(numbers, place, target.dtype):
            words[rows] = piece.view(target.word_dtype)
    return words


def _exact_int32(values: npt.NDArray[Any], place: tuple[int, int]) -> Iterator[tuple[slice, npt.NDArray[np.int32]]]:
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    faults = Faults()
    for rows in pieces(*values.shape):
        piece = values[rows]
        if piece.dtype.kind not in "iub":
            piece = convert(piece, np.dtype(np.float64))  # exact: no floating-point source is wider
        fits = piece <= most  # false for NaN, as is every comparison with it
        if piece.dtype.kind not in "ub":
            fits &= piece >= least
        with np.errstate(invalid="ignore"):  # of signalling NaN
            legal = fits & (piece == np.trunc(piece)) if piece.dtype.kind == "f" else fits

        def refused(row: int, column: int, start: int = rows.start, fits: npt.NDArray[np.bool_] = fits) -> ValuesError:
            return ValuesError(
                "the value is not an integer" if fits[row, column] else "the value does not fit int32",
                where=f"row {place[0] + start + row}, column {place[1] + column}",
                expected=f"an integer from {least} to {most}",
                found=str(values[start + row, column]),
            )

        faults.add(~legal, refused)
        if not faults.count:
            yield rows, piece.astype(np.int32)
    faults.settle()


def _begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - there are none
    target = cast("DirectFormat", request.format)

    def encode(span: Span) -> DirectWords:
        words = direct_words(span.values(), span.place, target.scalar)
        return DirectWords(target, words.shape, words)

    return SpanJob(request, encode)


CAST_DIRECT = Method(
    name="cast_direct",
    summary="Keeps words of the same type bit for bit; rounds other values once; int32 takes integers only.",
    takes="values",
    targets=tuple(record.name for record in DIRECT_FORMATS),
    section="3.1",
    by_column=True,
    begin=_begin,
)
