"""`nvfp4_maxabs`: values to NVFP4, with one divisor that the whole tensor's largest magnitude gives.

The specification defines no encoder to `nvfp4`; this is ours. It looks at every value before it encodes the first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform import _native
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, QuantformError, ValuesError
from quantform.formats import Nvfp4Words
from quantform.formats.nvfp4 import NVFP4
from quantform.methods.fp8_row_maxabs import E4M3FN_MAX, e4m3fn_words
from quantform.methods.kernel import Kernel, ValuesJob, readable
from quantform.methods.method import Job, Method, Options
from quantform.methods.request import Input, Request, Span
from quantform.methods.values import PIECE_VALUES, finite_pieces

__all__ = ["NVFP4_MAXABS", "e2m1_codes", "encode_rows", "weight_divisor"]

F32 = npt.NDArray[np.float32]

_E2M1_MAX = np.float32(6)
_LARGEST = np.float32(6 * 448)
# Values read at a time by the pass over the whole tensor.
_SCAN_VALUES = 16 * PIECE_VALUES


def e2m1_codes(values: F32) -> npt.NDArray[np.uint8]:
    """The E2M1 codes nearest to finite values, ties to the even code, beyond 6 saturating; the sign is the value's."""
    magnitudes = np.abs(values)
    codes = (magnitudes > 0.25).astype(np.uint8)
    codes += magnitudes >= 0.75  # a tie goes up where the code above is the even one
    codes += magnitudes > 1.25
    codes += magnitudes >= 1.75
    codes += magnitudes > 2.5
    codes += magnitudes >= 3.5
    codes += magnitudes > 5
    return codes | np.signbit(values).astype(np.uint8) << np.uint8(3)


def weight_divisor(largest: np.float32) -> np.float32:
    """`2688 / largest`, rounded once; 1 for a tensor of zeros. 2688 is the largest code times the largest scale.

    Raises:
        ValuesError: It is not finite: the tensor's values are too small.
    """
    if largest == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        divisor: np.float32 = _LARGEST / largest
    if not np.isfinite(divisor):
        raise ValuesError(
            "the tensor is too small for an nvfp4 divisor", expected="2688 / magnitude in fp32", found=str(largest)
        )
    return divisor


def encode_rows(values: npt.NDArray[Any], place: tuple[int, int], divisor: np.float32) -> Nvfp4Words:
    """The words of rows `[n, K]` under a divisor; errors call the first row and column `place`.

    Raises:
        ValuesError: A value is not finite in binary32.
    """
    rows, columns = values.shape
    codes = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty((rows, columns // NVFP4.group), np.uint8)
    for some, piece in finite_pieces(values, place, np.float32):
        scaled = (piece * divisor).reshape(-1, NVFP4.group)
        raw = np.abs(scaled).max(axis=1) / _E2M1_MAX
        words = e4m3fn_words(np.minimum(raw, E4M3FN_MAX))
        multipliers = words.view(SCALARS["e4m3fn"].dtype).astype(np.float32)[:, None]
        ratios = np.divide(scaled, multipliers, out=np.zeros_like(scaled), where=multipliers != 0)
        nibbles = e2m1_codes(ratios)
        codes[some] = (nibbles[:, ::2] | nibbles[:, 1::2] << np.uint8(4)).reshape(len(piece), -1)
        scales[some] = words.reshape(len(piece), -1)
    return Nvfp4Words(NVFP4, (rows, columns), codes, scales, np.array([divisor], np.float32).view(np.uint32))


def _largest(source: Input) -> np.float32:
    step = max(1, _SCAN_VALUES // source.columns)
    largest = np.float32(0)
    for first in range(0, source.rows, step):
        span = Span(source, first, min(first + step, source.rows))
        values = span.values()
        found = _largest_of(values)
        if found is None:
            found = max(np.abs(piece).max() for _, piece in finite_pieces(values, span.place, np.float32))
        largest = np.maximum(largest, found)
    return largest


def _largest_of(values: npt.NDArray[Any]) -> np.float32 | None:
    """The largest magnitude of a compiled kernel; None without one, and where a value is not finite."""
    kernels = _native.kernels
    if kernels is None or values.dtype == np.bool_:
        return None
    pieces = readable(values, SCALARS["fp32"].dtype)
    found = np.float32(max(kernels.largest_magnitude(piece, number, 1) for _, piece, number in pieces))
    return found if np.isfinite(found) else None


def _kernel(divisor: np.float32) -> Kernel | None:
    kernels = _native.kernels
    if kernels is None:
        return None

    def blank(rows: int, columns: int) -> Nvfp4Words:
        codes, scales = (np.empty((rows, columns // share), np.uint8) for share in (2, NVFP4.group))
        return Nvfp4Words(NVFP4, (rows, columns), codes, scales, np.array([divisor], np.float32).view(np.uint32))

    run = partial(kernels.encode_nvfp4, divisor=float(divisor))
    return Kernel(run=run, blank=blank, layout="block_scale_k16_m128x4_v1", rounded=SCALARS["fp32"].dtype)


def _begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - there are none
    if request.columns % NVFP4.group:
        raise ArgumentError(
            "a row of nvfp4 is not whole groups", expected=f"K a multiple of {NVFP4.group}", found=request.columns
        )
    largest = np.float32(0)
    for source in request.inputs:
        try:
            largest = np.maximum(largest, _largest(source))
        except QuantformError as error:
            raise error.at(source.name)  # noqa: B904 - the same error, with its outer place
    divisor = weight_divisor(largest)

    def define(values: npt.NDArray[Any], place: tuple[int, int]) -> Nvfp4Words:
        return encode_rows(values, place, divisor)

    return ValuesJob(request, define, _kernel(divisor))


NVFP4_MAXABS = Method(
    name="nvfp4_maxabs",
    summary="Reads the tensor twice: its largest magnitude gives the divisor, that of 16 columns gives their scale.",
    takes="values",
    targets=(NVFP4.name,),
    section="3.3",
    begin=_begin,
)
