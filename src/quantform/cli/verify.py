"""`quantform verify`: whether a file is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform.cli._output import plain, print_json, progress_bar
from quantform.verify import verify as run

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="verify")(verify)


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF, safetensors or .ninfer file.", readable=False)],
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Read every byte: are all words legal, all padding canonical, all gaps zero.",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="SRC", help="Compare every tensor with the file it was made from."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Check FILE and exit with 1 if anything is wrong.

    Without options only headers are read: structure, ranges, sizes, the parts of a split artifact.
    """
    with progress_bar("verifying") as progress:
        report = run(file, deep=deep, against=against, progress=progress)
    if json:
        print_json(report.as_dict())
    else:
        for finding in report.findings:
            typer.echo(plain(f"wrong: {finding}"))
        for line in report.notes:
            typer.echo(plain(line))
        verdict = "all right" if report.ok else f"{len(report.findings)} wrong"
        typer.echo(f"{plain(str(file))}: {verdict}")
    if not report.ok:
        raise typer.Exit(1)
