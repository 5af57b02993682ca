"""Where the bytes of initializers go: they stay in a file that exists, or move to one beside the model, or into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from quantform._progress import Progress
from quantform._publish import NewFiles
from quantform._sizes import align_up, human_bytes, read_pieces
from quantform.errors import ArgumentError, UnsupportedError
from quantform.sources import GGUFSource, Tensor
from quantform.sources.onnx_file import MESSAGE_MAX, InitializerBytes

__all__ = ["DATA", "Blob", "check_data", "check_reference", "copied", "message_size", "write_model"]

Bytes = npt.NDArray[np.uint8]

DATA = ("reference", "copy", "inline")
"""Where weights can be: in the GGUF file, in a new file beside the model, in the model."""

_ALIGNMENT = 4096
_COPY = "copy the weights into a file of the model's own: --data copy (data='copy')"


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of one initializer.

    Attributes:
        name: The initializer.
        nbytes: How many there are, more than none.
        pieces: Gives them in order, a few megabytes at a time; a piece is valid until the next one is asked for.
        home: The file that has them as they are, and the first one's place there.
    """

    name: str
    nbytes: int
    pieces: Callable[[], Iterable[Bytes]]
    home: tuple[Path, int] | None = None


def copied(source: Tensor | InitializerBytes) -> Iterator[Bytes]:
    """A tensor's or an initializer's bytes in order."""
    for _, data in read_pieces(source.read_into, source.nbytes):
        yield data


def check_data(data: str) -> None:
    """Check that `data` is one of `DATA`.

    Raises:
        ArgumentError: It is not.
    """
    if data not in DATA:
        raise ArgumentError("data is no place for weights", expected=", ".join(DATA), found=repr(data))


def check_reference(source: GGUFSource, output: Path) -> None:
    """Check that a model at `output` may have a GGUF file as its external data.

    ONNX and its runtimes accept a file in the model's own directory that is no link; see the table in docs/onnx.md.

    Raises:
        UnsupportedError: It may not; says why and what to do.
    """
    path = source.files[0]
    where = str(path)
    if len(source.files) > 1:
        raise UnsupportedError(
            "the weights of a split model cannot be used where they are",
            where=where,
            expected="one file",
            found=f"{len(source.files)} files",
            hint=f"Join the parts, or {_COPY}",
        )
    if source.big_endian:
        raise UnsupportedError(
            "the weights of a big-endian file cannot be used where they are",
            where=where,
            hint=_COPY[0].upper() + _COPY[1:],
        )
    if path.is_symlink() or path.stat().st_nlink > 1:
        raise UnsupportedError(
            f"the GGUF file is a {'symbolic' if path.is_symlink() else 'hard'} link, which ONNX refuses as external "
            "data",
            where=where,
            hint=f"Write the model beside a real file ({path.resolve()}), or {_COPY}",
        )
    if path.parent.resolve() != output.parent.resolve():
        raise UnsupportedError(
            "the model is not beside the GGUF file, and ONNX looks for weights nowhere else",
            where=str(output),
            expected=f"an output in {path.parent.resolve()}",
            hint=f"Write the model there, or {_COPY}",
        )
    _check_location(path, f"Rename it, or {_COPY}")


def _check_location(path: Path, hint: str) -> None:
    """Check that a file's name can be where an initializer's data lies, for every program that reads the model."""
    name = path.name
    if ".." in name or {":", "\\", "/"} & set(name) or not name.isprintable():
        raise UnsupportedError(
            "the file's name cannot be a location in an ONNX model",
            where=repr(str(path)),
            expected="printable characters without ':', '\\' and '..'",
            found=repr(name),
            hint=hint,
        )


