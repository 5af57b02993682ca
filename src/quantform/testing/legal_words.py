"""Legal words of every numeric format, drawn over the whole range of each field."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform.errors import ArgumentError
from quantform.formats import (
    BlockWords,
    DirectFormat,
    DirectWords,
    Format,
    GgufFormat,
    GroupedFormat,
    GroupedWords,
    Nvfp4Format,
    Nvfp4Words,
    RowScaledFormat,
    RowScaledWords,
    Words,
)
from quantform.testing.plain_random import Numbers

__all__ = ["arrays_of", "legal_words"]


def legal_words(record: Format, shape: tuple[int, ...], random: Numbers, divisors: int = 1) -> Words:
    """Words of a format, zero scales, zeros of both signs, infinities and NaN among them where they are legal.

    Args:
        record: The format.
        shape: A shape that it has.
        random: A `PlainRandom`, or a generator of NumPy's.
        divisors: Of `nvfp4`.
    """
    rows, columns = matrix_shape(shape)
    if isinstance(record, DirectFormat):
        words = random.integers(0, 1 << 8 * record.scalar.nbytes, shape)
        return DirectWords(record, shape, np.asarray(words).astype(record.scalar.word_dtype))
    if isinstance(record, GroupedFormat):
        return _grouped(record, shape, random)
    if isinstance(record, Nvfp4Format):
        return Nvfp4Words(
            record,
            shape,
            random.integers(0, 256, (rows, columns // 2)).astype(np.uint8),
            random.integers(0, 0x7F, (rows, columns // 16)).astype(np.uint8),
            random.integers(1, 0x7F800000, divisors).astype(np.uint32),
        )
    if isinstance(record, RowScaledFormat):
        codes = random.integers(0, 0x7F, shape).astype(np.uint8)
        codes[random.random(shape) < 0.5] |= 0x80
        scales = random.integers(0, record.infinity, rows).astype(np.uint16)
        scales[random.random(rows) < 0.2] = 0
        codes[scales == 0] &= 0x80
        return RowScaledWords(record, shape, codes, scales)
    if isinstance(record, GgufFormat):
        return BlockWords(record, shape, random.integers(0, 256, (rows, record.row_bytes(columns))).astype(np.uint8))
    raise ArgumentError("no words are drawn for this format", found=str(record))


def _grouped(record: GroupedFormat, shape: tuple[int, ...], random: Numbers) -> GroupedWords:
    codes = random.integers(record.qmin, record.qmax + 1, shape).astype(np.int8)
    scales_shape = (*shape[:-1], record.groups(shape[-1]))
    scales = random.integers(0, 0x7C00, scales_shape).astype(np.uint16)
    scales |= (random.integers(0, 2, scales_shape) << 15).astype(np.uint16)
    scales[random.random(scales_shape) < 0.2] = 0
    if not record.any_finite_scale:
        scales[scales == 0x8000] = 0x8001
        codes[np.repeat(scales == 0, record.group, axis=-1)[..., : shape[-1]]] = 0
    return GroupedWords(record, shape, codes, scales)


def arrays_of(words: Words) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `words` by name."""
    names = {name for kind in type(words).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(words, name) for name in sorted(names - {"format", "shape"})}
