"""Whether a file says the same as the file that it was made from."""

from __future__ import annotations

from collections import Counter
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
from quantform.errors import QuantformError
from quantform.formats import FORMATS, DirectFormat
from quantform.sources import NinferSource, NinferTensor, Source, Tensor
from quantform.sources.conventions import QuantizedWeight, RowScaledWeight
from quantform.sources.conventions.weight import flat_words
from quantform.verify.report import Finding, MethodError, Place, Report, byte_difference, of_error

__all__ = ["compare_with"]

_PIECE = 8 << 20
_TILE_ROWS = 128


def compare_with(report: Report, source: Source[Any], origin: Source[Any], progress: Progress) -> None:
    """Compare every tensor with the one of the same name in the file that it was made from."""
    for name, tensor in source.items():
        if name not in origin and not _has_no_object(tensor, origin):
            report.add(Finding("against", name, f"not in {origin.path}"))
    total, done, ways = sum(tensor.nbytes for tensor in origin.values()), 0, Counter[str]()
    rounded: dict[str, float] = {}
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
            way, finding = _compare(report, source, source[name], tensor, rounded)
        except QuantformError as error:
            report.add(of_error("against", name, error))
            continue
        ways[way] += 1
        if finding is not None:
            report.add(finding)
    progress(total, total, "")
    report.errors.sort(key=lambda error: error.badness, reverse=True)
    if report.ok:
        report.notes.extend(f"{count} of {len(origin)} tensors {way}" for way, count in ways.items())
        if rounded:
            worst = max(rounded, key=rounded.__getitem__)
            report.notes.append(
                f"{counted(len(rounded), 'tensor')} with equal words: F32 scales were rounded to BF16, "
                f"by at most {rounded[worst]:.3g} of a scale, in {worst}"
            )


def _has_no_object(tensor: Tensor, other: Source[Any]) -> bool:
    """Whether `other` lacks the tensor because artifacts have no objects without elements."""
    return not tensor.size and isinstance(other, NinferSource)


def _compare(
    report: Report, source: Source[Any], tensor: Tensor, original: Tensor, rounded: dict[str, float]
) -> tuple[str, Finding | None]:
    """How two tensors were compared, and the first difference.

    The report takes the errors of a method, `rounded` how far scales were rounded, if they were.
    """
    both = alike(original, tensor)
    if both is None:
        expected_shape, found_shape = str(list(original.shape)), str(list(tensor.shape))
        problem = f"shapes differ; expected {expected_shape}, found {found_shape}"
        return "", Finding("against", original.name, problem, expected=expected_shape, found=found_shape)
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
    return way, _first_difference(source, tensor, expected)


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
