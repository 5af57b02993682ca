"""What a method is asked to do, and where it reads.

A *row* is everything along the last axis. Methods work on whole rows: inputs are stacked along the rows, and every
quantization group, block or scale lies inside one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import DirectFormat, Format, Nvfp4Words, Words
from quantform.formats.assemble import row_range

__all__ = ["NUMBERS", "Input", "Request", "Span"]

Array = npt.NDArray[Any]

NUMBERS = frozenset(scalar.dtype for scalar in SCALARS.values())
"""The number types that methods read, in native byte order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor whose rows a method reads, in bounded ranges and any order.

    Attributes:
        name: What error messages call it: the parameter's or tensor's name.
        shape: Its logical shape, last axis fastest; `N` rows of `K` values.
        values: Gives rows `first` to `end` as numbers `[end - first, K]` in the type they are stored in. None where
            there are none.
        words: Gives the same rows as words of shape `[end - first, K]`, in the format they are stored in. None where
            the tensor is not stored as words of a format.
        divisors: For NVFP4 words that stack several source matrices: their binary32 divisor words, one for each
            `N / len(divisors)` rows; no read then crosses two of them. None: the words carry the only one there is.
        window: Gives columns `begin` to `end` of one row as numbers `[1, end - begin]` without reading the others,
            called with the row, `begin` and `end`, multiples of 1024 but for the end of a row. None where rows
            are only read whole.
        place: What the first row and the first column are called in error messages, where the input is some part of a
            larger tensor.
    """

    name: str
    shape: tuple[int, ...]
    values: Callable[[int, int], Array] | None = None
    words: Callable[[int, int], Words] | None = None
    divisors: npt.NDArray[np.uint32] | None = None
    window: Callable[[int, int, int], Array] | None = None
    place: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        """N, the rows of all leading axes together."""
        return matrix_shape(self.shape)[0]

    @property
    def columns(self) -> int:
        """K, the last dimension."""
        return matrix_shape(self.shape)[1]

    @classmethod
    def of_values(cls, values: Array, name: str = "values") -> Self:
        """An array in memory, any rank."""
        matrix = values.reshape(matrix_shape(values.shape))
        return cls(name=name, shape=values.shape, values=lambda first, end: matrix[first:end])

    @classmethod
    def of_words(cls, words: Words, name: str = "words") -> Self:
        """Words in memory; those of a direct format are its values as well."""
        if isinstance(words.format, DirectFormat):
            return cls.of_values(words.decode(), name)
        return cls(
            name=name,
            shape=words.shape,
            words=lambda first, end: row_range(words, first, end),
            divisors=words.divisors if isinstance(words, Nvfp4Words) else None,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first` to `end` of one input, read when asked for."""

    input: Input
    first: int
    end: int

    @property
    def place(self) -> tuple[int, int]:
        """What errors call the first row and the first column."""
        row, column = self.input.place
        return row + self.first, column

    def values(self) -> Array:
        """Their numbers, `[end - first, K]`, in the type they are stored in, native byte order.

        Raises:
            ArgumentError: The source gave another shape or something that is no number type.
        """
        if self.input.values is None:
            raise UnsupportedError(
                "there are only words here, no values",
                hint="Use import_encoded, or a source that decodes them",
            )
        found = np.asarray(self.input.values(self.first, self.end))
        expected = (self.end - self.first, self.input.columns)
        if found.shape != expected:
            raise ArgumentError("a read of rows gave the wrong shape", expected=list(expected), found=list(found.shape))
        native = found.dtype.newbyteorder("=")
        if native not in NUMBERS:
            raise ArgumentError("the values are no numbers that a method reads", found=str(found.dtype))
        return found.astype(native, copy=False)

    def words(self) -> Words:
        """Their words, of shape `[end - first, K]`.

        Raises:
            ArgumentError: The source gave words of another shape.
        """
        if self.input.words is None:
            raise UnsupportedError(
                "there are only values here, no encoded words", hint="Use a method that quantizes, or cast_direct"
            )
        found = self.input.words(self.first, self.end)
        expected = (self.end - self.first, self.input.columns)
        if not isinstance(found, Words) or found.shape != expected:
            raise ArgumentError(
                "a read of rows gave the wrong words",
                expected=f"words of shape {list(expected)}",
                found=f"shape {list(found.shape)}" if isinstance(found, Words) else type(found).__name__,
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The words of one tensor, to be made from inputs that are stacked along the rows.

    Attributes:
        format: The target format.
        shape: The logical shape of the whole target.
        inputs: One or more, in order; each has the target's K, and their rows add up to the target's.
        parameters: The method's own, by name.
        threads: How many threads a compiled kernel may use at once, 0 for one each usable CPU. Nothing depends on it.
    """

    format: Format
    shape: tuple[int, ...]
    inputs: tuple[Input, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    @property
    def rows(self) -> int:
        """N of the target."""
        return matrix_shape(self.shape)[0]

    @property
    def columns(self) -> int:
        """K of the target."""
        return matrix_shape(self.shape)[1]

    def check(self) -> None:
        """Check that the inputs make up the target.

        Raises:
            ArgumentError: They do not.
        """
        for source in self.inputs:
            if source.columns != self.columns:
                raise ArgumentError(
                    "the input's rows have another length than the target's",
                    where=source.name,
                    expected=f"K = {self.columns}",
                    found=source.columns,
                )
        rows = sum(source.rows for source in self.inputs)
        if not self.inputs or rows != self.rows:
            raise ArgumentError("the inputs do not make up the target", expected=f"{self.rows} rows", found=rows)

    def spans(self, first: int, end: int) -> Iterator[Span]:
        """The parts of the inputs that make up rows `first` to `end` of the target, in order.

        Raises:
            ArgumentError: The range is empty (and the target is not) or leaves the target.
        """
        if self.rows == first == end == 0:
            yield Span(self.inputs[0], 0, 0)
            return
        if not 0 <= first < end <= self.rows:
            raise ArgumentError(
                "the rows asked for leave the target", expected=f"0 <= first < end <= {self.rows}", found=(first, end)
            )
        start = 0
        for source in self.inputs:
            lower, upper = max(first, start), min(end, start + source.rows)
            if lower < upper:
                yield Span(source, lower - start, upper - start)
            start += source.rows

    def values(self, first: int, end: int) -> Array:
        """Rows `first` to `end` of the target as one array `[end - first, K]`.

        The numbers have the type that the inputs store, or binary64 where inputs of different types meet.
        """
        parts = [span.values() for span in self.spans(first, end)]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.astype(np.float64) for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
