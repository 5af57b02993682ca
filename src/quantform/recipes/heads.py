"""Orders of rows and columns that belong to attention heads, as indices for `quantform.sources.gather`.

Programs keep the heads of one matrix in different orders. Each function gives the indices to gather, so that a recipe
needs no arithmetic of its own; they serve rows (`axis=0`) and columns (`axis=-1`) alike.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from quantform.errors import ArgumentError

__all__ = ["head_order", "interleaved_heads", "untiled_heads"]

_MOST = 1 << 31


def head_order(counts: tuple[SupportsIndex, SupportsIndex], width: SupportsIndex) -> npt.NDArray[np.int64]:
    """Where heads that lie as `[a][b]`, each of `width` rows, are found in the order `[b][a]`.

    The inverse has the counts swapped.

    Args:
        counts: `(a, b)`, the numbers of heads as they lie.
        width: Rows of a head.

    Returns:
        int64 `[a * b * width]`: gathered at these indices, the heads lie as `[b][a]`.

    Raises:
        ArgumentError: A number is not positive, or there are more than 2^31 rows.
    """
    first, second, rows = _sizes(*counts, width)
    order = np.arange(first * second * rows, dtype=np.int64).reshape(first, second, rows)
    return order.swapaxes(0, 1).reshape(-1)


def untiled_heads(key_heads: SupportsIndex, value_heads: SupportsIndex, width: SupportsIndex) -> npt.NDArray[np.int64]:
    """Where the value heads of linear attention are found in llama.cpp's files, which tile them over the key heads.

    There, value head `r * key_heads + k` belongs to key head `k`; in the model it is value head `k * ratio + r`.

    Args:
        key_heads: The number of key heads.
        value_heads: The number of value heads, a multiple of it.
        width: Values of a head.

    Returns:
        int64 `[value_heads * width]`: gathered at these indices, the heads lie as in the model. `head_order` with
        `(key_heads, value_heads // key_heads)` leads back.

    Raises:
        ArgumentError: A number is not positive, or the value heads are no multiple of the key heads.
    """
    keys, values, rows = _sizes(key_heads, value_heads, width)
    if values % keys:
        raise ArgumentError(
            "the value heads do not share the key heads evenly", expected=f"a multiple of {keys}", found=values
        )
    return head_order((values // keys, keys), rows)


def interleaved_heads(
    heads: SupportsIndex, width: SupportsIndex, part: SupportsIndex, parts: SupportsIndex = 2
) -> npt.NDArray[np.int64]:
    """The rows of one part of a projection whose heads each hold several parts, one after another.

    Where a query projection carries an output gate, its rows lie as `[head][query, gate][width]`: part 0 is the query,
    part 1 the gate.

    Args:
        heads: The number of heads.
        width: Rows of one part of a head.
        part: Which part, from 0.
        parts: How many parts a head has.

    Returns:
        int64 `[heads * width]`.

    Raises:
        ArgumentError: A number is not positive, or there is no such part.
    """
    count, rows, many = _sizes(heads, width, parts)
    chosen = operator.index(part)
    if not 0 <= chosen < many:
        raise ArgumentError("a head has no such part", expected=f"0 to {many - 1}", found=chosen)
    return np.arange(count * many * rows, dtype=np.int64).reshape(count, many, rows)[:, chosen].reshape(-1)


def _sizes(*given: SupportsIndex) -> tuple[int, int, int]:
    try:
        first, second, third = (0 if isinstance(one, bool) else operator.index(one) for one in given)
    except (TypeError, ValueError):
        raise ArgumentError("heads and rows are counted in integers", found=repr(given)) from None
    if min(first, second, third) < 1 or first * second * third > _MOST:
        raise ArgumentError(
            "heads and rows are counted from 1", expected=f"positive numbers, {_MOST} rows at most", found=given
        )
    return first, second, third
