"""The GGUF files that a component was made from, without their tensors' bytes: what their frames tell.

Each frame is written into a sparse file as long as the original, and the ordinary GGUF reader opens these: the rules
that every GGUF file is checked by are those that frames are checked by.
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from quantform._interrupts import held
from quantform._sizes import pieces
from quantform.container import ObjectRecord
from quantform.convert.gguf_carried import frame_bytes, frame_role
from quantform.convert.recorded import RecordedFile, recorded_files, recorded_sources
from quantform.errors import ArtifactError, FileError, QuantformError
from quantform.sources import GGUFSource, NinferSource

__all__ = ["Skeleton", "original_files", "part_paths", "scratch_directory"]

Bytes = npt.NDArray[np.uint8]

_PART_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")


def original_files(source: NinferSource, component: str) -> tuple[RecordedFile, ...]:
    """The files that a component with frames was made from, as provenance records them.

    Raises:
        ArtifactError: It does not record them, or one has no frame.
    """
    *_, recorded = ({}, *recorded_sources(source.directory.provenance, component))
    files = recorded_files(recorded)
    roles = source.components[component].resources
    if not files or any(frame_role(index) not in roles for index in range(len(files))):
        raise ArtifactError(
            "the provenance does not describe the original files",
            where=f"{source.path}, $.provenance.source.files",
            expected="records with 'bytes' and 'sha256', and a frame for each",
        )
    return files


def part_paths(output: Path, count: int) -> list[Path]:
    """What the files of a model are called; `NAME-00001-of-00003.gguf` and so on where there are several."""
    if count == 1:
        return [output]
    stem = _PART_SUFFIX.sub("", output.stem)
    return [output.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def scratch_directory(stack: ExitStack) -> Path:
    """A temporary directory for a `Skeleton`, which goes with `stack`.

    Raises:
        FileError: None can be made.
    """
    try:
        with held():
            return Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="quantform-", ignore_cleanup_errors=True))
            )
    except OSError as error:
        raise FileError(
            "no temporary directory can be made",
            found=error.strerror or str(error),
            hint="Let TMPDIR name a directory that can be written to",
        ) from error


class Skeleton:
    """Original files in the making: `take` the bytes of every frame, then `open`.

    Args:
        source: The artifact.
        component: A component with frames.
        files: What was recorded of its original files.
        scratch: An empty directory that lives as long as what is opened.
    """

    def __init__(self, source: NinferSource, component: str, files: Sequence[RecordedFile], scratch: Path) -> None:
        self._source = source
        self._component = component
        self._files = files
        self._scratch = scratch
        self._paths = part_paths(scratch / "model.gguf", len(files))

    def record(self, index: int) -> ObjectRecord:
        """The resource that holds a frame."""
        return self._source.artifact.record(self._source.components[self._component].resources[frame_role(index)])

    def read(self, index: int, first: int = 0, count: int | None = None) -> Iterator[Bytes]:
        """Some bytes of a frame, in pieces."""
        record = self.record(index)
        read = self._source.artifact.object_reader(record.id)
        for offset, length in pieces(record.nbytes if count is None else count, 1):
            data = np.empty(length, np.uint8)
            read(first + offset, data)
            yield data

    def take(self, index: int, offset: int, data: Bytes) -> None:
        """The bytes of a frame from `offset` on.

        The header is a prefix of the frame; what follows lands where tensors will be, and is not looked at. Zeros stay
        holes: a frame may claim terabytes of them.

        Raises:
            FileError: They cannot be written.
        """
        if offset < self._files[index].nbytes:
            try:
                with self._paths[index].open("r+b" if offset else "xb") as file:
                    if data.any():
                        file.seek(offset)
                        file.write(data.data)
            except OSError as error:
                self._refuse(index, error)

    def open(self) -> GGUFSource:
        """The files, as long as they were; their tensors' bytes are holes.

        Raises:
            ArtifactError: A frame is not that of a GGUF file of the recorded length.
            FileError: The files cannot be made as long as they were.
        """
        for index, (path, file) in enumerate(zip(self._paths, self._files, strict=True)):
            try:
                with path.open("ab") as opened:
                    opened.truncate(file.nbytes)
            except (OSError, OverflowError) as error:
                self._refuse(index, error)
        try:
            skeleton = GGUFSource(self._paths[0])
        except QuantformError as error:
            found = str(error)
            for index, path in enumerate(self._paths):
                found = found.replace(str(path), frame_role(index))
            raise ArtifactError(
                "the frame is not the header of the original file", where=str(self._source.path), found=found
            ) from error
        try:
            self._check(skeleton)
        except BaseException:
            skeleton.close()
            raise
        return skeleton

    def _check(self, skeleton: GGUFSource) -> None:
        if len(skeleton.shards) != len(self._files):
            raise ArtifactError(
                "the frame's own header knows of another number of files",
                where=f"{self._source.path}, $.provenance.source.files",
                expected=len(skeleton.shards),
                found=len(self._files),
            )
        for index, shard in enumerate(skeleton.shards):
            expected, found = frame_bytes(shard), self.record(index).nbytes
            if expected != found:
                raise ArtifactError(
                    "the frame does not fit the original file",
                    where=f"{self._source.path}, resource {frame_role(index)!r}",
                    expected=f"{expected} bytes",
                    found=f"{found} bytes",
                )

    def _refuse(self, index: int, error: OSError | OverflowError) -> NoReturn:
        size = self._files[index].nbytes
        if isinstance(error, OverflowError) or error.errno == errno.EFBIG:
            raise ArtifactError(
                "the recorded length of the original file is beyond every file here",
                where=f"{self._source.path}, $.provenance.source.files[{index}]",
                found=f"{size} bytes",
            ) from error
        raise FileError(
            f"the frame of original file {index + 1} cannot be laid out in the temporary directory",
            where=str(self._scratch),
            expected=f"room for a sparse file of {size} bytes",
            found=error.strerror or str(error),
            hint="Free some space there, or let TMPDIR name another directory",
        ) from error
