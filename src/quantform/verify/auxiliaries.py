"""What uses have beside their parameters: of the role's format and shape, and, when the bytes pass by, legal values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._sizes import ceil_div
from quantform.container import Artifact, Binding, TensorRecord, Use
from quantform.convert.auxiliaries import COLUMNS, DIVISOR, SIGN_MULTIPLE, SIGNS
from quantform.sources import NinferSource
from quantform.verify.reading import Observer
from quantform.verify.report import Finding, Report

__all__ = ["AuxiliaryCheck", "auxiliary_checks"]

Array = npt.NDArray[np.integer]


class _Role(NamedTuple):
    """What a role asks for."""

    format: str
    width: int
    expected: str
    one: bool = False


_ROLES = {
    DIVISOR: _Role("fp32", 4, "a finite positive binary32 word", one=True),
    SIGNS: _Role("bf16", 2, "0x3F80 (+1) or 0xBF80 (-1)"),
    COLUMNS: _Role("int32", 4, "each column once"),
}


class _Extent(NamedTuple):
    """Elements of an object, and where they belong in the auxiliary."""

    record: TensorRecord
    begin: int
    end: int
    at: int


@dataclass(slots=True)
class AuxiliaryCheck:
    """The values of one auxiliary, checked as their bytes are read, in any order.

    Attributes:
        artifact: Where it lies.
        role: Its role.
        name: The use, for findings.
        columns: K of the parameter.
        extents: What it is made of.
        findings: What is wrong, the first of it.
        limit: How many findings are kept.
        broken: How many values are wrong.
    """

    artifact: Artifact
    role: str
    name: str
    columns: int
    extents: Sequence[_Extent]
    limit: int
    findings: list[Finding] = field(default_factory=list)
    broken: int = 0
    _seen: npt.NDArray[np.uint8] | None = None

    def observers(self) -> Iterator[tuple[str, Observer]]:
        """For each object that it is made of, what wants to see its bytes."""
        for extent in self.extents:
            yield extent.record.id, self._observer(extent)

    def conclude(self, report: Report) -> None:
        """Report what was found, once all bytes have passed."""
        for finding in self.findings:
            report.add(finding)
        report.broken["auxiliary"] += self.broken - len(self.findings)

    def _observer(self, extent: _Extent) -> Observer:
        width = _ROLES[self.role].width
        first, last = extent.begin * width, extent.end * width

        def look(offset: int, data: npt.NDArray[np.uint8]) -> None:
            begin, end = max(first, offset), min(last, offset + data.size)
            if begin < end:
                self._check(extent, begin, data[begin - offset : end - offset].view(f"<u{width}"))

        return look

    def _check(self, extent: _Extent, offset: int, words: Array) -> None:
        if self.role == DIVISOR:
            wrong = (words == 0) | (words >= 0x7F800000)
        elif self.role == SIGNS:
            wrong = (words & 0x7FFF) != 0x3F80
        else:
            wrong = words >= self.columns  # negative ones are large without their sign
            wrong[~wrong] = self._repeated(words[~wrong])
        width, count = words.itemsize, int(np.count_nonzero(wrong))
        self.broken += count
        for at in np.flatnonzero(wrong)[: max(0, self.limit - len(self.findings))].tolist():
            self.findings.append(self._finding(extent, offset + at * width, int(words[at])))

    def _repeated(self, values: Array) -> npt.NDArray[np.bool_]:
        """Which columns have been seen before, here or in another piece; one bit each remembers them."""
        if self._seen is None:
            self._seen = np.zeros(ceil_div(self.columns, 8), np.uint8)
        repeated = np.ones(values.size, np.bool_)
        repeated[np.unique(values, return_index=True)[1]] = False
        byte, bit = values >> 3, np.left_shift(1, values & 7).astype(np.uint8)
        repeated |= (self._seen[byte] & bit) != 0
        np.bitwise_or.at(self._seen, byte, bit)
        return repeated

    def _finding(self, extent: _Extent, offset: int, word: int) -> Finding:
        role = _ROLES[self.role]
        path, place = self.artifact.locate(extent.record.offset + offset)
        element = extent.at + offset // role.width - extent.begin
        found = f"0x{word:0{2 * role.width}X}"
        if self.role == COLUMNS:
            number = word - (word >> 31 << 32)
            found = f"{number}, again" if 0 <= number < self.columns else str(number)
        problem = f"{self.role} has an illegal value at element {element}, byte {place} of {path.name}"
        problem += f"; expected {role.expected}, found {found}"
        return Finding("auxiliary", self.name, problem, str(path), place, None, None, element, role.expected, found)


def auxiliary_checks(report: Report, source: NinferSource) -> Iterator[AuxiliaryCheck]:
    """The checks of auxiliaries that have the format and shape of their role; of others, what is wrong is reported."""
    known = set()
    for index, use in enumerate(source.uses):
        for role, binding in use.auxiliaries.items():
            name = f"$.uses[{index}] ({use.parameter!r}, input {use.input!r}), {role}"

            def wrong(problem: str, expected: object, found: object, name: str = name) -> None:
                text = f"{problem}; expected {expected}, found {found}"
                report.add(Finding("use", name, text, expected=str(expected), found=str(found)))

            extents = _extents(source, binding)
            columns = _columns(source, use, wrong)
            if columns is None or not _fits(role, binding, extents, columns, wrong):
                continue
            if role == COLUMNS:
                formats = {
                    extent.record.format for extent in _extents(source, source.directory.bindings[use.parameter])
                }
                if not all(format.startswith("gguf_") for format in formats):
                    wrong(f"{COLUMNS} is for matrices in gguf_* formats", "gguf_*", ", ".join(sorted(formats)))
            key = (role, columns, tuple((extent.record.id, extent.begin, extent.end) for extent in extents))
            if key not in known:
                known.add(key)
                yield AuxiliaryCheck(source.artifact, role, name, columns, extents, report.max_findings)


def _extents(source: NinferSource, binding: Binding) -> list[_Extent]:
    found, at = [], 0
    spans: list[tuple[str, tuple[int, int] | None]] = [(part.object, part.range) for part in binding.parts or ()]
    if binding.object is not None:
        spans.append((binding.object, None))
    for id, span in spans:
        record = source.artifact.objects[id]
        assert isinstance(record, TensorRecord)  # noqa: S101 - the directory was checked
        begin, end = span or (0, record.elements)
        found.append(_Extent(record, begin, end, at))
        at += end - begin
    return found


def _columns(source: NinferSource, use: Use, wrong: Callable[[str, object, object], None]) -> int | None:
    """K of a parameter: the row length of the matrices that it is made of."""
    extents = _extents(source, source.directory.bindings[use.parameter])
    lengths = {extent.record.shape[-1] if extent.record.shape else 1 for extent in extents}
    if len(lengths) == 1:
        return lengths.pop()
    wrong("the parameter has rows of different length", "one K", sorted(lengths))
    return None


def _fits(
    role: str,
    binding: Binding,
    extents: Sequence[_Extent],
    columns: int,
    wrong: Callable[[str, object, object], None],
) -> bool:
    asked = _ROLES[role]
    formats = {extent.record.format for extent in extents}
    if formats != {asked.format}:
        wrong(f"{role} has the wrong format", asked.format, " and ".join(sorted(formats)))
        return False
    whole = binding.object is not None
    elements = extents[-1].at + extents[-1].end - extents[-1].begin
    shape = list(extents[0].record.shape) if whole else [elements]
    expected = ([] if whole else [1]) if asked.one else [columns]
    if shape != expected:
        wrong(f"{role} has the wrong shape", expected, shape)
        return False
    if role == SIGNS and columns % SIGN_MULTIPLE:
        wrong(f"{SIGNS} is for whole transforms", f"K a multiple of {SIGN_MULTIPLE}", columns)
    return True
