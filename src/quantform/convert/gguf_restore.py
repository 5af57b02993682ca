"""`.ninfer` back to the GGUF files that it was made from, byte for byte.

The frame of each file gives its header, which says where each tensor lies and in which type; the artifact gives the
words. What was cast exactly is cast back; what was decoded or rounded is gone, and refused by name. The digest that
was recorded when the artifact was made has the last word before anything is published.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._progress import Progress
from quantform._publish import NewFiles
from quantform._report import Report
from quantform._scalars import SCALARS
from quantform._sizes import U64_MAX, pieces
from quantform.convert.gguf_carried import FRAME, frame_role
from quantform.convert.own_words import home_of
from quantform.convert.streams import Cast, Copy, Stream
from quantform.errors import ArtifactError, FileError, QuantformError, UnsupportedError
from quantform.formats import FORMATS, block_format
from quantform.packed import PROFILES
from quantform.sources import GGUFSource, GGUFTensor, NinferSource
from quantform.sources.gguf import GGUFShard

__all__ = ["restore_gguf"]

Bytes = npt.NDArray[np.uint8]

_PART_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_LISTED = 8


def restore_gguf(source: NinferSource, output: Path, *, force: bool, progress: Progress) -> Report:
    """Write the files; see `quantform.convert.convert`.

    A split model comes back in as many files: `NAME.gguf` gives `NAME-00001-of-00003.gguf` and so on.
    """
    originals = _originals(source)
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quantform-", ignore_cleanup_errors=True))
        )
        skeleton = stack.enter_context(_skeleton(source, scratch, originals))
        streams = _streams(source, skeleton)
        paths = _part_paths(output, len(originals))
        files = NewFiles(paths, force=force, sources=source.files)
        files.create([shard.size for shard in skeleton.shards])
        try:
            total, done = sum(shard.size for shard in skeleton.shards), 0
            for index, (shard, original) in enumerate(zip(skeleton.shards, originals, strict=True)):
                digest, at = hashlib.sha256(), 0
                for data in _file(source, index, shard, streams):
                    files.write(index, at, data.data)
                    digest.update(data.data)
                    at += data.size
                    progress(done + at, total, paths[index].name)
                done += at
                _check_digest(source, original, digest.hexdigest())
            progress(total, total, "publishing")
            files.publish()
        except BaseException:
            files.abort()
            raise
    ways = Counter(
        "words kept" if isinstance(stream, Copy) else f"cast back to {stream.target.name}"
        for stream in streams.values()
        if isinstance(stream, (Copy, Cast))
    )
    return Report([(path, path.stat().st_size) for path in paths], ways)


def _originals(source: NinferSource) -> list[dict[str, Any]]:
    """Name, size and digest of each file that the artifact was made from, as provenance records them."""
    text = source.components.get("text")
    if text is None or FRAME not in text.resources:
        raise UnsupportedError(
            "the artifact was not made from a GGUF file by quantform",
            where=str(source.path),
            expected=f"a resource with the role {FRAME!r}",
            hint="Only such an artifact has what is needed to give the GGUF file back",
        )
    provenance = source.directory.provenance or {}
    recorded = provenance.get("source")
    while isinstance(recorded, dict) and recorded.get("kind") == "ninfer":  # an artifact made from another
        before = recorded.get("provenance")
        recorded = before.get("source") if isinstance(before, dict) else None
    files = recorded.get("files") if isinstance(recorded, dict) else None
    if (
        not isinstance(files, list)
        or not files
        or not all(
            isinstance(file, dict)
            and type(file.get("bytes")) is int
            and 0 <= file["bytes"] <= U64_MAX
            and isinstance(file.get("sha256"), str)
            and frame_role(index) in text.resources
            for index, file in enumerate(files)
        )
    ):
        raise ArtifactError(
            "the provenance does not describe the original files",
            where=f"{source.path}, $.provenance.source.files",
            expected="records with 'bytes' and 'sha256', and a frame for each",
        )
    return files


def _skeleton(source: NinferSource, scratch: Path, originals: list[dict[str, Any]]) -> GGUFSource:
    """The original files without their tensors' bytes: as long as they were, holes included, and opened.

    Reading them back checks the frames by the rules that every GGUF file is checked by.
    """
    paths = _part_paths(scratch / "model.gguf", len(originals))
    for index, (path, original) in enumerate(zip(paths, originals, strict=True)):
        try:
            with path.open("xb") as file:
                # The header is a prefix of the frame; what follows lands where tensors will be and is not looked at.
                for data in _resource(source, frame_role(index)):
                    file.write(data.data)
                    if file.tell() > original["bytes"]:
                        break
                file.truncate(original["bytes"])
        except (OSError, OverflowError) as error:
            if isinstance(error, QuantformError):
                raise
            raise FileError(
                f"the frame of original file {index + 1} cannot be laid out in the temporary directory",
                where=str(scratch),
                expected=f"room for a sparse file of {original['bytes']} bytes",
                found=getattr(error, "strerror", None) or str(error),
                hint="Free some space there, or let TMPDIR name another directory",
            ) from error
    try:
        skeleton = GGUFSource(paths[0])
    except QuantformError as error:
        raise ArtifactError(
            "the frame is not the header of the original file", where=str(source.path), found=error.problem
        ) from error
    if len(skeleton.shards) != len(originals):
        skeleton.close()
        raise ArtifactError(
            "the frame's own header knows of another number of files",
            where=f"{source.path}, $.provenance.source.files",
            expected=len(skeleton.shards),
            found=len(originals),
        )
    for index, shard in enumerate(skeleton.shards):
        frame = sum(segment.nbytes for segment in shard.segments() if segment.tensor is None)
        if frame != _resource_bytes(source, frame_role(index)):
            skeleton.close()
            raise ArtifactError(
                "the frame does not fit the original file",
                where=f"{source.path}, resource {frame_role(index)!r}",
                expected=f"{frame} bytes",
                found=f"{_resource_bytes(source, frame_role(index))} bytes",
            )
    return skeleton


def _streams(source: NinferSource, skeleton: GGUFSource) -> dict[str, Stream]:
    """How each tensor's payload comes from the artifact's words."""
    streams: dict[str, Stream] = {}
    gone: list[str] = []
    for name, tensor in skeleton.items():
        if not tensor.nbytes:
            continue
        stored = source[name]
        wanted, scalar = _kept_as(tensor), SCALARS.get(tensor.format)
        if stored.format != wanted:
            gone.append(f"{name!r} ({tensor.type_name}, stored as {stored.format})")
            continue
        _check_size(source, tensor, stored.size)
        if scalar is not None and scalar.name != wanted:
            streams[name] = Cast(stored, SCALARS[stored.format], scalar, "exact")
        else:
            streams[name] = Copy(stored, tensor.unit_bytes)
    if gone:
        more = f" and {len(gone) - _LISTED} more" if len(gone) > _LISTED else ""
        raise UnsupportedError(
            f"the original words are not in the artifact: {', '.join(gone[:_LISTED])}{more}",
            where=str(source.path),
            hint="Where they were decoded or quantized when it was made, only the original file has them",
        )
    return streams


def _kept_as(tensor: GGUFTensor) -> str | None:
    """The format that holds the tensor's words when nothing was lost."""
    if tensor.format in PROFILES:
        return block_format(PROFILES[tensor.format]).name
    scalar = SCALARS.get(tensor.format)
    if scalar is None:
        return None
    return scalar.name if scalar.name in FORMATS else home_of(scalar)


