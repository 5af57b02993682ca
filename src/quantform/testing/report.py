"""What a check found, rule by rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quantform.testing.differences import Difference
from quantform.testing.kit import RULES

__all__ = ["Report", "RuleResult"]


@dataclass(slots=True)
class RuleResult:
    """One rule, for one format (of an encoder: one method and format).

    Attributes:
        subject: The profile or format, or `"method format"`.
        rule: The rule's identifier.
        passed: How many runs kept it.
        failed: How many broke it.
        missing: How many runs the code under test does not implement.
        first: The first difference.
    """

    subject: str
    rule: str
    passed: int = 0
    failed: int = 0
    missing: int = 0
    first: Difference | None = None

    @property
    def status(self) -> str:
        """`"fail"`, `"pass"`, or `"not implemented"` where nothing was run."""
        if self.failed:
            return "fail"
        return "pass" if self.passed else "not implemented"


@dataclass(slots=True)
class Report:
    """The results of one check, in the order in which rules were met."""

    _results: dict[tuple[str, str], RuleResult] = field(default_factory=dict)

    def result(self, subject: str, rule: str) -> RuleResult:
        """The result of a rule, to be counted up."""
        return self._results.setdefault((subject, rule), RuleResult(subject, rule))

    def record(self, subject: str, rules: list[str], differences: list[Difference]) -> None:
        """Count one run: the rules that it exercises, and what it broke."""
        for difference in differences:
            result = self.result(subject, difference.rule)
            result.failed += 1
            result.first = result.first or difference
        broken = {difference.rule for difference in differences}
        for rule in rules:
            if rule not in broken:
                self.result(subject, rule).passed += 1

    def missing(self, subject: str, rule: str) -> None:
        """Count one run that the code under test does not implement."""
        self.result(subject, rule).missing += 1

    @property
    def results(self) -> tuple[RuleResult, ...]:
        """All of them."""
        return tuple(self._results.values())

    @property
    def failures(self) -> tuple[RuleResult, ...]:
        """Those of rules that were broken."""
        return tuple(result for result in self.results if result.failed)

    @property
    def ok(self) -> bool:
        """Whether something was run and no rule was broken."""
        return not self.failures and any(result.passed for result in self.results)

    def subjects(self) -> Iterator[tuple[str, dict[str, int]]]:
        """For each format, how many rules have which status."""
        counts: dict[str, dict[str, int]] = {}
        for result in self.results:
            own = counts.setdefault(result.subject, {"pass": 0, "fail": 0, "not implemented": 0})
            own[result.status] += 1
        yield from counts.items()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "ok": self.ok,
            "results": [
                {
                    "subject": result.subject,
                    "rule": result.rule,
                    "meaning": RULES[result.rule].meaning,
                    "status": result.status,
                    "passed": result.passed,
                    "failed": result.failed,
                    "not_implemented": result.missing,
                    "first": None if result.first is None else _as_dict(result.first),
                }
                for result in self.results
            ],
        }

    def __str__(self) -> str:
        lines = []
        for result in self.failures:
            lines += [f"{result.subject}: {result.rule}: {RULES[result.rule].meaning}", f"    {result.first}"]
        return "\n".join(lines) or f"{sum(result.status == 'pass' for result in self.results)} rules kept"


def _as_dict(difference: Difference) -> dict[str, str]:
    names = ("vector", "output", "problem", "where", "expected", "found", "detail")
    return {name: getattr(difference, name) for name in names}
