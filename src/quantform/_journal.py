"""What a killed process leaves of files that it was about to publish, written down so that the next run puts it right.

A journal is a small hidden file beside the outputs, named after the last of them. It exists while there are files under
temporary names, or while several files get their own names one after another. Whoever writes holds a lock on it, which
the operating system lets go of however the process ends, so that a journal that nobody holds is a killed run's: the
next run for the same output removes what that one created, and puts back what it was replacing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from quantform._files import Identity, exists, identity
from quantform.errors import FileError

__all__ = ["Hidden", "Identity", "Journal", "Record", "hidden", "identity", "remove", "roll_back"]

_LONGEST = 1 << 26  # more than 100,000 files with the longest names take
_TOKEN = re.compile(r"[0-9a-f]{32}\Z")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file.

    Attributes:
        name: What it is to be called.
        file: Which file that is, once it is complete.
    """

    name: str
    file: Identity | None = None


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is true from when the line is there on."""

    token: str
    files: list[Record]


class Hidden(NamedTuple):
    """Hidden names of one file: of the new one, and of the one that it replaces."""

    new: Path
    old: Path


def hidden(directory: Path, token: str, index: int) -> Hidden:
    """The hidden names of file `index` of the run with this token."""
    stem = f".quantform-{token}-{index}"
    return Hidden(directory / f"{stem}.tmp", directory / f"{stem}.old")


def remove(path: Path) -> None:
    """Remove a file if it is there and can be removed."""
    with contextlib.suppress(OSError):
        path.unlink()


def roll_back(path: Path, names: Hidden, *, published: bool) -> None:
    """Undo the publication of one file, however far it got.

    Args:
        path: Its name.
        names: Its hidden names.
        published: Whether what is called `path` is the new file.
    """
    if os.path.lexists(names.old):
        with contextlib.suppress(OSError):
            if os.path.lexists(path) and os.path.samestat(path.lstat(), names.old.lstat()):
                remove(names.old)  # a rename between two links of one file does nothing
            else:
                names.old.replace(path)
    elif published:
        remove(path)
    remove(names.new)


class Journal:
    """The journal of an output, open and locked; see the module, and `open` for how to get one.

    Attributes:
        path: The journal.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def open(cls, output: Path) -> Journal | None:
        """Open the journal of an output, and put right what a killed run left; None where files cannot be locked.

        Args:
            output: The output; of several files, the last that is published.

        Raises:
            FileError: Another process is writing this output, or there can be no journal.
        """
        path = _path(output)
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            except OSError as error:
                raise FileError("cannot be written", where=str(path), found=error.strerror) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(path.lstat(), os.fstat(fd)):
                    break
            except FileNotFoundError:
                pass  # whoever held it has removed it meanwhile
            except OSError as error:
                os.close(fd)
                if error.errno == errno.EWOULDBLOCK:
                    raise FileError(
                        "another process is writing this output",
                        where=str(output),
                        hint="Wait until it has finished, or choose another name",
                    ) from None
                return None
            os.close(fd)
        journal = cls(path, fd)
        before = _read(path)
        try:
            if before is not None:
                _put_right(path.parent, before)
                os.ftruncate(fd, 0)
        except OSError as error:
            journal.leave()
            raise FileError("cannot be written", where=str(path), found=error.strerror) from error
        except FileError:
            journal.leave()
            raise
        return journal

    @staticmethod
    def recover(output: Path) -> None:
        """Put right what a killed run left of an output, if anything.

        Raises:
            FileError: Another process is writing this output.
        """
        if exists(_path(output)):
            journal = Journal.open(output)
            if journal is not None:
                journal.end()

    @staticmethod
    def left_by_killed(output: Path) -> frozenset[str]:
        """Names that a run which did not end gave to files of its own, where nothing was before."""
        line = _read(_path(output))
        if line is None:
            return frozenset()
        names = [
            record.name
            for index, record in enumerate(line.files)
            if _is_new(output.parent / record.name, hidden(output.parent, line.token, index), record.file)
            and not os.path.lexists(hidden(output.parent, line.token, index).old)
        ]
        return frozenset(() if line.files[-1].name in names else names)

    def write(self, token: str, files: Sequence[Record]) -> None:
        """Write down, on disk, what is true from now on.

        Args:
            token: What the hidden names of this run have in them.
            files: The files in the order of publication.

        Raises:
            OSError: The operating system refuses.
        """
        data = memoryview(msgspec.json.encode(_Line(token, list(files))) + b"\n")
        while data.nbytes:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def end(self) -> None:
        """Remove it: either everything is published, or nothing is left; ending twice is harmless."""
        if self._fd >= 0:
            remove(self.path)
            self.leave()

    def leave(self) -> None:
        """Let go of it and leave it to the next run: something could not be undone."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _path(output: Path) -> Path:
    """A name that is never too long, whatever the output's is."""
    return output.with_name(f".quantform-{hashlib.sha256(os.fsencode(output.name)).hexdigest()[:32]}.journal")


def _read(path: Path) -> _Line | None:
    """The last whole line of a journal; None without one, or where it is not ours."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        text = path.read_bytes()
    except OSError:
        return None
    last = None
    for data in text.splitlines(keepends=True):
        try:
            line = msgspec.json.decode(data if data.endswith(b"\n") else b"", type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            break  # the process was killed while it wrote this line, and did nothing that the line speaks of
        if not line.files or not _TOKEN.match(line.token) or not all(_is_plain(record.name) for record in line.files):
            break
        last = line
    return last


def _is_plain(name: str) -> bool:
    return name not in {"", ".", ".."} and not set(name) & {"/", "\0"}


def _put_right(directory: Path, line: _Line) -> None:
    """Finish what was published to the last file, and undo anything less."""
    files = [
        (directory / record.name, hidden(directory, line.token, index), record.file)
        for index, record in enumerate(line.files)
    ]
    path, _, file = files[-1]
    if _is_file(path, file):
        for _, names, _ in files:
            remove(names.new)
            remove(names.old)
        return
    for path, names, file in reversed(files):
        roll_back(path, names, published=_is_new(path, names, file))
    for path, names, _ in files:
        if os.path.lexists(names.old):
            raise FileError(
                "a process was killed while it replaced this file, and the old one cannot be put back",
                where=str(path),
                hint=f"Rename {names.old.name} to {path.name} yourself",
            )


def _is_new(path: Path, names: Hidden, file: Identity | None) -> bool:
    """Whether `path` is the new file, or an empty one that holds the name until the new one, still hidden, takes it."""
    try:
        return _is_file(path, file) or (os.path.lexists(names.new) and path.lstat().st_size == 0)
    except OSError:
        return False


def _is_file(path: Path, file: Identity | None) -> bool:
    """Whether `path` itself, not what a link points to, is that file."""
    try:
        return file is not None and identity(path.lstat()) == file
    except OSError:
        return False
