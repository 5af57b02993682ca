"""Reading artifacts: the directory at once, payloads when they are asked for, every range checked.

Opening reads the header and the directory of the entry file and nothing else. Parts are opened when a read first needs
them, and their magic, index, id and length are checked then; a missing part fails only the reads that need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from quantform._files import Closing, MappedFile, exists
from quantform._registry import near_matches
from quantform._sizes import human_bytes
from quantform._spans import Span
from quantform.container.directory import Directory, ObjectRecord, TensorRecord, parse_directory
from quantform.container.header import (
    ENTRY_MAGIC,
    HEADER_BYTES,
    PAGE,
    PART_MAGIC,
    entry_payload_start,
    unpack_header,
)
from quantform.container.split import PayloadMap, Piece
from quantform.errors import (
    ArgumentError,
    ArtifactError,
    FileError,
    QuantformError,
    TruncatedFileError,
    UnknownNameError,
    UnsupportedError,
)
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS

__all__ = ["MAX_DIRECTORY_BYTES", "Artifact"]

MAX_DIRECTORY_BYTES = 256 << 20
"""The longest directory that is read: a few hundred times what a model of a thousand tensors needs."""

Bytes = npt.NDArray[np.uint8]


class Artifact(Closing):
    """An open `.ninfer` artifact, version 3; a context manager.

    Attributes:
        path: The entry file.
        artifact_id: 32 lower-case hexadecimal digits, the same in all files of the artifact.
        directory: The checked directory.
        objects: The records of all objects by id, by rising offset.
        files: Every file of the artifact, the entry first; parts may be missing.

    Raises:
        ArtifactError: The entry breaks the rules of the container; names the place, for the directory its JSON path.
        TruncatedFileError: The entry ends early.
        FileError: The entry cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self._open: dict[int, MappedFile] = {}
        entry = MappedFile(self.path)
        self._open[0] = entry
        try:
            self._id, self.directory, start = _read_entry(entry)
        except BaseException:
            entry.close()
            raise
        self.artifact_id = self._id.hex()
        self.files = (self.path, *(self.path.with_name(file.path) for file in self.directory.files if file.path))
        self.objects: Mapping[str, ObjectRecord] = MappingProxyType(
            {record.id: record for record in self.directory.objects}
        )
        self._map = PayloadMap(start, [file.payload_bytes for file in self.directory.files])

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload, over all files."""
        return self._map.payload_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of all files together, as the directory declares them."""
        return sum(self._map.file_size(index) for index in range(len(self.files)))

    def record(self, id: str) -> ObjectRecord:
        """The record of an object.

        Raises:
            UnknownNameError: There is no such object; lists near matches.
        """
        found = self.objects.get(id)
        if found is None:
            raise UnknownNameError(
                f"no object is called {id!r}", where=str(self.path), hint=near_matches(str(id), self.objects)
            )
        return found

    def check(self, id: str) -> ObjectRecord:
        """Check that an object can be used, and return its record.

        Its format and layout are known and fit each other and the shape, its length is what the layout computes, and
        its offset meets the layout's alignment. Payloads are not touched.

        Raises:
            UnknownNameError: There is no such object.
            ArtifactError: One of these does not hold.
        """
        record = self.record(id)
        if id not in self._checked:
            try:
                if isinstance(record, TensorRecord):
                    _check_tensor(record)
            except QuantformError as error:
                index = self.directory.objects.index(record)
                raise error.at(f"{self.path}, $.objects[{index}] (object {id!r})") from None
            self._checked.add(id)
        return record

    def check_file(self, index: int) -> None:
        """Open a file of the artifact, so that a missing or wrong part is found; payloads are not touched.

        Raises:
            ArtifactError: It is missing, belongs to another artifact or has the wrong index or length.
        """
        self._file(index)

    def pieces(self, offset: int, count: int) -> Iterator[Piece]:
        """The bytes of the payload from `offset` on, cut where they go on in another file."""
        return self._map.pieces(offset, count)

    def locate(self, offset: int) -> tuple[Path, int]:
        """The file that has a byte of the payload, and where in it."""
        piece = next(self._map.pieces(offset, 1))
        return self.files[piece.file], piece.offset

    def read_into(self, offset: int, out: Bytes) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on, across files.

        Raises:
            ArtifactError: The range exceeds the payload, or a part that it needs is missing or wrong.
        """
        if offset < 0 or offset + out.nbytes > self.payload_bytes:
            raise ArtifactError(
                "the range exceeds payload",
                where=str(self.path),
                expected=f"an end of at most {self.payload_bytes}",
                found=f"{out.nbytes} bytes at {offset}",
            )
        flat = out.reshape(-1).view(np.uint8)
        done = 0
        for file, start, count in self._map.pieces(offset, out.nbytes):
            self._file(file).read_into(start, flat[done : done + count])
            done += count

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """Where between two bytes of the payload there are others than zeros of a sparse file's holes, as far as known.

        Raises:
            ArtifactError: A part that it needs is missing or wrong.
        """
        at = begin
        for file, start, count in self._map.pieces(begin, end - begin):
            for first, last in self._file(file).stored_spans(start, start + count):
                yield at + first - start, at + last - start
            at += count

    def object_reader(self, id: str) -> Callable[[int, Bytes], None]:
        """A function that fills an array from an offset within a checked object on, as layouts take one.

        Raises:
            ArtifactError: The object cannot be used; see `check`.
        """
        record = self.check(id)

        def read(offset: int, out: Bytes) -> None:
            if offset < 0 or offset + out.nbytes > record.nbytes:
                raise ArgumentError(
                    "the range exceeds the object",
                    where=f"{self.path}, object {id!r}",
                    expected=f"an end of at most {record.nbytes}",
                    found=f"{out.nbytes} bytes at {offset}",
                )
            self.read_into(record.offset + offset, out)

        return read

    def view(self, id: str) -> Bytes:
        """The payload of a checked object, uint8 `[nbytes]`, read-only.

        It shares the file's mapping where the object lies within one file; else its pieces are joined in a copy.

        Raises:
            ArtifactError: The object cannot be used, or a part is missing or wrong.
        """
        mapped = self.mapped(id)
        if mapped is not None:
            return mapped
        record = self.check(id)
        try:
            joined = np.empty(record.nbytes, np.uint8)
        except MemoryError:
            raise UnsupportedError(
                "the object lies in several files and does not fit in memory as a whole",
                where=f"{self.path}, object {id!r}",
                found=human_bytes(record.nbytes),
                hint="Read it in pieces",
            ) from None
        self.read_into(record.offset, joined)
        joined.flags.writeable = False
        return joined

    def mapped(self, id: str) -> Bytes | None:
        """The payload of a checked object as it lies in the file's mapping; None where it lies in several files.

        Raises:
            ArtifactError: As `view`.
        """
        record = self.check(id)
        pieces = list(self._map.pieces(record.offset, record.nbytes))
        files = [self._file(piece.file) for piece in pieces]  # a missing part is found before memory is taken
        return files[0].view(pieces[0].offset, pieces[0].size) if len(pieces) == 1 else None

    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid."""
        with self._lock:
            for file in self._open.values():
                file.close()

    def __repr__(self) -> str:
        return f"<Artifact {str(self.path)!r}, {len(self.objects)} objects>"

    def _file(self, index: int) -> MappedFile:
        file = self._open.get(index)
        if file is not None:
            return file
        with self._lock:
            if index not in self._open:
                if self._open[0].closed:
                    raise ArgumentError("the artifact is closed", where=str(self.path), hint="Read inside `with`")
                self._open[index] = self._open_part(index)
            return self._open[index]

    def _open_part(self, index: int) -> MappedFile:
        path = self.files[index]
        if not exists(path):
            raise ArtifactError(
                f"part {index} of the artifact is missing",
                where=str(path),
                hint=f"Put it beside {self.path.name}, or fetch it again",
            )
        file = MappedFile(path)
        try:
            _check_part(file, index, self._id, self._map.file_size(index))
        except BaseException:
            file.close()
            raise
        return file


