"""Legal words of every format, made from the records, and what tests compare of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from quantform._rows import matrix_shape
from quantform.formats import (
    FORMATS,
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
from quantform.layouts import LAYOUTS, Layout

PAIRS = [(layout, FORMATS[name]) for layout in LAYOUTS.values() for name in layout.formats]
PAIR_IDS = [f"{layout.name}-{record.name}" for layout, record in PAIRS]


def make_words(record: Format, shape: tuple[int, ...], rng: np.random.Generator, divisors: int = 1) -> Words:
    """Legal words drawn over the whole range of each field, zero scales and signed zeros among them."""
    rows, columns = matrix_shape(shape)
    if isinstance(record, DirectFormat):
        high = 1 << 8 * record.scalar.nbytes
        return DirectWords(record, shape, rng.integers(0, high, shape).astype(record.scalar.word_dtype))
    if isinstance(record, GroupedFormat):
        return _grouped(record, shape, rng)
    if isinstance(record, Nvfp4Format):
        return Nvfp4Words(
            record,
            shape,
            rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8),
            rng.integers(0, 0x7F, (rows, columns // 16), dtype=np.uint8),
            rng.integers(1, 0x7F800000, divisors, dtype=np.uint32),
        )
    if isinstance(record, RowScaledFormat):
        codes = rng.integers(0, 0x7F, shape, dtype=np.uint8)
        codes[rng.random(shape) < 0.5] |= 0x80
        scales = rng.integers(0, record.infinity, rows, dtype=np.uint16)
        scales[rng.random(rows) < 0.2] = 0
        codes[scales == 0] &= 0x80
        return RowScaledWords(record, shape, codes, scales)
    assert isinstance(record, GgufFormat)
    return BlockWords(record, shape, rng.integers(0, 256, (rows, record.row_bytes(columns)), dtype=np.uint8))


def _grouped(record: GroupedFormat, shape: tuple[int, ...], rng: np.random.Generator) -> GroupedWords:
    codes = rng.integers(record.qmin, record.qmax, shape, dtype=np.int8, endpoint=True)
    scales = rng.integers(0, 0x7C00, (*shape[:-1], record.groups(shape[-1])), dtype=np.uint16)
    scales |= rng.integers(0, 2, scales.shape, dtype=np.uint16) << 15
    scales[rng.random(scales.shape) < 0.2] = 0
    if not record.any_finite_scale:
        scales[scales == 0x8000] = 0x8001
        codes[np.repeat(scales == 0, record.group, axis=-1)[..., : shape[-1]]] = 0
    return GroupedWords(record, shape, codes, scales)


def fields(words: Words) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `words` by name."""
    names = {name for kind in type(words).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(words, name) for name in sorted(names - {"format", "shape"})}


def assert_same_words(found: Words, expected: Words) -> None:
    assert type(found) is type(expected)
    assert found.format == expected.format
    assert found.shape == expected.shape
    for name, array in fields(expected).items():
        other = fields(found)[name]
        assert other.dtype == array.dtype, name
        np.testing.assert_array_equal(other, array, err_msg=name)


def divisors_of(words: Words) -> int:
    return words.divisors.size if isinstance(words, Nvfp4Words) else 1


@st.composite
def stored(draw: st.DrawFn, layout: Layout, record: Format) -> Words:
    """Legal words of a shape that the layout holds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if isinstance(record, DirectFormat):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    elif isinstance(record, GgufFormat):
        shape = draw(st.integers(0, 4)), draw(st.integers(1, 3)) * record.profile.values
    elif isinstance(record, Nvfp4Format):
        tiles = draw(st.integers(1, 6))
        divisors = draw(st.sampled_from([count for count in range(1, tiles + 1) if tiles % count == 0]))
        return make_words(record, (128 * tiles, 64 * draw(st.integers(1, 3))), rng, divisors)
    else:
        near = st.sampled_from([1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257])
        shape = draw(st.integers(1, 5)), draw(near | st.integers(1, 300))
    words = make_words(record, shape, rng)
    layout.check(record, shape)
    return words
