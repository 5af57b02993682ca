"""The file that an artifact was made from: which one that is, and what of it the artifact has beside its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

from quantform._sizes import counted
from quantform.container.directory import encode_directory
from quantform.convert.carried import Carried
from quantform.convert.checkpoint_carried import checkpoint_carried
from quantform.convert.digests import Digests
from quantform.convert.gguf_carried import gguf_carried
from quantform.convert.ninfer_carried import ninfer_carried
from quantform.convert.recorded import MAIN, RecordedFile, recorded_files, recorded_sources
from quantform.errors import ChangedFileError, QuantformError
from quantform.sources import Checkpoint, GGUFSource, NinferSource, SafetensorsSource, Source
from quantform.verify.carried import compare_carried, differences
from quantform.verify.differing import differs
from quantform.verify.report import Finding, Report, of_error

__all__ = ["compared_with_record"]

_KINDS = {"gguf", "safetensors", "ninfer", "onnx", "arrays"}
_CARRIED = {"components", "metadata"}


@contextmanager
def compared_with_record(
    report: Report, source: Source[Any], origin: Source[Any], broken: AbstractSet[str] = frozenset()
) -> Iterator[bool]:
    """Compare what is no tensor with the file that an artifact was made from, unless another one is recorded.

    Gives whether the artifact may have been made from it: only the record of another file says that it was not. Where
    nothing is recorded, or nothing that can be read as lengths and digests, a remark says so, and everything but the
    digests is compared. A file with the artifact's own id is that artifact, which has the same in all of it.

    Its SHA-256 is computed by a thread of its own while the block of the context, which compares tensors, runs. Files
    in `broken` are known to be missing or wrong, and are no further findings.
    """
    if not isinstance(source, NinferSource):
        yield True
        return
    if isinstance(origin, NinferSource) and origin.artifact_id == source.artifact_id:
        yield True
        _compare_directories(report, source, origin)
        count = _compare_resources(report, source, origin, MAIN, broken)
        if report.ok:
            report.notes.append(f"{counted(count, 'resource')} equal, and the directory: a copy of the same artifact")
        return
    named = _named(source, origin)
    if named is None:
        incomplete = not broken.isdisjoint(map(str, origin.files))  # so that its lengths say nothing
        may_be, others = _recorded(source, origin)
        if not incomplete:
            _remark_other(report, origin, may_be, others)
        yield incomplete or not others
        if may_be:
            _compare_resources(report, source, origin, _main(source), broken)
        return
    component, files = named
    with Digests(origin.files) as digests:
        yield True
        count = _compare_resources(report, source, origin, component, broken)
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


def _recorded(source: NinferSource, origin: Source[Any]) -> tuple[bool, tuple[RecordedFile, ...]]:
    """Whether what is recorded says nothing of files of the origin's kind, and the files that it does say."""
    everything = [one for name in source.components for one in recorded_sources(source.directory.provenance, name)]
    for one in everything:
        if not recorded_files(one) and (one.get("kind") == origin.kind or one.get("kind") not in _KINDS):
            return True, ()
    return not everything, next(filter(None, map(recorded_files, everything)), ())


def _remark_other(report: Report, origin: Source[Any], may_be: bool, recorded: Sequence[RecordedFile]) -> None:
    """A remark: nothing is recorded, or another file, which may be compared with all the same."""
    if not recorded:
        rest = "no digest is compared" if may_be else f"only tensors are compared: that was no {origin.kind} file"
        problem = f"the artifact does not record length and SHA-256 of what it was made from, so that {rest}"
        report.add(Finding("origin", str(origin.path), problem))
        return
    expected, found = (
        f"{counted(len(lengths), 'file')} of {sum(lengths)} bytes"
        for lengths in ([file.nbytes for file in recorded], _lengths(origin))
    )
    problem = (
        "not what the artifact was made from, so that only tensors are compared, and their errors shown; "
        f"expected {expected}, found {found}"
    )
    report.add(Finding("origin", str(origin.path), problem, expected=expected, found=found))


def _compare_directories(report: Report, source: NinferSource, origin: NinferSource) -> None:
    """Compare what directories say beside configuration and metadata."""
    documents = (json.loads(encode_directory(one.directory)) for one in (origin, source))
    want, have = ({key: one for key, one in document.items() if key not in _CARRIED} for document in documents)
    for place, expected, found in differences("$", want, have):
        report.add(differs("carried", place, expected, found))


def _main(source: NinferSource) -> str:
    return MAIN if MAIN in source.components else next(iter(source.components), MAIN)


def _compare_resources(
    report: Report, source: NinferSource, origin: Source[Any], component: str, broken: AbstractSet[str]
) -> int:
    """Compare what conversion carries along, of some component; gives how many resources were compared."""
    try:
        carried = _carried(origin, component)
    except ChangedFileError:
        raise
    except QuantformError as error:
        report.add(of_error("carried", str(origin.path), error))
        return 0
    return 0 if carried is None else compare_carried(report, source, carried, "carried", broken=broken)


def _carried(origin: Source[Any], component: str) -> Carried | None:
    if isinstance(origin, GGUFSource):
        return gguf_carried(origin, component)
    if isinstance(origin, Checkpoint | SafetensorsSource):
        return checkpoint_carried(Checkpoint(origin) if isinstance(origin, SafetensorsSource) else origin, component)
    return ninfer_carried(origin) if isinstance(origin, NinferSource) else None
