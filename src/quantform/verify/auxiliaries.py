"""What uses have beside their parameters: of the role's format and shape, and, when the bytes pass by, legal values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._sizes import ceil_div
from quantform.container import Artifact, Binding, TensorRecord
from quantform.convert.auxiliaries import COLUMNS, DIVISOR, SIGN_MULTIPLE, SIGNS
from quantform.sources import NinferSource
from quantform.verify.reading import Observer
from quantform.verify.report import Finding, Report

__all__ = ["auxiliary_observers", "check_uses"]

Array = npt.NDArray[np.integer]
Bytes = npt.NDArray[np.uint8]


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
    """Elements of an object, and where they belong in an auxiliary."""

    record: TensorRecord
    begin: int
    end: int
    at: int


class _Misfit(NamedTuple):
    """What is wrong with a use, as far as the directory says."""

    problem: str
    expected: object
    found: object


class _Auxiliary(NamedTuple):
    """One role of one use.

    Attributes:
        name: What findings call it.
        role: The role.
        columns: K of the parameter.
        extents: What it is made of, neighbours joined.
        misfits: What does not fit.
        readable: Whether it has the format and the number of elements that its values can be judged by.
    """

    name: str
    role: str
    columns: int
    extents: Sequence[_Extent]
    misfits: Sequence[_Misfit]
    readable: bool


class _Owned(NamedTuple):
    """Elements of an object, and one of the auxiliaries that have them."""

    extent: _Extent
    owner: _Auxiliary


def check_uses(report: Report, source: NinferSource) -> None:
    """Report auxiliaries that do not have the format and shape of their role, or do not go with their parameter."""
    for one in _auxiliaries(source):
        for problem, expected, found in one.misfits:
            text = f"{problem}; expected {expected}, found {found}"
            report.add(Finding("use", one.name, text, expected=str(expected), found=str(found)))


def auxiliary_observers(report: Report, source: NinferSource) -> Iterator[tuple[str, Observer]]:
    """For each object that auxiliaries are made of, what looks at its bytes and reports illegal values.

    A word is reported once, however many uses have it, and a permutation that several have is looked at once.
    """
    words: dict[str, list[_Owned]] = defaultdict(list)
    known = set()
    for one in _auxiliaries(source):
        if one.readable and one.role != COLUMNS:
            for extent in one.extents:
                words[extent.record.id].append(_Owned(extent, one))
        elif one.readable:
            in_order = _joined(sorted(one.extents, key=lambda extent: (extent.record.id, extent.begin)))
            key = one.columns, tuple((extent.record.id, extent.begin, extent.end) for extent in in_order)
            if key not in known:
                known.add(key)
                yield from _Columns(report, source.artifact, one).observers()
    for id, owned in words.items():
        yield id, _Words(report, source.artifact, owned)


class _Words:
    """Looks at the words of an object that are auxiliaries of one role, each by itself."""

    def __init__(self, report: Report, artifact: Artifact, owned: Iterable[_Owned]) -> None:
        self._report = report
        self._artifact = artifact
        self._owned: list[_Owned] = []
        at = 0
        for extent, owner in sorted(owned, key=lambda one: one.extent.begin):  # what several have is the first one's
            begin = max(at, extent.begin)
            if begin < extent.end:
                at = extent.end
                self._owned.append(_Owned(_Extent(extent.record, begin, at, extent.at + begin - extent.begin), owner))
        self._begins = np.array([extent.begin for extent, _ in self._owned], np.int64)
        self._ends = np.array([extent.end for extent, _ in self._owned], np.int64)
        self._role = self._owned[0].owner.role

    def __call__(self, offset: int, data: Bytes) -> None:
        """Look at some bytes, which are whole words."""
        width = _ROLES[self._role].width
        words = data.view(f"<u{width}")
        elements = np.flatnonzero(_illegal(words, self._role)) + offset // width
        index = np.searchsorted(self._begins, elements, "right") - 1
        owned = (index >= 0) & (elements < self._ends[index])
        places = zip(elements[owned], index[owned], strict=True)
        findings = (
            _finding(self._artifact, self._owned[which], int(element), int(words[element - offset // width]))
            for element, which in places
        )
        self._report.add_first("auxiliary", int(np.count_nonzero(owned)), findings)


def _illegal(words: Array, role: str) -> npt.NDArray[np.bool_]:
    illegal: npt.NDArray[np.bool_] = (words & 0x7FFF) != 0x3F80
    if role == DIVISOR:
        illegal = (words == 0) | (words >= 0x7F800000)
    return illegal


class _Columns:
    """Looks at a permutation as its bytes are read, in any order."""

    def __init__(self, report: Report, artifact: Artifact, auxiliary: _Auxiliary) -> None:
        self._report = report
        self._artifact = artifact
        self._auxiliary = auxiliary
        self._seen: Bytes | None = None

    def observers(self) -> Iterator[tuple[str, Observer]]:
        """For each extent."""
        for extent in self._auxiliary.extents:
            yield extent.record.id, self._observer(extent)

    def _observer(self, extent: _Extent) -> Observer:
        width = _ROLES[COLUMNS].width

        def look(offset: int, data: Bytes) -> None:
            begin, end = max(extent.begin, offset // width), min(extent.end, (offset + data.size) // width)
            if begin < end:
                self._check(extent, begin, data.view("<u4")[begin - offset // width : end - offset // width])

        return look

    def _check(self, extent: _Extent, first: int, words: Array) -> None:
        wrong = words >= self._auxiliary.columns  # negative ones are large without their sign
        wrong[~wrong] = self._repeated(words[~wrong])
        owned = _Owned(extent, self._auxiliary)
        places = np.flatnonzero(wrong)
        findings = (_finding(self._artifact, owned, first + int(at), int(words[at])) for at in places)
        self._report.add_first("auxiliary", places.size, findings)

    def _repeated(self, values: Array) -> npt.NDArray[np.bool_]:
        """Which columns have been seen before, here or in another piece; one bit each remembers them."""
        if self._seen is None:
            self._seen = np.zeros(ceil_div(self._auxiliary.columns, 8), np.uint8)
        repeated = np.ones(values.size, np.bool_)
        repeated[np.unique(values, return_index=True)[1]] = False
        byte, bit = values >> 3, np.left_shift(1, values & 7).astype(np.uint8)
        repeated |= (self._seen[byte] & bit) != 0
        np.bitwise_or.at(self._seen, byte, bit)
        return repeated


def _finding(artifact: Artifact, owned: _Owned, element: int, word: int) -> Finding:
    """An illegal word, the element of that number in its object."""
    extent, owner = owned
    role = _ROLES[owner.role]
    path, place = artifact.locate(extent.record.offset + element * role.width)
    column = extent.at + element - extent.begin
    found = f"0x{word:0{2 * role.width}X}"
    if owner.role == COLUMNS:
        number = word - (word >> 31 << 32)
        found = f"{number}, again" if 0 <= number < owner.columns else str(number)
    problem = f"{owner.role} has an illegal value at element {column}, byte {place} of {path.name}"
    problem += f"; expected {role.expected}, found {found}"
    return Finding("auxiliary", owner.name, problem, str(path), place, None, None, column, role.expected, found)


def _auxiliaries(source: NinferSource) -> Iterator[_Auxiliary]:
    """Every role of every use, and what is wrong with it."""
    for index, use in enumerate(source.uses):
        matrices = _extents(source, source.directory.bindings[use.parameter])
        for role, binding in use.auxiliaries.items():
            name = f"$.uses[{index}] ({use.parameter!r}, input {use.input!r}), {role}"
            yield _auxiliary(name, role, binding, _extents(source, binding), matrices)


def _auxiliary(
    name: str, role: str, binding: Binding, extents: Sequence[_Extent], matrices: Sequence[_Extent]
) -> _Auxiliary:
    """An auxiliary of a parameter that is made of `matrices`."""
    lengths = {extent.record.shape[-1] if extent.record.shape else 1 for extent in matrices}
    if len(lengths) > 1:
        misfit = _Misfit("the parameter has rows of different length", "one K", sorted(lengths))
        return _Auxiliary(name, role, 0, extents, [misfit], readable=False)
    asked, columns = _ROLES[role], lengths.pop()
    whole = binding.object is not None
    shape = list(extents[0].record.shape) if whole else [extents[-1].at + extents[-1].end - extents[-1].begin]
    expected = ([] if whole else [1]) if asked.one else [columns]
    formats = {extent.record.format for extent in extents}
    stored = {extent.record.format for extent in matrices}
    misfits = []
    if formats != {asked.format}:
        misfits.append(_Misfit(f"{role} has the wrong format", asked.format, " and ".join(sorted(formats))))
    elif shape != expected:
        misfits.append(_Misfit(f"{role} has the wrong shape", expected, shape))
    readable = not misfits
    if role == SIGNS and columns % SIGN_MULTIPLE:
        misfits.append(_Misfit(f"{SIGNS} is for whole transforms", f"K a multiple of {SIGN_MULTIPLE}", columns))
    if role == COLUMNS and not all(format.startswith("gguf_") for format in stored):
        misfits.append(_Misfit(f"{COLUMNS} is for matrices in gguf_* formats", "gguf_*", ", ".join(sorted(stored))))
    return _Auxiliary(name, role, columns, _joined(extents), misfits, readable)


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


def _joined(extents: Iterable[_Extent]) -> list[_Extent]:
    """The same elements, in one extent where one goes on in the next."""
    joined: list[_Extent] = []
    for one in extents:
        if joined and joined[-1].record is one.record and joined[-1].end == one.begin:
            joined[-1] = joined[-1]._replace(end=one.end)
        else:
            joined.append(one)
    return joined
