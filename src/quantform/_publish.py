"""New files that appear together, complete, or not at all.

Files are written without names, which Linux's file systems can do, or else under hidden ones in the directory where
they will be, and get their own names when all of them are complete: by a hard link, which never replaces anything, or,
where replacing was asked for, by a rename. Whatever fails or interrupts before that, the state before comes back;
signals wait while names are given, and never come up between a file and what is known of it. A process that is killed
leaves nothing of files without names; anything else is in a journal, by which the next run for the same output puts
things right. A destination that is a symbolic link is replaced as the link that it is; the file behind it is not
touched.
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

from quantform._interrupts import held, note_published
from quantform._journal import Hidden, Journal, Record, hidden, identity, remove, roll_back
from quantform._sizes import human_bytes
from quantform.errors import ArgumentError, FileError, OutputExistsError

__all__ = ["NewFiles"]

_MAX_FILE = 2**63 - 1
_PROBE = ".quantform-probe.tmp"


@dataclass(slots=True)
class _NewFile:
    path: Path
    names: Hidden
    size: int
    fd: int = -1
    named: bool = True


class NewFiles:
    """Files to be written and published together.

    Args:
        paths: Where the files go, all in one directory, in the order of publication.
        force: Replace what is there; without it, anything there is refused.
        sources: Files that are being read. None of them is ever replaced, whatever `force` says.

    Attributes:
        paths: As given.
        published: Whether the files have their names. They may have them though `publish` raises: where a signal
            arrives while it works.

    Raises:
        OutputExistsError: A path exists and `force` is not given. Nothing was created.
        FileError: A path cannot be an output: its directory is missing, or it is itself a directory.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], *, force: bool = False, sources: Sequence[Path] = ()
    ) -> None:
        self.published = False
        self._force = force
        self._replacing = False
        self._token = uuid.uuid4().hex
        self._failed: str | None = None
        self._journal: Journal | None = None
        self._sources = sources
        self.paths = tuple(Path(path) for path in paths)
        self._check_destinations()
        self._files: list[_NewFile] = []

    def create(self, sizes: Sequence[int]) -> None:
        """Create the files, each as long as it will be, their bytes zeros; none has its name yet.

        What a run that was killed left of the same output is put right first.

        Raises:
            FileError: The operating system refuses, or another process is writing the same output. Nothing is left.
        """
        try:
            with held():
                self._create(sizes)
        except BaseException:
            self.abort()
            raise

    def _create(self, sizes: Sequence[int]) -> None:
        output = self.paths[-1]
        Journal.recover(output)
        self._check_destinations()
        self._replacing = self._force and any(os.path.lexists(path) for path in self.paths)
        for path, size in zip(self.paths, sizes, strict=True):
            _check_size(path, size)
        _check_space(self.paths, sizes)
        unnamed = _has_unnamed(output.parent)
        if not unnamed:
            self._begin_journal()
        for index, (path, size) in enumerate(zip(self.paths, sizes, strict=True)):
            file = _NewFile(path, hidden(path.parent, self._token, index), size, named=not unnamed)
            self._files.append(file)
            with _blaming(file):
                # Not tempfile's: a published file has the mode that any new file of the user's has.
                if unnamed:
                    file.fd = os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
                else:
                    file.fd = os.open(file.names.new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                os.ftruncate(file.fd, size)

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
            with held():
                self._name()
        except BaseException:
            self.abort()
            raise

    def _name(self) -> None:
        if self._replacing or len(self._files) > 1:
            self._begin_journal()
        for file in self._files:
            with _blaming(file):
                self._publish(file)
        self.published = True
        note_published(self.paths)
        files, self._files = self._files, []
        for file in files:
            _close(file)
            remove(file.names.new)
            remove(file.names.old)
        self._end_journal(files)
        if self._replacing:
            _sync_directory(self.paths[-1].parent)

    def abort(self) -> None:
        """Remove everything that was created and put back what was replaced; harmless after `publish`."""
        with held():
            files, self._files = self._files, []
            for file in reversed(files):
                roll_back(file.path, file.names, published=_same(file.path, file.fd))
                _close(file)
            self._end_journal(files)

    def _check_destinations(self) -> None:
        left = Journal.left_by_killed(self.paths[-1])
        for path in self.paths:
            _check_destination(path, force=self._force or path.name in left, sources=self._sources)

    def _begin_journal(self) -> None:
        """Write down what the next run has to undo if this one is killed."""
        output = self.paths[-1]
        if self._journal is None:
            self._journal = Journal.open(output)
        if self._journal is not None:
            records = [Record(file.path.name, identity(os.fstat(file.fd))) for file in self._files]
            try:
                self._journal.write(self._token, records or [Record(path.name) for path in self.paths])
            except OSError as error:
                raise _cannot_write(str(output), error, None) from error

    def _end_journal(self, files: Sequence[_NewFile]) -> None:
        """What could not be removed or put back is left to the next run."""
        journal, self._journal = self._journal, None
        if journal is None:
            return
        if any(os.path.lexists(name) for file in files for name in file.names):
            journal.leave()
        else:
            journal.end()

    def _check_complete(self) -> None:
        if self._failed is not None:
            raise ArgumentError("a write failed before, so nothing is published", where=self._failed)

    def _publish(self, file: _NewFile) -> None:
        if self._force:
            if os.path.lexists(file.path):
                try:
                    os.link(file.path, file.names.old, follow_symlinks=False)
                except OSError:  # no hard links here
                    file.path.rename(file.names.old)
            if not file.named:
                _link(file, file.names.new)
            file.names.new.replace(file.path)
            return
        try:
            _link(file, file.path)
        except OSError as error:
            if _same(file.path, file.fd):  # a network file system may say so though it made the link
                return
            if isinstance(error, FileExistsError) or not file.named:
                raise
            self._claim(file)

    @staticmethod
    def _claim(file: _NewFile) -> None:
        """Publish where there are no hard links: take the name, then rename over what is certainly ours."""
        os.close(os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            file.names.new.replace(file.path)
        except BaseException:
            if not _same(file.path, file.fd):
                remove(file.path)
            raise


def _has_unnamed(directory: Path) -> bool:
    """Whether files in a directory can do without a name until they get one, tried with an empty file.

    Where Linux can, `/proc` is how a name is given without privileges; it may be missing, or a sandbox may refuse.
    """
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        _link_open(fd, directory / _PROBE)
    except FileExistsError:  # another run's, or one's that was killed here
        return True
    except OSError:
        return False
    finally:
        remove(directory / _PROBE)
        os.close(fd)
    return True


def _link(file: _NewFile, name: Path) -> None:
    if file.named:
        os.link(file.names.new, name)
    else:
        _link_open(file.fd, name)


def _link_open(fd: int, name: Path) -> None:
    """Give an open file a name. That a directory is passed is what makes Python follow the link in `/proc`."""
    there = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(fd), name, src_dir_fd=there, follow_symlinks=True)
    finally:
        os.close(there)


def _check_size(path: Path, size: int) -> None:
    if size > _MAX_FILE:
        raise FileError("no file can be that long", where=str(path), found=f"{size} bytes")


def _check_space(paths: Sequence[Path], sizes: Sequence[int]) -> None:
    """Refuse to begin what the file systems have no room for, as far as they tell; old files stay until the end."""
    needed: dict[int, int] = {}
    for path, size in zip(paths, sizes, strict=True):
        try:
            device, system = path.parent.stat().st_dev, os.statvfs(path.parent)
        except OSError:  # told when the file is created
            continue
        needed[device] = needed.get(device, 0) + size
        free = (system.f_bfree if os.geteuid() == 0 else system.f_bavail) * system.f_frsize
        if system.f_blocks and needed[device] > free:
            raise FileError(
                "there is too little space",
                where=str(path),
                expected=f"{human_bytes(sum(sizes))} for the output",
                found=f"{human_bytes(free)} free",
                hint="Free some space or choose another place",
            )


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
        raise _cannot_write(where, error, file.size) from error


def _cannot_write(where: str, error: OSError, size: int | None) -> FileError:
    hint = None
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        takes = "" if size is None else f"; this file takes {human_bytes(size)}"
        hint = f"Free some space or choose another place{takes}"
    elif error.errno in {errno.EMFILE, errno.ENFILE}:
        hint = "Allow longer files, so that there are fewer, or raise the limit of open files"
    elif error.errno == errno.EFBIG:
        hint = "Split it into shorter files: the file system or a limit of the shell allows no longer one"
    return FileError("cannot be written", where=where, found=error.strerror, hint=hint)


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


def _same(path: Path, fd: int) -> bool:
    """Whether `path` is the very file that is open as `fd`."""
    if fd < 0:
        return False
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


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
