"""Whether a file is right, and whether it says the same as the file it was made from."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from quantform import onnx
from quantform._progress import Progress, silent
from quantform._scalars import convert
from quantform._sizes import counted, human_bytes
from quantform.compare.measure import Errors, measure
from quantform.compare.pairing import alike, encoding
from quantform.container import Artifact, TensorRecord
from quantform.convert.own_words import cast_stream
from quantform.convert.streams import Copy, Stream
from quantform.errors import QuantformError
from quantform.formats import FORMATS, DirectFormat
from quantform.layouts import LAYOUTS
from quantform.sources import Checkpoint, NinferSource, NinferTensor, SafetensorsSource, Source, Tensor, open_source
from quantform.sources.conventions import QuantizedWeight, RowScaledWeight
from quantform.sources.conventions.weight import flat_words

__all__ = ["Finding", "MethodError", "Report", "verify"]

_PIECE = 8 << 20
_TILE_ROWS = 128


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        rule: A short name of the rule that is broken.
        object: The tensor, object or file.
        problem: What is wrong, with what was expected and found.
    """

    rule: str
    object: str
    problem: str

    def __str__(self) -> str:
        return f"{self.object}: {self.problem} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodError(Errors):
    """How far a tensor that a method quantized is from its source, the reference.

    Attributes:
        name: The tensor.
        source_format: How the source stores its numbers.
        format: How the file does.
    """

    name: str
    source_format: str
    format: str


@dataclass(slots=True)
class Report:
    """What `verify` found.

    Attributes:
        path: The file.
        kind: What kind of file it is.
        findings: All that is wrong, in file order.
        checked: How many things of each kind were looked at.
        notes: Lines for people that say what was shown.
        errors: Of each tensor that a method quantized, how far it is from its source; the worst first.
    """

    path: Path
    kind: str
    findings: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    errors: list[MethodError] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "ok": self.ok,
            "checked": dict(self.checked),
            "notes": self.notes,
            "findings": [asdict(finding) for finding in self.findings],
            "errors": [asdict(error) for error in self.errors],
        }


