"""Frames: that the bytes carried along from a GGUF file are those of one whose tensors are the artifact's parameters.

What they are held to is what the way back asks for (`convert.gguf_restore`), as far as no other file is needed. The
frames' bytes are looked at as they are read with the rest of the payload.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantform._sizes import counted
from quantform.compare.pairing import alike
from quantform.convert.gguf_carried import FRAME, frame_role, gguf_carried
from quantform.convert.gguf_restore import kept_as
from quantform.convert.gguf_skeleton import Skeleton, original_files, scratch_directory
from quantform.convert.own_words import held_by
from quantform.convert.recorded import MAIN, recorded_sources
from quantform.errors import ArtifactError, FileError
from quantform.formats import FORMATS, GgufFormat
from quantform.layouts.faults import read_through
from quantform.sources import GGUFSource, GGUFTensor, NinferSource
from quantform.verify.carried import compare_carried
from quantform.verify.reading import Observer
from quantform.verify.report import Finding, Report, of_error

__all__ = ["FrameCheck", "frame_checks"]

Bytes = npt.NDArray[np.uint8]


class FrameCheck:
    """The frames of one component, gathered as their bytes are read, and checked when all have been.

    Args:
        source: The artifact.
        component: A component with frames.
        scratch: An empty directory.

    Raises:
        ArtifactError: The artifact does not say what files it was made from.
    """

    def __init__(self, source: NinferSource, component: str, scratch: Path) -> None:
        self._source = source
        self._component = component
        files = original_files(source, component)
        self._skeleton = Skeleton(source, component, files, scratch)
        self._rest = [self._skeleton.record(index).nbytes for index in range(len(files))]
        self._failed: FileError | None = None

    def observers(self) -> Iterator[tuple[str, Observer]]:
        """For each frame, its resource's id and what wants to see its bytes."""
        for index in range(len(self._rest)):
            yield self._skeleton.record(index).id, functools.partial(self._take, index)

    def conclude(self, report: Report) -> None:
        """Report what is wrong, unless a frame could not be read, which is known by now.

        Raises:
            FileError: The temporary directory has no room for the frames.
        """
        if any(self._rest):
            return
        try:
            if self._failed is not None:
                raise self._failed
            skeleton = self._skeleton.open()
        except ArtifactError as error:
            report.add(of_error("frame", self._skeleton.record(0).id, error))
            return
        with skeleton:
            for tensor in skeleton.values():
                self._check_tensor(report, tensor)
            for index in range(len(skeleton.shards)):
                self._remark_padding(report, skeleton, index)
            frames = {frame_role(index) for index in range(len(self._rest))}
            compare_carried(report, self._source, gguf_carried(skeleton, self._component), "frame", without=frames)
        report.checked["frames"] += len(self._rest)

    def _take(self, index: int, offset: int, data: Bytes) -> None:
        self._rest[index] -= data.size
        if self._failed is None:
            try:
                self._skeleton.take(index, offset, data)
            except FileError as error:
                self._failed = error  # told at the end: it is no fault of the object that is being read

    def _check_tensor(self, report: Report, tensor: GGUFTensor) -> None:
        if not tensor.nbytes:  # nothing is stored of it
            return
        name = tensor.name if self._component == MAIN else f"{self._component}/{tensor.name}"
        if name not in self._source:
            report.add(Finding("frame", name, "missing; the frame has a tensor of that name"))
            return
        stored = self._source[name]
        expected, found = str(list(tensor.shape)), str(list(stored.shape))
        if alike(tensor, stored) is None:
            self._report(report, "frame", name, "the shape is not the one that the frame has", expected, found)
            return
        if expected != found:  # the rows of its objects are right
            self._report(report, "shape", name, "the shape that the frame has is not recorded", expected, found)
        expected, found = str(kept_as(tensor)), stored.format
        record = FORMATS.get(found)
        # No method makes blocks, or reads what is not decoded: such words are the source's own, or another one's.
        kept = isinstance(record, GgufFormat) or not tensor.decodable
        held = expected == found or (record is not None and held_by(tensor, record))
        if kept and not held and not self._has_more_sources():
            self._report(report, "frame", name, f"the frame has a {tensor.type_name} tensor", expected, found)

    def _report(self, report: Report, rule: str, name: str, problem: str, expected: str, found: str) -> None:
        problem = f"{problem}; expected {expected}, found {found}"
        report.add(Finding(rule, name, problem, expected=expected, found=found))

    def _has_more_sources(self) -> bool:
        provenance = self._source.directory.provenance
        nested = (one.get("provenance") for one in recorded_sources(provenance, MAIN))
        others = {"sources", "components"}
        return any(isinstance(one, dict) and not others.isdisjoint(one) for one in (provenance, *nested))

    def _remark_padding(self, report: Report, skeleton: GGUFSource, index: int) -> None:
        """Padding is zeros up to the next multiple of the alignment; what else there was came along unchanged."""
        artifact, record = self._source.artifact, self._skeleton.record(index)
        shard, at, count, where = skeleton.shards[index], 0, 0, -1
        for segment in shard.segments():
            if segment.tensor is not None:
                continue
            begin, padded = shard.padding(segment)
            shift = at - segment.offset
            for offset, data in read_through(artifact.object_reader(record.id), begin + shift, padded + shift):
                if data.any():
                    where = offset + int((data != 0).argmax()) if where < 0 else where
                    count += int(np.count_nonzero(data))
            at += segment.nbytes
        if count:
            path, place = artifact.locate(record.offset + where)
            problem = f"{counted(count, 'byte')} of the GGUF file's padding not zero, the first at byte {where}"
            report.add(Finding("unused", record.id, problem, str(path), place))


def frame_checks(report: Report, source: NinferSource, stack: ExitStack) -> Iterator[FrameCheck]:
    """A check for each component that has frames; `stack` holds their temporary files."""
    for name, component in source.components.items():
        if FRAME in component.resources:
            try:
                yield FrameCheck(source, name, scratch_directory(stack))
            except ArtifactError as error:
                report.add(of_error("frame", component.resources[FRAME], error))
