"""One tensor of a GGUF file: its bytes as stored and in little-endian order, its words, its values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantform._outputs import empty_output
from quantform._rows import ChosenRows, Rows, as_rows, matrix_shape
from quantform._scalars import Scalar, output_dtype
from quantform._sizes import ceil_div, product
from quantform._spans import Span, moved
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import BlockWords, DirectWords, block_format, direct_format
from quantform.packed import Profile, dequantize_packed, dequantize_rows
from quantform.sources._protocol import Tensor

if TYPE_CHECKING:
    from quantform._files import MappedFile
    from quantform.formats import Words
    from quantform.sources.gguf_placement import Placement

__all__ = ["GGUFTensor"]

_Bytes = npt.NDArray[np.uint8]

# Values decoded at a time, and bytes reordered at a time.
_PIECE_VALUES = 1 << 20
_PIECE_BYTES = 1 << 20
_ARRAY_MAX = 2**63 - 1


class GGUFTensor(Tensor):
    """One tensor of an open GGUF file.

    Rows are those of the stored shape, whose last dimension is whole blocks; `shape` differs from it only where the
    file keeps a tensor's original shape beside a flattened one.

    Attributes:
        name: Its name in the file.
        shape: The logical shape: the original one where the file's `comfy.gguf.orig_shape.NAME` gives it with as many
            elements, else the stored one.
        format: A packed profile's identifier (`"gguf:q4_k"`), a scalar type's name (`"fp32"`), or `"ggml:142"` where
            the type's number is all that is certain.
        type_name: ggml's name of the type, `"Q4_K"`.
        ggml_type: ggml's number of the type.
        nbytes: Bytes of the payload; where `exact` is false, the most that they can be: those up to the next tensor.
        exact: Whether `nbytes` follows from the type.
        offset: First byte in the file.
        file: The file that it lies in.
        big_endian: The byte order of the stored bytes.
    """

    def __init__(
        self,
        file: MappedFile,
        placement: Placement,
        shape: tuple[int, ...],
        *,
        big_endian: bool,
        dispute: str | None,
    ) -> None:
        record = placement.type
        self.file = file
        self.big_endian = big_endian
        self.name = placement.info.name
        self.shape = shape
        self._stored_shape = placement.info.shape
        self.format = f"ggml:{record.id}" if dispute else record.format
        self.type_name = record.name
        self.ggml_type = record.id
        self.offset = placement.offset
        self.exact = placement.nbytes == 0 or (placement.nbytes is not None and dispute is None)
        self.nbytes = placement.nbytes if self.exact and placement.nbytes is not None else placement.span
        self._type = record
        self._dispute = dispute
        self._order = record.order if big_endian else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The file's dimensions, reversed into C order."""
        return self._stored_shape

    def check(self) -> None:
        """Check that `words` and `decode` work.

        Raises:
            UnsupportedError: The type is unknown, removed or another program's, or the file contradicts its block size.
        """
        self._decoder()

    @property
    def decodable(self) -> bool:
        """Whether `decode` works: the type is ggml's, and the file does not contradict its block size."""
        return self._dispute is None and self._type.decodable

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the stored shape, which `rows` arguments count."""
        return matrix_shape(self.stored_shape)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a block or element, which `reordered` takes whole."""
        return self._type.bytes or 1

    def reordered(self, data: _Bytes) -> _Bytes:
        """Whole blocks or elements between the file's byte order and little-endian; its own inverse."""
        return self._reorder(data)

    def stored(self) -> _Bytes:
        """The bytes as the file has them, uint8 `[nbytes]`, read-only and without a copy."""
        return self.file.view(self.offset, self.nbytes)

    def payload(self) -> _Bytes:
        """The bytes with little-endian fields, uint8 `[nbytes]`, read-only; copied for big-endian files only.

        Raises:
            UnsupportedError: The file is big-endian and the tensor's fields are not known.
        """
        if not self.big_endian:
            return self.stored()
        out = np.empty(self.nbytes, np.uint8)
        self.read_into(0, out)
        out.flags.writeable = False
        return out

    def read_stored_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out` with the bytes from `offset` of the tensor on, as the file has them.

        Args:
            offset: First byte, counted from the tensor's.
            out: A contiguous, writable uint8 vector.

        Raises:
            ArgumentError: The range does not lie in the tensor, or `out` is something else.
        """
        self._check_range(offset, out)
        self.file.read_into(self.offset + offset, out)

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out` with the bytes from `offset` of the payload on, fields little-endian; see `read_stored_into`.

        Raises:
            UnsupportedError: The file is big-endian and the tensor's fields are not known.
        """
        if not self.big_endian:
            self.read_stored_into(offset, out)
            return
        self._check_range(offset, out)
        self._unit()
        size = self._type.bytes or 1
        done, end = 0, ceil_div(offset + out.size, size)
        while done < out.size:
            unit, skip = divmod(offset + done, size)
            data = self._units(unit, min(unit + max(1, _PIECE_BYTES // size), end))
            part = data[skip : skip + out.size - done]
            out[done : done + part.size] = part
            done += part.size

    def locate(self, offset: int) -> tuple[Path, int]:
        """See `Tensor.locate`; of big-endian files, whole blocks or elements are meant."""
        return self.file.path, self.offset + offset

    def stored_offset(self, offset: int) -> int:
        """Where among the stored bytes, which may be big-endian, the byte of the payload at `offset` is."""
        if self._order is None:
            return offset
        unit, at = divmod(offset, self._order.size)
        return unit * self._order.size + int(self._order[at])

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """See `Tensor.stored_spans`; of big-endian files, whole blocks or elements are meant."""
        return moved(self.file.stored_spans(self.offset + begin, self.offset + end), -self.offset)

    def words(self, rows: Rows | None = None) -> Words:
        """The blocks or scalar words of all rows (in the stored shape) or of some (shape `[len(rows), K]`).

        All rows and slices of little-endian files are views; other choices copy their rows and nothing else.

        Blocks that another program defined (PQ2_0, PTQ1_0) are words as well, although nothing here decodes them.

        Raises:
            UnsupportedError: The type is unknown or removed, or the file contradicts its block size.
        """
        unit = self._unit()
        count, columns = matrix_shape(self.stored_shape)
        chosen = range(count) if rows is None else self._choose(rows)
        data = self._rows(chosen)
        shape = self.stored_shape if rows is None else (len(chosen), columns)
        if isinstance(unit, Profile):
            return BlockWords(block_format(unit), shape, data.reshape(len(chosen), self._row_bytes()))
        words = data.view(unit.stored_dtype).astype(unit.word_dtype, copy=False)
        return DirectWords(direct_format(unit), shape, words.reshape(shape))

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> npt.NDArray[Any]:
        """The values, decoded exactly and converted once; only the result and bounded pieces are allocated.

        Args:
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`; plain numbers also take other number types.
                None is float32 for blocks and the stored type for plain numbers.
            rows: Which rows of the stored shape; None is all of them.

        Returns:
            A new array of the tensor's `shape`, or `[len(rows), K]`.

        Raises:
            UnsupportedError: The type is unknown, removed or another program's, the file contradicts its block size, or
                the values do not fit into memory.
        """
        unit = self._decoder()
        count, columns = matrix_shape(self.stored_shape)
        chosen = range(count) if rows is None else self._choose(rows)
        out = self._allocate((len(chosen), columns), self._output(unit, dtype))
        if isinstance(unit, Profile) and self._order is None:
            if out.size:
                blocks = self.stored().reshape(count, self._row_bytes())
                dequantize_rows(blocks, unit, chosen, out)
            return out.reshape(self.shape) if rows is None else out
        flat = out.reshape(-1)
        at = 0
        for data in self._pieces(chosen):
            if isinstance(unit, Profile):
                values = data.size // unit.bytes * unit.values
                dequantize_packed(data, unit.identifier, (values,), out.dtype, out=flat[at : at + values])
            else:
                values = data.size // unit.nbytes
                flat[at : at + values] = _scalars(unit, data).decode(dtype)
            at += values
        return out.reshape(self.shape) if rows is None else out

    def _where(self) -> str:
        return f"{self.file.path}, tensor {self.name!r}"

    def _unit(self) -> Profile | Scalar:
        """What the tensor is made of, if that is known."""
        unit = self._type.profile or self._type.scalar
        if unit is None:
            raise self._undecodable()
        if self._dispute is not None:
            raise UnsupportedError(
                f"the {self.type_name} blocks of this file are not of {self.type_name}'s size: {self._dispute}",
                where=self._where(),
                hint=f"Another program used type {self.ggml_type} for blocks of its own; "
                "export the model in a current type of ggml",
            )
        return unit

    def _decoder(self) -> Profile | Scalar:
        """What the tensor is made of, if that can be decoded."""
        if not self._type.decodable:
            raise self._undecodable()
        return self._unit()

    def _undecodable(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.type_name} tensors cannot be decoded", where=self._where(), hint=self._type.remedy
        )

    def _choose(self, rows: Rows) -> ChosenRows:
        try:
            return as_rows(rows, matrix_shape(self.stored_shape)[0])
        except ArgumentError as error:
            raise error.at(self._where()) from None

    def _check_range(self, offset: int, out: _Bytes) -> None:
        if not isinstance(out, np.ndarray) or out.dtype != np.uint8 or out.ndim != 1:
            raise ArgumentError("out is not a vector of bytes", where=self._where(), expected="uint8 [n]")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ArgumentError("out is not contiguous and writable", where=self._where())
        if offset < 0 or offset + out.size > self.nbytes:
            raise ArgumentError(
                "the range does not lie in the tensor",
                where=self._where(),
                expected=f"within {self.nbytes} bytes",
                found=f"{out.size} bytes at byte {offset}",
            )

    def _row_bytes(self) -> int:
        columns = matrix_shape(self.stored_shape)[1]
        return columns // (self._type.values or 1) * (self._type.bytes or 1)

    def _units(self, first: int, end: int) -> _Bytes:
        """The bytes of blocks `first` to `end`, fields little-endian."""
        size = self._type.bytes or 1
        return self._reorder(self.file.view(self.offset + first * size, (end - first) * size))

    def _reorder(self, data: _Bytes) -> _Bytes:
        if self._order is None:
            return data
        return data.reshape(-1, self._order.size)[:, self._order].reshape(-1)

    def _rows(self, chosen: ChosenRows) -> _Bytes:
        """The bytes of rows, fields little-endian."""
        size = self._row_bytes()
        if isinstance(chosen, range) and chosen.step == 1:
            first = chosen.start * size
            return self._reorder(self.file.view(self.offset + first, len(chosen) * size))
        stored = self.stored().reshape(matrix_shape(self.stored_shape)[0], size)
        return self._reorder(stored[np.asarray(chosen, np.int64)].reshape(-1))

    def _pieces(self, chosen: ChosenRows) -> Iterator[_Bytes]:
        """The rows' bytes in bounded pieces of whole blocks; scattered rows stay whole."""
        values = self._type.values or 1
        columns = matrix_shape(self.stored_shape)[1]
        if not columns:
            return
        if isinstance(chosen, range) and chosen.step == 1:
            step = max(1, _PIECE_VALUES // values)
            end = chosen.stop * columns // values
            for first in range(chosen.start * columns // values, end, step):
                yield self._units(first, min(first + step, end))
        else:
            step = max(1, _PIECE_VALUES // columns)
            for first in range(0, len(chosen), step):
                yield self._rows(chosen[first : first + step])

    def _output(self, unit: Profile | Scalar, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        try:
            if isinstance(unit, Profile):
                return output_dtype("float32" if dtype is None else dtype, "dtype")
            return _scalars(unit, np.zeros(0, np.uint8)).decode(dtype).dtype
        except ArgumentError as error:
            raise error.at(self._where()) from None

    def _allocate(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        hint = "Decode some rows at a time: rows=slice(first, end)"
        if product(max(dimension, 1) for dimension in shape) * dtype.itemsize > _ARRAY_MAX:
            raise UnsupportedError(
                "the values do not fit into an array", where=self._where(), found=list(shape), hint=hint
            )
        try:
            return empty_output(shape, dtype)
        except MemoryError:
            raise UnsupportedError(
                "the values do not fit into memory",
                where=self._where(),
                expected=f"{product(shape) * dtype.itemsize} bytes",
                hint=hint,
            ) from None


def _scalars(scalar: Scalar, data: _Bytes) -> DirectWords:
    words = data.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)
    return DirectWords(direct_format(scalar), (words.size,), words)
