"""Tensors seen otherwise: chosen rows, several stacked. They are tensors themselves; nothing is read to make one.

Rows keep what they are stored as (scalars, blocks, codes with their scales, divisors), so that they can be imported.
Columns and transposed matrices do not, since blocks and groups lie along the rows: see `values_views`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_integers, as_rows, matrix_shape, stray_end
from quantform._sizes import product
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import Nvfp4Words, Words
from quantform.formats.assemble import join
from quantform.sources._protocol import Tensor, check_range
from quantform.sources.divisors import DivisorRuns
from quantform.sources.ninfer_matrix import words_as
from quantform.sources.row_bytes import Stretch, has_row_bytes, read_rows
from quantform.sources.values_views import ColumnsView, TransposedView

__all__ = ["RowsView", "concatenate", "gather", "select_rows", "stack", "transpose"]

Indices = Sequence[int] | range | npt.NDArray[np.integer]

_PIECE_VALUES = 1 << 20


class RowsView(Tensor):
    """Rows of one or more tensors of one format and row length, in any order, under a shape of their own.

    Attributes:
        parts: The tensors.
        what: What the view does, for listings.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        parts: Sequence[Tensor],
        pieces: npt.NDArray[np.int64],
        what: str,
    ) -> None:
        """See `select_rows`, `gather`, `concatenate` and `stack`.

        Args:
            shape: The shape, of as many rows and of the parts' K.
            parts: The tensors.
            pieces: `[n, 3]`: of each run of rows the part, the first row in it, and the row behind the last.
            what: What the view does.
        """
        self.parts = tuple(parts)
        self.what = what
        self.name = "+".join(dict.fromkeys(part.name for part in parts))
        self.shape = shape
        self.format = parts[0].format
        self._part, self._first = pieces[:, 0], pieces[:, 1]
        self._ends = np.cumsum(pieces[:, 2] - pieces[:, 1])
        self._bytes = all(has_row_bytes(part) for part in parts)
        rows = parts[0].matrix[0]
        self.nbytes = parts[0].nbytes * self.matrix[0] // max(1, rows)

    @property
    def decodable(self) -> bool:
        """Whether all parts can be decoded."""
        return all(part.decodable for part in self.parts)

    @property
    def joined(self) -> bool:
        """Whether rows are bytes of their own in every part."""
        return self._bytes

    @property
    def importable(self) -> bool:
        """Whether all parts have encoded words."""
        return all(part.importable for part in self.parts)

    def check(self) -> None:
        """Check every part."""
        for part in self.parts:
            part.check()

    def divisor_runs(self) -> DivisorRuns | None:
        """The divisors of the rows; equal neighbours are one run."""
        known = [part.divisor_runs() for part in self.parts]
        stretches = zip(self._part.tolist(), *self._spans(), strict=True)
        parts = [runs.part(first, end) for index, first, end in stretches if (runs := known[index]) is not None]
        return DivisorRuns.joined(parts).merged() if parts else None

    def activation_divisor(self) -> np.uint32 | None:
        """The smallest of the parts'; None where one has none."""
        words = [part.activation_divisor() for part in self.parts]
        known = [word for word in words if word is not None]
        return min(known) if len(known) == len(words) else None

    def payload(self) -> npt.NDArray[np.uint8]:
        """The rows' bytes, uint8 `[nbytes]`, a copy.

        Raises:
            UnsupportedError: They are no bytes of their own.
        """
        self._has_bytes()
        try:
            out = np.empty(self.nbytes, np.uint8)
        except (MemoryError, ValueError):
            raise UnsupportedError(
                "the rows do not fit into memory", where=f"tensor {self.name!r}", hint="Read them in pieces"
            ) from None
        self.read_into(0, out)
        out.flags.writeable = False
        return out

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out`, contiguous, with the rows' bytes from `offset` on.

        Raises:
            ArgumentError: The range does not lie in them.
            UnsupportedError: They are no bytes of their own.
        """
        self._has_bytes()
        check_range(offset, out.size, self.nbytes, f"tensor {self.name!r}")
        if not out.size:
            return
        row_bytes = self.nbytes // self.matrix[0]
        rows = range(offset // row_bytes, -(-(offset + out.size) // row_bytes))
        done, skip = 0, offset % row_bytes
        for part, first, end in self._stretches(rows):
            count = min((end - first) * row_bytes - skip, out.size - done)
            part.read_into(first * row_bytes + skip, out[done : done + count])
            done, skip = done + count, 0

    def words(self, rows: Rows | None = None) -> Words:
        """The words of all rows, in `shape` where words of their kind have such shapes, or of some, `[len(rows), K]`.

        NVFP4 words have a divisor for each of equal shares of the rows.
        """
        chosen = self._chosen(rows)
        if self._bytes:
            found = read_rows(list(self._stretches(chosen)) or [(self.parts[0], 0, 0)])
        else:
            pieces = [part.words(numbers) for part, numbers in self._by_part(chosen)]
            pieces = pieces or [self.parts[0].words(slice(0, 0))]
            found = _joined(pieces, (len(chosen), self.matrix[1]))
        return words_as(found, self.shape) if rows is None else found

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> npt.NDArray[Any]:
        """The values as the parts decode them; see `Tensor.decode`."""
        chosen = self._chosen(rows)
        columns = self.matrix[1]
        probe = self.parts[0].decode(dtype, rows=slice(0, 0))
        shape = self.shape if rows is None else (len(chosen), columns)
        try:
            out = np.empty(shape, probe.dtype)
        except (MemoryError, ValueError):
            raise UnsupportedError(
                "the values do not fit into memory", where=f"tensor {self.name!r}", hint="Decode some rows at a time"
            ) from None
        matrix = out.reshape(len(chosen), columns)
        step = max(1, _PIECE_VALUES // max(1, columns))
        for first in range(0, len(chosen), step):
            some = chosen[first : first + step]
            if self._bytes:
                matrix[first : first + step] = self.words(some).decode(dtype)
                continue
            at = first
            for part, numbers in self._by_part(some):
                matrix[at : at + len(numbers)] = part.decode(dtype, rows=numbers)
                at += len(numbers)
        return out

    def _chosen(self, rows: Rows | None) -> range | npt.NDArray[np.int64]:
        try:
            return as_rows(slice(None) if rows is None else rows, self.matrix[0])
        except ArgumentError as error:
            raise error.at(f"tensor {self.name!r}") from None

    def _has_bytes(self) -> None:
        if not self._bytes:
            raise UnsupportedError(
                f"rows of {self.format} have no bytes of their own",
                where=f"tensor {self.name!r}",
                hint="Take their words, or decode them",
            )

    def _spans(self) -> tuple[list[int], list[int]]:
        counts = np.diff(self._ends, prepend=0)
        return self._first.tolist(), (self._first + counts).tolist()

    def _places(self, chosen: range | npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The part of each row, and its row there."""
        numbers = np.asarray(chosen, np.int64)
        piece = np.searchsorted(self._ends, numbers, "right")
        starts = self._ends - np.diff(self._ends, prepend=0)
        return self._part[piece], self._first[piece] + numbers - starts[piece]

    def _by_part(self, chosen: range | npt.NDArray[np.int64]) -> Iterator[tuple[Tensor, npt.NDArray[np.int64]]]:
        """The rows asked for, in order, by the part that they are of."""
        part, row = self._places(chosen)
        breaks = np.flatnonzero(np.diff(part)) + 1
        for numbers in np.split(np.arange(len(part)), breaks) if len(part) else ():
            yield self.parts[part[numbers[0]]], row[numbers]

    def _stretches(self, chosen: range | npt.NDArray[np.int64]) -> Iterator[Stretch]:
        """The rows asked for, in order, as runs of rows that lie together."""
        part, row = self._places(chosen)
        breaks = np.flatnonzero((np.diff(part) != 0) | (np.diff(row) != 1)) + 1
        for first, end in zip(np.append(0, breaks), np.append(breaks, len(part)), strict=True):
            if first < end:
                yield self.parts[part[first]], int(row[first]), int(row[end - 1]) + 1


def _joined(pieces: list[Words], shape: tuple[int, int]) -> Words:
    if len(pieces) == 1:
        return pieces[0]
    found = join(pieces[0].format, shape, pieces)
    if not isinstance(found, Nvfp4Words):
        return found
    shares = [DivisorRuns.even(one.shape[0], one.divisors) for one in pieces if isinstance(one, Nvfp4Words)]
    return replace(found, divisors=DivisorRuns.joined(shares).merged().shares())


def select_rows(tensor: Tensor, *ranges: tuple[SupportsIndex, SupportsIndex]) -> RowsView:
    """Rows of a matrix, range after range, as they are stored.

    Args:
        tensor: A tensor of two axes or more; all leading ones together count its rows.
        ranges: One or more `(begin, end)` with `0 <= begin < end <= N`; they may overlap and come in any order.

    Returns:
        A tensor `[n, K]`; words and divisors stay what they are.

    Raises:
        ArgumentError: There are no ranges, or one is empty or leaves the tensor, or the tensor is no matrix.
    """
    where = _where(tensor)
    _check_rank(tensor, 2)
    rows, columns = tensor.matrix
    pieces = [(0, *_range(one, rows, where)) for one in ranges]
    if not pieces:
        raise ArgumentError("no rows are selected", where=where, expected="one or more ranges (begin, end)")
    table = np.array(pieces, np.int64)
    return RowsView((int((table[:, 2] - table[:, 1]).sum()), columns), [tensor], table, "rows of")


def gather(tensor: Tensor, indices: Indices, axis: int = 0) -> Tensor:
    """What lies at some indices of an axis, in their order, as `numpy.take` does.

    Along the last axis these are elements, and the result has values; along any other they are whole rows, which keep
    their words and divisors.

    Args:
        tensor: A tensor of one axis or more.
        indices: Integers from 0 to the axis' length, exclusive; repeats allowed.
        axis: The axis; -1 is the last.

    Raises:
        ArgumentError: There is no such axis, or the indices are none, or leave it.
        UnsupportedError: The tensor's rows are stored in another shape than its own.
    """
    where = _where(tensor)
    _check_rank(tensor, 1)
    rank = len(tensor.shape)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise ArgumentError("no axis of the tensor", where=where, expected=f"-{rank} to {rank - 1}", found=repr(axis))
    axis %= rank
    chosen = _indices(indices, tensor.shape[axis], f"{where}, axis {axis}")
    _check_stored(tensor)
    if axis == rank - 1:
        return ColumnsView(tensor, chosen)
    outer, inner = product(tensor.shape[:axis]), product(tensor.shape[axis + 1 : -1])
    slices = np.arange(outer, dtype=np.int64)[:, None] * tensor.shape[axis] + chosen[None, :]
    begins = slices.reshape(-1) * inner
    # Slices that lie one after another are one run.
    breaks = np.flatnonzero(np.diff(begins) != inner) + 1
    first = begins[np.append(0, breaks)]
    last = begins[np.append(breaks, begins.size) - 1] + inner
    table = np.stack([np.zeros_like(first), first, last], axis=1)
    shape = (*tensor.shape[:axis], chosen.size, *tensor.shape[axis + 1 :])
    return RowsView(shape, [tensor], table, "gathered")


def transpose(tensor: Tensor) -> Tensor:
    """The last two axes of a tensor exchanged; the result has values.

    A transposed matrix of scalars transposed again is the tensor that it was made of.

    Raises:
        ArgumentError: The tensor has fewer than two axes.
        UnsupportedError: Its rows are stored in another shape than its own.
    """
    _check_rank(tensor, 2)
    _check_stored(tensor)
    if isinstance(tensor, TransposedView) and tensor.format == tensor.parts[0].format:
        return tensor.parts[0]
    return TransposedView(tensor)


def concatenate(tensors: Sequence[Tensor]) -> RowsView:
    """Tensors one after another along the first axis, as they are stored.

    Args:
        tensors: One or more, of two axes or more, alike but for their first axis, and of one format.

    Raises:
        ArgumentError: There are none, or they do not fit together.
    """
    given = _together(tensors)
    for tensor in given:
        _check_rank(tensor, 2)
        if tensor.shape[1:] != given[0].shape[1:]:
            raise ArgumentError(
                "the tensors do not fit together",
                where=_where(tensor),
                expected=["N", *given[0].shape[1:]],
                found=list(tensor.shape),
            )
    shape = (sum(tensor.shape[0] for tensor in given), *given[0].shape[1:])
    return RowsView(shape, given, _whole(given), "concatenated")


def stack(tensors: Sequence[Tensor]) -> RowsView:
    """Tensors of one shape and format along a new first axis, as they are stored: `[N, K]` each to `[E, N, K]`.

    Raises:
        ArgumentError: There are none, or they do not fit together.
    """
    given = _together(tensors)
    for tensor in given:
        _check_rank(tensor, 1)
        if tensor.shape != given[0].shape:
            raise ArgumentError(
                "the tensors do not fit together",
                where=_where(tensor),
                expected=list(given[0].shape),
                found=list(tensor.shape),
            )
    return RowsView((len(given), *given[0].shape), given, _whole(given), "stacked")


def _whole(tensors: Sequence[Tensor]) -> npt.NDArray[np.int64]:
    return np.array([(index, 0, tensor.matrix[0]) for index, tensor in enumerate(tensors)], np.int64)


def _together(tensors: Sequence[Tensor]) -> list[Tensor]:
    given = list(tensors)
    if not given:
        raise ArgumentError("there are no tensors to put together", expected="one or more")
    for tensor in given:
        where = _where(tensor)
        _check_stored(tensor)
        if (tensor.format, tensor.importable) != (given[0].format, given[0].importable):
            raise ArgumentError(
                "only tensors of one format are put together",
                where=where,
                expected=f"{given[0].format}, as {given[0].name!r}",
                found=tensor.format,
                hint="Assign each one to its rows: recipe.assign(..., source=..., rows=(begin, end))",
            )
    return given


def _where(tensor: Tensor) -> str:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            "not a tensor",
            expected="a tensor of an opened source",
            found=type(tensor).__name__,
            hint="ArraySource makes tensors of NumPy arrays",
        )
    return f"tensor {tensor.name!r}"


def _check_rank(tensor: Tensor, axes: int) -> None:
    where = _where(tensor)
    if len(tensor.shape) < axes or 0 in tensor.shape:
        raise ArgumentError(
            "a view needs a tensor with elements and enough axes",
            where=where,
            expected=f"{axes} axes or more" if axes > 1 else "one axis or more",
            found=f"shape {list(tensor.shape)}",
        )


def _check_stored(tensor: Tensor) -> None:
    if tensor.matrix != matrix_shape(tensor.shape):
        raise UnsupportedError(
            "the tensor's rows are stored in another shape",
            where=_where(tensor),
            expected=list(matrix_shape(tensor.shape)),
            found=list(tensor.matrix),
            hint="select_rows counts the stored rows",
        )


def _range(given: tuple[SupportsIndex, SupportsIndex], rows: int, where: str) -> tuple[int, int]:
    try:
        first, end = (-1 if isinstance(row, bool) else operator.index(row) for row in given)
    except (TypeError, ValueError):
        first = end = -1
    if not 0 <= first < end <= rows:
        raise ArgumentError(
            "a range is empty or leaves the tensor",
            where=where,
            expected=f"(begin, end) with 0 <= begin < end <= {rows}",
            found=repr(given),
        )
    return first, end


def _indices(indices: Indices, length: int, where: str) -> npt.NDArray[np.int64]:
    if isinstance(indices, range) and (end := stray_end(indices, 0, length)) is not None:
        raise ArgumentError("an index leaves the axis", where=where, expected=f"0 to {length - 1}", found=end)
    array = as_integers(indices)
    if array is None or not array.size:
        raise ArgumentError(
            "indices is not a list of numbers", where=where, expected="one or more integers", found=repr(indices)[:80]
        )
    outside = (array < 0) | (array >= length)
    if outside.any():
        place = int(np.argmax(outside))
        raise ArgumentError(
            "an index leaves the axis",
            where=f"{where}, index {place}",
            expected=f"0 to {length - 1}",
            found=int(array[place]),
        )
    return array.astype(np.int64)
