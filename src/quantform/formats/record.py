"""What a numeric format is: the meaning of words, apart from where they lie in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import output_dtype

if TYPE_CHECKING:
    from quantform.formats.checks import Tally
    from quantform.formats.words import Words

__all__ = ["Format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """One numeric format: which words are legal, and what they are worth.

    Attributes:
        name: The closed canonical name, `"q4_g64_fp16"`.
        category: One of `direct`, `grouped`, `block-scaled`, `row-scaled`, `gguf`.
        bits_per_weight: Stored bits a value in full groups, without padding.
        default_layout: The layout that is used where none is named.
        section: Where the specification defines it.
    """

    name: str
    category: str
    bits_per_weight: float
    default_layout: str
    section: str

    def validate(self, words: Words, first_row: int = 0) -> None:
        """Check every word.

        Args:
            words: The words of a tensor, or of some of its rows.
            first_row: Where in the tensor the first row stands; errors count from there.

        Raises:
            ArgumentError: The arrays have the wrong type or shape.
            WordsError: A word is not legal; names the first bad place and how many there are.
        """
        for tally in self.tallies(words, first_row):
            tally.settle()

    @abstractmethod
    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> Sequence[Tally]:
        """Every rule with the words that break it, in the order in which `validate` names them.

        Args:
            words: The words of a tensor, or of some of its rows.
            first_row: Where in the tensor the first row stands; places are described from there.
            limit: How many places each rule remembers.

        Returns:
            Nothing where all words are legal; else the rules, of which some may be kept.

        Raises:
            ArgumentError: The arrays have the wrong type or shape.
        """

    def value_dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        """The NumPy type in which `decode` gives values; None stands for the type that rounds nothing.

        Raises:
            ArgumentError: The values cannot be had in this type.
        """
        return output_dtype("float32" if dtype is None else dtype, "dtype")

    @abstractmethod
    def decode(self, words: Words, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The values of `words`, computed in binary32 and converted once to `dtype`.

        Args:
            words: Legal words of this format.
            dtype: One of the four output types; None is float32 (direct formats: the type that rounds nothing).
        """

    def __str__(self) -> str:
        return self.name
