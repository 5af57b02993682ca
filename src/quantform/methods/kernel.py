"""Compiled arithmetic of methods: rows of values in, words out, or at once the planes of a payload.

A method's NumPy path is its definition, and its compiled kernel gives the same words, faster. A kernel only says that
some value cannot be encoded; the NumPy path then says which one, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, convert
from quantform.formats import GroupedWords, Nvfp4Words, RowScaledWords, Words
from quantform.formats.assemble import join
from quantform.methods.method import Job, at_input
from quantform.methods.request import Request, Span

__all__ = ["Kernel", "Run", "ValuesJob", "readable"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

Run = Callable[[Array, int, Sequence[Bytes], int, bool, int], bool]
"""A kernel as it was compiled: `run(values, number, planes, row, packed, threads)`.

`values` are rows `[n, K]` that `readable` gave, with their type's number. Their rows are written to rows `row` to
`row + n` of each plane: codes and scales as words hold them, or, if `packed`, a layout's planes. It tells whether every
value and scale fits the format; if not, the planes hold anything.
"""

_NUMBERS = {SCALARS[name].dtype: number for number, name in enumerate(("fp32", "fp16", "bf16"))}
# Values of other types, or such as lie apart, that are brought into order at a time.
_PIECE_VALUES = 1 << 20


def readable(values: Array, rounded: np.dtype[Any]) -> Iterator[tuple[slice, Array, int]]:
    """Rows as kernels read them: float32 or words of 16 bits, neighbours side by side.

    Args:
        values: `[n, K]` of any number type but booleans.
        rounded: What values of types that kernels do not read are rounded to; one of those that they read.

    Yields:
        The slice of rows, the rows and the number of their type.
    """
    number, size = _NUMBERS.get(values.dtype), values.itemsize
    direct = number is not None and (values.shape[1] == 1 or values.strides[1] == size)
    if direct and not any(stride % size for stride in values.strides):
        yield slice(0, len(values)), _bits(values), _NUMBERS[values.dtype]
        return
    step = max(1, _PIECE_VALUES // max(1, values.shape[1]))
    for first in range(0, len(values), step):
        rows = slice(first, min(first + step, len(values)))
        piece = np.ascontiguousarray(values[rows] if number is not None else convert(values[rows], rounded))
        yield rows, _bits(piece), _NUMBERS[piece.dtype]


def _bits(values: Array) -> Array:
    return values if values.dtype == np.float32 else values.view(np.uint16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One method's arithmetic for one target.

    Attributes:
        run: The compiled function.
        blank: Words of `[n, K]` whose codes and scales are still to be written.
        layout: The layout whose planes it fills.
        rounded: What values of types that it does not read are rounded to first, once.
    """

    run: Run
    blank: Callable[[int, int], GroupedWords | RowScaledWords | Nvfp4Words]
    layout: str
    rounded: np.dtype[Any]

    def words(self, values: Array, threads: int) -> Words | None:
        """The words of rows `[n, K]`; None where the NumPy path has to say what is wrong."""
        words = self.blank(*values.shape)
        planes = [array.reshape(-1).view(np.uint8) for array in (words.codes, words.scales)]
        return words if self.fill(values, planes, 0, packed=False, threads=threads) else None

    def fill(self, values: Array, planes: Sequence[Bytes], row: int, *, packed: bool, threads: int) -> bool:
        """Run over rows `[n, K]` of any type; see `Run`."""
        return values.dtype != np.bool_ and all(
            self.run(piece, number, planes, row + rows.start, packed, threads)
            for rows, piece, number in readable(values, self.rounded)
        )


@dataclass(frozen=True, slots=True)
class ValuesJob(Job):
    """A job that encodes the values of each input by themselves.

    Attributes:
        request: What is asked for.
        define: Gives the words of rows `[n, K]`, whose first row and column errors call as the pair says.
        kernel: The same, compiled; None without compiled kernels.
    """

    request: Request
    define: Callable[[Array, tuple[int, int]], Words]
    kernel: Kernel | None

    def rows(self, first: int, end: int) -> Words:
        """See `Job.rows`."""
        parts = [at_input(span, self._words) for span in self.request.spans(first, end)]
        return join(self.request.format, (end - first, self.request.columns), parts)

    def pack(self, first: int, end: int, planes: Sequence[Bytes]) -> bool:
        """Make rows `first` to `end` of the target as the kernel's layout has them, without making words.

        Args:
            first: The first row.
            end: The row behind the last.
            planes: What `Layout.spans` says that these rows take, in bytes that this overwrites.

        Returns:
            Whether it was done. If not, `rows` gives the words, or the error.
        """
        row = 0
        for span in self.request.spans(first, end):
            if not at_input(span, lambda span, row=row: self._fill(span, planes, row)):  # type: ignore[misc]
                return False
            row += span.end - span.first
        return True

    def _words(self, span: Span) -> Words:
        values = span.values()
        words = self.kernel.words(values, self.request.threads) if self.kernel is not None else None
        return words if words is not None else self.define(values, span.place)

    def _fill(self, span: Span, planes: Sequence[Bytes], row: int) -> bool:
        return self.kernel is not None and self.kernel.fill(
            span.values(), planes, row, packed=True, threads=self.request.threads
        )
