"""Writing artifacts: offsets and directory first, payloads in any order, publication last.

Sizes are known from `(layout, format, shape)` before any payload exists, so every byte has its place from the start.
`finish` checks that each declared byte was written exactly once. Then the parts get their names, and the entry last;
until that moment there is no artifact, and if anything fails there is never one.
"""

from __future__ import annotations

import os
import threading
import uuid
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from quantform._files import MappedFile
from quantform._interrupts import held
from quantform._publish import NewFiles
from quantform._registry import near_matches
from quantform._sizes import align_up, as_shape, fits_u64
from quantform.container.directory import (
    Binding,
    Component,
    Directory,
    FileRecord,
    ObjectRecord,
    ResourceRecord,
    TensorRecord,
    Use,
    encode_directory,
    parse_directory,
)
from quantform.container.header import (
    ENTRY_MAGIC,
    HEADER_BYTES,
    PART_MAGIC,
    entry_payload_start,
    pack_header,
)
from quantform.container.reader import MAX_DIRECTORY_BYTES, Artifact
from quantform.container.split import PayloadMap, part_name, split_payload
from quantform.errors import ArgumentError, ArtifactError, QuantformError, UnknownNameError
from quantform.layouts import LAYOUTS
from quantform.layouts.raw_bytes import RawBytesLayout