def _read_entry(file: MappedFile) -> tuple[bytes, Directory, int]:
    """The artifact's id, its directory, and where the payload begins."""
    where = str(file.path)
    magic = file.read(0, min(len(ENTRY_MAGIC), file.size))
    if magic != ENTRY_MAGIC:
        raise ArtifactError(
            "not the entry file of a version 3 artifact",
            where=where,
            expected=repr(ENTRY_MAGIC),
            found=repr(magic),
            hint=_hint(magic),
        )
    if file.size < HEADER_BYTES:
        raise TruncatedFileError(
            "the file ends within its header", where=where, expected=f"{HEADER_BYTES} bytes", found=f"{file.size} bytes"
        )
    _, json_bytes, artifact_id = unpack_header(file.read(0, HEADER_BYTES))
    if not 0 < json_bytes <= MAX_DIRECTORY_BYTES:
        raise ArtifactError(
            "the length of the directory is out of range",
            where=f"{where}, byte 8",
            expected=f"1 to {MAX_DIRECTORY_BYTES}",
            found=json_bytes,
        )
    if HEADER_BYTES + json_bytes > file.size:
        raise TruncatedFileError(
            "the file ends within its directory",
            where=where,
            expected=f"{HEADER_BYTES + json_bytes} bytes",
            found=f"{file.size} bytes",
        )
    directory = parse_directory(file.read(HEADER_BYTES, json_bytes), where=where, entry_name=file.path.name)
    start = entry_payload_start(json_bytes)
    _check_length(file, start + directory.files[0].payload_bytes)
    _check_zeros(file, HEADER_BYTES + json_bytes, start)
    return artifact_id, directory, start


