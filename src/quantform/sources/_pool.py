"""Many files of which few are open at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantform._files import Identity, MappedFile
from quantform.errors import ChangedFileError, FileError

__all__ = ["FilePool"]


class FilePool:
    """Opens files when they are needed and keeps the last few open.

    Args:
        limit: Files that stay open while nobody reads them.
    """

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, MappedFile] = OrderedDict()
        self._readers: dict[Path, int] = {}
        self._known: dict[Path, Identity] = {}
        self._closed = False

    @contextmanager
    def using(self, path: Path) -> Iterator[MappedFile]:
        """The open file, which stays open until the block ends.

        Raises:
            FileError: It cannot be read, or the pool is closed.
            ChangedFileError: It is not the file any more that it was.
        """
        with self._lock:
            file = self._get(path)
            self._readers[path] = self._readers.get(path, 0) + 1
        try:
            yield file
        finally:
            with self._lock:
                self._readers[path] -= 1
                self._trim(self._limit)

    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid."""
        with self._lock:
            self._closed = True
            while self._open:
                self._open.popitem()[1].close()

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return len(self._open)

    def _get(self, path: Path) -> MappedFile:
        if self._closed:
            raise FileError("the file is closed", where=str(path), hint="Read inside the `with` block")
        file = self._open.get(path)
        if file is None:
            file = self._opened(path)
            if self._known.setdefault(path, file.identity) != file.identity:
                file.close()
                raise ChangedFileError("the file changed since it was opened", where=str(path), file=path)
            self._open[path] = file
        self._open.move_to_end(path)
        return file

    def _opened(self, path: Path) -> MappedFile:
        try:
            return MappedFile(path)
        except FileError as error:
            if path not in self._known:
                raise
            problem = "the file cannot be opened any more, which it could be"
            raise ChangedFileError(problem, where=str(path), found=error.problem, file=path) from error

    def _trim(self, limit: int) -> None:
        for path in [path for path in self._open if not self._readers[path]]:
            if len(self._open) <= limit:
                break
            self._open.pop(path).close()
