"""Whether a file says the same as the file that it was made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from quantform._progress import Progress
from quantform._scalars import convert
from quantform._sizes import counted
from quantform.compare.measure import measure
from quantform.compare.pairing import alike, encoding
from quantform.convert.own_words import cast_stream
from quantform.convert.streams import Copy, Stream
from quantform.errors import ChangedFileError, QuantformError
from quantform.formats import FORMATS, DirectFormat
from quantform.sources import NinferSource, NinferTensor, Source, Tensor
from quantform.sources.conventions import QuantizedWeight, RowScaledWeight
from quantform.sources.conventions.weight import flat_words
from quantform.verify.report import Finding, MethodError, Place, Report, byte_difference, of_error

__all__ = ["compare_with"]

_PIECE = 8 << 20
_TILE_ROWS = 128


def compare_with(
    report: Report,
    source: Source[Any],
    origin: Source[Any],
    progress: Progress,
    *,
    made_from: bool = True,
    max_error: float | None = None,
) -> None:
    """Compare every tensor with the one of the same name in another file.

    Args:
        report: Takes findings, errors, and notes of what was shown.
        source: The file that is verified.
        origin: The other file.
        progress: Called as tensors are compared.
        made_from: Whether `source` may have been made from it. If not, words and values that differ are no findings,
            and have errors.
        max_error: The largest relative RMS error that is no finding; asks for the error of whatever was rounded, too.
    """
    for name, tensor in source.items():
        if name not in origin and not _has_no_object(tensor, origin):
            report.add(Finding("against", name, f"not in {origin.path}"))
    total, done, ways = sum(tensor.nbytes for tensor in origin.values()), 0, Counter[str]()
    comparison = _Comparison(report, source, made_from, max_error)
    for name, tensor in origin.items():
        progress(done, total, name)
        done += tensor.nbytes
        if name not in source:
            if _has_no_object(tensor, source):
                ways["have no elements"] += 1
                continue
            report.add(Finding("against", name, f"missing; {origin.path} has it"))
            continue
        try:
            ways[comparison.compare(source[name], tensor)] += 1
        except ChangedFileError:
            raise
        except QuantformError as error:
            report.add(of_error("against", name, error))
    progress(total, total, "")
    comparison.judge()
    if report.ok:
        report.notes.extend(f"{count} of {len(origin)} tensors {way}" for way, count in ways.items())
        comparison.note_rounded()


def _has_no_object(tensor: Tensor, other: Source[Any]) -> bool:
    """Whether `other` lacks the tensor because artifacts have no objects without elements."""
    return not tensor.size and isinstance(other, NinferSource)


@dataclass(slots=True)
class _Comparison:
    """Tensors compared, one after the other.

    Attributes:
        report: Takes findings and errors.
        source: See `compare_with`, as the next two.
        made_from: Whether differences are findings.
        max_error: The largest error that is none.
        rounded: By how much scales were rounded, of those tensors where they were.
    """

    report: Report
    source: Source[Any]
    made_from: bool
    max_error: float | None
    rounded: dict[str, float] = field(default_factory=dict)

    def compare(self, tensor: Tensor, original: Tensor) -> str:
        """Compare two tensors, and say how."""
        both = alike(original, tensor)
        if both is None:
            expected, found = str(list(original.shape)), str(list(tensor.shape))
            problem = f"shapes differ; expected {expected}, found {found}"
            self.report.add(Finding("against", original.name, problem, expected=expected, found=found))
            return ""
        original, tensor = both
        if isinstance(original, QuantizedWeight) and original.importable and original.format == tensor.format:
            return self._compared(tensor, original, "have equal words", _different_words(tensor, original))
        if encoding(tensor) == encoding(original):
            difference = _first_difference(self.source, tensor, Copy(original))
            return self._compared(tensor, original, "have equal bytes", difference)
        way, record = f"hold {original.format} values as {tensor.format}", FORMATS.get(tensor.format)
        cast = cast_stream(original, record, "any") if isinstance(record, DirectFormat) else None
        if cast is not None:
            return self._compared(tensor, original, way, _first_difference(self.source, tensor, cast), rounds=True)
        if original.decodable:
            self._measure(tensor, original)
            return f"{way}, made by a method"
        if self.max_error is not None:
            problem = f"{original.format} is not decoded, so that the error of {tensor.format} is not known"
            self.report.add(Finding("error", original.name, problem))
        return f"{way}, made by a method and not compared"

    def judge(self) -> None:
        """Sort the errors, and report those that are too large."""
        self.report.errors.sort(key=lambda error: error.badness, reverse=True)
        for error in self.report.errors:
            if self.max_error is not None and error.badness > (False, self.max_error):
                self._report("error", error, f"at most {self.max_error:g}")
            elif error.badness >= (False, 1.0):
                self._report("large-error", error, "less than 1")

    def note_rounded(self) -> None:
        """Say that equal words are not quite the file's, where scales were rounded."""
        if self.rounded:
            worst = max(self.rounded, key=self.rounded.__getitem__)
            self.report.notes.append(
                f"{counted(len(self.rounded), 'tensor')} with equal words: F32 scales were rounded to BF16, "
                f"by at most {self.rounded[worst]:.3g} of a scale, in {worst}"
            )

    def _compared(
        self, tensor: Tensor, original: Tensor, way: str, difference: Finding | None, *, rounds: bool = False
    ) -> str:
        """What becomes of the first difference of words or values that should be equal, rounding aside."""
        if difference is None:
            if isinstance(original, RowScaledWeight) and original.rounds_scales:
                largest = _largest_rounding(original)
                if largest:
                    self.rounded[original.name], rounds = largest, True
            if rounds and self.max_error is not None:
                self._measure(tensor, original)
            return way
        if self.made_from or not original.decodable:
            self.report.add(difference)
            return way
        self._measure(tensor, original)
        return f"are {tensor.format} of other {original.format}"

    def _measure(self, tensor: Tensor, original: Tensor) -> None:
        self.report.errors.append(_method_error(tensor, original))

    def _report(self, rule: str, error: MethodError, expected: str) -> None:
        found = "no number" if error.relative_rms is None else f"{error.relative_rms:.3g}"
        if error.incomparable:
            found += f", beside {counted(error.incomparable, 'element')} not finite on one side, or differently on both"
        problem = f"the relative RMS error of {error.format} is large; expected {expected}, found {found}"
        self.report.add(Finding(rule, error.name, problem, expected=expected, found=found))


