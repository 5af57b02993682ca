"""`quantform verify`: whether a file is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform._sizes import counted
from quantform.cli._options import AnyFile, Json
from quantform.cli._output import echo, plain, print_json, print_table, progress_bar
from quantform.verify import Finding, MethodError
from quantform.verify import verify as run

__all__ = ["register"]

# Errors of methods that are shown; JSON has all of them.
_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="verify")(verify)


def verify(
    file: AnyFile,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Read every byte once: are all words legal, all padding canonical, all gaps zero; are values finite.",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="SRC", help="Compare with the file it was made from."),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error", metavar="X", help="A relative RMS error against SRC above X is wrong; needs --against."
        ),
    ] = None,
    max_findings: Annotated[
        int, typer.Option("--max-findings", metavar="N", min=1, help="List at most N findings; all are counted.")
    ] = 100,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for remarks too.")] = False,
    json: Json = False,
) -> None:
    """Check FILE and exit with 1 if anything is wrong. Remarks are about what is allowed and worth a look.

    Without options only headers are read: structure, ranges, sizes, the parts of a split artifact.
    """
    with progress_bar("verifying") as progress:
        report = run(
            file, deep=deep, against=against, max_error=max_error, max_findings=max_findings, progress=progress
        )
    if json:
        print_json(report.as_dict())
    else:
        _print_findings("wrong", report.findings, report.counts(remarks=False))
        _print_findings("remark", report.remarks, report.counts(remarks=True))
        for line in report.notes:
            echo(plain(line))
        if report.errors:
            _print_errors(report.errors)
        verdict = "all right" if report.ok else f"{report.total} wrong"
        echo(f"{plain(str(file))}: {verdict}")
    if not report.ok or (strict and report.total_remarks):
        raise typer.Exit(1)


def _print_findings(word: str, findings: list[Finding], counts: dict[str, int]) -> None:
    """What was kept, and, where that is not all, how often each rule is broken."""
    for finding in findings:
        echo(plain(f"{word}: {finding}"))
    rest = sum(counts.values()) - sum(finding.count for finding in findings)
    if rest > 0:
        echo(f"{word}: {rest} more, not listed")
        echo(f"{word} in all: {', '.join(f'{rule} {count}' for rule, count in counts.items())}")


def _print_errors(errors: list[MethodError]) -> None:
    """The worst errors of tensors that methods quantized, one line each."""
    header = ("tensor", "from", "to", "relative RMS", "SNR dB", "largest", "row", "column")
    lines = [
        (
            error.name,
            error.source_format,
            error.format,
            *("-" if number is None else f"{number:.{digits}}" for number, digits in _numbers(error)),
            *("-" if place is None else str(place) for place in (error.row, error.column)),
        )
        for error in errors[:_SHOWN]
    ]
    print_table(header, lines, right=range(3, 8))
    if len(errors) > _SHOWN:
        echo(f"and {counted(len(errors) - _SHOWN, 'tensor')} with smaller errors; --json lists them")
    for error in errors:
        if error.incomparable:
            elements = counted(error.incomparable, "element")
            echo(
                plain(f"{error.name}: {elements} not finite on one side, or differently on both, which no number tells")
            )


def _numbers(error: MethodError) -> tuple[tuple[float | None, str], ...]:
    return (error.relative_rms, "3e"), (error.snr_db, "2f"), (error.max_abs, "3e")
