"""Where weights come from: one bounded, lazy reader a file format, all behind the face of `_protocol.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantform._files import MappedFile
from quantform.errors import FileError
from quantform.sources._protocol import Source, Tensor
from quantform.sources.gguf import GGUFSource, GGUFTensor
from quantform.sources.ninfer import NinferSource, NinferTensor

__all__ = ["GGUFSource", "GGUFTensor", "NinferSource", "NinferTensor", "Source", "Tensor", "open_source"]

_MAGICS: tuple[tuple[bytes, Callable[[Path], Source[Any]]], ...] = ((b"GGUF", GGUFSource), (b"NINFER\0", NinferSource))


def open_source(path: str | os.PathLike[str]) -> Source[Any]:
    """Open a file of tensors, told by its first bytes: GGUF (any file of a split one) or `.ninfer` (the entry file).

    Returns:
        A mapping of names to tensors, to be used as a context manager. Only headers have been read.

    Raises:
        FileError: The file cannot be read, is of no known kind, or breaks the rules of its format.
    """
    target = Path(path)
    with MappedFile(target) as file:
        head = file.read(0, min(8, file.size))
    for magic, source in _MAGICS:
        if head.startswith(magic):
            return source(target)
    if head.startswith(b"NINPRT\0"):
        raise FileError(
            "a part of a .ninfer artifact, not its entry",
            where=str(target),
            hint="Open the entry file, whose name is this one's without '.part-NNNN'",
        )
    raise FileError(
        "not a file of tensors",
        where=str(target),
        expected="the magic 'GGUF' or 'NINFER'",
        found=repr(head) if head else "an empty file",
    )
