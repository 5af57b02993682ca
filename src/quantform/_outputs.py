"""Arrays that decoded values go to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._native import kernels
from quantform._scalars import FLOAT_OUTPUTS
from quantform._sizes import product
from quantform.errors import ArgumentError

__all__ = ["OUTPUT_NUMBERS", "as_output_bytes", "check_output", "empty_output"]

_INT64_MAX = 2**63 - 1
_RANK_MAX = 64  # NumPy's

OUTPUT_NUMBERS = {dtype: number for number, dtype in enumerate(FLOAT_OUTPUTS.values())}
"""What the compiled kernels call the output types."""


def empty_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """As `np.empty`; large arrays begin at a cache line.

    Raises:
        ArgumentError: No NumPy array has this shape.
        MemoryError: There is not as much memory.
    """
    if len(shape) > _RANK_MAX or product(filter(None, shape)) * dtype.itemsize > _INT64_MAX:
        raise ArgumentError(
            "no NumPy array has this shape",
            expected=f"at most {_RANK_MAX} dimensions and 2^63 bytes",
            found=list(shape),
        )
    size = product(shape) * dtype.itemsize
    array: npt.NDArray[Any] = np.empty(shape, dtype) if kernels is None else kernels.empty(shape, dtype, size)
    return array


def check_output(
    out: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], data: npt.NDArray[np.uint8], name: str
) -> None:
    """Check a caller's array for values of `data`, which the caller knows as `name`.

    Raises:
        ArgumentError: It has another type or shape, is not C-contiguous and writable, or overlaps the data.
    """
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != shape:
        found = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentError("out has the wrong type or shape", expected=f"{dtype} {list(shape)}", found=found)
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError("out is not a writable C-contiguous array", hint="Decode to a new array and copy it")
    if np.may_share_memory(out, data):
        raise ArgumentError(
            f"out overlaps {name}", hint="Decode to another array; words are read while values are written"
        )


def as_output_bytes(out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`out` as the kernels take it: buffers of bfloat16 exist under no name that others know."""
    return out.view(np.uint16) if out.dtype.kind == "V" else out