def verify(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    against: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Report:
    """Check a file.

    Args:
        path: A GGUF file, a safetensors model, an ONNX model or a `.ninfer` entry file. An ONNX model is also given to
            `onnx.checker`, with the operator registered, see `quantform.onnx.register`.
        deep: Also read every byte: legal words, canonical padding, zeros between objects.
        against: The file it was made from: every tensor of it must be there, word for word; one that was decoded to a
            direct format must hold the values rounded once. Of what a method quantized, the errors are reported.
        progress: Called as bytes are read.

    Raises:
        FileError: A file cannot be opened at all; what is wrong inside an opened file becomes a finding.
    """
    with open_source(path) as source:
        report = Report(Path(path), source.kind)
        report.checked["tensors"] = len(source)
        if isinstance(source, NinferSource):
            _attempt(report, "files", str(source.path), source.artifact.check_files)
            for identifier in source.artifact.objects:
                _attempt(report, "structure", identifier, functools.partial(source.check, identifier))
            report.checked["objects"] = len(source.artifact.objects)
        else:
            for tensor in source.values():
                _attempt(report, "structure", tensor.name, tensor.check)
            if source.kind == "onnx" and report.ok:
                _attempt(report, "onnx", str(source.path), functools.partial(onnx.check_model, source.path))
        if report.ok:
            report.notes.append(f"{source.describe()}: structure checked")
        if deep:
            _deep(report, source, progress)
        if against is not None:
            with open_source(against) as origin:
                weights = Checkpoint(origin) if isinstance(origin, SafetensorsSource) else origin
                _against(report, source, weights, progress)
    return report


def _attempt(report: Report, rule: str, name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except QuantformError as error:
        report.findings.append(Finding(rule, name, str(error)))


def _deep(report: Report, source: Source[Any], progress: Progress) -> None:
    """Read every byte: words must be legal in their formats, and what no object owns must be zeros."""
    tensors: Mapping[str, Tensor] = source
    known = {finding.object for finding in report.findings}
    if isinstance(source, NinferSource):
        if str(source.path) in known:  # without all of its files there is not enough to look at
            return
        _padding(report, source)
        for offset, byte in _gap_bytes(source.artifact):
            problem = f"payload byte {offset} belongs to no object and is not zero; expected 0x00, found 0x{byte:02x}"
            report.findings.append(Finding("padding", str(source.path), problem))
        tensors = source.objects
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0
    for name, tensor in tensors.items():
        progress(done, total, name)
        if name not in known:
            _attempt(report, "words", name, functools.partial(_validate, tensor))
        done += tensor.nbytes
    progress(total, total, "")
    if report.ok:
        report.notes.append(
            f"{counted(len(tensors), 'tensor')}, {human_bytes(total)}: every word is legal in its format"
        )


def _padding(report: Report, source: NinferSource) -> None:
    """Padding inside payloads, which layouts own, must be canonical."""
    for id, record in source.artifact.objects.items():
        if not isinstance(record, TensorRecord):
            continue
        try:
            read = source.artifact.object_reader(id)
            faults = LAYOUTS[record.layout].check_padding(read, record.format, record.shape, record.divisors)
        except QuantformError:
            continue  # the structure is wrong, and was found wrong before
        report.findings.extend(Finding("padding", id, str(fault)) for fault in faults)


def _gap_bytes(artifact: Artifact) -> Iterator[tuple[int, int]]:
    """The first byte that is not zero of each gap between objects, and its offset in the payload."""
    at = 0
    for record in [*artifact.objects.values(), None]:
        end = artifact.payload_bytes if record is None else record.offset
        for first in range(at, end, _PIECE):
            gap = np.empty(min(_PIECE, end - first), np.uint8)
            artifact.read_into(first, gap)
            if gap.any():
                place = int(np.argmax(gap != 0))
                yield first + place, int(gap[place])
                break
        if record is not None:
            at = record.offset + record.nbytes


def _validate(tensor: Tensor) -> None:
    if isinstance(tensor, NinferTensor):
        tensor.check_words()
        return
    for rows in _row_pieces(tensor):
        tensor.words(rows).validate(rows.start)


def _row_pieces(tensor: Tensor) -> Iterator[slice]:
    """Slices of whole rows with a few megabytes of payload each."""
    rows = tensor.matrix[0]
    step = max(1, _PIECE * rows // max(1, tensor.nbytes)) if rows else 1
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def _against(report: Report, source: Source[Any], origin: Source[Any], progress: Progress) -> None:
    """Compare every tensor with the one of the same name in the file that it was made from."""
    for name in source:
        if name not in origin:
            report.findings.append(Finding("against", name, f"not in {origin.path}"))
    total, done, ways = sum(tensor.nbytes for tensor in origin.values()), 0, Counter[str]()
    rounded: dict[str, float] = {}
    for name, tensor in origin.items():
        progress(done, total, name)
        done += tensor.nbytes
        if name not in source:
            if not tensor.size and isinstance(source, NinferSource):  # an artifact has no objects without elements
                ways["have no elements"] += 1
                continue
            report.findings.append(Finding("against", name, f"missing; {origin.path} has it"))
            continue
        try:
            way, problem = _compare(report, source[name], tensor, rounded)
        except QuantformError as error:
            report.findings.append(Finding("against", name, str(error)))
            continue
        ways[way] += 1
        if problem is not None:
            report.findings.append(Finding("against", name, problem))
    progress(total, total, "")
    report.errors.sort(key=lambda error: error.badness, reverse=True)
    if not report.findings:
        report.notes.extend(f"{count} of {len(origin)} tensors {way}" for way, count in ways.items())
        if rounded:
            worst = max(rounded, key=rounded.__getitem__)
            report.notes.append(
                f"{counted(len(rounded), 'tensor')} with equal words: F32 scales were rounded to BF16, "
                f"by at most {rounded[worst]:.3g} of a scale, in {worst}"
            )


def _compare(report: Report, tensor: Tensor, original: Tensor, rounded: dict[str, float]) -> tuple[str, str | None]:
    """How two tensors were compared, and the first difference.

    The report takes the errors of a method, `rounded` how far scales were rounded, if they were.
    """
    both = alike(original, tensor)
    if both is None:
        return "", f"shapes differ; expected {list(original.shape)}, found {list(tensor.shape)}"
    original, tensor = both
    if isinstance(original, QuantizedWeight) and original.importable and original.format == tensor.format:
        difference = _different_words(tensor, original)
        if difference is None and isinstance(original, RowScaledWeight) and original.rounds_scales:
            largest = _largest_rounding(original)
            if largest:
                rounded[original.name] = largest
        return "have equal words", difference
    record = FORMATS.get(tensor.format)
    expected: Stream | None
    if encoding(tensor) == encoding(original):
        way, expected = "have equal bytes", Copy(original)
    else:
        way = f"hold {original.format} values as {tensor.format}"
        expected = cast_stream(original, record, "any") if isinstance(record, DirectFormat) else None
    if expected is None:
        if not original.decodable:
            return f"{way}, made by a method and not compared", None
        report.errors.append(_method_error(tensor, original))
        return f"{way}, made by a method", None
    return way, _first_difference(tensor, expected)


def _different_words(tensor: Tensor, original: QuantizedWeight) -> str | None:
    """The first rows whose words are not those that the checkpoint keeps in several tensors."""
    rows, columns = tensor.matrix
    step = max(_TILE_ROWS, _PIECE // max(1, columns) // _TILE_ROWS * _TILE_ROWS)
    for first in range(0, rows, step):
        some = slice(first, min(first + step, rows))
        found, expected = tensor.words(some), original.words(some)
        for part in ("codes", "scales", "divisors"):
            have, want = getattr(found, part, None), getattr(expected, part, None)
            if have is None or want is None:
                continue
            if part == "divisors":  # of rows, since words may have one of them for several equal shares
                have, want = (np.repeat(one, (some.stop - some.start) // one.size) for one in (have, want))
            if not np.array_equal(have, want):
                return f"{part} differ in rows {some.start} to {some.stop - 1}"
    return None


def _method_error(tensor: Tensor, original: Tensor) -> MethodError:
    """Decode both sides, some rows at a time."""
    errors = measure(original, tensor).errors(original.matrix[1])
    return MethodError(name=original.name, source_format=original.format, format=tensor.format, **errors.as_fields())


def _largest_rounding(original: RowScaledWeight) -> float:
    """The largest relative difference between F32 scales and the BF16 ones that the words have."""
    scales, largest = original.parts["scales"], 0.0
    for first in range(0, scales.size, _PIECE // 4):
        exact = flat_words(scales, first, min(first + _PIECE // 4, scales.size)).view(np.float32)
        stored = convert(exact, np.dtype(ml_dtypes.bfloat16)).astype(np.float64)
        relative = np.divide(np.abs(stored - exact), exact, out=np.zeros_like(stored), where=exact != 0)
        largest = max(largest, float(relative.max()))
    return largest


def _first_difference(tensor: Tensor, expected: Stream) -> str | None:
    at = 0
    for data in expected:
        if at + data.size > tensor.nbytes:
            return f"too short; expected more than {tensor.nbytes} bytes"
        found = np.empty(data.size, np.uint8)
        tensor.read_into(at, found)
        differs = found != data
        if differs.any():
            byte = int(np.argmax(differs))
            return f"byte {at + byte} differs; expected 0x{data[byte]:02x}, found 0x{found[byte]:02x}"
        at += data.size
    return None if at == tensor.nbytes else f"too long; expected {at} bytes, found {tensor.nbytes}"
