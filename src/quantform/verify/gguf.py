"""GGUF files: the texts of the header, padding, and the values of every tensor, in the order of the bytes."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from quantform._progress import Progress
from quantform._sizes import align_up
from quantform.errors import QuantformError
from quantform.layouts.faults import byte_faults, read_through
from quantform.sources import GGUFSource, GGUFTensor
from quantform.sources.gguf import GGUFArray, GGUFShard, Segment
from quantform.verify.checkpoint import read_tensor
from quantform.verify.reading import Meter, watched
from quantform.verify.report import Finding, Report, of_error

__all__ = ["read_gguf"]


def read_gguf(report: Report, source: GGUFSource, known: set[str], progress: Progress) -> Meter:
    """Every byte behind the headers, and the texts in them."""
    total = sum(shard.size - min(shard.header_end, shard.size) for shard in source.shards)
    meter = Meter(progress, total, (len(source), "tensor"))
    for shard in source.shards:
        _read_metadata(report, shard)
        for segment in shard.segments():
            if segment.tensor is None:
                _read_rest(report, shard, segment, meter)
            else:
                _read_tensor(report, segment.tensor, segment.tensor.name in known, meter)
    return meter


def _read_tensor(report: Report, tensor: GGUFTensor, broken: bool, meter: Meter) -> None:
    meter.begin(tensor.name)
    if broken:  # its blocks are not known
        for _ in read_through(watched(tensor.read_stored_into, meter), 0, tensor.nbytes):
            pass
    else:
        read_tensor(report, tensor, meter)


def _read_rest(report: Report, shard: GGUFShard, segment: Segment, meter: Meter) -> None:
    """Bytes of no tensor: the header was read before; up to the next multiple of the alignment, they are zeros."""

    def place(offset: int) -> tuple[Path, int]:
        return shard.path, offset

    end = segment.offset + segment.nbytes
    begin = max(segment.offset, min(shard.header_end, end))
    padded = min(align_up(begin, shard.header.alignment), end)
    read = watched(shard.file.read_into, meter)
    for at, data in read_through(read, begin, padded):
        for faults in byte_faults(data, at, "a byte of padding is not zero", report.max_findings):
            report.add_faults(str(shard.path), faults, place)
    others = sum(int((data != 0).sum()) for _, data in read_through(read, padded, end))
    if padded < end:
        problem = f"{end - padded} bytes from byte {padded} on belong to no tensor, {others} of them not zero"
        report.add(Finding("unused", str(shard.path), problem, str(shard.path), padded))


def _read_metadata(report: Report, shard: GGUFShard) -> None:
    for key in shard.metadata:
        try:
            _look_at(shard.metadata[key])
        except QuantformError as error:
            report.add(of_error("metadata", f"{shard.path.name}, {key}", error))


def _look_at(value: object) -> None:
    """Read every text and boolean of a value; any other number is legal."""
    if not isinstance(value, GGUFArray):
        return
    if value.element_type == "string":
        deque(value, maxlen=0)
    elif value.element_type == "array":
        for inner in value:
            _look_at(inner)
    else:
        value.numpy()
