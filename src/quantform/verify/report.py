"""What verification found, collected: every broken rule is counted, and the first of them are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from quantform._sizes import counted
from quantform.compare.measure import Errors
from quantform.errors import ChangedFileError, QuantformError
from quantform.layouts import Fault, Faults
from quantform.verify.rules import RULES

__all__ = ["Finding", "MethodError", "Place", "Report", "of_error"]

Place = Callable[[int], tuple[Path, int]]
"""The file that has a byte of a tensor's payload, and its offset there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or, as a remark, one that is allowed and worth a look.

    Attributes:
        rule: The name of the rule that is broken; see `quantform.verify.rules`.
        object: The tensor, object or file.
        problem: What is wrong, with place, expected and found: a line for people.
        file: The file that has the byte.
        offset: The first wrong byte in that file.
        row: The row, counted through the flattened leading axes.
        group: The group of the row.
        column: The column.
        expected: What would be right.
        found: What is there.
        count: How many words or bytes it stands for.
    """

    rule: str
    object: str
    problem: str
    file: str | None = None
    offset: int | None = None
    row: int | None = None
    group: int | None = None
    column: int | None = None
    expected: str | None = None
    found: str | None = None
    count: int = 1

    def __str__(self) -> str:
        return f"{self.object}: {self.problem} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodError(Errors):
    """How far a tensor that a method quantized or that was rounded is from its source, the reference.

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
        kind: What kind of file it is; `"unknown"` where it could not be opened.
        max_findings: How many findings, and how many remarks, are kept.
        findings: What is wrong, the first of it.
        remarks: What is allowed and worth a look, the first of it.
        broken: How often each rule is broken, remarks' rules too: all of it, not what was kept.
        checked: How many things of each kind were looked at.
        notes: Lines for people that say what was shown.
        errors: Of each tensor that a method quantized, how far it is from its source; the worst first. With a largest
            error, or beside a file that is not the source, of others that differ, too.
    """

    path: Path
    kind: str
    max_findings: int = 100
    findings: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    errors: list[MethodError] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.total

    @property
    def total(self) -> int:
        """How many things are wrong, those that were not kept among them."""
        return sum(self.counts(remarks=False).values())

    @property
    def total_remarks(self) -> int:
        """How many remarks there are, those that were not kept among them."""
        return sum(self.counts(remarks=True).values())

    def counts(self, *, remarks: bool) -> dict[str, int]:
        """How often each rule is broken, either those of remarks or the others."""
        return {rule: count for rule, count in self.broken.items() if count and RULES[rule].remark == remarks}

    def add(self, finding: Finding) -> None:
        """Count something, and keep it if there is room."""
        kept = self.remarks if RULES[finding.rule].remark else self.findings
        if len(kept) < self.max_findings:
            kept.append(finding)
        self.broken[finding.rule] += finding.count

    def add_first(self, rule: str, count: int, findings: Iterable[Finding]) -> None:
        """Count words or bytes that break a rule; no more of their findings are made than can be kept."""
        listed = list(islice(findings, self.max_findings))
        for finding in listed:
            self.add(finding)
        self.broken[rule] += count - sum(finding.count for finding in listed)

    def add_faults(self, name: str, faults: Faults, place: Place) -> None:
        """Count faults of a payload, whose bytes lie where `place` says."""
        findings = (_of_fault(name, fault, place) for fault in faults.first)
        self.add_first(faults.first[0].rule, faults.count, findings)

    def attempt(self, rule: str, name: str, check: Callable[[], object]) -> bool:
        """Whether a check passes; what it raises becomes a finding, unless a file changed, which ends everything."""
        try:
            check()
        except ChangedFileError:
            raise
        except QuantformError as error:
            self.add(of_error(rule, name, error))
            return False
        return True

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "ok": self.ok,
            "total": self.total,
            "total_remarks": self.total_remarks,
            "broken": dict(self.broken),
            "checked": dict(self.checked),
            "notes": self.notes,
            "findings": [asdict(finding) for finding in self.findings],
            "remarks": [asdict(remark) for remark in self.remarks],
            "errors": [asdict(error) for error in self.errors],
        }


def of_error(rule: str, name: str, error: QuantformError) -> Finding:
    """An error as a finding; where it is just that object, it does not say so again."""
    expected, found = (None if one is None else str(one) for one in (error.expected, error.found))
    return Finding(rule, name, str(error).removeprefix(f"{name}: "), expected=expected, found=found)


def _of_fault(name: str, fault: Fault, place: Place) -> Finding:
    path, offset = place(fault.offset)
    where = f" at {fault.where}" if fault.where else ""
    behind = f" and {counted(fault.count - 1, 'byte')} behind it" if fault.count > 1 else ""
    problem = f"{fault.problem}{where}, byte {offset} of {path.name}{behind}"
    problem += f"; expected {fault.expected}, found {fault.found}"
    return Finding(
        fault.rule,
        name,
        problem,
        str(path),
        offset,
        fault.row,
        fault.group,
        fault.column,
        fault.expected,
        fault.found,
        fault.count,
    )
