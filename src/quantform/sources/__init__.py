"""Where weights come from: one bounded, lazy reader a file format, all behind the face of `_protocol.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantform._files import MappedFile, is_directory
from quantform.errors import ArgumentError, FileError, MissingExtraError, QuantformError
from quantform.sources._protocol import Source, Tensor
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import Checkpoint, is_code
from quantform.sources.gguf import GGUFSource, GGUFTensor
from quantform.sources.ninfer import NinferSource, NinferTensor
from quantform.sources.safetensors import SafetensorsSource, SafetensorsTensor
from quantform.sources.safetensors_files import looks_like_safetensors
from quantform.sources.values_views import ColumnsView, TransposedView, ValuesView
from quantform.sources.views import RowsView, concatenate, gather, select_rows, stack, transpose

__all__ = [
    "ArraySource",
    "Checkpoint",
    "ColumnsView",
    "GGUFSource",
    "GGUFTensor",
    "NinferSource",
    "NinferTensor",
    "RowsView",
    "SafetensorsSource",
    "SafetensorsTensor",
    "Source",
    "Tensor",
    "TransposedView",
    "ValuesView",
    "concatenate",
    "gather",
    "open_source",
    "select_rows",
    "stack",
    "transpose",
]

_MAGICS: tuple[tuple[bytes, Callable[[Path], Source[Any]]], ...] = ((b"GGUF", GGUFSource), (b"NINFER\0", NinferSource))


def open_source(path: str | os.PathLike[str]) -> Source[Any]:
    """Open a file of tensors, told by its first bytes.

    GGUF (any file of a split model), safetensors (a file, an index, or a directory), `.ninfer` (the entry file).
    ONNX (told by its suffix `.onnx`) needs the extra `onnx`.
    A safetensors checkpoint with quantized weights is a `Checkpoint`: they are put together, and the tensors that make
    them up do not appear; `SafetensorsSource` gives these. One without is a `SafetensorsSource`.

    Returns:
        A mapping of names to tensors, to be used as a context manager. Only headers have been read.

    Raises:
        ArgumentError: `path` is no path, or empty.
        FileError: The file cannot be read, is of no known kind, or breaks the rules of its format; or there are codes
            and the config that says what they mean is malformed.
        MissingExtraError: It is an ONNX model, and the extra `onnx` is not installed.
        UnsupportedError: There are codes, and the config that says what they mean holds a pattern that is not read.
    """
    try:
        target = Path(path)
    except TypeError:
        raise ArgumentError("not a path", expected="text or os.PathLike", found=repr(path)) from None
    if path == "":  # which Path takes for the working directory
        raise ArgumentError("the path is empty", expected="a file or directory")
    if is_directory(target) or target.name.endswith((".safetensors", ".safetensors.index.json")):
        return _safetensors(target)
    if target.suffix.lower() == ".onnx":
        return _onnx(target)
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
    if looks_like_safetensors(target):
        return _safetensors(target)
    raise FileError(
        "not a file of tensors",
        where=str(target),
        expected="the magic 'GGUF' or 'NINFER', a safetensors header, or the suffix .onnx",
        found=repr(head) if head else "an empty file",
    )


def _onnx(path: Path) -> Source[Any]:
    try:
        from quantform.sources.onnx_model import OnnxSource  # noqa: PLC0415 - only those with the extra can
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise MissingExtraError(
            "reading an ONNX model needs the package onnx, which is not installed",
            where=str(path),
            hint="Install the extra: pip install 'quantform[onnx]'",
        ) from error
    return OnnxSource(path)


def _safetensors(path: Path) -> Source[Any]:
    source = SafetensorsSource(path)
    try:
        checkpoint = Checkpoint(source)
    except QuantformError:
        # A config that nobody can understand matters only where it would say what codes mean.
        if not any(is_code(tensor) for tensor in source.values()):
            return source
        source.close()
        raise
    except BaseException:
        source.close()
        raise
    return checkpoint if checkpoint.weights or checkpoint.dropped else source
