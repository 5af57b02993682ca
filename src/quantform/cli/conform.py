"""`quantform conform`: do decoders and encoders of others keep the rules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from quantform._sizes import counted
from quantform.cli._options import Json
from quantform.cli._output import echo, plain, print_json, print_table, progress_bar
from quantform.errors import ArgumentError
from quantform.testing import (
    RULES,
    Difference,
    ForeignDecoder,
    ForeignEncoder,
    Report,
    check_decoder,
    check_encoder,
    export,
)
from quantform.testing.checks import output_types
from quantform.testing.foreign import check_timeout

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
    json: Json = False,
) -> None:
    """Run a foreign decoder or encoder over the conformance vectors, and exit with 1 if it breaks a rule.

    A program that ends with exit code 77 does not implement what it was asked for; that is counted apart, and so are
    runs that fail.
    """
    if run is None and encode is None and directory is None:
        raise ArgumentError("there is nothing to do", expected="--run, --encode or --export")
    if dtypes is not None and run is None:
        raise ArgumentError("--dtype chooses what a decoder is asked for", hint="Add --run COMMAND")
    check_timeout(timeout)
    exported: dict[str, Any] | None = None
    reports: dict[str, Report] = {}
    with ExitStack() as stack:
        # What is wrong with a command is said before anything is written or run.
        decoder = None if run is None else stack.enter_context(ForeignDecoder(run, timeout))
        encoder = None if encode is None else stack.enter_context(ForeignEncoder(encode, timeout))
        outputs = () if decoder is None else _outputs(dtypes, decoder)
        if directory is not None:
            with progress_bar("writing", steps=True) as progress:
                manifest = export(directory, formats, progress)
            exported = {"directory": str(directory), "vectors": len(manifest["vectors"])}
            if not json:
                echo(plain(f"{directory}: {counted(exported['vectors'], 'vector')}"))
        if decoder is not None:
            with progress_bar("decoding", steps=True) as progress:
                reports["decode"] = check_decoder(decoder, formats, outputs, progress)
        if encoder is not None:
            with progress_bar("encoding", steps=True) as progress:
                reports["encode"] = check_encoder(encoder, formats, progress)
    ok = all(report.ok for report in reports.values())
    if json:
        print_json({"ok": ok, "exported": exported, **_listed(reports)})
    else:
        for report in reports.values():
            _print(report)
    if not ok:
        raise typer.Exit(1)


def _listed(reports: dict[str, Report]) -> dict[str, Any]:
    """What both reports list, each entry with what was checked: `"decode"` or `"encode"`."""
    documents = {kind: report.as_dict() for kind, report in reports.items()}
    return {
        name: [{"kind": kind, **entry} for kind, document in documents.items() for entry in document[name]]
        for name in ("subjects", "results")
    }


def _outputs(dtypes: list[str] | None, decoder: ForeignDecoder) -> tuple[str, ...]:
    if dtypes is None and "dtype" not in decoder.used:
        return ("float32",)
    chosen = output_types(dtypes)
    if len(chosen) > 1 and "dtype" not in decoder.used:
        raise ArgumentError(
            "the command lacks {dtype}, so that it cannot be told which type to write",
            expected="one --dtype",
            found=", ".join(chosen),
        )
    return chosen


def _print(report: Report) -> None:
    for group in report.unrun:
        echo(plain(f"failed to run: {group.reason}"))
        _print_lines([("rules", group.rules), ("first", _vector(group.first))], group.first.detail)
    for result in report.broken:
        echo(plain(f"{result.subject}: {result.rule}"))
        echo(f"  {RULES[result.rule].meaning}.")
        first = result.first
        if first is not None:
            lines = [("vector", _vector(first)), ("problem", first.problem), ("where", first.where)]
            _print_lines([*lines, ("expected", first.expected), ("found", first.found)], first.detail)
    rows = [
        (subject, *(str(number) if number else "-" for number in counts.values()))
        for subject, counts in report.subjects()
    ]
    print_table(("rules of", "kept", "broken", "failed to run", "not implemented"), rows, right=(1, 2, 3, 4))
    if not report.failures and not report.ok:
        echo("nothing was checked")


def _vector(difference: Difference) -> str:
    return f"{difference.vector} as {difference.output}" if difference.output else difference.vector


def _print_lines(lines: Iterable[tuple[str, str]], detail: str) -> None:
    """Indented lines of a name and a text, those without a text left out; then more text, and an empty line."""
    for name, text in lines:
        if text:
            echo(plain(f"  {name:<8}  {text}"))
    for line in detail.splitlines():
        echo(plain(f"  {line}"))
    echo()