def _check_size(source: NinferSource, tensor: GGUFTensor, elements: int) -> None:
    if elements != tensor.size:
        raise ArtifactError(
            "the parameter has not as many elements as the original tensor",
            where=f"{source.path}, parameter {tensor.name!r}",
            expected=tensor.size,
            found=elements,
        )


def _file(source: NinferSource, index: int, shard: GGUFShard, streams: dict[str, Stream]) -> Iterator[Bytes]:
    """One original file from its first byte to its last."""
    frame_at, role = 0, frame_role(index)
    for segment in shard.segments():
        if segment.tensor is None:
            yield from _resource(source, role, frame_at, segment.nbytes)
            frame_at += segment.nbytes
        else:
            for data in streams[segment.tensor.name]:
                yield segment.tensor.reordered(data)


def _resource_id(source: NinferSource, role: str) -> str:
    return source.components["text"].resources[role]


def _resource_bytes(source: NinferSource, role: str) -> int:
    return source.artifact.record(_resource_id(source, role)).nbytes


def _resource(source: NinferSource, role: str, first: int = 0, count: int | None = None) -> Iterator[Bytes]:
    read = source.artifact.object_reader(_resource_id(source, role))
    for offset, length in pieces(_resource_bytes(source, role) if count is None else count, 1):
        data = np.empty(length, np.uint8)
        read(first + offset, data)
        yield data


def _check_digest(source: NinferSource, original: dict[str, Any], digest: str) -> None:
    if digest != original["sha256"]:
        raise ArtifactError(
            "the artifact does not give the original file back",
            where=str(source.path),
            expected=f"SHA-256 {original['sha256']}",
            found=digest,
            hint="Values were rounded when it was made, or its bytes have changed since; "
            "`quantform verify --against` the original tells which tensors differ",
        )


def _part_paths(output: Path, count: int) -> list[Path]:
    if count == 1:
        return [output]
    stem = _PART_SUFFIX.sub("", output.stem)
    return [output.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
