"""NumPy arrays as a source of tensors, with the face of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows, matrix_shape
from quantform._scalars import SCALARS, Scalar
from quantform._sizes import counted
from quantform.errors import ArgumentError
from quantform.formats import DirectWords, direct_format
from quantform.sources._protocol import Source, Tensor, check_range

__all__ = ["ArraySource", "ArrayTensor"]

_Bytes = npt.NDArray[np.uint8]
_SCALAR_OF = {scalar.dtype: scalar for scalar in SCALARS.values()}
_NARROW_MASK = {bits: np.uint8((1 << bits) - 1) for bits in (4, 6)}


class ArrayTensor(Tensor):
    """An array under a name; nothing is copied before it is asked for.

    Any strides and either byte order do: words are native, the payload is little-endian in C order. Numbers of 4 and 6
    bits take a byte each, as they do in the array.
    """

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        where = f"array {name!r}"
        if not isinstance(array, (np.ndarray, np.generic)) or isinstance(array, np.ma.MaskedArray):
            raise ArgumentError("not a NumPy array", where=where, found=type(array).__name__)
        self._array = np.asarray(array)
        scalar = _SCALAR_OF.get(self._array.dtype.newbyteorder("="))
        if scalar is None:
            raise ArgumentError(
                "not an array of numbers that this package reads",
                where=where,
                expected=", ".join(str(dtype) for dtype in _SCALAR_OF),
                found=str(self._array.dtype),
            )
        self._scalar: Scalar = scalar
        self.name = name
        self.shape = self._array.shape
        self.format = scalar.name
        self.nbytes = self._array.nbytes

    def payload(self) -> _Bytes:
        """The words in C order, little-endian, uint8 `[nbytes]`, read-only; a copy where the array is not like that."""
        words = np.ascontiguousarray(self._words(), self._scalar.stored_dtype)
        data = words.reshape(-1).view(np.uint8)
        data.flags.writeable = False
        return data

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on.

        Raises:
            ArgumentError: The range does not lie in the tensor.
        """
        check_range(offset, out.nbytes, self.nbytes, f"array {self.name!r}")
        if not out.size:
            return
        size = self._scalar.nbytes
        first, end = offset // size, -(-(offset + out.nbytes) // size)
        words = self._words()
        flat = words.reshape(-1)[first:end] if words.flags.c_contiguous else words.flat[first:end]
        data = np.ascontiguousarray(flat, self._scalar.stored_dtype).view(np.uint8)
        out.reshape(-1)[:] = data[offset - first * size :][: out.nbytes]

    def words(self, rows: Rows | None = None) -> DirectWords:
        """The words of all rows (shape as the tensor) or of some (shape `[len(rows), K]`); views where that can be.

        Raises:
            ArgumentError: A row is outside the tensor.
        """
        words = self._words()
        if rows is not None:
            count, columns = matrix_shape(self.shape)
            try:
                chosen = as_rows(rows, count)
            except ArgumentError as error:
                raise error.at(f"array {self.name!r}") from None
            if words.flags.c_contiguous:
                matrix = words.reshape(count, columns)
                plain = isinstance(chosen, range) and chosen.step == 1
                words = matrix[chosen.start : chosen.stop] if plain and isinstance(chosen, range) else matrix[chosen]
            elif words.ndim > 1:
                words = words[np.unravel_index(np.asarray(chosen, np.int64), self.shape[:-1])]
            else:
                words = np.broadcast_to(words.reshape(1, columns), (len(chosen), columns))
        native = words.astype(self._scalar.word_dtype, copy=False)
        if self._scalar.bits in _NARROW_MASK:
            native = native & _NARROW_MASK[self._scalar.bits]
        return DirectWords(direct_format(self._scalar), native.shape, native)

    def _words(self) -> npt.NDArray[Any]:
        """The array's words in its own byte order and strides."""
        word: np.dtype[Any] = self._scalar.word_dtype.newbyteorder(self._array.dtype.byteorder)
        return self._array.view(word)


class ArraySource(Source[ArrayTensor]):
    """NumPy arrays by name.

    Args:
        arrays: Names to arrays of any shape, strides and byte order, of any type in `SCALARS`.

    Attributes:
        kind: `"arrays"`.

    Raises:
        ArgumentError: A value is no array, or not of such a type.
    """

    kind = "arrays"

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
            raise ArgumentError("not a mapping of names to arrays", found=type(arrays).__name__)
        self._tensors = {name: ArrayTensor(name, array) for name, array in arrays.items()}
        self.path = Path("<arrays>")
        self.files = ()
        self.metadata: Mapping[str, Any] = {}

    def describe(self) -> str:
        """Number of arrays."""
        return counted(len(self), "array")

    def close(self) -> None:
        """Nothing is open."""
