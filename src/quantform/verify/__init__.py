"""Whether a file is right, and whether it says the same as the file it was made from."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from quantform._files import MappedFile, is_directory
from quantform._progress import Progress, silent
from quantform.errors import ArgumentError, ChangedFileError, MissingExtraError, QuantformError
from quantform.sources import Checkpoint, GGUFSource, NinferSource, SafetensorsSource, Source, open_source
from quantform.verify.against import broken_files, compare_with
from quantform.verify.checkpoint import check_beside, check_tensor, read_tensors
from quantform.verify.gguf import read_gguf
from quantform.verify.metadata import compare_metadata
from quantform.verify.ninfer import check_artifact, read_artifact
from quantform.verify.onnx import check_model, read_model
from quantform.verify.origin import compared_with_record
from quantform.verify.reading import Meter
from quantform.verify.report import Finding, MethodError, Report, of_error
from quantform.verify.rules import RULES, Rule

if TYPE_CHECKING:
    from quantform.sources.onnx_model import OnnxSource

__all__ = ["RULES", "Finding", "MethodError", "Report", "Rule", "verify"]


def verify(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    against: str | os.PathLike[str] | None = None,
    max_error: float | None = None,
    max_findings: int = 100,
    progress: Progress = silent,
) -> Report:
    """Check a file.

    Args:
        path: A GGUF file, a safetensors model, an ONNX model or a `.ninfer` entry file. An ONNX model is also given to
            `onnx.checker`, with the operator registered, see `quantform.onnx.register`.
        deep: Also read every byte, each once: legal words, canonical padding, zeros between objects, values of
            auxiliaries, frames of GGUF files; and count scales and values that are not finite.
        against: The file it was made from: every tensor of it must be there, word for word; one that was decoded to a
            direct format must hold the values rounded once. Of what a method quantized, the errors are reported. Unless
            an artifact records another file, resources and configuration are compared too, and the digest, if recorded.
            Of two files of one kind, other than artifacts, different metadata are remarks.
        max_error: The largest relative RMS error against `against` that is no finding, of a tensor whose words are not
            those that it has there; see `quantform.compare`. Without it, an error of 1 or more is a remark.
        max_findings: How many findings, and how many remarks, the report keeps; it counts all.
        progress: Called as bytes are read.

    Raises:
        ArgumentError: `max_error` is no number from 0 on, or there is nothing to measure against.
        FileError: The file cannot be read at all, `against` cannot be opened, or the temporary directory has no room
            for a frame. What is wrong inside becomes a finding.
        MissingExtraError: It is an ONNX model, and the extra `onnx` is not installed.
    """
    if max_error is not None and not 0 <= max_error < math.inf:
        raise ArgumentError("max_error is no error", expected="a number from 0 on", found=max_error)
    if max_error is not None and against is None:
        raise ArgumentError("max_error has nothing to measure against", hint="Name the source: against (--against SRC)")
    target = Path(path)
    if not is_directory(target):
        MappedFile(target).close()  # what is no file, or may not be read, is no finding
    try:
        source = open_source(target)
    except MissingExtraError:
        raise
    except QuantformError as error:
        report = Report(target, "unknown", max_findings)
        report.add(of_error("open", str(target), error))
        return report
    with source:
        report = Report(target, source.kind, max_findings)
        report.checked["tensors"] = len(source)
        compared: tuple[Path, ...] = ()
        try:
            known = _check(report, source)
            if report.ok:
                report.notes.append(f"{source.describe()}: structure checked")
            if deep:
                _read(report, source, known, Meter(progress))
            if against is not None:
                with open_source(against) as origin:
                    compared = origin.files
                    broken = known | broken_files(report, origin)
                    with compared_with_record(report, source, origin, broken) as made_from:
                        compare_with(
                            report, source, origin, progress, broken=broken, made_from=made_from, max_error=max_error
                        )
                    compare_metadata(report, source, origin)
        except ChangedFileError as error:  # nothing behind it would say anything
            rule = "files" if isinstance(source, NinferSource) else "structure"
            foreign = error.file in compared and error.file not in source.files
            report.add(of_error("against" if foreign else rule, str(error.file), error))
    return report


def _check(report: Report, source: Source[Any]) -> set[str]:
    """What headers say. The names of tensors, objects or files that are wrong."""
    if isinstance(source, NinferSource):
        return check_artifact(report, source)
    if source.kind == "onnx":
        return check_model(report, cast("OnnxSource", source))
    if isinstance(source, (SafetensorsSource, Checkpoint)):
        check_beside(report, source)
    return {
        tensor.name
        for tensor in source.values()
        if not report.attempt("structure", tensor.name, functools.partial(check_tensor, report, tensor))
    }


def _read(report: Report, source: Source[Any], known: set[str], meter: Meter) -> None:
    """Read every byte, without what is known to be wrong."""
    try:
        if isinstance(source, NinferSource):
            read_artifact(report, source, known, meter)
        elif isinstance(source, GGUFSource):
            read_gguf(report, source, known, meter)
        elif source.kind == "onnx":
            read_model(report, cast("OnnxSource", source), known, meter)
        else:
            read_tensors(report, source, known, meter)
    finally:
        report.checked["bytes"] = meter.done
    if report.ok:
        report.notes.append(meter.note())
