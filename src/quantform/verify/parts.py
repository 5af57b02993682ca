"""The tensors of a checkpoint's quantized weight, each by the rules of its own words."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.formats.checks import hex_word
from quantform.layouts.faults import SparseReader, read_through
from quantform.sources.conventions import PairRule, PartRule, QuantizedWeight
from quantform.verify.reading import Meter, watched
from quantform.verify.report import Finding, Report
from quantform.verify.zeros import ZeroPages

__all__ = ["PartReport"]

Array = npt.NDArray[Any]


class PartReport:
    """Looks at the words of one tensor and reports what is wrong with them.

    Args:
        report: The report.
        weight: The weight, which findings are about.
        part: Which of its tensors.
        columns: Values in a row, which places count; by default the words of the tensor's last axis.

    Attributes:
        report: The report.
    """

    def __init__(self, report: Report, weight: QuantizedWeight, part: str, columns: int | None = None) -> None:
        self.report = report
        self._weight = weight.name
        self._tensor = tensor = weight.parts[part]
        self._rules = weight.part_rules().get(part, ())
        self._scalar = SCALARS.get(tensor.format)
        words = max(1, tensor.shape[-1]) if tensor.shape else 1
        self._columns = columns or words
        self._bits = 8 if self._scalar is None else self._scalar.bits * words // self._columns
        self._zeros = ZeroPages(tensor.locate)

    def read(self, meter: Meter, begin: int = 0, end: int | None = None) -> None:
        """Every byte, or those from `begin` to `end`.

        Where there are no rules, every word is legal, and none is a value by itself.
        """
        tensor, scalar = self._tensor, self._scalar
        read = self.reader(meter)
        last = tensor.nbytes if end is None else end
        for offset, data in read_through(read, begin, last, 1 if scalar is None else scalar.nbytes):
            if scalar is not None and self._rules:
                self.check(data.view(scalar.stored_dtype), offset // scalar.nbytes)

    def reader(self, meter: Meter) -> SparseReader:
        """Reads the tensor; holes are taken note of."""
        tensor = self._tensor
        read = watched(tensor.read_into, meter, [self._zeros])
        return SparseReader(read, tensor.stored_spans, functools.partial(self.passed, meter))

    def conclude(self) -> None:
        """Report what can be said when all has been read."""
        self._zeros.report_to(self.report, self._tensor.name)

    def check(self, words: Array, first: int) -> None:
        """Look at some words, `[n]`, of which the first is the one of that number."""
        for rule in self._rules:
            breaks = rule.breaks(words)
            if breaks.any():
                wrong = np.flatnonzero(breaks)
                listed = wrong[: self.report.max_findings].tolist()
                self.add(rule, wrong.size, ((first + at, self._shown(int(words[at]))) for at in listed))

    def add(self, rule: PartRule | PairRule, count: int, places: Iterable[tuple[int, str]]) -> None:
        """Report words that break a rule.

        Args:
            rule: The rule.
            count: How many there are.
            places: The first of them: their numbers in the tensor, and what is there.
        """
        listed = 0
        for element, found in places:
            row, column = divmod(element, self._columns)
            path, byte = self._tensor.locate(element * self._bits // 8) or (Path(), None)
            where = f"in {self._tensor.name}, row {row}, column {column}, byte {byte} of {path.name}"
            problem = f"{rule.problem}, {where}; expected {rule.expected}, found {found}"
            group, place = (column, None) if rule.rule == "scale" else (None, column)
            self.report.add(
                Finding(rule.rule, self._weight, problem, str(path), byte, row, group, place, rule.expected, found)
            )
            listed += 1
        self.report.broken[rule.rule] += count - listed

    def _shown(self, word: int) -> str:
        return hex(word) if self._scalar is None else hex_word(word, self._scalar)

    def passed(self, meter: Meter, begin: int, end: int) -> None:
        """Take note of a hole: zeros, all of which may be wrong."""
        meter.passed(begin, end)
        self._zeros.passed(begin, end)
        if self._scalar is not None:
            zero, size = np.zeros(1, self._scalar.word_dtype), self._scalar.nbytes
            for rule in self._rules:
                if rule.breaks(zero).any():
                    self.add(rule, (end - begin) // size, [(begin // size, self._shown(0))])
