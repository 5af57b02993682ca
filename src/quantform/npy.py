"""A tensor's values as a NumPy file, written a piece at a time."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._progress import Progress, silent
from quantform._publish import NewFiles
from quantform._rows import Rows, as_rows
from quantform._sizes import product
from quantform.sources import Tensor

__all__ = ["write_npy"]

_PIECE_VALUES = 1 << 20


def write_npy(
    tensor: Tensor,
    output: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike | None = None,
    rows: Rows | None = None,
    force: bool = False,
    sources: Sequence[Path] = (),
    progress: Progress = silent,
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Decode a tensor into a `.npy` file; memory does not grow with the tensor.

    Args:
        tensor: The tensor.
        output: The file; appears when it is complete.
        dtype: See `Tensor.decode`. The format has no bfloat16: its words are written as two-byte voids, `|V2`.
        rows: Which rows of the flattened leading axes; None is all of them.
        force: Replace an existing file.
        sources: Files that are being read; none of them is ever replaced.
        progress: Called as bytes are written.

    Returns:
        The shape and the dtype of the values.

    Raises:
        OutputExistsError: The file exists and `force` is false.
        FileError: It cannot be written.
    """
    count, columns = tensor.matrix
    chosen = range(count) if rows is None else as_rows(rows, count)
    values = tensor.decode(dtype, slice(0, 0)).dtype
    shape = tensor.shape if rows is None else (len(chosen), columns)
    head = _header(shape, values)
    total = len(head) + product(shape) * values.itemsize
    files = NewFiles([output], force=force, sources=sources)
    try:
        files.create([total])
        files.write(0, 0, memoryview(head))
        at = len(head)
        step = max(1, _PIECE_VALUES // max(1, columns))
        for first in range(0, len(chosen) if columns else 0, step):
            piece = np.ascontiguousarray(tensor.decode(dtype, chosen[first : first + step]))
            files.write(0, at, piece.reshape(-1).view(np.uint8).data)
            at += piece.nbytes
            progress(at, total, tensor.name)
        files.publish()
    except BaseException:
        files.abort()
        raise
    return shape, values


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    buffer = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()