def write_model(
    model: onnx.ModelProto,
    blobs: Sequence[Blob],
    output: Path,
    *,
    data: str,
    sources: Sequence[Path],
    force: bool,
    progress: Progress,
) -> list[tuple[Path, int]]:
    """Write a model whose initializers in `blobs` have no data yet; their places are written into `model`.

    Args:
        model: The model; it is changed.
        blobs: The bytes of some of its initializers, in the order in which they are stored.
        output: The `.onnx` file.
        data: One of `DATA`; with `"reference"`, each blob has a home.
        sources: Files that are being read.
        force: Replace existing outputs.
        progress: Called as bytes are written.

    Returns:
        The files and their sizes, the model first.

    Raises:
        UnsupportedError: The model would be longer than a protobuf message can be, or the file beside it has a
            name that cannot be a location.
        OutputExistsError: An output exists and `force` is false.
        FileError: A file cannot be read or written.
    """
    beside = output.with_name(f"{output.name}.data")
    paths = [beside, output] if data == "copy" and blobs else [output]
    if beside in paths:
        _check_location(beside, "Give the model another name")
    files = NewFiles(paths, force=force, sources=sources)
    protos = {proto.name: proto for proto in model.graph.initializer}
    sizes: list[int] = []
    offsets: list[int] = []
    if data == "inline":
        _check_size(model, {blob.name: blob.nbytes for blob in blobs}, output)
        for blob in blobs:
            protos[blob.name].raw_data = b"".join(piece.tobytes() for piece in blob.pieces())
    elif data == "copy":
        end = 0
        for blob in blobs:
            offsets.append(align_up(end, _ALIGNMENT))
            end = offsets[-1] + blob.nbytes
            _set_external(protos[blob.name], beside.name, offsets[-1], blob.nbytes)
        sizes = [end] if blobs else []
    else:
        for blob in blobs:
            path, offset = blob.home or (output, 0)
            _set_external(protos[blob.name], path.name, offset, blob.nbytes)
    _check_size(model, {}, output)
    message = model.SerializeToString()
    try:
        files.create([*sizes, len(message)])
        total, done = sum(blob.nbytes for blob in blobs) if sizes else 0, 0
        for blob, offset in zip(blobs, offsets, strict=False):
            at = offset
            for piece in blob.pieces():
                progress(done + at - offset, total, blob.name)
                files.write(0, at, piece.data)
                at += piece.nbytes
            done += blob.nbytes
        files.write(len(paths) - 1, 0, memoryview(message))
        progress(total, total, "publishing")
        files.publish()
    except BaseException:
        files.abort()
        raise
    return list(zip(reversed(paths), reversed([*sizes, len(message)]), strict=True))


def _set_external(proto: TensorProto, location: str, offset: int, nbytes: int) -> None:
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(nbytes))):
        proto.external_data.add(key=key, value=value)


def _check_size(model: onnx.ModelProto, added: Mapping[str, int], output: Path) -> None:
    """Check that the message stays within protobuf's limit when initializers get `added` bytes of raw data."""
    size = message_size(model, added)
    if size > MESSAGE_MAX:
        raise UnsupportedError(
            "the model would be longer than an ONNX file can be",
            where=str(output),
            expected=f"at most {MESSAGE_MAX} bytes, protobuf's limit",
            found=f"{size} bytes ({human_bytes(size)})",
            hint="Keep the weights outside: --data reference or --data copy" if added else None,
        )


def message_size(model: onnx.ModelProto, added: Mapping[str, int]) -> int:
    """Bytes of the serialized model when some initializers without data get so many bytes of raw data."""
    grown = 0
    for proto in model.graph.initializer:
        if proto.name in added:
            before = proto.ByteSize()
            grown += _field(before + _field(added[proto.name])) - _field(before)
    graph = int(model.graph.ByteSize())
    return int(model.ByteSize()) - _field(graph) + _field(graph + grown)


def _field(nbytes: int) -> int:
    """Bytes of a field of `nbytes` with its number and its length; all the fields in question have small numbers."""
    return 1 + max(1, -(-nbytes.bit_length() // 7)) + nbytes
