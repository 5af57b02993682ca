"""Words that are not those of the tensor that they were imported from, where the two lie in files differently."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.formats import Nvfp4Words, Words
from quantform.sources import NinferTensor, Tensor
from quantform.sources.conventions import QuantizedWeight
from quantform.verify.differing import first_of
from quantform.verify.report import Finding

__all__ = ["different_words"]

Array = npt.NDArray[Any]

_PIECE = 8 << 20
_TILE_ROWS = 128
_NOUNS = {"codes": "code", "scales": "scale", "divisors": "divisor"}


def different_words(tensor: Tensor, original: Tensor) -> list[Finding]:
    """For each part of the words (codes, scales, divisors), the first that differs, and how many do.

    Args:
        tensor: Has words.
        original: Has words of the same format and rows.
    """
    rows, columns = tensor.matrix
    step = max(_TILE_ROWS, _PIECE // max(1, columns) // _TILE_ROWS * _TILE_ROWS)
    parts: dict[str, _Part] = {}
    for first in range(0, rows, step):
        some = slice(first, min(first + step, rows))
        for name, expected, found in _parts(original.words(some), tensor.words(some)):
            parts.setdefault(name, _Part(name)).add(first, expected, found)
    return [part.finding(tensor, original.name) for part in parts.values() if part.count]


@dataclass(slots=True)
class _Part:
    """Words of one part that differ.

    Attributes:
        name: The part.
        count: How many there are; a divisor of many rows is one.
        row: The row of the first.
        index: Which word of its row that is.
        expected: What would be right there.
        found: What is there.
        byte: The first byte of it that is wrong, of words that are stored little-endian.
        last: What the last row seen has and should have.
    """

    name: str
    count: int = 0
    row: int = 0
    index: int | None = None
    expected: str = ""
    found: str = ""
    byte: int = 0
    last: tuple[int, int] | None = None

    def add(self, first: int, expected: Array, found: Array) -> None:
        """Look at the words of rows from `first` on, `[rows]` or `[rows, words]`."""
        differs = expected != found
        if self.name == "divisors":
            before = self.last or (-1, -1)
            changes = (np.diff(expected, prepend=before[0]) != 0) | (np.diff(found, prepend=before[1]) != 0)
            self.last = int(expected[-1]), int(found[-1])
            differs &= changes
        count = int(np.count_nonzero(differs))
        if count and not self.count:
            row, *index = (int(at) for at in np.unravel_index(int(np.argmax(differs)), differs.shape))
            self.row, self.index = first + row, index[0] if index else None
            want, have = expected[row, *index], found[row, *index]
            self.expected, self.found = _shown(want), _shown(have)
            changed = int(want) ^ int(have)
            self.byte = ((changed & -changed).bit_length() - 1) // 8
        self.count += count

    def finding(self, tensor: Tensor, name: str) -> Finding:
        """What there is to say of them."""
        codes, index = self.name == "codes", self.index
        return first_of(
            self.count,
            "against",
            name,
            f"a {_NOUNS.get(self.name, 'word')}",
            _place(tensor, self.name, self.row, index or 0, self.byte),
            expected=self.expected,
            found=self.found,
            row=self.row,
            group=None if codes else index,
            column=index if codes else None,
        )


def _parts(expected: Words, found: Words) -> Iterator[tuple[str, Array, Array]]:
    """Each part of both, a word an element, of rows."""
    rows = found.shape[0]
    for one in dataclasses.fields(found):
        if one.name in {"format", "shape"}:
            continue
        want, have = getattr(expected, one.name), getattr(found, one.name)
        if one.name == "divisors":  # words may have one of them for several equal shares
            want, have = (np.repeat(side, rows // side.size).astype(np.int64) for side in (want, have))
            yield one.name, want, have
        elif not np.array_equal(want, have):
            if one.name == "codes" and isinstance(found, Nvfp4Words):  # two in a byte
                want, have = (np.stack([side & 0xF, side >> 4], -1).reshape(rows, -1) for side in (want, have))
            yield one.name, want, have


def _shown(word: np.generic) -> str:
    signed = np.issubdtype(word.dtype, np.signedinteger) and word.dtype.itemsize < 8
    return str(int(word)) if signed else f"0x{int(word):02X}"


def _place(tensor: Tensor, part: str, row: int, index: int, byte: int) -> tuple[Path, int] | None:
    """The file that has a byte of a word, and where, if the tensor's layout tells; of checkpoints, the word's first."""
    if isinstance(tensor, NinferTensor):
        offset = tensor.word_offset(part, row, index) if part in _NOUNS else None
        return None if offset is None else tensor.locate(offset + byte)
    if not isinstance(tensor, QuantizedWeight) or part not in tensor.parts:
        return None
    stored = tensor.parts[part]
    words, rest = divmod(stored.size, max(1, tensor.matrix[0]))  # a scale may be there for many rows
    if rest or not words:
        return None
    values = tensor.matrix[1] // words if part == "codes" else 1
    return stored.locate((row * words + index // values) * stored.nbytes // stored.size)