__all__ = ["ArtifactWriter", "PlannedResource", "PlannedTensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """A tensor to be written; its size follows."""

    id: str
    shape: Sequence[int]
    format: str
    layout: str
    divisors: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResource:
    """A byte string to be written, `nbytes` long, at least one."""

    id: str
    nbytes: int


class ArtifactWriter:
    """Writes one artifact; a context manager.

    The constructor plans and checks everything and touches no file; entering creates temporary files beside the
    destination; leaving publishes, unless `finish` did, or removes all traces after an exception.

        with ArtifactWriter("model.ninfer", components=..., objects=[...], bindings=...) as writer:
            writer.write("weight/000000", 0, payload)

    Args:
        path: The entry file. Parts are `<entry file name>.part-0001` and so on.
        components: Component id to record.
        objects: The objects in the order in which they are stored, each at the next multiple of its alignment.
        bindings: Parameter name to binding.
        uses: How parameters are used.
        metadata: Open content; `name` is a public name if there is one.
        provenance: Open content; `finish` can replace it by one whose JSON fits into the room of this one.
        max_file_bytes: The longest that any file may be, all counted; None writes one file.
        force: Replace an existing artifact. It stays whole until the new one is; its parts that the new one no longer
            has are removed last. A destination that is a symbolic link is replaced, not followed.
        sources: Files that are being read; none of them is ever replaced.

    Attributes:
        artifact_id: A fresh id, 32 lower-case hexadecimal digits.
        directory: What will be written.
        objects: The records of all objects by id, with their offsets and sizes.
        paths: Every file of the artifact, the entry first.

    Raises:
        ArgumentError: A shape, format, layout, limit or open content does not fit, or a size leaves U64.
        ArtifactError: The directory would break the container's schema; names the JSON path.
        OutputExistsError: A file is there already and `force` is not given.
        FileError: The destination cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        components: Mapping[str, Component],
        objects: Sequence[PlannedTensor | PlannedResource],
        bindings: Mapping[str, Binding],
        uses: Sequence[Use] = (),
        metadata: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        max_file_bytes: int | None = None,
        force: bool = False,
        sources: Sequence[Path] = (),
    ) -> None:
        self.path = Path(path)
        records, payload_bytes = _place(objects)
        draft = Directory(
            components=dict(components),
            objects=records,
            bindings=dict(bindings),
            uses=tuple(uses),
            metadata=None if metadata is None else dict(metadata),
            provenance=None if provenance is None else dict(provenance),
            files=(FileRecord(path=None, payload_bytes=payload_bytes),),
        )
        self._json, self._map = self._reserve(draft, payload_bytes, max_file_bytes)
        self._json_bytes = len(self._json)
        self.directory = self._parsed(self._json)
        self.objects: Mapping[str, ObjectRecord] = MappingProxyType({record.id: record for record in records})
        self.paths = (self.path, *(self.path.with_name(file.path) for file in self.directory.files if file.path))
        self._id = uuid.uuid4().bytes
        self.artifact_id = self._id.hex()
        self._coverage = {record.id: _Coverage(record.nbytes) for record in records}
        # Parts are published first and the entry last, so that whoever sees the entry sees the parts.
        self._files = NewFiles([*self.paths[1:], self.path], force=force, sources=sources)
        self._force = force
        self._stale: tuple[tuple[Path, bytes], ...] = ()
        self._state = "planned"

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload, gaps between objects included."""
        return self._map.payload_bytes

    def write(self, id: str, offset: int, data: Any) -> None:  # noqa: ANN401 - whatever has a buffer
        """Write bytes of an object, from `offset` within it on. Objects and pieces may come in any order.

        Calls may come from several threads. No byte may be written twice.

        Args:
            id: The object.
            offset: First byte within the object.
            data: A contiguous buffer of any type: bytes, memoryview, NumPy array.

        Raises:
            UnknownNameError: There is no such object.
            ArgumentError: The range exceeds the object, or some of it was written before.
            FileError: The operating system refuses; the artifact cannot be finished any more.
        """
        if self._state != "open":
            raise ArgumentError(f"the writer is not open but {self._state}", hint="Write inside the `with` block")
        record = self.objects.get(id)
        if record is None:
            raise UnknownNameError(
                f"no object is called {id!r}", where=str(self.path), hint=near_matches(str(id), self.objects)
            )
        raw = _as_bytes(data)
        if offset < 0 or offset + raw.nbytes > record.nbytes:
            raise ArgumentError(
                "the range exceeds the object",
                where=f"{self.path}, object {id!r}",
                expected=f"an end of at most {record.nbytes}",
                found=f"{raw.nbytes} bytes at {offset}",
            )
        if not self._coverage[id].claim(offset, offset + raw.nbytes):
            raise ArgumentError(
                "bytes of the object were written before",
                where=f"{self.path}, object {id!r}",
                found=f"{raw.nbytes} bytes at {offset}",
            )
        self._write_payload(record.offset + offset, raw)

    def finish(self, *, provenance: Mapping[str, Any] | None = None) -> None:
        """Check that everything was written, and publish.

        Args:
            provenance: Replaces the one that the writer was made with.

        Raises:
            ArtifactError: An object was not written completely. Nothing is left.
            ArgumentError: `provenance` does not fit into the room that was reserved. Nothing is left.
            OutputExistsError: A destination came into being meanwhile. Nothing new is left.
            FileError: The operating system refuses. Nothing new is left, and what was replaced is back.
        """
        if self._state != "open":
            raise ArgumentError(f"the writer is not open but {self._state}")
        try:
            if provenance is not None:
                self._replace_provenance(provenance)
            self._check_coverage()
            for index in range(1, len(self.paths)):
                self._write_at(index, 0, pack_header(PART_MAGIC, index, self._id))
            self._write_at(0, 0, pack_header(ENTRY_MAGIC, self._json_bytes, self._id) + self._json)
            self._files.publish()
        except BaseException:
            if not self._files.published:
                self.abort()
            raise
        finally:
            if self._files.published:
                self._state = "finished"
                with held():
                    for path, artifact_id in self._stale:
                        _remove_part(path, artifact_id)

    def abort(self) -> None:
        """Remove everything that was created. Does nothing once the artifact is published."""
        if self._state in {"planned", "open"}:
            self._state = "aborted"
            self._files.abort()

    def __enter__(self) -> Self:
        if self._state != "planned":
            raise ArgumentError(f"the writer is {self._state}", hint="Make a new one for each artifact")
        order = [*range(1, len(self.paths)), 0]
        try:
            self._files.create([self._map.file_size(index) for index in order])
            if self._force:
                self._stale = _old_parts(self.path, self.paths)
        except BaseException:
            self.abort()
            raise
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.finish()

    def _check_coverage(self) -> None:
        for name, coverage in self._coverage.items():
            missing = coverage.first_missing()
            if missing is not None:
                raise ArtifactError(
                    "an object was not written completely",
                    where=f"{self.path}, object {name!r}, byte {missing}",
                    expected=f"{self.objects[name].nbytes} bytes",
                    found=f"{coverage.written} bytes",
                )

    def _write_payload(self, offset: int, raw: memoryview) -> None:
        done = 0
        for file, start, count in self._map.pieces(offset, raw.nbytes):
            self._write_at(file, start, raw[done : done + count])
            done += count

    def _write_at(self, file: int, offset: int, data: bytes | memoryview) -> None:
        """Write to the file with this index in `files`; publication has the entry last."""
        self._files.write((file or len(self.paths)) - 1, offset, memoryview(data))

    def _reserve(self, draft: Directory, payload_bytes: int, limit: int | None) -> tuple[bytes, PayloadMap]:
        """The directory, padded with spaces to the page where the payload begins, and where the payload lies.

        A longer table of files can need another page, which leaves the entry less room for payload and can make the
        table longer again; each round only adds pages, so it ends.
        """
        encoded = encode_directory(draft)
        while True:
            start = entry_payload_start(len(encoded))
            sizes = split_payload(payload_bytes, start, limit)
            files = tuple(
                FileRecord(path=part_name(self.path.name, index) if index else None, payload_bytes=size)
                for index, size in enumerate(sizes)
            )
            encoded = encode_directory(_with(draft, files=files)).ljust(start - HEADER_BYTES)
            if len(encoded) > MAX_DIRECTORY_BYTES:
                raise ArgumentError(
                    "the directory is too long", expected=f"at most {MAX_DIRECTORY_BYTES} bytes", found=len(encoded)
                )
            if entry_payload_start(len(encoded)) == start:
                return encoded, PayloadMap(start, sizes)

    def _replace_provenance(self, provenance: Mapping[str, Any]) -> None:
        encoded = encode_directory(_with(self.directory, provenance=dict(provenance)))
        if len(encoded) > self._json_bytes:
            raise ArgumentError(
                "provenance does not fit into the room reserved for it",
                where=str(self.path),
                expected=f"a directory of at most {self._json_bytes} bytes",
                found=len(encoded),
                hint="Give the writer a placeholder of the same length",
            )
        self._json = encoded.ljust(self._json_bytes)
        self.directory = self._parsed(self._json)

    def _parsed(self, encoded: bytes) -> Directory:
        return parse_directory(encoded, where=str(self.path), entry_name=self.path.name)


class _Coverage:
    """Which bytes of an object were claimed: disjoint ranges in order, neighbours merged."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._lock = threading.Lock()

    def claim(self, begin: int, end: int) -> bool:
        """Add a range; False, and nothing is added, if some of it was claimed before."""
        if begin == end:
            return True
        with self._lock:
            at = bisect_left(self._begins, end)  # every range from here on begins at or after the end
            if at and self._ends[at - 1] > begin:
                return False
            left = at > 0 and self._ends[at - 1] == begin
            right = at < len(self._begins) and self._begins[at] == end
            if left and right:
                self._ends[at - 1] = self._ends.pop(at)
                self._begins.pop(at)
            elif left:
                self._ends[at - 1] = end
            elif right:
                self._begins[at] = begin
            else:
                self._begins.insert(at, begin)
                self._ends.insert(at, end)
        return True

    @property
    def written(self) -> int:
        """Bytes claimed."""
        return sum(self._ends) - sum(self._begins)

    def first_missing(self) -> int | None:
        """The first byte that nobody claimed, or None."""
        if not self._begins or self._begins[0] > 0:
            return 0
        return None if self._ends[0] == self._size else self._ends[0]


