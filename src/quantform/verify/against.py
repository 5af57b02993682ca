"""Whether a file says the same as the file that it was made from."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from quantform._files import exists
from quantform._progress import Progress
from quantform._scalars import SCALARS, convert
from quantform._sizes import counted
from quantform.compare.measure import measure
from quantform.compare.pairing import alike, encoding, form
from quantform.convert.own_words import cast_stream
from quantform.convert.streams import Copy, Stream
from quantform.errors import ChangedFileError, QuantformError
from quantform.formats import FORMATS, DirectFormat, GgufFormat
from quantform.sources import GGUFTensor, NinferSource, NinferTensor, Source, Tensor
from quantform.sources.conventions import RowScaledWeight
from quantform.sources.conventions.weight import flat_words
from quantform.verify.differing import Differing
from quantform.verify.report import Finding, MethodError, Report, of_error
from quantform.verify.stored_parts import Tensors, stored_tensors
from quantform.verify.words import different_words

__all__ = ["broken_files", "compare_with"]

_PIECE = 8 << 20


def broken_files(report: Report, origin: Source[Any]) -> set[str]:
    """The paths of the files of an open source that are missing or wrong, each of which is a finding."""
    broken = set()
    for index, path in enumerate(origin.files):
        if isinstance(origin, NinferSource):
            fine = report.attempt("against", str(path), functools.partial(origin.artifact.check_file, index))
        else:
            fine = exists(path)
            if not fine:
                report.add(Finding("against", str(path), "missing; a file that it is compared with is not there"))
        if not fine:
            broken.add(str(path))
    return broken


def compare_with(
    report: Report,
    source: Source[Any],
    origin: Source[Any],
    progress: Progress,
    *,
    broken: AbstractSet[str] = frozenset(),
    made_from: bool = True,
    max_error: float | None = None,
) -> None:
    """Compare every tensor with the one of the same name in another file; of two checkpoints, every stored tensor.

    Args:
        report: Takes findings, errors, and notes of what was shown.
        source: The file that is verified.
        origin: The other file.
        progress: Called as tensors are compared.
        broken: The names of tensors, ids of objects and paths of files, of either, that are known to be wrong or
            missing. Tensors that cannot be read for that are no further findings.
        made_from: Whether `source` may have been made from it. If not, words and values that differ are no findings,
            and have errors.
        max_error: The largest relative RMS error that is no finding; asks for the error of whatever was rounded, too.
    """
    tensors, originals = stored_tensors(source, origin)
    empty = _report_missing(report, source, origin, tensors, originals)
    total, done, ways, unread = sum(tensor.nbytes for tensor in originals.values()), 0, Counter[str](), 0
    comparison = _Comparison(report, source, made_from, max_error)
    for name, original in originals.items():
        progress(done, total, name)
        done += original.nbytes
        if name not in tensors:
            continue
        try:
            ways[comparison.compare(tensors[name], original)] += 1
        except ChangedFileError:
            raise
        except QuantformError as error:
            if _needs(tensors[name], source, broken) or _needs(original, origin, broken):
                unread += 1
            else:
                report.add(of_error("against", name, error))
    progress(total, total, "")
    ways["have no elements"] += empty
    comparison.judge()
    if unread:
        report.notes.append(f"{unread} of {len(originals)} tensors not compared: what they need is missing or wrong")
    if report.ok:
        report.notes.extend(f"{count} of {len(originals)} tensors {way}" for way, count in ways.items() if count)
        comparison.note_rounded()


def _report_missing(
    report: Report, source: Source[Any], origin: Source[Any], tensors: Tensors, originals: Tensors
) -> int:
    """Report the tensors that are on one side only; how many are not in an artifact as they have no elements."""
    empty = 0
    for name, tensor in tensors.items():
        if name not in originals and not _has_no_object(tensor, origin):
            report.add(Finding("against", name, f"not in {origin.path}"))
    for name, tensor in originals.items():
        if name not in tensors and _has_no_object(tensor, source):
            empty += 1
        elif name not in tensors:
            report.add(Finding("against", name, f"missing; {origin.path} has it"))
    return empty


def _has_no_object(tensor: Tensor, other: Source[Any]) -> bool:
    """Whether `other` lacks the tensor because artifacts have no objects without elements."""
    return not tensor.size and isinstance(other, NinferSource)


def _needs(tensor: Tensor, source: Source[Any], broken: AbstractSet[str]) -> bool:
    """Whether a tensor needs something of which it is known that it is wrong."""
    if tensor.name in broken:
        return True
    if isinstance(source, NinferSource) and isinstance(tensor, NinferTensor):
        artifact = source.artifact
        records = [artifact.record(id) for id in tensor.objects]
        pieces = (piece for one in records for piece in artifact.pieces(one.offset, one.nbytes))
        return not broken.isdisjoint(tensor.objects) or any(str(artifact.files[one.file]) in broken for one in pieces)
    place = tensor.locate(0)
    return place is not None and str(place[0]) in broken


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
        if encoding(tensor) == encoding(original) and tensor.joined and original.joined:
            return self._compared(tensor, original, "have equal bytes", _different_bytes(tensor, Copy(original)))
        if tensor.importable and original.importable and form(tensor) == form(original):
            return self._compared(tensor, original, "have equal words", different_words(tensor, original))
        way, record = f"hold {original.format} values as {tensor.format}", FORMATS.get(tensor.format)
        cast = cast_stream(original, record, "any") if isinstance(record, DirectFormat) and tensor.joined else None
        if cast is not None:
            return self._compared(tensor, original, way, _different_bytes(tensor, cast), rounds=True)
        # No method makes blocks, or a file of another kind; nor did one work on a file that this was not made from.
        made = self.made_from and isinstance(self.source, NinferSource) and not isinstance(record, GgufFormat)
        way += ", made by a method" if made else ""
        if original.decodable:
            self._measure(tensor, original)
            return way if made else f"{way}, and have errors"
        if self.max_error is not None:
            problem = f"{original.format} is not decoded, so that the error of {tensor.format} is not known"
            self.report.add(Finding("error", original.name, problem))
        return f"{way}, and are not compared"

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
        self, tensor: Tensor, original: Tensor, way: str, differences: list[Finding], *, rounds: bool = False
    ) -> str:
        """What becomes of words or values that should be equal, rounding aside, and of those that are not."""
        if not differences:
            for one in (original, tensor):
                if isinstance(one, RowScaledWeight) and one.rounds_scales and (largest := _largest_rounding(one)):
                    self.rounded[original.name], rounds = largest, True
            if rounds and self.max_error is not None:
                self._measure(tensor, original)
            return way
        if self.made_from or not original.decodable:
            for difference in differences:
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


def _method_error(tensor: Tensor, original: Tensor) -> MethodError:
    """Decode both sides, some rows at a time."""
    errors = measure(original, tensor).errors(original.matrix[1])
    return MethodError(name=original.name, source_format=original.format, format=tensor.format, **errors.as_fields())


def _largest_rounding(weight: RowScaledWeight) -> float:
    """The largest relative difference between F32 scales and the BF16 ones that the words have."""
    scales, largest = weight.parts["scales"], 0.0
    for first in range(0, scales.size, _PIECE // 4):
        exact = flat_words(scales, first, min(first + _PIECE // 4, scales.size)).view(np.float32)
        stored = convert(exact, np.dtype(ml_dtypes.bfloat16)).astype(np.float64)
        relative = np.divide(np.abs(stored - exact), exact, out=np.zeros_like(stored), where=exact != 0)
        largest = max(largest, float(relative.max()))
    return largest


def _different_bytes(tensor: Tensor, expected: Stream) -> list[Finding]:
    """The first byte of a tensor that is not the expected one, and how many are not; nothing where all are."""
    at, differing = 0, Differing()
    for data in expected:
        found = np.empty(min(data.size, max(0, tensor.nbytes - at)), np.uint8)
        tensor.read_into(at, found)
        differing.add(at, data[: found.size], found)
        at += data.size
    if differing.count:
        row, column = _element(tensor, differing.at)
        return [differing.finding("against", tensor.name, _place(tensor, differing.at), row=row, column=column)]
    if at == tensor.nbytes:
        return []
    want, have = f"{at} bytes", f"{tensor.nbytes} bytes"
    problem = f"another length; expected {want}, found {have}"
    return [Finding("against", tensor.name, problem, expected=want, found=have)]


def _element(tensor: Tensor, offset: int) -> tuple[int | None, int | None]:
    """Row and column of a byte of plain numbers."""
    scalar = SCALARS.get(tensor.format)
    if scalar is None or scalar.bits != 8 * scalar.nbytes or not tensor.shape:
        return None, None
    return divmod(offset // scalar.nbytes, max(1, tensor.matrix[1]))


def _place(tensor: Tensor, offset: int) -> tuple[Path, int] | None:
    """Where a byte of the payload is."""
    return tensor.locate(tensor.stored_offset(offset) if isinstance(tensor, GGUFTensor) else offset)
