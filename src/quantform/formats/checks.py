"""Checks that formats share: that words are the arrays they should be, and which of them a rule forbids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from quantform._scalars import Scalar, convert
from quantform.errors import ArgumentError, WordsError
from quantform.formats.record import Format
from quantform.formats.words import Words

__all__ = ["Tally", "hex_word", "require_array", "row_place", "words_of"]

W = TypeVar("W", bound=Words)


def words_of(format: Format, words: Words, kind: type[W]) -> W:
    """`words` themselves, once they are known to be of this kind and this format.

    Raises:
        ArgumentError: They are not.
    """
    if not isinstance(words, kind):
        raise ArgumentError(f"format {format.name} takes {kind.__name__}", found=type(words).__name__)
    if words.format.name != format.name:
        raise ArgumentError(f"the words are not of format {format.name}", found=words.format.name)
    return words


def require_array(format: Format, what: str, array: object, dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
    """Check the type and the shape of one array of words.

    Raises:
        ArgumentError: They differ.
    """
    wanted = np.dtype(dtype)
    if not isinstance(array, np.ndarray) or array.dtype != wanted or array.shape != tuple(shape):
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ArgumentError(
            f"the {what} of {format.name} have the wrong type or shape", expected=f"{wanted} {list(shape)}", found=found
        )


def row_place(shape: Sequence[int], row: int) -> str:
    """`"row 3"`, or `"row [1, 3]"` by its leading coordinates in a tensor of more than two axes."""
    coordinates: list[int] = []
    for dimension in reversed(shape[:-1]):
        row, coordinate = divmod(row, dimension)
        coordinates.insert(0, coordinate)
    return f"row {coordinates[0] if len(coordinates) == 1 else coordinates}"


def hex_word(word: int, scalar: Scalar) -> str:
    """A scalar word with its value: `"0x8000 (-0.0)"`."""
    value = convert(np.array(word, scalar.word_dtype).view(scalar.dtype), np.dtype(np.float64))
    return f"0x{word:0{2 * scalar.nbytes}X} ({float(value)})"


@dataclass(slots=True)
class Tally:
    """The words that break one rule: how many there are, and where the first is.

    Attributes:
        problem: What is wrong with them.
        expected: What the rule admits.
        describe: Gives the place of the word at a row and a column of the array that was checked, and what is there.
        rule: The rule's short name, where verification tells rules apart: `"code"`, `"scale"`, `"zero-scale"`,
            `"divisor"`.
        part: Which array was checked, `"codes"`, `"scales"` or `"divisors"`.
        limit: How many places are remembered.
        places: Row and column of the first of them.
    """

    problem: str
    expected: str
    describe: Callable[[int, int], tuple[str, str]]
    rule: str = "code"
    part: str = "codes"
    limit: int = 1
    count: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)

    def add(self, bad: npt.NDArray[Any], row: int = 0, column: int = 0) -> None:
        """Count the bad places of one piece, a boolean matrix whose first element is at `row` and `column`."""
        number = int(np.count_nonzero(bad))
        room = self.limit - len(self.places)
        if number and room > 0:
            some = [int(np.argmax(bad))] if room == 1 else np.flatnonzero(bad)[:room].tolist()
            self.places += [(row + place // bad.shape[1], column + place % bad.shape[1]) for place in some]
        self.count += number

    def settle(self) -> None:
        """Raise the error of the rule, if any word breaks it.

        Raises:
            WordsError: Names the first bad word and how many there are.
        """
        if self.count:
            where, found = self.describe(*self.places[0])
            number = "the only one" if self.count == 1 else f"the first of {self.count}"
            raise WordsError(self.problem, where=where, expected=self.expected, found=f"{found}, {number}")
