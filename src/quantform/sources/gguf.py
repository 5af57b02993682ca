"""GGUF files as sources of tensors: one file, or the parts of a split model joined."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantform._sizes import align_up, counted, product
from quantform.errors import GGUFError
from quantform.sources._protocol import Source
from quantform.sources.gguf_metadata import GGUFArray, GGUFMetadata
from quantform.sources.gguf_placement import Placement, place_tensors
from quantform.sources.gguf_split import open_files
from quantform.sources.gguf_tensor import GGUFTensor

if TYPE_CHECKING:
    from quantform._files import MappedFile
    from quantform.sources.gguf_header import GGUFHeader

__all__ = ["GGUFArray", "GGUFMetadata", "GGUFShard", "GGUFSource", "GGUFTensor", "Segment"]

_ORIGINAL_SHAPE_KEY = "comfy.gguf.orig_shape."
_ORIGINAL_RANK_MAX = 16


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a file: the bytes of one tensor, or bytes that belong to none.

    Attributes:
        offset: First byte in the file.
        nbytes: Bytes from there on, never zero.
        tensor: The tensor; None for the header and for padding.
    """

    offset: int
    nbytes: int
    tensor: GGUFTensor | None


@dataclass(frozen=True, slots=True)
class GGUFShard:
    """One file of a source.

    Attributes:
        file: The open file.
        header: What stands before its data.
        tensors: Its tensors, in the order of the header.
    """

    file: MappedFile
    header: GGUFHeader
    tensors: tuple[GGUFTensor, ...]

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    @property
    def header_end(self) -> int:
        """First byte after the last tensor's entry, where padding begins."""
        return self.header.end

    @property
    def data_offset(self) -> int:
        """Where the data begins, from which tensors' offsets count; never beyond the file."""
        return self.header.data_offset

    @property
    def metadata(self) -> GGUFMetadata:
        """This file's own metadata."""
        return self.header.metadata

    def segments(self) -> Iterator[Segment]:
        """The whole file in order, every byte once: tensors and what lies between them."""
        at = 0
        for tensor in sorted(self.tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
            if not tensor.nbytes:
                continue
            if tensor.offset > at:
                yield Segment(at, tensor.offset - at, None)
            yield Segment(tensor.offset, tensor.nbytes, tensor)
            at = tensor.offset + tensor.nbytes
        if at < self.size:
            yield Segment(at, self.size - at, None)

    def padding(self, segment: Segment) -> tuple[int, int]:
        """Where padding begins and ends in a segment without a tensor: behind the header, up to the alignment."""
        end = segment.offset + segment.nbytes
        begin = max(segment.offset, min(self.header_end, end))
        return begin, min(align_up(begin, self.header.alignment), end)


class GGUFSource(Source[GGUFTensor]):
    """An open GGUF model: a mapping of names to tensors, in the order of its headers.

    Versions 2 and 3, either byte order. Opening reads and checks the headers; data is mapped and read when asked for.

    Args:
        path: The file, or any part of a split model whose other parts lie beside it.

    Attributes:
        kind: `"gguf"`.
        path: The path that was opened.
        files: Every file, in the order of `split.no`.
        shards: The same with their headers and tensors.
        metadata: The first file's; a part's own is in its shard.

    Raises:
        FileError: A file cannot be read.
        GGUFError: A file breaks the rules of its format, or parts do not belong together.
        TruncatedFileError: A file ends before what it declares.
    """

    kind = "gguf"
    metadata: GGUFMetadata

    def __init__(self, path: str | os.PathLike[str]) -> None:
        opened = open_files(path)
        try:
            self.shards = _shards(opened)
            self._tensors = _join(self.shards)
        except BaseException:
            for file, _ in opened:
                file.close()
            raise
        self.path = Path(path)
        self.files = tuple(shard.path for shard in self.shards)
        self.metadata = self.shards[0].metadata

    @property
    def version(self) -> int:
        """The GGUF version of the first file."""
        return self.shards[0].header.version

    @property
    def big_endian(self) -> bool:
        """Whether the first file is big-endian."""
        return self.shards[0].header.big_endian

    @property
    def alignment(self) -> int:
        """What tensors' offsets are multiples of in the first file."""
        return self.shards[0].header.alignment

    def describe(self) -> str:
        """Version, byte order if it is the rare one, number of tensors and of files."""
        order = ", big-endian" if self.big_endian else ""
        files = f" in {len(self.files)} files" if len(self.files) > 1 else ""
        return f"GGUF version {self.version}{order}, {counted(len(self), 'tensor')}{files}"

    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid; metadata and tensors cannot be read any more."""
        for shard in self.shards:
            shard.file.close()

    def __repr__(self) -> str:
        return f"<GGUFSource {str(self.path)!r}, {len(self)} tensors>"


def _shards(opened: Sequence[tuple[MappedFile, GGUFHeader]]) -> tuple[GGUFShard, ...]:
    placed = [(file, header, place_tensors(file, header)) for file, header in opened]
    disputes = _disputes(placement for _, _, placements in placed for placement in placements)
    first = opened[0][1].metadata
    return tuple(
        GGUFShard(
            file,
            header,
            tuple(
                GGUFTensor(
                    file,
                    placement,
                    _shape(placement, (header.metadata, first)),
                    big_endian=header.big_endian,
                    dispute=disputes.get(placement.type.id),
                )
                for placement in placements
            ),
        )
        for file, header, placements in placed
    )


def _disputes(placements: Iterator[Placement]) -> Mapping[int, str]:
    """The unsettled types whose block size a span contradicts, with the first such tensor as the reason."""
    disputes: dict[int, str] = {}
    for placement in placements:
        record = placement.type
        if record.settled or record.values is None or placement.agrees or placement.nbytes == 0:
            continue
        name = placement.info.name
        if placement.nbytes is None:
            reason = f"the rows of {name!r}, shape {list(placement.info.shape)}, are not blocks of {record.values}"
        else:
            reason = f"{name!r} has {placement.span} bytes where they would take {placement.nbytes}"
        disputes.setdefault(record.id, reason)
    return disputes


def _shape(placement: Placement, sources: Sequence[GGUFMetadata]) -> tuple[int, ...]:
    """The original shape that the metadata gives, if it can be one; else the stored shape."""
    stored = placement.info.shape
    key = _ORIGINAL_SHAPE_KEY + placement.info.name
    metadata = next((candidate for candidate in sources if key in candidate), None)
    if metadata is None:
        return stored
    # The type is looked at before the value: a string there may be one that cannot be read.
    element = metadata.field(key).element
    if element is None or "int" not in element.name:
        return stored
    value = metadata[key]
    if not isinstance(value, GGUFArray) or len(value) > _ORIGINAL_RANK_MAX:
        return stored
    shape = tuple(value)
    same_elements = product(shape) == product(stored) and all(dimension >= 0 for dimension in shape)
    return shape if same_elements and product(filter(None, shape)) < 2**60 else stored


def _join(shards: Sequence[GGUFShard]) -> Mapping[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise GGUFError(
                    f"tensor {tensor.name!r} appears in two parts of the model",
                    where=str(shard.path),
                    found=f"another in {other.file.path}",
                )
    return tensors