def _place(objects: Sequence[PlannedTensor | PlannedResource]) -> tuple[tuple[ObjectRecord, ...], int]:
    """Records with offsets, and the bytes of the payload that they make."""
    records: list[ObjectRecord] = []
    end = 0
    for planned in objects:
        try:
            record = _record(planned, end)
        except QuantformError as error:
            raise error.at(f"object {planned.id!r}") from None
        records.append(record)
        end = fits_u64(record.offset + record.nbytes, "the size of the payload")
    if not records:
        raise ArgumentError("an artifact has at least one object", found="none")
    return tuple(records), end


def _record(planned: PlannedTensor | PlannedResource, end: int) -> ObjectRecord:
    if isinstance(planned, PlannedResource):
        encoding = RawBytesLayout()
        return ResourceRecord(
            id=planned.id,
            encoding="raw_bytes_v1",
            offset=align_up(end, encoding.alignment),
            nbytes=encoding.check_size(planned.nbytes),
        )
    layout = LAYOUTS[planned.layout]
    return TensorRecord(
        id=planned.id,
        shape=as_shape(planned.shape),
        format=planned.format,
        layout=planned.layout,
        offset=align_up(end, layout.alignment),
        nbytes=layout.encoded_size(planned.format, planned.shape, planned.divisors),
        divisors=planned.divisors,
    )


def _with(directory: Directory, **changes: Any) -> Directory:  # noqa: ANN401 - fields of any type
    members = {name: getattr(directory, name) for name in directory.__struct_fields__}
    return Directory(**(members | changes))


def _as_bytes(data: Any) -> memoryview:  # noqa: ANN401 - whatever has a buffer
    try:
        if isinstance(data, np.ndarray):  # some of NumPy's types have no buffer format
            if not data.flags.c_contiguous:
                raise ArgumentError("data is not contiguous", found=f"strides {data.strides}")
            return data.reshape(-1).view(np.uint8).data
        raw = memoryview(data)
        return raw.cast("B") if raw.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise ArgumentError("data is not a contiguous buffer", found=str(error)) from None


def _old_parts(path: Path, new: Sequence[Path]) -> tuple[tuple[Path, bytes], ...]:
    """Parts of the artifact at `path`, if it is one, that the new one does not replace, with the old id."""
    try:
        with Artifact(path) as old:
            owner = bytes.fromhex(old.artifact_id)
            return tuple((part, owner) for part in old.files[1:] if part not in new and _is_part(part, owner))
    except QuantformError:
        return ()


def _is_part(path: Path, artifact_id: bytes) -> bool:
    """Whether `path` is a regular file that says it is a part of that artifact."""
    if path.is_symlink():
        return False
    try:
        with MappedFile(path) as file:
            head = file.read(0, HEADER_BYTES)
    except QuantformError:
        return False
    return head.startswith(PART_MAGIC) and head.endswith(artifact_id)


def _remove_part(path: Path, artifact_id: bytes) -> None:
    if _is_part(path, artifact_id):
        try:
            path.unlink()
        except OSError:
            return  # the new artifact is complete; a part that nobody names any more harms nothing
