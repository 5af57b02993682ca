"""Views that cut rows apart: chosen columns, and transposed matrices. They have values, and words of scalars only.

A tensor of scalars keeps its type and every bit; of any other these are the values that it decodes to, in binary32.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows
from quantform._scalars import SCALARS, Scalar
from quantform._sizes import ceil_div, product
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import DirectWords, direct_format
from quantform.sources._protocol import Tensor, check_range
from quantform.sources.row_bytes import has_row_bytes, read_rows

__all__ = ["ColumnsView", "TransposedView", "ValuesView"]

Array = npt.NDArray[Any]
Chosen = range | npt.NDArray[np.int64]

_SCALAR_OF = {scalar.dtype: scalar for scalar in SCALARS.values()}
# Values of a tensor that are read at a time, and those of a transposed matrix that are kept at a time.
_PIECE_VALUES = 1 << 20
_BLOCK_VALUES = 1 << 22
_BLOCKS = 2


class ValuesView(Tensor):
    """Values of another tensor in another order, as scalars.

    Attributes:
        parts: The tensor.
        what: What the view does, for listings.
    """

    what: str

    def __init__(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        self.parts = (tensor,)
        self.name = tensor.name
        self.shape = shape
        self._tensor = tensor
        self._plain = tensor.format in SCALARS
        self._scalar: Scalar = (
            SCALARS[tensor.format] if self._plain else _SCALAR_OF[tensor.decode(rows=slice(0, 0)).dtype]
        )
        self.format = self._scalar.name
        self.nbytes = product(shape) * self._scalar.nbytes

    def check(self) -> None:
        """Check the tensor."""
        self._tensor.check()

    def payload(self) -> npt.NDArray[np.uint8]:
        """The words in C order, little-endian, uint8 `[nbytes]`; numbers of 4 and 6 bits take a byte each."""
        data = self._bytes(self.words().words)
        data.flags.writeable = False
        return data

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on.

        Raises:
            ArgumentError: The range does not lie in them.
        """
        check_range(offset, out.size, self.nbytes, f"tensor {self.name!r}")
        row_bytes = self.matrix[1] * self._scalar.nbytes
        step = max(1, _PIECE_VALUES // self.matrix[1])
        at, end = offset, offset + out.size
        while at < end:
            row = at // row_bytes
            rows = range(row, min(row + step, ceil_div(end, row_bytes)))
            data = self._bytes(self._words(rows))[at - row * row_bytes : end - row * row_bytes]
            out[at - offset : at - offset + data.size] = data
            at += data.size

    def words(self, rows: Rows | None = None) -> DirectWords:
        """The words of all rows (shape as the view) or of some (shape `[len(rows), K]`).

        Raises:
            ArgumentError: A row is outside the view.
        """
        try:
            chosen = as_rows(slice(None) if rows is None else rows, self.matrix[0])
        except ArgumentError as error:
            raise error.at(f"tensor {self.name!r}") from None
        try:
            words = self._words(chosen)
        except MemoryError:
            raise UnsupportedError(
                "the values do not fit into memory", where=f"tensor {self.name!r}", hint="Read some rows at a time"
            ) from None
        shape = self.shape if rows is None else words.shape
        return DirectWords(direct_format(self._scalar), shape, words.reshape(shape))

    @abstractmethod
    def _words(self, chosen: Chosen) -> Array:
        """The words of some rows, `[len(chosen), K]`."""

    def _read(self, rows: Chosen) -> Array:
        """The words of some rows of the tensor."""
        tensor = self._tensor
        if isinstance(rows, range) and rows.step == 1 and has_row_bytes(tensor):
            words = read_rows([(tensor, rows.start, rows.stop)])
        elif self._plain:
            words = tensor.words(rows)
        else:
            return tensor.decode(rows=rows).view(self._scalar.word_dtype)
        if isinstance(words, DirectWords):
            return words.words
        return words.decode().view(self._scalar.word_dtype)

    def _bytes(self, words: Array) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(words, self._scalar.stored_dtype).reshape(-1).view(np.uint8)


class ColumnsView(ValuesView):
    """Columns of a tensor, in any order.

    A read takes whole rows of the tensor, a bounded number at a time, but at least one.

    Args:
        tensor: The tensor.
        columns: Numbers along its last axis, checked.
    """

    what = "columns of"

    def __init__(self, tensor: Tensor, columns: npt.NDArray[np.int64]) -> None:
        super().__init__(tensor, (*tensor.shape[:-1], columns.size))
        self._columns = columns

    def _words(self, chosen: Chosen) -> Array:
        out = np.empty((len(chosen), self._columns.size), self._scalar.word_dtype)
        step = max(1, _PIECE_VALUES // self._tensor.matrix[1])
        for first in range(0, len(chosen), step):
            out[first : first + step] = self._read(chosen[first : first + step])[:, self._columns]
        return out


class TransposedView(ValuesView):
    """The last two axes of a tensor exchanged.

    A read needs every row of the tensor, of which it takes some columns: 2^22 values, but at least one column. So that
    rows asked for one after another do not read the tensor each time, the two blocks of columns read last are kept, and
    only the two views read last keep any.
    """

    what = "transposed"

    def __init__(self, tensor: Tensor) -> None:
        *leading, rows, columns = tensor.shape
        super().__init__(tensor, (*leading, columns, rows))
        self._width = max(1, min(columns, _BLOCK_VALUES // rows))
        self._kept: dict[tuple[int, int], Array] = {}
        # Nothing is waited for while the first is held, since views of views make one another forget. The second is
        # held while the tensor is read, so that threads read a block once; a view of others takes its own first.
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def forget(self) -> None:
        """Give the memory of blocks back."""
        with self._lock:
            self._kept = {}

    def _words(self, chosen: Chosen) -> Array:
        columns, rows = self.shape[-2:]
        numbers = np.asarray(chosen, np.int64)
        out = np.empty((numbers.size, rows), self._scalar.word_dtype)
        matrix, column = np.divmod(numbers, columns)
        blocks = np.stack([matrix, column // self._width], axis=1)
        for block in np.unique(blocks, axis=0):
            some = np.flatnonzero((blocks == block).all(axis=1))
            out[some] = self._block(int(block[0]), int(block[1]))[column[some] - block[1] * self._width]
        return out

    def _block(self, matrix: int, block: int) -> Array:
        found = self._found(matrix, block)
        if found is None:
            with self._reading:
                found = self._found(matrix, block)
                if found is None:
                    with self._lock:
                        while len(self._kept) >= _BLOCKS:
                            del self._kept[next(iter(self._kept))]
                    found = self._columns(matrix, block)
                    with self._lock:
                        self._kept[matrix, block] = found
        _RECENT.used(self)
        return found

    def _found(self, matrix: int, block: int) -> Array | None:
        with self._lock:
            return self._kept.get((matrix, block))

    def _columns(self, matrix: int, block: int) -> Array:
        """Some columns of one matrix of the tensor, `[columns, rows]`."""
        columns, rows = self.shape[-2:]
        some = slice(block * self._width, min((block + 1) * self._width, columns))
        out = np.empty((some.stop - some.start, rows), self._scalar.word_dtype)
        step = max(1, _PIECE_VALUES // columns)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            out[:, first:end] = self._read(range(matrix * rows + first, matrix * rows + end))[:, some].T
        return out


class _Recent:
    """The transposed views that keep blocks, so that the memory of all of them together is bounded."""

    def __init__(self) -> None:
        self._views: deque[weakref.ref[TransposedView]] = deque()
        self._lock = threading.Lock()

    def used(self, view: TransposedView) -> None:
        """Note that a view keeps blocks, and let the one that was used longest ago forget its own."""
        with self._lock:
            alive = [(one, found) for one in self._views if (found := one()) is not None and found is not view]
            forgotten = [found for _, found in alive[: max(0, len(alive) - _BLOCKS + 1)]]
            self._views = deque(one for one, found in alive if found not in forgotten)
            self._views.append(weakref.ref(view))
        for one in forgotten:
            one.forget()


_RECENT = _Recent()
