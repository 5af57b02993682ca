"""What a check found, rule by rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from quantform._sizes import counted
from quantform.testing.differences import Difference
from quantform.testing.foreign import ForeignError
from quantform.testing.kit import RULES

__all__ = ["STATUSES", "Group", "Report", "RuleResult"]

STATUSES = ("pass", "fail", "failed to run", "not implemented")
"""What can be said of a rule."""

# How many rules are named of those under which runs failed for one reason.
_NAMED = 3


@dataclass(slots=True)
class RuleResult:
    """One rule, for one format (of an encoder: one method and format).

    Attributes:
        subject: The profile or format, or `"method format"`.
        rule: The rule's identifier.
        passed: How many runs kept it.
        failed: How many broke it, failures to run among them.
        unrun: How many failed to run: there was no result to compare.
        missing: How many runs the code under test does not implement.
        first: The first difference; one of values goes before failures to run.
    """

    subject: str
    rule: str
    passed: int = 0
    failed: int = 0
    unrun: int = 0
    missing: int = 0
    first: Difference | None = None

    @property
    def status(self) -> str:
        """What the runs showed.

        `"fail"`, where something is wrong in a result; `"failed to run"`, where some had none, and nothing is wrong
        in the others; `"pass"`; or `"not implemented"` where nothing was run.
        """
        if self.failed:
            return "fail" if self.failed > self.unrun else "failed to run"
        return "pass" if self.passed else "not implemented"

    def count(self, difference: Difference) -> None:
        """Count a run that broke the rule."""
        self.failed += 1
        self.unrun += difference.failure == "failed to run"
        if self.first is None or (self.first.failure, difference.failure) == ("failed to run", "wrong values"):
            self.first = difference


@dataclass(slots=True)
class Group:
    """Rules under which a run failed for the same reason.

    Attributes:
        results: The rules.
        first: The first failure.
    """

    results: list[RuleResult]
    first: Difference

    @property
    def reason(self) -> str:
        """Why, in one phrase; what depends on the vector is the first one's."""
        return "; ".join(filter(None, (self.first.problem, self.first.expected_and_found)))

    @property
    def rules(self) -> str:
        """Which rules, the first of them by name."""
        names = [f"{result.subject}: {result.rule}" for result in self.results[:_NAMED]]
        more = len(self.results) - _NAMED
        return ", ".join(names) + (f", and {more} more" if more > 0 else "")


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
            self.result(subject, difference.rule).count(difference)
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
        """Those of rules that were broken, or under which a run failed."""
        return tuple(result for result in self.results if result.failed)

    @property
    def broken(self) -> tuple[RuleResult, ...]:
        """Those of rules that wrong values broke."""
        return tuple(result for result in self.results if result.status == "fail")

    @property
    def unrun(self) -> tuple[Group, ...]:
        """Those under which a run failed, and nothing else is wrong, by the reason of the first failure."""
        groups: dict[tuple[str, str], Group] = {}
        for result in self.results:
            if result.status == "failed to run" and result.first is not None:
                groups.setdefault(_reason(result.first), Group([], result.first)).results.append(result)
        return tuple(groups.values())

    @property
    def ok(self) -> bool:
        """Whether something was run and no rule was broken."""
        return not self.failures and any(result.passed for result in self.results)

    def subjects(self) -> Iterator[tuple[str, dict[str, int]]]:
        """For each format, how many rules have which status."""
        counts: dict[str, dict[str, int]] = {}
        for result in self.results:
            own = counts.setdefault(result.subject, dict.fromkeys(STATUSES, 0))
            own[result.status] += 1
        yield from counts.items()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "ok": self.ok,
            "subjects": [
                {"subject": subject} | {status.replace(" ", "_"): count for status, count in counts.items()}
                for subject, counts in self.subjects()
            ],
            "results": [
                {
                    "subject": result.subject,
                    "rule": result.rule,
                    "meaning": RULES[result.rule].meaning,
                    "section": RULES[result.rule].section,
                    "status": result.status,
                    "passed": result.passed,
                    "failed": result.failed,
                    "failed_to_run": result.unrun,
                    "not_implemented": result.missing,
                    "first": None if result.first is None else _as_dict(result.first),
                }
                for result in self.results
            ],
        }

    def __str__(self) -> str:
        lines = []
        for group in self.unrun:
            lines += [f"failed to run, {group.rules}", indent(str(group.first), "    ")]
        for result in self.broken:
            lines += [
                f"{result.subject}: {result.rule}: {RULES[result.rule].meaning}",
                indent(str(result.first), "    "),
            ]
        if lines or self.ok:
            return "\n".join(lines) or f"{sum(result.status == 'pass' for result in self.results)} rules kept"
        return f"nothing was checked; {counted(len(self.results), 'rule')} not implemented"


def _reason(first: Difference) -> tuple[str, str]:
    """What failures alike have in common, whatever the vector: sizes and messages may be a vector's own."""
    if first.cause is not None and not isinstance(first.cause, ForeignError):
        return type(first.cause).__name__, first.detail
    return first.problem, "" if first.expected else first.found


def _as_dict(difference: Difference) -> dict[str, str]:
    names = ("failure", "vector", "output", "problem", "where", "expected", "found", "detail")
    return {name: getattr(difference, name) for name in names}