def _check_part(file: MappedFile, index: int, artifact_id: bytes, size: int) -> None:
    where = str(file.path)
    if file.size < PAGE:
        raise TruncatedFileError(
            "the part ends within its header", where=where, expected=f"{size} bytes", found=f"{file.size} bytes"
        )
    magic, number, owner = unpack_header(file.read(0, HEADER_BYTES))
    if magic != PART_MAGIC:
        raise ArtifactError("not a part of an artifact", where=where, expected=repr(PART_MAGIC), found=repr(magic))
    if owner != artifact_id:
        raise ArtifactError(
            "the part belongs to another artifact",
            where=f"{where}, byte 16",
            expected=artifact_id.hex(),
            found=owner.hex(),
            hint="Fetch the entry and its parts again, together",
        )
    if number != index:
        raise ArtifactError("the part has another index", where=f"{where}, byte 8", expected=index, found=number)
    _check_length(file, size)
    _check_zeros(file, HEADER_BYTES, PAGE)


def _check_length(file: MappedFile, size: int) -> None:
    if file.size != size:
        kind: type[FileError] = TruncatedFileError if file.size < size else ArtifactError
        raise kind(
            "the file is not as long as the directory says",
            where=str(file.path),
            expected=f"{size} bytes",
            found=f"{file.size} bytes",
        )


def _check_zeros(file: MappedFile, begin: int, end: int) -> None:
    gap = file.read(begin, end - begin)
    rest = gap.lstrip(b"\0")
    if rest:
        raise ArtifactError(
            "the gap before the payload is not zeros",
            where=f"{file.path}, byte {end - len(rest)}",
            expected="0x00",
            found=f"0x{rest[0]:02x}",
        )


def _check_tensor(record: TensorRecord) -> None:
    for kind, name, known in (("format", record.format, FORMATS), ("layout", record.layout, LAYOUTS)):
        if name not in known:
            raise ArtifactError(f"{kind} {name!r} is not known", hint=near_matches(name, known))
    layout = LAYOUTS[record.layout]
    try:
        size = layout.encoded_size(record.format, record.shape, record.divisors)
    except QuantformError as error:
        raise ArtifactError(error.problem, expected=error.expected, found=error.found, hint=error.hint) from None
    if size != record.nbytes:
        raise ArtifactError("member 'bytes' is not what the layout computes", expected=size, found=record.nbytes)
    if record.offset % layout.alignment:
        raise ArtifactError(
            "the offset does not meet the layout's alignment",
            expected=f"a multiple of {layout.alignment}",
            found=record.offset,
        )


def _hint(magic: bytes) -> str | None:
    if magic == PART_MAGIC:
        return "This is a part; open the entry file, whose name is this one's without '.part-NNNN'"
    if magic.startswith(b"GGUF"):
        return "This is a GGUF file"
    if magic.startswith(ENTRY_MAGIC[:7]):
        return "This is an artifact of another version"
    return None
