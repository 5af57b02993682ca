"""`fp8_row_maxabs`: BF16 values to E4M3FN codes, one 16-bit multiplier a row (Section 3.4)."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from quantform import _native
from quantform._scalars import SCALARS, convert
from quantform.errors import ValuesError
from quantform.formats import RowScaledWords
from quantform.formats.fp8_row import FP8_ROW_FORMATS, RowScaledFormat
from quantform.methods.kernel import Kernel, ValuesJob
from quantform.methods.method import Job, Method, Options
from quantform.methods.request import Request
from quantform.methods.values import Faults, finite_pieces

__all__ = ["E4M3FN_MAX", "FP8_ROW_MAXABS", "e4m3fn_words"]

F32 = npt.NDArray[np.float32]

E4M3FN_MAX = np.float32(448)
"""The largest finite E4M3FN value."""


def e4m3fn_words(values: F32) -> npt.NDArray[np.uint8]:
    """The E4M3FN words nearest to finite values within +-448, ties to the even word, signs kept."""
    return convert(values, SCALARS["e4m3fn"].dtype).view(np.uint8)


def row_scales(largest: F32, scale: np.dtype[Any]) -> npt.NDArray[Any]:
    """The multipliers of rows by their largest magnitude; infinity where one does not fit."""
    scales = convert(largest / E4M3FN_MAX, scale)
    scales[(scales == 0) & (largest > 0)] = np.array(1, np.uint16).view(scale)
    return scales


def encode_rows(values: npt.NDArray[Any], place: tuple[int, int], target: RowScaledFormat) -> RowScaledWords:
    """The words of rows `[n, K]`, each by itself; errors call the first row and column `place`.

    Raises:
        ValuesError: A value is not finite in BF16; a row's scale does not fit its type; a row is so small that the
            reciprocal of its scale leaves binary32.
    """
    rows, columns = values.shape
    codes, scales = np.empty((rows, columns), np.uint8), np.empty(rows, np.uint16)
    faults = Faults()
    for some, narrow in finite_pieces(values, place, SCALARS["bf16"].dtype):
        piece = narrow.astype(np.float32)
        largest = np.abs(piece).max(axis=1)
        multipliers = row_scales(largest, target.scale.dtype)
        wide = multipliers.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            inverses = np.float32(1) / wide
            ratios = np.where(wide[:, None] != 0, piece * inverses[:, None], np.float32(0))

        def refused(row: int, _: int, start: int = some.start, largest: F32 = largest) -> ValuesError:
            name = target.scale.name
            return ValuesError(
                f"no {name} scale encodes the row",
                where=f"row {place[0] + start + row}",
                expected=f"a largest magnitude whose 448th part is finite in {name}, and its reciprocal in fp32",
                found=f"a largest magnitude of {largest[row]}",
                hint="A direct format such as bf16 holds such values",
            )

        illegal = ~(np.isfinite(wide) & np.isfinite(ratios).all(axis=1))
        faults.add(illegal[:, None], refused)
        if not faults.count:
            codes[some] = e4m3fn_words(np.clip(ratios, -E4M3FN_MAX, E4M3FN_MAX))
            scales[some] = multipliers.view(np.uint16)
    faults.settle()
    return RowScaledWords(target, (rows, columns), codes, scales)


def _kernel(target: RowScaledFormat) -> Kernel | None:
    kernels, bf16 = _native.kernels, SCALARS["bf16"]
    if kernels is None:
        return None
    half_scales = target.scale != bf16

    def blank(rows: int, columns: int) -> RowScaledWords:
        return RowScaledWords(target, (rows, columns), np.empty((rows, columns), np.uint8), np.empty(rows, np.uint16))

    layout = "row_interleaved_v1" if half_scales else "row_scale_v1"
    run = partial(kernels.encode_fp8_rows, half_scales=half_scales)
    return Kernel(run=run, blank=blank, layout=layout, rounded=bf16.dtype)


def _begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - there are none
    target = cast("RowScaledFormat", request.format)

    def define(values: npt.NDArray[Any], place: tuple[int, int]) -> RowScaledWords:
        return encode_rows(values, place, target)

    return ValuesJob(request, define, _kernel(target))


FP8_ROW_MAXABS = Method(
    name="fp8_row_maxabs",
    summary="Rounds values to BF16 and each row to E4M3FN; the row's scale is its largest magnitude over 448.",
    takes="values",
    targets=tuple(record.name for record in FP8_ROW_FORMATS),
    section="3.4",
    begin=_begin,
)
