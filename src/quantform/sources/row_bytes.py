"""Tensors whose rows are bytes of their own, one after another: scalars of whole bytes, and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantform._scalars import SCALARS
from quantform.errors import UnsupportedError
from quantform.formats import BlockWords, DirectFormat, DirectWords, Words
from quantform.packed import PROFILES
from quantform.sources._protocol import Tensor
from quantform.sources.gguf_tensor import GGUFTensor

__all__ = ["Stretch", "has_row_bytes", "read_rows"]

Stretch = tuple[Tensor, int, int]
"""Rows of a tensor: the first, and the one behind the last."""


def has_row_bytes(tensor: Tensor) -> bool:
    """Whether the payload is the rows' bytes in order."""
    scalar = SCALARS.get(tensor.format)
    whole = scalar is not None and scalar.bits == 8 * scalar.nbytes
    return tensor.joined and (whole or tensor.format in PROFILES or isinstance(tensor, GGUFTensor))


def read_rows(stretches: Sequence[Stretch]) -> Words:
    """The words of some rows, `[n, K]`, read through the kernel.

    Args:
        stretches: One or more; tensors of one format and row length, for which `has_row_bytes` holds.
    """
    tensor = stretches[0][0]
    probe = tensor.words(slice(0, 0))
    rows, columns = tensor.matrix
    row_bytes = tensor.nbytes // max(1, rows)
    shape = (sum(end - first for _, first, end in stretches), columns)
    try:
        data = np.empty((shape[0], row_bytes), np.uint8)
    except (MemoryError, ValueError):
        raise UnsupportedError(
            "the rows do not fit into memory", where=f"tensor {tensor.name!r}", hint="Read fewer at a time"
        ) from None
    at = 0
    for part, first, end in stretches:
        part.read_into(first * row_bytes, data[at : at + end - first].reshape(-1))
        at += end - first
    if isinstance(probe, BlockWords):
        return BlockWords(probe.format, shape, data)
    assert isinstance(probe.format, DirectFormat)  # noqa: S101 - such tensors are blocks or scalars
    scalar = probe.format.scalar
    words = data.reshape(-1).view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)
    return DirectWords(probe.format, shape, words.reshape(shape))
