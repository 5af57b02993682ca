"""The file that an artifact was made from: which one that is, and what of it the artifact has beside its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quantform._sizes import counted
from quantform.convert.carried import Carried
from quantform.convert.checkpoint_carried import checkpoint_carried
from quantform.convert.digests import Digests
from quantform.convert.gguf_carried import gguf_carried
from quantform.convert.ninfer_carried import ninfer_carried
from quantform.convert.recorded import RecordedFile, recorded_files, recorded_sources
from quantform.sources import Checkpoint, GGUFSource, NinferSource, Source
from quantform.verify.carried import compare_carried
from quantform.verify.report import Finding, Report

__all__ = ["compared_with_record"]


@contextmanager
def compared_with_record(report: Report, source: Source[Any], origin: Source[Any]) -> Iterator[bool]:
    """Compare what is no tensor with the file that an artifact was made from, if this is that file by its length.

    Gives whether the artifact may have been made from it: only the record of another file says that it was not.

    Its SHA-256 is computed by a thread of its own while the block of the context, which compares tensors, runs.
    """
    if not isinstance(source, NinferSource):
        yield True
        return
    named = _named(source, origin)
    if named is None:
        yield not _remark_other(report, source, origin)
        return
    component, files = named
    with Digests(origin.files) as digests:
        yield True
        carried = _carried(origin, component)
        count = 0 if carried is None else compare_carried(report, source, carried, "carried")
        for path, recorded, digest in zip(origin.files, files, digests.result(), strict=True):
            if digest != recorded.sha256:
                problem = (
                    "the file is as long as the one that the artifact was made from, and another; "
                    f"expected SHA-256 {recorded.sha256}, found {digest}"
                )
                report.add(Finding("digest", str(path), problem, expected=recorded.sha256, found=digest))
    if report.ok:
        report.notes.append(f"{counted(count, 'resource')} equal, and SHA-256 digests as recorded")


def _named(source: NinferSource, origin: Source[Any]) -> tuple[str, tuple[RecordedFile, ...]] | None:
    """The component that was made from files of these lengths, and what was recorded of them."""
    lengths = _lengths(origin)
    for component in source.components:
        for recorded in recorded_sources(source.directory.provenance, component):
            files = recorded_files(recorded)
            if files and [file.nbytes for file in files] == lengths:
                return component, files
    return None


def _lengths(origin: Source[Any]) -> list[int]:
    """The length of each file; nothing where one is missing."""
    try:
        return [path.stat().st_size for path in origin.files]
    except OSError:
        return []


def _remark_other(report: Report, source: NinferSource, origin: Source[Any]) -> bool:
    """A remark, if the artifact says that it was made from another file, which may be compared with all the same."""
    everything = (one for name in source.components for one in recorded_sources(source.directory.provenance, name))
    recorded = next(filter(None, map(recorded_files, everything)), None)
    if recorded is None:
        return False
    expected, found = (
        f"{counted(len(lengths), 'file')} of {sum(lengths)} bytes"
        for lengths in ([file.nbytes for file in recorded], _lengths(origin))
    )
    problem = f"not what the artifact was made from, so that its errors are shown; expected {expected}, found {found}"
    report.add(Finding("origin", str(origin.path), problem, expected=expected, found=found))
    return True


def _carried(origin: Source[Any], component: str) -> Carried | None:
    if isinstance(origin, GGUFSource):
        return gguf_carried(origin, component)
    if isinstance(origin, Checkpoint):
        return checkpoint_carried(origin, component)
    return ninfer_carried(origin) if isinstance(origin, NinferSource) else None
