"""SHA-256 of source files, computed beside the conversion instead of after it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from quantform._files import MappedFile

__all__ = ["PLACEHOLDER", "Digests"]

PLACEHOLDER = "0" * 64
"""As long as a digest: what stands in a directory until it is known."""

_PIECE_BYTES = 1 << 20


class Digests:
    """Reads whole files in a thread of its own; both readers of a file share the system's cache of it.

    A context manager: leaving it early stops the thread.

    Args:
        paths: The files, read one after another.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._found: list[str] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quantform-digests", daemon=True)

    def result(self) -> tuple[str, ...]:
        """Wait for the digests, 64 lower-case hex digits each, in the order of the paths.

        Raises:
            FileError: A file could not be read to its end.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return tuple(self._found)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        buffer = np.empty(_PIECE_BYTES, np.uint8)
        try:
            for path in self._paths:
                digest = hashlib.sha256()
                with MappedFile(path) as file:
                    for offset in range(0, file.size, _PIECE_BYTES):
                        if self._stop.is_set():
                            return
                        piece = buffer[: min(_PIECE_BYTES, file.size - offset)]
                        file.read_into(offset, piece)
                        digest.update(piece.data)
                self._found.append(digest.hexdigest())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
