"""`quantform conform`: do decoders and encoders of others keep the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform._scalars import FLOAT_OUTPUTS
from quantform._sizes import counted
from quantform.cli._output import plain, print_json, print_table, progress_bar
from quantform.errors import ArgumentError
from quantform.testing import (
    RULES,
    ForeignDecoder,
    ForeignEncoder,
    Report,
    check_decoder,
    check_encoder,
    export,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="conform")(conform)


def conform(
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="A decoder: 'decode {format} {payload} {shape} {output}'; also {dtype} {layout} {divisors}.",
        ),
    ] = None,
    encode: Annotated[
        str | None,
        typer.Option(
            "--encode",
            metavar="COMMAND",
            help="An encoder: 'encode {format} {method} {values} {shape} {output}'; also {source} {importance} "
            "{negative_scales} {layout}.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Write the vectors as .npz and plain files with a manifest."),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--formats", metavar="NAME", help="Profiles and formats, or patterns: 'gguf:q4_*'. Repeatable."),
    ] = None,
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="TYPE",
            help="Output types to check; by default float32, or all four if the command has {dtype}. Repeatable.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="What one run may take.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Run a foreign decoder or encoder over the conformance vectors, and exit with 1 if it breaks a rule.

    A program that ends with exit code 77 does not implement what it was asked for; that is counted apart.
    """
    if run is None and encode is None and directory is None:
        raise ArgumentError("there is nothing to do", expected="--run, --encode or --export")
    if directory is not None:
        with progress_bar("writing", steps=True) as progress:
            manifest = export(directory, formats, progress)
        if not json:
            typer.echo(plain(f"{directory}: {counted(len(manifest['vectors']), 'vector')}"))
    reports = []
    if run is not None:
        with ForeignDecoder(run, timeout) as decoder, progress_bar("decoding", steps=True) as progress:
            reports.append(check_decoder(decoder, formats, _outputs(dtypes, decoder), progress))
    if encode is not None:
        with ForeignEncoder(encode, timeout) as encoder, progress_bar("encoding", steps=True) as progress:
            reports.append(check_encoder(encoder, formats, progress))
    ok = all(report.ok for report in reports)
    if json:
        results = [result for report in reports for result in report.as_dict()["results"]]
        print_json({"ok": ok, "exported": None if directory is None else str(directory), "results": results})
    else:
        for report in reports:
            _print(report)
    if not ok:
        raise typer.Exit(1)


def _outputs(dtypes: list[str] | None, decoder: ForeignDecoder) -> list[str]:
    if "dtype" in decoder.used:
        return list(FLOAT_OUTPUTS) if dtypes is None else dtypes
    chosen = ["float32"] if dtypes is None else dtypes
    if len(chosen) > 1:
        raise ArgumentError(
            "the command lacks {dtype}, so that it cannot be told which type to write",
            expected="one --dtype",
            found=", ".join(chosen),
        )
    return chosen


def _print(report: Report) -> None:
    for result in report.failures:
        typer.echo(plain(f"{result.subject}: {result.rule}"))
        typer.echo(f"  {RULES[result.rule].meaning}.")
        first = result.first
        if first is not None:
            for name, text in (
                ("vector", f"{first.vector} as {first.output}" if first.output else first.vector),
                ("problem", first.problem),
                ("where", first.where),
                ("expected", first.expected),
                ("found", first.found),
            ):
                if text:
                    typer.echo(plain(f"  {name:<8}  {text}"))
        typer.echo()
    rows = [
        (subject, *(str(number) if number else "-" for number in counts.values()))
        for subject, counts in report.subjects()
    ]
    print_table(("rules of", "kept", "broken", "not implemented"), rows, right=(1, 2, 3))
    if not report.failures and not report.ok:
        typer.echo("nothing was checked")
