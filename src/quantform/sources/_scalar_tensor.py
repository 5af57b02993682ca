"""Plain numbers in a row of bytes: their words and values, whatever file the bytes come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows, matrix_shape, runs
from quantform._scalars import Scalar
from quantform._sizes import ceil_div, product
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import DirectWords, direct_format
from quantform.sources._protocol import Tensor

__all__ = ["ScalarTensor"]

_Bytes = npt.NDArray[np.uint8]
_Array = npt.NDArray[Any]

_PIECE_VALUES = 1 << 20  # read and converted at a time
_ARRAY_MAX = 2**63 - 1
_RANK_MAX = 64  # of a NumPy array


class ScalarTensor(Tensor):
    """A tensor whose payload is one little-endian number after the other, in C order of its shape.

    Attributes:
        dtype_name: The file's name of the type.
    """

    dtype_name: str
    _scalar: Scalar | None

    @property
    def decodable(self) -> bool:
        """Whether `words` and `decode` work: the type is known."""
        return self._scalar is not None

    def check(self) -> None:
        """Check that `words` and `decode` work.

        Raises:
            UnsupportedError: The type is not one that this package decodes.
        """
        self._known()

    def words(self, rows: Rows | None = None) -> DirectWords:
        """The words of all rows (shape as the tensor) or of some (shape `[len(rows), K]`).

        All rows of a type of whole bytes are a view of the file where it is aligned. Some rows are read, and nothing
        else is. Types of 4 and 6 bits come as one byte a number.

        Raises:
            ArgumentError: A row is outside the tensor.
            UnsupportedError: The type is unknown, or the words fit no array.
        """
        scalar = self._known()
        if rows is None:
            shape = self.shape
            self._check_array(shape, scalar.nbytes)
            payload = self.payload()
            if scalar.bits % 8 == 0 and payload.ctypes.data % scalar.nbytes == 0:
                words = payload.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False).reshape(shape)
            else:
                words = self._allocate(shape, scalar.word_dtype)
                self._fill(range(matrix_shape(shape)[0]), words.reshape(-1), None)
        else:
            chosen = self._rows(rows)
            shape = (len(chosen), matrix_shape(self.shape)[1])
            words = self._allocate(shape, scalar.word_dtype)
            self._fill(chosen, words.reshape(-1), None)
        return DirectWords(direct_format(scalar), shape, words)

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> _Array:
        """The values; see `Tensor.decode`. Beside the result, only a bounded piece is held.

        Raises:
            ArgumentError: A row is outside the tensor, or values of this type do not become `dtype`.
            UnsupportedError: The type is unknown, or the values fit no array.
        """
        scalar = self._known()
        chosen = self._rows(slice(None) if rows is None else rows)
        try:
            wanted = _words(scalar, np.zeros(0, scalar.word_dtype)).decode(dtype).dtype
        except ArgumentError as error:
            raise error.at(self._where()) from None
        out = self._allocate(self.shape if rows is None else (len(chosen), matrix_shape(self.shape)[1]), wanted)
        self._fill(chosen, out.reshape(-1), wanted)
        return out

    @abstractmethod
    def _where(self) -> str:
        """The file and the tensor, for errors."""

    def _known(self) -> Scalar:
        if self._scalar is None:
            raise UnsupportedError(
                f"values of type {self.dtype_name} cannot be read",
                where=self._where(),
                hint="payload() gives the tensor's bytes",
            )
        return self._scalar

    def _rows(self, rows: Rows) -> range | npt.NDArray[np.int64]:
        try:
            return as_rows(rows, matrix_shape(self.shape)[0])
        except ArgumentError as error:
            raise error.at(self._where()) from None
        except OverflowError:  # more rows than a range counts
            raise self._too_large(self.shape) from None

    def _fill(self, chosen: range | npt.NDArray[np.int64], out: _Array, dtype: np.dtype[Any] | None) -> None:
        """Put the rows' words, or their values as `dtype`, into the vector `out`."""
        scalar = self._known()
        columns = matrix_shape(self.shape)[1]
        done = 0
        for first, end in runs(chosen):
            for words in self._pieces(first * columns, end * columns):
                part = out[done : done + words.size]
                part[:] = words if dtype is None else _words(scalar, words).decode(dtype)
                done += words.size

    def _pieces(self, first: int, end: int) -> Iterator[_Array]:
        """The words of elements `first` to `end`, in bounded pieces."""
        scalar = self._known()
        for begin in range(first, end, _PIECE_VALUES):
            count = min(_PIECE_VALUES, end - begin)
            byte, skip = divmod(begin * scalar.bits, 8)
            data = np.empty(ceil_div(skip + count * scalar.bits, 8), np.uint8)
            self.read_into(byte, data)
            if scalar.bits % 8:
                yield _unpack(data, scalar.bits, skip, count)
            else:
                yield data.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)

    def _check_array(self, shape: tuple[int, ...], itemsize: int) -> None:
        if len(shape) > _RANK_MAX or product(max(dimension, 1) for dimension in shape) * itemsize > _ARRAY_MAX:
            raise self._too_large(shape)

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array:
        self._check_array(shape, dtype.itemsize)
        try:
            return np.empty(shape, dtype)
        except MemoryError:
            raise self._too_large(shape) from None

    def _way_round(self, shape: tuple[int, ...]) -> str:
        if 0 in self.shape:
            return "The tensor has no elements: leave it out"
        if len(shape) > _RANK_MAX:
            return f"An array has at most {_RANK_MAX} axes; rows=slice(None) gives the values as a matrix"
        return "Read some rows at a time: rows=slice(first, end)"

    def _too_large(self, shape: tuple[int, ...]) -> UnsupportedError:
        return UnsupportedError(
            "the values do not fit into an array",
            where=self._where(),
            found=f"shape {list(shape[:8])}{'...' if len(shape) > 8 else ''}",
            hint=self._way_round(shape),
        )


def _words(scalar: Scalar, words: _Array) -> DirectWords:
    return DirectWords(direct_format(scalar), words.shape, words)


def _unpack(data: _Bytes, bits: int, skip: int, count: int) -> _Bytes:
    """Numbers of a few bits, packed from the lowest bit of the first byte on, as one byte each."""
    stream = np.unpackbits(data, bitorder="little")[skip : skip + count * bits].reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count)
