"""Safetensors models as sources of tensors: one file, or the shards of an index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._files import exists
from quantform._sizes import counted
from quantform._spans import Span, moved
from quantform.errors import FileError
from quantform.sources._pool import FilePool
from quantform.sources._protocol import Source, check_range
from quantform.sources._scalar_tensor import ScalarTensor
from quantform.sources.safetensors_files import Index, check_shard, find_model, read_index
from quantform.sources.safetensors_header import Entry, read_header
from quantform.sources.safetensors_json import read_json

__all__ = ["SafetensorsSource", "SafetensorsTensor"]

_Bytes = npt.NDArray[np.uint8]

_CONFIG_MAX = 16 << 20


class SafetensorsTensor(ScalarTensor):
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
        self._known_type = entry.known
        self.path = path
        self.name = entry.name
        self.shape = entry.shape
        self.dtype_name = entry.dtype
        self.format = f"safetensors:{entry.dtype}" if self._scalar is None else self._scalar.name
        self.nbytes = entry.nbytes
        self.offset = entry.offset

    def check(self) -> None:
        """Check that `words` and `decode` work.

        Raises:
            FileError: The format has no such type.
            UnsupportedError: It has, and this package does not decode it.
        """
        if not self._known_type:
            raise FileError("safetensors has no such dtype", where=self._where(), found=repr(self.dtype_name))
        super().check()

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

    def locate(self, offset: int) -> tuple[Path, int]:
        """See `Tensor.locate`."""
        return self.path, self.offset + offset

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """See `Tensor.stored_spans`."""
        with self._pool.using(self.path) as file:
            yield from moved(file.stored_spans(self.offset + begin, self.offset + end), -self.offset)

    def _where(self) -> str:
        return f"{self.path}, tensor {self.name!r}"


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
        return read_json(path, _CONFIG_MAX, what=name, constants=True) if exists(path) else None

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
