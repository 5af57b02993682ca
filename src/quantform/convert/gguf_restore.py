"""`.ninfer` back to the GGUF files that it was made from, byte for byte.

The frame of each file gives its header, which says where each tensor lies and in which type; the artifact gives the
words. What was cast exactly is cast back; what was decoded or rounded is gone, and refused by name. The digest that
was recorded when the artifact was made has the last word before anything is published.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantform._progress import Progress
from quantform._publish import NewFiles
from quantform._report import Report
from quantform._scalars import SCALARS
from quantform.convert.gguf_carried import FRAME
from quantform.convert.gguf_skeleton import Skeleton, original_files, part_paths, scratch_directory
from quantform.convert.own_words import home_of
from quantform.convert.recorded import MAIN, RecordedFile
from quantform.convert.streams import Cast, Copy, Stream
from quantform.errors import ArtifactError, UnsupportedError
from quantform.formats import FORMATS, block_format
from quantform.packed import PROFILES
from quantform.sources import GGUFSource, GGUFTensor, NinferSource
from quantform.sources.gguf import GGUFShard

__all__ = ["kept_as", "restore_gguf"]

Bytes = npt.NDArray[np.uint8]

_LISTED = 8


def restore_gguf(source: NinferSource, output: Path, *, force: bool, progress: Progress) -> Report:
    """Write the files; see `quantform.convert.convert`.

    A split model comes back in as many files: `NAME.gguf` gives `NAME-00001-of-00003.gguf` and so on.
    """
    text = source.components.get(MAIN)
    if text is None or FRAME not in text.resources:
        raise UnsupportedError(
            "the artifact was not made from a GGUF file by quantform",
            where=str(source.path),
            expected=f"a resource with the role {FRAME!r}",
            hint="Only such an artifact has what is needed to give the GGUF file back",
        )
    originals = original_files(source, MAIN)
    with ExitStack() as stack:
        frames = Skeleton(source, MAIN, originals, scratch_directory(stack))
        for index in range(len(originals)):
            offset = 0
            for data in frames.read(index):
                frames.take(index, offset, data)
                offset += data.size
        skeleton = stack.enter_context(frames.open())
        streams = _streams(source, skeleton)
        paths = part_paths(output, len(originals))
        files = NewFiles(paths, force=force, sources=source.files)
        try:
            files.create([shard.size for shard in skeleton.shards])
            total, done = sum(shard.size for shard in skeleton.shards), 0
            for index, (shard, original) in enumerate(zip(skeleton.shards, originals, strict=True)):
                digest, at = hashlib.sha256(), 0
                for data in _file(frames, index, shard, streams):
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


def _streams(source: NinferSource, skeleton: GGUFSource) -> dict[str, Stream]:
    """How each tensor's payload comes from the artifact's words."""
    streams: dict[str, Stream] = {}
    gone: list[str] = []
    for name, tensor in skeleton.items():
        if not tensor.nbytes:
            continue
        stored = source[name]
        wanted, scalar = kept_as(tensor), SCALARS.get(tensor.format)
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


def kept_as(tensor: GGUFTensor) -> str | None:
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


def _file(frames: Skeleton, index: int, shard: GGUFShard, streams: dict[str, Stream]) -> Iterator[Bytes]:
    """One original file from its first byte to its last."""
    frame_at = 0
    for segment in shard.segments():
        if segment.tensor is None:
            yield from frames.read(index, frame_at, segment.nbytes)
            frame_at += segment.nbytes
        else:
            for data in streams[segment.tensor.name]:
                yield segment.tensor.reordered(data)


def _check_digest(source: NinferSource, original: RecordedFile, digest: str) -> None:
    if digest != original.sha256:
        raise ArtifactError(
            "the artifact does not give the original file back",
            where=str(source.path),
            expected=f"SHA-256 {original.sha256}",
            found=digest,
            hint="Values were rounded when it was made, or its bytes have changed since; "
            "`quantform verify --against` the original tells which tensors differ",
        )
