"""Tensors of any source as inputs of a method: bounded reads of whole rows, values or words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.errors import ArgumentError
from quantform.formats import Words
from quantform.formats.checks import hex_word
from quantform.layouts import Layout
from quantform.layouts.block_scale import BlockScaleLayout
from quantform.methods import Input
from quantform.packed import PROFILES, dequantize_packed
from quantform.sources import GGUFTensor, Tensor
from quantform.sources.divisors import DivisorRuns
from quantform.sources.row_bytes import read_rows

__all__ = ["check_divisors", "input_of"]

# What windows begin at a multiple of, see `Input`.
_WINDOW = 1024

ReadWords = Callable[[int, int], Words]
ReadValues = Callable[[int, int], npt.NDArray[Any]]


def input_of(name: str, tensor: Tensor, first: int, end: int, shape: tuple[int, ...]) -> Input:
    """Rows `first` to `end` of a tensor as an input.

    Args:
        name: What errors call it.
        tensor: The tensor.
        first: The first row of the flattened leading axes.
        end: The row behind the last.
        shape: The input's shape, of as many rows and of the tensor's K.
    """
    words, values = _readers(tensor)
    runs = tensor.divisor_runs()

    def some_words(low: int, high: int) -> Words:
        return words(first + low, first + high)

    def some_values(low: int, high: int) -> npt.NDArray[Any]:
        return values(first + low, first + high)

    return Input(
        name=name,
        shape=shape,
        values=some_values if tensor.decodable else None,
        words=some_words if tensor.importable else None,
        divisors=None if runs is None else runs.part(first, end).shares(),
        window=_window(tensor, first),
        place=(first, 0),
    )


def check_divisors(inputs: Sequence[Input], layout: Layout) -> None:
    """Check that the divisors of imported NVFP4 words change only where a tile of the layout's rows begins.

    Raises:
        ArgumentError: One changes within a tile; names the row.
    """
    if not isinstance(layout, BlockScaleLayout):
        return
    tile, at, before = layout.tile_rows, 0, None
    for source in inputs:
        if source.divisors is None:
            return
        runs = DivisorRuns.even(source.rows, source.divisors).merged()
        for begin, word in zip((np.cumsum(runs.rows) - runs.rows).tolist(), runs.words.tolist(), strict=True):
            if before is not None and word != before and (at + begin) % tile:
                raise ArgumentError(
                    f"the divisor of NVFP4 words changes within a tile of {tile} rows",
                    where=f"{source.name}, row {source.place[0] + begin}",
                    expected=f"one divisor for each {tile} rows",
                    found=" and ".join(hex_word(one, SCALARS["fp32"]) for one in (before, word)),
                    hint="Make separate objects of the rows of each divisor, or put them in an order in which those "
                    "of one divisor fill whole tiles",
                )
            before = word
        at += source.rows


def _window(tensor: Tensor, start: int) -> Callable[[int, int, int], npt.NDArray[Any]] | None:
    """Reads of parts of rows, counted from `start` on, where these are bytes of their own in the file."""
    scalar, profile = SCALARS.get(tensor.format), PROFILES.get(tensor.format)
    if not tensor.joined:
        return None
    if scalar is not None and scalar.bits == 8 * scalar.nbytes:
        unit, each = scalar.nbytes, 1
    elif profile is not None and _WINDOW % profile.values == 0:
        unit, each = profile.bytes, profile.values
    else:
        return None

    def read(row: int, begin: int, end: int) -> npt.NDArray[Any]:
        data = np.empty((end - begin) // each * unit, np.uint8)
        tensor.read_into(((start + row) * tensor.matrix[1] + begin) // each * unit, data)
        if profile is not None:
            return dequantize_packed(data, profile.identifier, [1, end - begin], np.float32)
        assert scalar is not None  # noqa: S101 - one of both
        words = data.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)
        return words.view(scalar.dtype).reshape(1, end - begin)

    return read


def _readers(tensor: Tensor) -> tuple[ReadWords, ReadValues]:
    if isinstance(tensor, GGUFTensor):
        gguf = tensor  # read through the kernel: pages of a mapping would count as the process's own

        def words(first: int, end: int) -> Words:
            return read_rows([(gguf, first, end)])

        def values(first: int, end: int) -> npt.NDArray[Any]:
            return words(first, end).decode()

        return words, values

    def plain_words(first: int, end: int) -> Words:
        return tensor.words(slice(first, end))

    def plain_values(first: int, end: int) -> npt.NDArray[Any]:
        return tensor.decode(rows=slice(first, end))

    return plain_words, plain_values
