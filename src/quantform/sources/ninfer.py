"""`.ninfer` artifacts as tensors: by the names of their parameters, whatever objects those are made of."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._outputs import empty_output
from quantform._registry import near_matches
from quantform._rows import Rows, as_rows, matrix_shape, runs
from quantform._scalars import as_dtype, output_dtype
from quantform._sizes import counted, human_bytes, product
from quantform.container import Artifact, Binding, Component, Directory, TensorRecord, Use
from quantform.errors import ArgumentError, UnknownNameError, UnsupportedError
from quantform.formats import FORMATS, DirectFormat, Words
from quantform.sources._protocol import Source, Tensor
from quantform.sources.divisors import DivisorRuns
from quantform.sources.ninfer_matrix import Extent, Gathered, Matrix, join, whole, words_as

__all__ = ["NinferSource", "NinferTensor"]

_Bytes = npt.NDArray[np.uint8]

# Values of rows from several objects that are decoded before they are brought to their places.
_GATHERED_VALUES = 1 << 18


class NinferTensor(Tensor):
    """One parameter of an open artifact, or one of its tensor objects.

    A parameter that is made of parts reads like a tensor of its own where the parts are whole rows of matrices of one
    format, layout and row length (of direct formats: any elements). NVFP4 rows that are not whole tiles of 128 have
    words and no payload. Of other parts, `decode` works, and there are neither words nor a payload.

    Attributes:
        name: The parameter's name, or the object's id.
        shape: The object's shape; of a parameter in parts, the one that `metadata.quantform.shapes` records for it, if
            the number of elements fits, else `[elements]`.
        stored_shape: The shape in which the layout holds it: `[E * N, K]` for a bank of experts `[E, N, K]`.
        format: The registered name, or several joined by `+`.
        layout: The layout's name, or several joined by `+`.
        nbytes: Bytes of the payload; where parts cannot be joined, their share of their objects.
        objects: Ids of the objects that it is made of, in order, each once.
    """

    def __init__(self, artifact: Artifact, name: str, extents: Sequence[Extent], shape: tuple[int, ...]) -> None:
        joined = join(artifact, extents)
        self.name = name
        self.format = "+".join(dict.fromkeys(extent.record.format for extent in extents))
        self.layout = "+".join(dict.fromkeys(extent.record.layout for extent in extents))
        self.objects = tuple(dict.fromkeys(extent.record.id for extent in extents))
        self._artifact = artifact
        self._extents = extents
        # Where in the tensor each extent begins, and where the last one ends.
        self._starts = [0, *accumulate(extent.end - extent.begin for extent in extents)]
        self.shape = shape
        self._matrix: Matrix | None = None
        self._rows: Matrix | Gathered | None = None
        self._why = ""
        if isinstance(joined, Matrix):
            self._rows = self._matrix = joined.reshaped(shape)
            self.stored_shape = self._matrix.shape
            self.nbytes = self._matrix.nbytes
        else:
            if isinstance(joined, Gathered):
                self._rows = joined
                self._why = "a part begins or ends within a tile of rows"
            else:
                self._why = joined
            self.stored_shape = shape if self._rows is None else self._rows.shape
            self.nbytes = sum(
                extent.record.nbytes * (extent.end - extent.begin) // extent.record.elements for extent in extents
            )

    @property
    def joined(self) -> bool:
        """Whether its parts make one payload, so that `payload` works, and `words` with it."""
        return self._matrix is not None

    @property
    def importable(self) -> bool:
        """Whether `words` gives encoded words: of rows that are no whole tiles, too."""
        return self._rows is not None and not isinstance(FORMATS.get(self.format), DirectFormat)

    def divisor_runs(self) -> DivisorRuns | None:
        """The divisors of the rows of NVFP4 words, as the objects have them; None of any others."""
        if self.format != "nvfp4" or self._rows is None:
            return None
        self.check()
        return self._rows.divisor_runs()

    @property
    def divisors(self) -> int:
        """How many divisors its payload has; 1 in every format but NVFP4."""
        return self._matrix.divisors if self._matrix is not None else 1

    def as_stored(self) -> NinferTensor:
        """The tensor in `stored_shape`, whose rows are those of its objects though no shape is recorded."""
        return NinferTensor(self._artifact, self.name, self._extents, self.stored_shape)

    def check(self) -> None:
        """Check the objects that it is made of, without touching payloads; see `Artifact.check`.

        Raises:
            ArtifactError: One cannot be used.
        """
        for id in self.objects:
            self._artifact.check(id)

    def payload(self) -> _Bytes:
        """The stored bytes, uint8 `[nbytes]`, read-only; a copy only where the bytes do not lie together.

        Raises:
            UnsupportedError: The parts cannot be joined into one payload; says why.
            ArtifactError: An object cannot be used.
        """
        return self._joined().payload()

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out` with the payload's bytes from `offset` on; see `payload`."""
        self._joined().read_into(offset, out)

    def locate(self, offset: int) -> tuple[Path, int] | None:
        """See `Tensor.locate`."""
        return None if self._matrix is None else self._matrix.locate(offset)

    def word_offset(self, part: str, row: int, index: int) -> int | None:
        """The byte of the payload that has a word of some row: a code by its column, a scale by its group, a divisor.

        None where its layout does not tell, or where it has no payload.
        """
        if self._matrix is None:
            return None
        return self._matrix.word_offset(part, row, index)

    def words(self, rows: Rows | None = None) -> Words:
        """The words of all rows or of some.

        Words of all rows have the tensor's shape where a row of the tensor is a row of the object and the words know
        shapes of that rank; else they have `stored_shape`.

        Raises:
            UnsupportedError: The parts cannot be joined, or the rows asked for are no whole stored rows.
            ArtifactError: An object cannot be used.
        """
        matrix = self._joined() if self._rows is None else self._rows
        self.check()
        if rows is None:
            return words_as(matrix.words(), self.shape)
        if matrix_shape(self.shape)[1] != matrix_shape(matrix.shape)[1]:
            raise UnsupportedError(
                f"rows of shape {list(self.shape)} are not whole rows of the stored {list(matrix.shape)}",
                where=self._where,
                hint="Take the words of all rows, or decode the rows",
            )
        return matrix.words(rows)

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> npt.NDArray[Any]:
        """The values, decoded exactly a bounded piece at a time and converted once; see `Tensor.decode`.

        Of a tensor in several formats, `dtype` None is float32, or float64 where `int32` is among them.

        Raises:
            ArtifactError: An object cannot be used.
        """
        self.check()
        wanted = self._dtype(dtype)
        count, columns = matrix_shape(self.shape)
        chosen = range(count) if rows is None else as_rows(rows, count)
        out = self._allocate(self.shape if rows is None else (len(chosen), columns), wanted)
        if not out.size:
            return out
        if isinstance(chosen, range) and chosen.step == 1:
            self._decode(chosen.start * columns, chosen.stop * columns, out.reshape(-1))
        elif all(extent.is_rows(columns) for extent in self._extents):
            self._decode_rows(np.asarray(chosen, np.int64), out)
        else:
            at = 0
            for first, end in runs(chosen):
                self._decode(first * columns, end * columns, out[at : at + end - first].reshape(-1))
                at += end - first
        return out

    @property
    def _where(self) -> str:
        return f"{self._artifact.path}, tensor {self.name!r}"

    def _joined(self) -> Matrix:
        self.check()
        if self._matrix is None:
            raise UnsupportedError(
                f"the parts have no common payload: {self._why}",
                where=self._where,
                hint=f"Decode it, or read its objects: {', '.join(self.objects[:4])}",
            )
        return self._matrix

    def _decode(self, begin: int, end: int, out: npt.NDArray[Any]) -> None:
        """Elements `[begin, end)` of the tensor, from the extents that hold them."""
        starts = self._starts
        for index in range(bisect_right(starts, begin) - 1, len(self._extents)):
            at, extent = starts[index], self._extents[index]
            low, high = max(begin, at), min(end, starts[index + 1])
            if low >= high:
                break
            matrix, skipped = whole(self._artifact, extent.record), extent.begin - at
            matrix.decode_into(low + skipped, high + skipped, out[low - begin : high - begin])

    def _decode_rows(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Rows in any order, of extents of whole rows."""
        columns = out.shape[1]
        extent_of_row = np.searchsorted(self._starts, rows * columns, "right") - 1
        for index in np.unique(extent_of_row).tolist():
            extent = self._extents[index]
            some = np.flatnonzero(extent_of_row == index)
            numbers = rows[some] + (extent.begin - self._starts[index]) // columns
            matrix = whole(self._artifact, extent.record)
            if len(some) == len(rows):
                matrix.decode_rows(numbers, out)
                return
            step = max(1, _GATHERED_VALUES // columns)
            for first in range(0, len(some), step):
                values = np.empty((len(some[first : first + step]), columns), out.dtype)
                matrix.decode_rows(numbers[first : first + step], values)
                out[some[first : first + step]] = values

    def _dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        formats = {FORMATS[name] for name in self.format.split("+")}
        if dtype is not None:
            return as_dtype(dtype) if all(isinstance(one, DirectFormat) for one in formats) else output_dtype(dtype)
        if len(formats) == 1:
            (only,) = formats
            return only.scalar.dtype if isinstance(only, DirectFormat) else np.dtype(np.float32)
        return np.dtype(np.float64 if FORMATS["int32"] in formats else np.float32)

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        try:
            return empty_output(shape, dtype)
        except (MemoryError, ArgumentError):
            raise UnsupportedError(
                "the values do not fit in memory",
                where=self._where,
                found=human_bytes(product(shape) * dtype.itemsize),
                hint="Decode fewer rows at a time",
            ) from None


class NinferSource(Source[NinferTensor]):
    """An open `.ninfer` artifact: its parameters in the order of the directory's `bindings`.

    Attributes:
        artifact: The reader below.
        directory: The whole directory.
        components: Component id to record.
        uses: How parameters are used.
        metadata: The directory's `metadata`, or nothing.
        objects: Every tensor object by its id, also those that no parameter is bound to.
        resources: Role to bytes; see `resources`.

    Raises:
        FileError: The entry file cannot be read or breaks the rules of the container.
    """

    kind = "ninfer"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.artifact = Artifact(path)
        self.files = self.artifact.files
        self.directory: Directory = self.artifact.directory
        self.components: Mapping[str, Component] = self.directory.components
        self.uses: tuple[Use, ...] = self.directory.uses
        self.metadata = self.directory.metadata or {}
        self.resources: Mapping[str, bytes] = _Resources(self.artifact)
        tensors = {id: one for id, one in self.artifact.objects.items() if isinstance(one, TensorRecord)}
        self.objects: Mapping[str, NinferTensor] = {
            id: NinferTensor(self.artifact, id, [Extent(one, 0, one.elements)], one.shape)
            for id, one in tensors.items()
        }
        self._tensors = {name: self._bound(name, binding, tensors) for name, binding in self.directory.bindings.items()}

    @property
    def artifact_id(self) -> str:
        """32 lower-case hexadecimal digits."""
        return self.artifact.artifact_id

    def check(self, id: str) -> None:
        """Check that an object, tensor or resource, can be used; see `Artifact.check`."""
        self.artifact.check(id)

    def describe(self) -> str:
        """Version, number of tensors, of objects and of files."""
        files = f" in {len(self.files)} files" if len(self.files) > 1 else ""
        objects = counted(len(self.artifact.objects), "object")
        return f".ninfer version 3, {counted(len(self), 'tensor')}, {objects}{files}"

    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid."""
        self.artifact.close()

    def __repr__(self) -> str:
        return f"<NinferSource {str(self.path)!r}, {len(self)} tensors>"

    def _bound(self, name: str, binding: Binding, tensors: Mapping[str, TensorRecord]) -> NinferTensor:
        if binding.object is not None:
            record = tensors[binding.object]
            return NinferTensor(self.artifact, name, [Extent(record, 0, record.elements)], record.shape)
        extents = [Extent(tensors[part.object], *part.range) for part in binding.parts or ()]
        elements = sum(extent.end - extent.begin for extent in extents)
        return NinferTensor(self.artifact, name, extents, _shape(self.metadata, name, elements))


class _Resources(Mapping[str, bytes]):
    """The bytes of resources by role, read when they are asked for.

    A role that a second component has too is listed as `component/role` there.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._ids: dict[str, str] = {}
        for component, record in artifact.directory.components.items():
            for role, id in record.resources.items():
                self._ids[f"{component}/{role}" if role in self._ids else role] = id

    def __getitem__(self, role: str) -> bytes:
        id = self._ids.get(role)
        if id is None:
            raise UnknownNameError(
                f"no resource has the role {role!r}", where=str(self._artifact.path), hint=near_matches(role, self._ids)
            )
        return self._artifact.view(id).tobytes()

    def __contains__(self, role: object) -> bool:
        return role in self._ids

    def get(self, role: str, default: Any = None) -> Any:  # noqa: ANN401 - Mapping's own signature
        return self[role] if role in self._ids else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def size(self, role: str) -> int:
        """Bytes of a resource, without reading it."""
        return self._artifact.record(self._ids[role]).nbytes


def _shape(metadata: Mapping[str, Any], name: str, elements: int) -> tuple[int, ...]:
    """What `metadata.quantform.shapes` says of a parameter, if it fits; open content may be anything."""
    found: Any = metadata
    for key in ("quantform", "shapes", name):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, list) or len(found) > 16:
        return (elements,)
    if not all(type(dimension) is int and dimension > 0 for dimension in found) or product(found) != elements:
        return (elements,)
    return tuple(found)
