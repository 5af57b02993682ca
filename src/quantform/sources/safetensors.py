"""Safetensors models as sources of tensors: one file, or the shards of an index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows, matrix_shape, runs
from quantform._scalars import Scalar
from quantform._sizes import ceil_div, counted, product
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import DirectWords, direct_format
from quantform.sources._protocol import Source, Tensor, check_range
from quantform.sources.safetensors_files import FilePool, Index, check_shard, find_model, read_index
from quantform.sources.safetensors_header import Entry, read_header
from quantform.sources.safetensors_json import read_json

__all__ = ["SafetensorsSource", "SafetensorsTensor"]

_Bytes = npt.NDArray[np.uint8]
_Array = npt.NDArray[Any]

_PIECE_VALUES = 1 << 20  # read and converted at a time
_ARRAY_MAX = 2**63 - 1
_RANK_MAX = 64  # of a NumPy array
_CONFIG_MAX = 16 << 20


class SafetensorsTensor(Tensor):
    """One tensor of an open safetensors model.

    Attributes:
        name: Its name in the file.
        shape: Its shape.
        format: A scalar type's name (`"bf16"`, `"e4m3fn"`, `"e2m1"`), or `"safetensors:C64"` where the file's type is
            not one that this package decodes.
        dtype_name: The file's name of the type, `"F8_E4M3"`.
        nbytes: Bytes of the data.
        path: The file that it lies in.
        offset: First byte in that file.
    """

    def __init__(self, pool: FilePool, path: Path, entry: Entry) -> None:
        self._pool = pool
        self._scalar = entry.scalar
        self.path = path
        self.name = entry.name
        self.shape = entry.shape
        self.dtype_name = entry.dtype
        self.format = f"safetensors:{entry.dtype}" if self._scalar is None else self._scalar.name
        self.nbytes = entry.nbytes
        self.offset = entry.offset

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

    def payload(self) -> _Bytes:
        """The stored bytes, uint8 `[nbytes]`, read-only and without a copy."""
        with self._pool.using(self.path) as file:
            return file.view(self.offset, self.nbytes)

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on.

        Raises:
            ArgumentError: The range does not lie in the tensor.
        """
        check_range(offset, out.nbytes, self.nbytes, self._where())
        with self._pool.using(self.path) as file:
            file.read_into(self.offset + offset, out)

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
            if scalar.bits % 8 == 0 and self.offset % scalar.nbytes == 0:
                stored = self.payload().view(scalar.stored_dtype)
                words = stored.astype(scalar.word_dtype, copy=False).reshape(shape)
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

    def _where(self) -> str:
        return f"{self.path}, tensor {self.name!r}"

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


class SafetensorsSource(Source[SafetensorsTensor]):
    """An open safetensors model: a mapping of names to tensors, file by file in the order of their bytes.

    Opening reads and checks headers. At most four files are open while none is being read.

    Args:
        path: A safetensors file, an index (`*.safetensors.index.json`), or a directory: its
            `model.safetensors.index.json`, its `model.safetensors`, or the only one that it holds.

    Attributes:
        kind: `"safetensors"`.
        path: The path that was opened.
        files: The index, if there is one, and every file of tensors.
        metadata: The file's `__metadata__`. Of shards, their members together, the first to name one wins, before them
            the index's `metadata`.

    Raises:
        FileError: A file cannot be read, breaks the rules of its format, or disagrees with the index.
        TruncatedFileError: A file ends before what it declares.
    """

    kind = "safetensors"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        found = find_model(self.path)
        self._directory = found.parent
        self._config: dict[str, Any] | None = None
        index = read_index(found) if found.name.endswith(".json") else None
        shards = (found,) if index is None else tuple(index.shards)
        self.files = shards if index is None else (found, *shards)
        self._pool = FilePool()
        try:
            tensors, metadata = self._read(shards, index)
        except BaseException:
            self._pool.close()
            raise
        self._tensors = tensors
        self.metadata = MappingProxyType(metadata)

    @property
    def config(self) -> dict[str, Any]:
        """`config.json` beside the file, empty where there is none; read once, when first asked for.

        Raises:
            FileError: It is longer than 16 MiB or no JSON object.
        """
        if self._config is None:
            self._config = self.document("config.json") or {}
        return self._config

    def document(self, name: str) -> dict[str, Any] | None:
        """The JSON object in the file called `name` beside the model; None where there is no such file.

        Raises:
            FileError: It is longer than 16 MiB or no JSON object.
        """
        path = self._directory / name
        return read_json(path, _CONFIG_MAX, what=name, constants=True) if path.exists() else None

    @property
    def open_files(self) -> int:
        """How many files of tensors are open just now."""
        return self._pool.open_files

    def describe(self) -> str:
        """Number of tensors and of files."""
        shards = len({tensor.path for tensor in self._tensors.values()})
        return f"safetensors, {counted(len(self), 'tensor')}{f' in {shards} files' if shards > 1 else ''}"

    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<SafetensorsSource {str(self.path)!r}, {len(self)} tensors>"

    def _read(
        self, shards: tuple[Path, ...], index: Index | None
    ) -> tuple[Mapping[str, SafetensorsTensor], dict[str, Any]]:
        tensors: dict[str, SafetensorsTensor] = {}
        metadata = dict(index.metadata) if index is not None else {}
        for shard in shards:
            with self._pool.using(shard) as file:
                header = read_header(file)
            if index is not None:
                check_shard(index, shard, [entry.name for entry in header.entries])
            for name, value in header.metadata.items():
                metadata.setdefault(name, value)
            tensors.update((entry.name, SafetensorsTensor(self._pool, shard, entry)) for entry in header.entries)
        return tensors, metadata


def _words(scalar: Scalar, words: _Array) -> DirectWords:
    return DirectWords(direct_format(scalar), words.shape, words)


def _unpack(data: _Bytes, bits: int, skip: int, count: int) -> _Bytes:
    """Numbers of a few bits, packed from the lowest bit of the first byte on, as one byte each."""
    stream = np.unpackbits(data, bitorder="little")[skip : skip + count * bits].reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count)
