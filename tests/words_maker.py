"""Words of every format for tests, and what tests compare of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from quantform.formats import FORMATS, Format, Nvfp4Words, Words
from quantform.layouts import LAYOUTS, Fault, Layout, reader_of
from quantform.testing import strategies
from quantform.testing.legal_words import arrays_of as fields
from quantform.testing.legal_words import legal_words as make_words

__all__ = [
    "PAIRS",
    "PAIR_IDS",
    "assert_same_words",
    "divisors_of",
    "faults_of",
    "fields",
    "make_words",
    "stored",
]

PAIRS = [(layout, FORMATS[name]) for layout in LAYOUTS.values() for name in layout.formats]
PAIR_IDS = [f"{layout.name}-{record.name}" for layout, record in PAIRS]


def assert_same_words(found: Words, expected: Words) -> None:
    assert type(found) is type(expected)
    assert found.format == expected.format
    assert found.shape == expected.shape
    for name, array in fields(expected).items():
        other = fields(found)[name]
        assert other.dtype == array.dtype, name
        np.testing.assert_array_equal(other, array, err_msg=name)


def faults_of(
    layout: Layout, payload: npt.NDArray[np.uint8], record: Format | str, shape: tuple[int, ...], divisors: int = 1
) -> list[Fault]:
    """Everything that is wrong with a payload, and that as much was counted."""
    found = list(layout.faults(reader_of(payload), record, shape, divisors, limit=1_000_000))
    assert sum(faults.count for faults in found) == sum(fault.count for faults in found for fault in faults.first)
    return [fault for faults in found for fault in faults.first]


def divisors_of(words: Words) -> int:
    return words.divisors.size if isinstance(words, Nvfp4Words) else 1


def stored(layout: Layout, record: Format) -> st.SearchStrategy[Words]:
    """Legal words of a shape that the layout holds."""

    def checked(words: Words) -> Words:
        layout.check(record, words.shape)
        return words

    return strategies.words(record.name).map(checked)
