"""`grouped_absmax`: the reference encoder of the grouped integer formats (Section 7.2).

The roundings stand in the specification's order, each a function of its own: the largest magnitude, its binary32
quotient by qmax, that in binary16, the reciprocal of what was stored, the product, the integer, the clamp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from quantform import _native
from quantform._scalars import SCALARS
from quantform.errors import ValuesError
from quantform.formats import GroupedWords
from quantform.formats.grouped import GROUPED_FORMATS, GroupedFormat
from quantform.methods.kernel import Kernel, ValuesJob
from quantform.methods.method import Job, Method, Options
from quantform.methods.request import Request
from quantform.methods.values import Faults, finite_pieces

__all__ = [
    "ENCODED_FORMATS",
    "GROUPED_ABSMAX",
    "absmax_scales",
    "codes_of",
    "encode_grouped",
    "grouped_format",
    "grouped_kernel",
    "reciprocals",
]

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
Codes = npt.NDArray[np.int8]

SMALLEST = np.uint16(0x0001).view(np.float16)
"""2^-24, what a positive scale becomes that binary16 would round to zero."""

ENCODED_FORMATS = tuple(record for record in GROUPED_FORMATS if record.code_bits > 2)
"""Q4, Q5, Q6 and Q8. Q2 and T2 hold grids that exist already; the specification defines no encoder to them."""


def absmax_scales(amax: F32, qmax: int) -> F16:
    """The binary16 scale of groups by their largest magnitude; infinity where it does not fit."""
    with np.errstate(over="ignore"):
        scales = (amax / np.float32(qmax)).astype(np.float16)
    scales[(scales == 0) & (amax > 0)] = SMALLEST
    return scales


def reciprocals(scales: F16) -> F32:
    """`1 / scale` rounded once to binary32; 0 for a zero scale, so that its codes are zero."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)


def codes_of(values: F32, inverses: F32, qmin: int, qmax: int, out: F32 | None = None) -> F32:
    """`clamp(rint(x * inverse))`, ties to even, as integral binary32; the arrays broadcast."""
    codes = np.multiply(values, inverses, out=out)
    np.rint(codes, out=codes)
    return np.clip(codes, np.float32(qmin), np.float32(qmax), out=codes)


def absmax_groups(groups: F32, target: GroupedFormat) -> tuple[Codes, F16]:
    """Codes `[n, G]` and scales `[n]` of groups `[n, G]` of finite values; a scale may be infinite."""
    scales = absmax_scales(np.abs(groups).max(axis=1), target.qmax)
    inverses = reciprocals(scales)
    return codes_of(groups, inverses[:, None], target.qmin, target.qmax).astype(np.int8), scales


def encode_grouped(
    values: npt.NDArray[Any],
    place: tuple[int, int],
    target: GroupedFormat,
    encode: Callable[[F32], tuple[Codes, F16]],
) -> GroupedWords:
    """The words of rows `[n, K]`, each group by itself.

    Args:
        values: Numbers of any type but booleans.
        place: What the first row and column are called in an error; the column begins a group.
        target: The format.
        encode: Gives codes `[m, G]` and scales `[m]` of groups `[m, G]`, which are whole rows' groups in order. Lanes
            beyond K are zeros, which change no group's scale or code.

    Raises:
        ValuesError: A value is not finite in binary32, or a group's scale is not in binary16.
    """
    rows, columns = values.shape
    size, count = target.group, target.groups(columns)
    faults = Faults()
    codes, scales = np.empty((rows, columns), np.int8), np.empty((rows, count), np.uint16)
    for some, piece in finite_pieces(values, place, np.float32):
        if columns % size:
            padded = np.zeros((len(piece), count * size), np.float32)
            padded[:, :columns] = piece
            piece = padded  # noqa: PLW2901
        groups = np.ascontiguousarray(piece).reshape(-1, size)
        found_codes, found_scales = encode(groups)

        def refused(row: int, group: int, start: int = some.start, groups: F32 = groups) -> ValuesError:
            amax = np.abs(groups[row * count + group]).max()
            return ValuesError(
                f"the scale of a group does not fit binary16: largest magnitude / {target.qmax}",
                where=f"row {place[0] + start + row}, group {place[1] // size + group}",
                expected=f"magnitudes below about {65520 * target.qmax}",
                found=str(amax),
                hint="A direct format such as bf16 holds such values",
            )

        faults.add(~np.isfinite(found_scales).reshape(-1, count), refused)
        codes[some] = found_codes.reshape(len(piece), -1)[:, :columns]
        scales[some] = found_scales.view(np.uint16).reshape(len(piece), count)
    faults.settle()
    return GroupedWords(target, (rows, columns), codes, scales)


def grouped_format(request: Request) -> GroupedFormat:
    """The request's target, of a method whose `targets` are all grouped formats."""
    return cast("GroupedFormat", request.format)


def grouped_kernel(
    target: GroupedFormat,
    *,
    search: bool = False,
    importance: npt.NDArray[np.float64] | None = None,
    negative: bool = False,
) -> Kernel | None:
    """The compiled encoder of a format; None without compiled kernels.

    Args:
        target: The format.
        search: Whether the scales are searched for; what follows matters only then.
        importance: binary64 weights of the lanes of a row's groups, zeros past the last column.
        negative: Whether negative scales compete.
    """
    kernels = _native.kernels
    if kernels is None:
        return None

    def blank(rows: int, columns: int) -> GroupedWords:
        codes, scales = np.empty((rows, columns), np.int8), np.empty((rows, target.groups(columns)), np.uint16)
        return GroupedWords(target, (rows, columns), codes, scales)

    run = partial(
        kernels.encode_grouped,
        code_bits=target.code_bits,
        search=search,
        importance=importance,
        negative=negative,
    )
    return Kernel(run=run, blank=blank, layout="row_split_k128_v1", rounded=SCALARS["fp32"].dtype)


def _begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - there are none
    target = grouped_format(request)

    def define(values: npt.NDArray[Any], place: tuple[int, int]) -> GroupedWords:
        return encode_grouped(values, place, target, lambda groups: absmax_groups(groups, target))

    return ValuesJob(request, define, grouped_kernel(target))


GROUPED_ABSMAX = Method(
    name="grouped_absmax",
    summary="The reference encoder: each group's scale is its largest magnitude over the largest code.",
    takes="values",
    targets=tuple(record.name for record in ENCODED_FORMATS),
    section="7.2",
    by_column=True,
    begin=_begin,
)
