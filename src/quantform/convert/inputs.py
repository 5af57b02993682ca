"""Tensors of any source as inputs of a method: bounded reads of whole rows, values or words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.errors import UnsupportedError
from quantform.formats import FORMATS, BlockWords, DirectFormat, DirectWords, Words
from quantform.methods import Input
from quantform.packed import PROFILES, dequantize_packed
from quantform.sources import GGUFTensor, NinferTensor, Tensor
from quantform.sources.conventions import Nvfp4Weight, QuantizedWeight, UnsupportedWeight

__all__ = ["input_of"]

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

    def some_words(low: int, high: int) -> Words:
        return words(first + low, first + high)

    def some_values(low: int, high: int) -> npt.NDArray[Any]:
        return values(first + low, first + high)

    return Input(
        name=name,
        shape=shape,
        values=some_values if _has_values(tensor) else None,
        words=some_words if _has_words(tensor) else None,
        divisors=_divisors(tensor, first, end),
        window=_window(tensor, first),
        place=(first, 0),
    )


def _window(tensor: Tensor, start: int) -> Callable[[int, int, int], npt.NDArray[Any]] | None:
    """Reads of parts of rows, counted from `start` on, where these are bytes of their own in the file."""
    scalar, profile = SCALARS.get(tensor.format), PROFILES.get(tensor.format)
    if isinstance(tensor, (QuantizedWeight, UnsupportedWeight)) or not getattr(tensor, "joined", True):
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


def _has_values(tensor: Tensor) -> bool:
    if isinstance(tensor, UnsupportedWeight):
        return False
    return bool(getattr(tensor, "decodable", True))


def _has_words(tensor: Tensor) -> bool:
    """Whether there are words that are not just the values themselves."""
    if isinstance(tensor, QuantizedWeight):
        return tensor.importable
    if isinstance(tensor, NinferTensor):
        return not isinstance(FORMATS.get(tensor.format), DirectFormat) and tensor.joined
    return tensor.format not in SCALARS


def _readers(tensor: Tensor) -> tuple[ReadWords, ReadValues]:
    if isinstance(tensor, GGUFTensor):
        gguf = tensor  # read through the kernel: pages of a mapping would count as the process's own

        def words(first: int, end: int) -> Words:
            return _gguf_words(gguf, first, end)

        def values(first: int, end: int) -> npt.NDArray[Any]:
            return words(first, end).decode()

        return words, values

    def plain_words(first: int, end: int) -> Words:
        return tensor.words(slice(first, end))

    def plain_values(first: int, end: int) -> npt.NDArray[Any]:
        return tensor.decode(rows=slice(first, end))

    return plain_words, plain_values


def _gguf_words(tensor: GGUFTensor, first: int, end: int) -> Words:
    probe = tensor.words(slice(0, 0))
    row_bytes = tensor.nbytes // max(1, tensor.matrix[0])
    data = np.empty((end - first) * row_bytes, np.uint8)
    tensor.read_into(first * row_bytes, data)
    shape = (end - first, tensor.matrix[1])
    if isinstance(probe, BlockWords):
        return BlockWords(probe.format, shape, data.reshape(end - first, row_bytes))
    assert isinstance(probe.format, DirectFormat)  # noqa: S101 - a GGUF tensor is blocks or scalars
    scalar = probe.format.scalar
    return DirectWords(
        probe.format, shape, data.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False).reshape(shape)
    )


def _divisors(tensor: Tensor, first: int, end: int) -> npt.NDArray[np.uint32] | None:
    """The divisor words of rows of NVFP4, for the equal shares that they fall into."""
    if isinstance(tensor, Nvfp4Weight):
        return np.array([tensor.divisor()], np.uint32)
    if not isinstance(tensor, NinferTensor) or tensor.format != "nvfp4" or not tensor.joined:
        return None
    count = tensor.divisors
    share = tensor.matrix[0] // count
    if count > 1 and (first % share or end % share):
        raise UnsupportedError(
            "the rows begin or end within the share of a divisor",
            where=f"tensor {tensor.name!r}",
            expected=f"multiples of {share}",
            found=(first, end),
        )
    words = np.empty(4 * count, np.uint8)
    tensor.read_into(tensor.nbytes - 4 * count, words)
    every = words.view("<u4").astype(np.uint32)
    return every if count == 1 else every[first // share : end // share]
