"""New files that appear together, complete, or not at all.

Files are written under temporary names in the directories where they will be, and get their own names when all of them
are complete: by a hard link, which never replaces anything, or, where replacing was asked for, by a rename. Whatever
fails or interrupts before the last file is published, the state before comes back. A destination that is a symbolic
link is replaced as the link that it is; the file behind it is not touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantform._sizes import human_bytes
from quantform.errors import ArgumentError, FileError, OutputExistsError

__all__ = ["NewFiles"]

_MAX_FILE = 2**63 - 1


@dataclass(slots=True)
class _NewFile:
    path: Path
    temporary: Path
    backup: Path
    size: int
    fd: int = -1


class NewFiles:
    """Files to be written and published together.

    Args:
        paths: Where the files go, in the order of publication.
        force: Replace what is there; without it, anything there is refused.
        sources: Files that are being read. None of them is ever replaced, whatever `force` says.

    Raises:
        OutputExistsError: A path exists and `force` is not given. Nothing was created.
        FileError: A path cannot be an output: its directory is missing, or it is itself a directory.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], *, force: bool = False, sources: Sequence[Path] = ()
    ) -> None:
        self._force = force
        self._replacing = force and any(_exists(Path(path)) for path in paths)
        self._token = uuid.uuid4().hex
        self._failed: str | None = None
        self.paths = tuple(Path(path) for path in paths)
        for path in self.paths:
            _check_destination(path, force=force, sources=sources)
        self._files: list[_NewFile] = []

    def create(self, sizes: Sequence[int]) -> None:
        """Create the temporary files, each as long as it will be, their bytes zeros.

        Raises:
            FileError: The operating system refuses; nothing is left.
        """
        try:
            for index, (path, size) in enumerate(zip(self.paths, sizes, strict=True)):
                _check_size(path, size)
                stem = path.parent / f".quantform-{self._token}-{index}"
                file = _NewFile(path, stem.with_suffix(".tmp"), stem.with_suffix(".old"), size)
                self._files.append(file)
                with _blaming(file):
                    # Not tempfile's: a published file has the mode that any new file of the user's has.
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
                    file.fd = os.open(file.temporary, flags, 0o666)
                    os.ftruncate(file.fd, size)
        except BaseException:
            self.abort()
            raise

    def write(self, index: int, offset: int, data: memoryview) -> None:
        """Write bytes at a place in file `index`; calls for different places may come from different threads.

        Raises:
            FileError: The operating system refuses; nothing can be published any more.
        """
        file = self._files[index]
        with _blaming(file, offset):
            try:
                while data.nbytes:
                    count = _pwrite(file.fd, data, offset)
                    data, offset = data[count:], offset + count
            except BaseException:
                self._failed = str(file.path)
                raise

    def publish(self) -> None:
        """Give every file its own name, in order, once all are on disk.

        Raises:
            OutputExistsError: A path came into being meanwhile, and `force` is not given.
            FileError: The operating system refuses, or a write failed before. Nothing new is left.
        """
        try:
            self._check_complete()
            # What is replaced is gone for good, so that what replaces it must be on disk first. A new file is no worse
            # off after a power failure than one that was copied, and its source is still there.
            for file in self._files if self._replacing else ():
                with _blaming(file):
                    os.fsync(file.fd)
            for file in self._files:
                with _blaming(file):
                    self._publish(file)
        except BaseException:
            self.abort()
            raise
        files, self._files = self._files, []
        for file in files:
            _close(file)
            _remove(file.temporary)
            _remove(file.backup)
        for directory in {path.parent for path in self.paths} if self._replacing else ():
            _sync_directory(directory)

    def abort(self) -> None:
        """Remove everything that was created and put back what was replaced; harmless after `publish`."""
        files, self._files = self._files, []
        for file in reversed(files):
            published = _same(file.path, file.fd)
            if _exists(file.backup):
                _restore(file)
            elif published:
                _remove(file.path)
            _close(file)
            _remove(file.temporary)

    def _check_complete(self) -> None:
        if self._failed is not None:
            raise ArgumentError("a write failed before, so nothing is published", where=self._failed)

    def _publish(self, file: _NewFile) -> None:
        if self._force:
            if _exists(file.path):
                try:
                    os.link(file.path, file.backup, follow_symlinks=False)
                except OSError:  # no hard links here
                    file.path.rename(file.backup)
            file.temporary.replace(file.path)
            return
        try:
            os.link(file.temporary, file.path)
        except OSError as error:
            if _same(file.path, file.fd):  # a network file system may say so though it made the link
                return
            if isinstance(error, FileExistsError):
                raise
            self._claim(file)

    @staticmethod
    def _claim(file: _NewFile) -> None:
        """Publish where there are no hard links: take the name, then rename over what is certainly ours."""
        os.close(os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            file.temporary.replace(file.path)
        except BaseException:
            if not _same(file.path, file.fd):
                _remove(file.path)
            raise


def _check_size(path: Path, size: int) -> None:
    if size > _MAX_FILE:
        raise FileError("no file can be that long", where=str(path), found=f"{size} bytes")


def _pwrite(fd: int, data: memoryview, offset: int) -> int:
    return os.pwrite(fd, data, offset)


@contextlib.contextmanager
def _blaming(file: _NewFile, offset: int | None = None) -> Iterator[None]:
    """Turn what the operating system says into an error that names the file under its final name."""
    where = str(file.path) if offset is None else f"{file.path}, byte {offset}"
    try:
        yield
    except FileExistsError as error:
        raise _exists_error(file.path) from error
    except OSError as error:
        hint = None
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = f"Free some space or choose another place; this file takes {human_bytes(file.size)}"
        elif error.errno in {errno.EMFILE, errno.ENFILE}:
            hint = "Allow longer files, so that there are fewer, or raise the limit of open files"
        elif error.errno == errno.EFBIG:
            hint = "Split it into shorter files: the file system or a limit of the shell allows no longer one"
        raise FileError("cannot be written", where=where, found=error.strerror, hint=hint) from error


def _exists_error(path: Path) -> OutputExistsError:
    return OutputExistsError(
        "the output exists already", where=str(path), hint="Use --force (force=True) to replace it"
    )


def _check_destination(path: Path, *, force: bool, sources: Sequence[Path]) -> None:
    if not path.name or "\0" in str(path):
        raise FileError("not a file name", where=repr(str(path)))
    try:
        parent = path.parent.stat()
    except OSError as error:
        raise FileError("the directory of the output cannot be used", where=str(path), found=error.strerror) from error
    if not stat.S_ISDIR(parent.st_mode):
        raise FileError("the directory of the output is no directory", where=str(path.parent))
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long
        raise FileError("cannot be written", where=str(path), found=error.strerror) from error
    if not (stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode)):
        raise FileError("the output exists and is not a regular file", where=str(path))
    if any(_is(path, source) for source in sources):
        raise OutputExistsError("the output is a file that is being read", where=str(path), hint="Choose another name")
    if not force:
        raise _exists_error(path)


def _is(path: Path, source: Path) -> bool:
    try:
        return path.samefile(source)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _same(path: Path, fd: int) -> bool:
    """Whether `path` is the very file that is open as `fd`."""
    if fd < 0:
        return False
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _restore(file: _NewFile) -> None:
    with contextlib.suppress(OSError):
        if _exists(file.path) and os.path.samestat(file.path.lstat(), file.backup.lstat()):
            _remove(file.backup)  # a rename between two links of one file does nothing
        else:
            file.backup.replace(file.path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _close(file: _NewFile) -> None:
    fd, file.fd = file.fd, -1
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def _sync_directory(directory: Path) -> None:
    """Make the new names survive a power failure, where directories can be synchronized."""
    with contextlib.suppress(OSError):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
