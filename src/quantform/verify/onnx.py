"""ONNX models: their initializers, what `onnx` itself says of them, and what their files of data have beside."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quantform import onnx
from quantform._files import MappedFile
from quantform._sizes import counted
from quantform._spans import Span
from quantform.errors import QuantformError
from quantform.layouts.faults import read_through
from quantform.sources import open_source
from quantform.verify.checkpoint import check_tensor, read_tensors
from quantform.verify.reading import UNUSED_BYTES, Meter, watched
from quantform.verify.report import Finding, Report

if TYPE_CHECKING:
    from quantform.sources.onnx_model import OnnxSource

__all__ = ["check_model", "read_model"]

_PADDING = 1 << 16
"""Data is aligned to this at most: what all systems can map. From so many zeros on, something may be missing."""


def check_model(report: Report, source: OnnxSource) -> set[str]:
    """Look at every initializer, and let `onnx` look at the model if none is wrong; gives the names of wrong ones.

    Types that this package does not decode, and sparse initializers, are as legal as any, and remarked upon.
    """
    wrong = {
        tensor.name
        for tensor in source.values()
        if not report.attempt("structure", tensor.name, functools.partial(check_tensor, report, tensor))
    }
    for name in source.sparse:
        report.add(Finding("undecoded", name, "a sparse initializer is neither listed nor decoded"))
    if report.ok:
        report.attempt("onnx", str(source.path), functools.partial(onnx.check_model, source.path))
    return wrong


def read_model(report: Report, source: OnnxSource, known: set[str], meter: Meter) -> None:
    """Every byte of every initializer, and what is between them in the files of external data.

    ONNX says nothing of bytes that no tensor has: they are a remark. A file of tensors in another format, whose
    blocks a model refers to, has a header of its own.
    """
    unused = {} if known else source.unused_spans()
    unused = {path: spans for path, spans in unused.items() if spans and not _is_source(path, spans[0])}
    meter.total = sum(end - begin for spans in unused.values() for begin, end in spans)
    read_tensors(report, source, known, meter)
    for path, spans in unused.items():
        report.attempt("structure", str(path), functools.partial(_read_unused, report, path, spans, meter))


def _is_source(path: Path, first: Span) -> bool:
    """Whether a file is one of tensors in another format: then its first bytes are no tensor's."""
    try:
        if first[0] == 0:
            open_source(path).close()
            return True
    except QuantformError:
        pass
    return False


def _read_unused(report: Report, path: Path, spans: Sequence[Span], meter: Meter) -> None:
    """One remark, unless they are zeros, and no more in one place than alignment takes."""
    meter.begin(path.name)
    others, rest, first = 0, UNUSED_BYTES, None
    with MappedFile(path) as file:
        read = watched(file.read_into, meter, (), file.stored_spans)
        for begin, end in spans:
            last = min(end, begin + rest)
            for offset, data in read_through(read, begin, last):
                wrong = np.flatnonzero(data)
                others += wrong.size
                if first is None and wrong.size:
                    first = offset + int(wrong[0])
            meter.passed(last, end)
            rest -= last - begin
    large = next((begin for begin, end in spans if end - begin >= _PADDING), None)
    at = large if first is None else first
    if at is not None:
        total = sum(end - begin for begin, end in spans)
        seen = f"of the first {UNUSED_BYTES}" if total > UNUSED_BYTES else "of them"
        problem = f"{total} bytes in {counted(len(spans), 'place')} belong to no tensor of the model"
        problem += f", {others} {seen} not zero"
        problem += f"; a large place begins at byte {at}" if first is None else f", the first at byte {at}"
        report.add(Finding("unused", str(path), problem, str(path), at))
