"""Rows whose codes and scales lie apart, as the compiled kernels take them: in a payload, or in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._native import kernels, thread_limit
from quantform._outputs import OUTPUT_NUMBERS, as_output_bytes
from quantform._rows import ChosenRows, as_kernel_rows

__all__ = ["RowWords", "all_legal", "as_row_bytes", "decode_rows", "none_above"]

_Bytes = npt.NDArray[np.uint8]


class RowWords(NamedTuple):
    """Where the words of a matrix lie; every part is uint8 `[rows, bytes]`, the bytes of a row side by side.

    Attributes:
        kernel: The name under which the compiled kernels know words that lie like this.
        columns: Values a row.
        codes: The codes, or the first of their parts.
        high: The other part of the codes, if there is one.
        scales: The scales of each row, or of each 128 rows where `tiled`.
        tiled: Whether the scales lie as `block_scale_k16_m128x4_v1` has them.
        divisors: float32 `[D]`, each of `rows / D` consecutive rows, if the format has any.
    """

    kernel: str
    columns: int
    codes: _Bytes
    high: _Bytes | None
    scales: _Bytes
    tiled: bool = False
    divisors: npt.NDArray[np.float32] | None = None


def as_row_bytes(words: npt.NDArray[Any]) -> _Bytes | None:
    """A matrix of words as bytes, a view; None where the words of a row do not lie side by side."""
    return words.view(np.uint8) if words.strides[1] == words.itemsize else None


def decode_rows(words: RowWords, rows: ChosenRows, out: npt.NDArray[Any], threads: int | None = None) -> None:
    """Decode some rows with the compiled kernels, which there must be.

    Args:
        words: Where the words lie.
        rows: Which rows, in any order, repeats allowed.
        out: Where to put the values, `[len(rows), columns]` of one of the four output types, C-contiguous.
        threads: How many threads may be used; see `dequantize_packed`.
    """
    assert kernels is not None  # noqa: S101 - callers looked
    limit = thread_limit(threads)
    if out.size:
        number, target = OUTPUT_NUMBERS[out.dtype], as_output_bytes(out)
        kernels.decode_rows(*words, *as_kernel_rows(rows), number, target, limit)


def all_legal(words: RowWords | None) -> bool:
    """Whether the compiled kernels find every word legal; False also where they cannot tell."""
    return kernels is not None and words is not None and kernels.legal_rows(*words, thread_limit(None))


def none_above(words: npt.NDArray[np.uint8], most: int) -> bool:
    """Whether the compiled kernels find no byte above `most`; False also where they cannot tell."""
    return kernels is not None and words.flags.c_contiguous and kernels.bytes_at_most(words.reshape(-1), most)
