"""Files, read within their bounds and published whole."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from quantform._spans import Span
from quantform.errors import ArgumentError, ChangedFileError, FileError, TruncatedFileError

__all__ = ["HOLE_BYTES", "Closing", "Identity", "MappedFile", "exists", "identity", "is_directory"]

Bytes = npt.NDArray[np.uint8]

HOLE_BYTES = 1 << 20
"""The least that a hole must have to be passed over: less is read faster than it is worth the trouble."""


Identity = tuple[int, int, int, int]
"""Device, inode, size and time of the last change: an inode that is used again has not all of them."""


def identity(there: os.stat_result) -> Identity:
    """Which file it is."""
    return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns


def exists(path: Path) -> bool:
    """Whether there is something; true as well where the operating system cannot tell, as opening it says why."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def is_directory(path: Path) -> bool:
    """Whether it is a directory, which nothing is whose name no file can have."""
    try:
        return path.is_dir()
    except OSError:
        return False


class Closing(ABC):
    """Something to be closed: by `close`, or by leaving a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MappedFile(Closing):
    """A regular file opened for reading; every access is checked against its size.

    `view` maps the file and copies nothing; `read_into` copies through the kernel, so that streaming a large file does
    not make the process grow. Nothing is read before it is asked for.

    A file that becomes shorter is an error of the next access. Only a view that was given out before cannot know: its
    pages are gone, and touching one ends the process with SIGBUS, as with every program that maps files. (The command
    line says so and ends with code 1, where there are compiled kernels.) `read_into` is safe from that.

    Attributes:
        size: Its bytes when it was opened.
        identity: Which file it was then.

    Raises:
        FileError: The path is not a regular file that can be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1
        try:
            # Opening a device can have effects, so that the kind of file is looked at before. It may have changed after
            # that, and opening a pipe would wait for its writer, so it is not waited for and looked at again.
            self._check_regular(self.path.stat())
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            self._fd = os.open(self.path, flags)
            there = os.fstat(self._fd)
            self._check_regular(there)
        except FileNotFoundError:
            raise FileError("no such file", where=str(self.path)) from None
        except OSError as error:
            raise FileError("cannot be opened", where=str(self.path), found=error.strerror) from error
        except ValueError as error:  # a NUL in the name
            raise FileError("not a file name", where=repr(str(self.path)), found=str(error)) from error
        self.size = there.st_size
        self.identity = identity(there)
        self._map: mmap.mmap | None = None

    def buffer(self) -> mmap.mmap | bytes:
        """The whole file as one mapped buffer (no bytes for an empty file)."""
        if self._map is None:
            self._open()
            if self.size == 0:
                return b""
            try:
                self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise FileError("cannot be mapped", where=str(self.path), found=str(error)) from error
        return self._map

    def view(self, offset: int, count: int) -> Bytes:
        """`count` bytes from `offset` on as a read-only array that shares the mapping.

        Raises:
            TruncatedFileError: The file had fewer bytes when it was opened.
            ChangedFileError: It has fewer now.
        """
        self._check(offset, count)
        if count == 0:
            return np.zeros(0, np.uint8)
        if os.fstat(self._open()).st_size < offset + count:  # touching a page past the end would end the process
            raise self._shrunk()
        return np.frombuffer(self.buffer(), np.uint8, count, offset)

    def read_into(self, offset: int, out: Bytes) -> None:
        """Fill `out`, a contiguous byte array, from `offset` on.

        Raises:
            TruncatedFileError: The file had fewer bytes when it was opened.
            ChangedFileError: It has fewer now.
            FileError: The operating system fails to read.
        """
        self._check(offset, out.nbytes)
        rest = out.reshape(-1).data
        while rest.nbytes:
            try:
                count = os.preadv(self._open(), [rest[: 1 << 30]], offset)
            except OSError as error:
                raise FileError("cannot be read", where=f"{self.path}, byte {offset}", found=error.strerror) from error
            if count == 0:
                raise self._shrunk()
            rest, offset = rest[count:], offset + count

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on, copied; bounds are checked before anything is allocated."""
        self._check(offset, count)
        try:
            data = os.pread(self._open(), count, offset)
        except OSError as error:
            raise FileError("cannot be read", where=f"{self.path}, byte {offset}", found=error.strerror) from error
        if len(data) == count:
            return data
        out = np.empty(count, np.uint8)  # more than the system reads at a time
        self.read_into(offset, out)
        return out.tobytes()

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """Where between two offsets the file has bytes of its own, in order, without large holes, which are zeros.

        One span is everything where the operating system does not tell.

        Raises:
            TruncatedFileError: The file had fewer bytes when it was opened.
            ChangedFileError: It has fewer now.
        """
        self._check(begin, end - begin)
        if begin < end < begin + HOLE_BYTES:  # no need to ask
            yield begin, end
            return
        first = at = begin
        while at < end:
            data = min(self._seek(at, end, "SEEK_DATA"), end)
            if data - at >= HOLE_BYTES:
                if first < at:
                    yield first, at
                first = data
            at = min(self._seek(data, end, "SEEK_HOLE"), end) if data < end else end
        if first < end:
            yield first, end

    def close(self) -> None:
        """Close the file. Arrays that were given out stay valid until they are dropped."""
        fd, self._fd = self._fd, -1
        self._map = None
        if fd >= 0:
            os.close(fd)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd < 0

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"<MappedFile {str(self.path)!r}, {'closed' if self.closed else f'{self.size} bytes'}>"

    def _check_regular(self, there: os.stat_result) -> None:
        if not stat.S_ISREG(there.st_mode):
            raise FileError("not a regular file", where=str(self.path))

    def _open(self) -> int:
        if self._fd < 0:
            raise ArgumentError("the file is closed", where=str(self.path), hint="Read inside the `with` block")
        return self._fd

    def _shrunk(self) -> ChangedFileError:
        return ChangedFileError(
            "the file became shorter while it was open",
            where=str(self.path),
            expected=f"{self.size} bytes",
            file=self.path,
        )

    def _seek(self, at: int, end: int, what: str) -> int:
        """The next byte from `at` on that is stored, or the next hole; `at` or `end` where that is not to be had."""
        whence = getattr(os, what, None)
        unknown = at if what == "SEEK_DATA" else end
        try:
            return unknown if whence is None else os.lseek(self._open(), at, whence)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says that there is nothing more
                return unknown
        if os.fstat(self._open()).st_size < end:
            raise self._shrunk()
        return end

    def _check(self, offset: int, count: int) -> None:
        self._open()
        if offset < 0 or count < 0 or offset + count > self.size:
            raise TruncatedFileError(
                "the file ends too early",
                where=str(self.path),
                expected=f"{count} bytes at byte {offset}",
                found=f"{self.size} bytes in all",
            )