def _different_words(tensor: Tensor, original: QuantizedWeight) -> Finding | None:
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
                problem = f"{part} differ in rows {some.start} to {some.stop - 1}"
                return Finding("against", original.name, problem, row=some.start)
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


def _first_difference(source: Source[Any], tensor: Tensor, expected: Stream) -> Finding | None:
    at = 0
    for data in expected:
        if at + data.size > tensor.nbytes:
            return Finding("against", tensor.name, f"too short; expected more than {tensor.nbytes} bytes")
        found = np.empty(data.size, np.uint8)
        tensor.read_into(at, found)
        differs = found != data
        if differs.any():
            byte = int(np.argmax(differs))
            return byte_difference("against", tensor.name, at + byte, data[byte], found[byte], _place(source, tensor))
        at += data.size
    if at == tensor.nbytes:
        return None
    return Finding("against", tensor.name, f"too long; expected {at} bytes, found {tensor.nbytes}")


def _place(source: Source[Any], tensor: Tensor) -> Place | None:
    """Where the bytes of a tensor are, if it is a whole object of an artifact."""
    if isinstance(source, NinferSource) and isinstance(tensor, NinferTensor) and len(tensor.objects) == 1:
        artifact, record = source.artifact, source.artifact.record(tensor.objects[0])
        if record.nbytes == tensor.nbytes:
            return lambda offset: artifact.locate(record.offset + offset)
    return None
