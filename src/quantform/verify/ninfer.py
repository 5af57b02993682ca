"""Artifacts: what the directory says, and then every byte of the payload in the order of the files."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from quantform._spans import Span, moved
from quantform.container import Artifact, ObjectRecord, TensorRecord
from quantform.formats import FORMATS, DirectFormat, GgufFormat
from quantform.layouts import LAYOUTS
from quantform.layouts.faults import byte_faults, read_through
from quantform.sources import NinferSource
from quantform.verify.auxiliaries import auxiliary_observers, check_uses
from quantform.verify.directory import remark_directory
from quantform.verify.frame import frame_checks
from quantform.verify.methods import remark_methods
from quantform.verify.reading import Meter, Observer, ValueCounter, watched
from quantform.verify.report import Report
from quantform.verify.zeros import ZeroPages

__all__ = ["check_artifact", "read_artifact"]


def check_artifact(report: Report, source: NinferSource) -> set[str]:
    """Files, objects, uses. The ids of objects and the paths of files that are wrong."""
    artifact = source.artifact
    wrong = set()
    for index, path in enumerate(artifact.files):
        if not report.attempt("files", str(path), functools.partial(artifact.check_file, index)):
            wrong.add(str(path))
    for identifier in artifact.objects:
        if not report.attempt("structure", identifier, functools.partial(source.check, identifier)):
            wrong.add(identifier)
    report.checked["objects"] = len(artifact.objects)
    report.checked["uses"] = len(source.uses)
    check_uses(report, source)
    remark_directory(report, source)
    remark_methods(report, source)
    return wrong


def read_artifact(report: Report, source: NinferSource, known: set[str], meter: Meter) -> None:
    """Every byte of the payload, but those of files that are not there."""
    artifact = source.artifact
    missing = {index for index, path in enumerate(artifact.files) if str(path) in known}
    meter.expect(artifact.payload_bytes, (len(artifact.objects), "object"))
    watching: dict[str, list[Observer]] = defaultdict(list)
    for id, observer in auxiliary_observers(report, source):
        watching[id].append(observer)
    with ExitStack() as stack:
        frames = list(frame_checks(report, source, stack))
        for frame in frames:
            for id, observer in frame.observers():
                watching[id].append(observer)
        _read_payload(report, artifact, known, missing, watching, meter)
        for frame in frames:
            frame.conclude(report)


def _read_payload(
    report: Report,
    artifact: Artifact,
    known: set[str],
    missing: set[int],
    watching: Mapping[str, Sequence[Observer]],
    meter: Meter,
) -> None:
    at, skipped = 0, 0
    for record in artifact.objects.values():
        _read_gap(report, artifact, at, record.offset, missing, meter)
        at = record.offset + record.nbytes
        meter.begin(record.id)
        if missing and any(piece.file in missing for piece in artifact.pieces(record.offset, record.nbytes)):
            skipped += 1
            continue
        broken = record.id in known
        observers = () if broken else watching.get(record.id, ())  # which look at whole words
        read = functools.partial(_read_object, report, artifact, record, broken, meter, observers)
        report.attempt("structure", record.id, read)
    _read_gap(report, artifact, at, artifact.payload_bytes, missing, meter)
    if skipped:
        objects = f"{skipped} of {len(artifact.objects)} objects"
        report.notes.append(f"{objects} not looked at: a file that they need is missing or wrong")


def _read_object(
    report: Report,
    artifact: Artifact,
    record: ObjectRecord,
    broken: bool,
    meter: Meter,
    watching: Sequence[Observer],
) -> None:
    def place(offset: int) -> tuple[Path, int]:
        return artifact.locate(record.offset + offset)

    def stored(offset: int, out: np.ndarray) -> None:
        artifact.read_into(record.offset + offset, out)

    def spans(begin: int, end: int) -> Iterator[Span]:
        return moved(artifact.stored_spans(record.offset + begin, record.offset + end), -record.offset)

    format = FORMATS.get(record.format) if isinstance(record, TensorRecord) and not broken else None
    if format is None or not isinstance(record, TensorRecord):
        read = watched(stored, meter, watching, None if watching else spans)
        for _ in read_through(read, 0, record.nbytes):
            pass  # that they are there to be read
        return
    counter = _counter(format)
    observers: list[Observer] = [*watching, *([counter] if counter is not None else [])]
    zeros = ZeroPages(place)
    read = watched(stored, meter, observers, None if watching else spans, zeros)
    faults = LAYOUTS[record.layout].faults(read, format, record.shape, record.divisors, limit=report.max_findings)
    for some in faults:
        report.add_faults(record.id, some, place)
    if counter is not None:
        counter.report_to(report, record.id)
    zeros.report_to(report, record.id)


def _counter(format: object) -> ValueCounter | None:
    if isinstance(format, DirectFormat):
        return ValueCounter(format.scalar)
    return ValueCounter(format.profile) if isinstance(format, GgufFormat) else None


def _read_gap(report: Report, artifact: Artifact, begin: int, end: int, missing: set[int], meter: Meter) -> None:
    """The bytes of no object, which are zeros; the files that have them may be missing."""
    problem = "a byte that belongs to no object is not zero"
    read = watched(artifact.read_into, meter, (), artifact.stored_spans)

    def look(offset: int, end: int) -> None:
        for faults in byte_faults(read_through(read, offset, end), problem, report.max_findings, rule="gap"):
            report.add_faults(str(artifact.path), faults, artifact.locate)

    for offset, count in _present(artifact, begin, end, missing):
        report.attempt("files", str(artifact.path), functools.partial(look, offset, offset + count))


def _present(artifact: Artifact, begin: int, end: int, missing: set[int]) -> Iterator[tuple[int, int]]:
    for piece in artifact.pieces(begin, end - begin):
        if piece.file not in missing:
            yield begin, piece.size
        begin += piece.size
