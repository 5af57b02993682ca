"""Words of rows, put together and taken apart. No word changes on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform.errors import ArgumentError
from quantform.formats.record import Format
from quantform.formats.words import BlockWords, DirectWords, GroupedWords, Nvfp4Words, RowScaledWords, Words

__all__ = ["join", "row_range"]

W = TypeVar("W", bound=Words)


def join(format: Format, shape: tuple[int, ...], parts: Sequence[Words]) -> Words:
    """The words of whole rows one after another, as words of `format` and `shape`.

    Args:
        format: The format of every part.
        shape: The shape of the result; the parts' rows add up to its rows.
        parts: One or more, all of one kind. NVFP4 takes the divisors of the first.
    """
    first = parts[0]

    def joined(name: str) -> npt.NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    if isinstance(first, DirectWords):
        return DirectWords(format, shape, joined("words").reshape(shape))
    if isinstance(first, BlockWords):
        return BlockWords(format, shape, joined("blocks"))
    if isinstance(first, GroupedWords):
        scales = joined("scales")
        return GroupedWords(
            format, shape, joined("codes").reshape(shape), scales.reshape(*shape[:-1], scales.shape[-1])
        )
    if isinstance(first, Nvfp4Words):
        return Nvfp4Words(format, shape, joined("codes"), joined("scales"), first.divisors)
    if isinstance(first, RowScaledWords):
        return RowScaledWords(format, shape, joined("codes"), joined("scales"))
    raise ArgumentError("these words cannot be put together", found=type(first).__name__)


def row_range(words: Words, first: int, end: int) -> Words:
    """Rows `first` to `end` of a tensor's words, of shape `[end - first, K]`, without copying.

    Raises:
        ArgumentError: NVFP4 rows that belong to several divisors.
    """
    rows, columns = matrix_shape(words.shape)
    shape = (end - first, columns)
    chosen = slice(first, end)
    if isinstance(words, DirectWords):
        return DirectWords(words.format, shape, words.words.reshape(rows, columns)[chosen])
    if isinstance(words, BlockWords):
        return BlockWords(words.format, shape, words.blocks[chosen])
    if isinstance(words, GroupedWords):
        scales = words.scales.reshape(rows, words.scales.shape[-1])
        return GroupedWords(words.format, shape, words.codes.reshape(rows, columns)[chosen], scales[chosen])
    if isinstance(words, Nvfp4Words):
        share = rows // len(words.divisors)
        owner = first // share
        if (end - 1) // share != owner:
            raise ArgumentError(
                "the rows asked for belong to several divisors",
                expected=f"rows of one share of {share}",
                found=(first, end),
            )
        divisors = words.divisors[owner : owner + 1]
        return Nvfp4Words(words.format, shape, words.codes[chosen], words.scales[chosen], divisors)
    if isinstance(words, RowScaledWords):
        return RowScaledWords(words.format, shape, words.codes[chosen], words.scales[chosen])
    raise ArgumentError("rows of these words cannot be taken", found=type(words).__name__)
