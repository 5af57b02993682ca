"""GGUF files: the texts of the header, padding, and the values of every tensor, in the order of the bytes."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from quantform.layouts.faults import byte_faults, read_through
from quantform.sources import GGUFSource, GGUFTensor
from quantform.sources.gguf import GGUFShard, Segment
from quantform.verify.checkpoint import read_tensor
from quantform.verify.reading import UNUSED_BYTES, Meter, watched
from quantform.verify.report import Finding, Report

__all__ = ["read_gguf"]


def read_gguf(report: Report, source: GGUFSource, known: set[str], meter: Meter) -> None:
    """Every byte behind the headers, and the texts in them."""
    total = sum(shard.size - min(shard.header_end, shard.size) for shard in source.shards)
    meter.expect(total, (len(source), "tensor"))
    for shard in source.shards:
        _read_metadata(report, shard)
        for segment in shard.segments():
            if segment.tensor is None:
                read = functools.partial(_read_rest, report, shard, segment, meter)
                report.attempt("structure", str(shard.path), read)
            else:
                tensor = segment.tensor
                read = functools.partial(_read_tensor, report, tensor, tensor.name in known, meter)
                report.attempt("structure", tensor.name, read)


def _read_tensor(report: Report, tensor: GGUFTensor, broken: bool, meter: Meter) -> None:
    meter.begin(tensor.name)
    if broken:  # its blocks are not known
        for _ in read_through(watched(tensor.read_stored_into, meter, (), tensor.stored_spans), 0, tensor.nbytes):
            pass
    else:
        read_tensor(report, tensor, meter)


def _read_rest(report: Report, shard: GGUFShard, segment: Segment, meter: Meter) -> None:
    """Bytes of no tensor: the header was read before; up to the next multiple of the alignment, they are zeros."""

    def place(offset: int) -> tuple[Path, int]:
        return shard.path, offset

    end = segment.offset + segment.nbytes
    begin, padded = shard.padding(segment)
    read = watched(shard.file.read_into, meter, (), shard.file.stored_spans)
    for faults in byte_faults(read_through(read, begin, padded), "a byte of padding is not zero", report.max_findings):
        report.add_faults(str(shard.path), faults, place)
    if padded < end:
        _remark_unused(report, shard, padded, end, meter)


def _remark_unused(report: Report, shard: GGUFShard, begin: int, end: int, meter: Meter) -> None:
    """One remark on bytes that no tensor has; they mean nothing, so that no more of them are read than tells what."""
    read = watched(shard.file.read_into, meter, (), shard.file.stored_spans)
    others, last = 0, min(end, begin + UNUSED_BYTES)
    for _, data in read_through(read, begin, last):
        others += int(np.count_nonzero(data))
    if last < end:
        meter.passed(last, end)
    seen = f", {others} of {'them' if last == end else f'the first {last - begin}'} not zero"
    problem = f"{end - begin} bytes from byte {begin} on belong to no tensor{seen}"
    report.add(Finding("unused", str(shard.path), problem, str(shard.path), begin))


def _read_metadata(report: Report, shard: GGUFShard) -> None:
    for key in shard.metadata:
        report.attempt("metadata", f"{shard.path.name}, {key}", functools.partial(shard.metadata.check, key))
