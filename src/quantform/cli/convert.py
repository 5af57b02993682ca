"""`quantform convert`: from one file format to another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from quantform._sizes import human_bytes
from quantform.cli._output import plain, progress_bar
from quantform.convert import convert as run
from quantform.errors import ArgumentError

__all__ = ["register"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="convert")(convert)


def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A GGUF file or a .ninfer entry file.")],
    output: Annotated[Path, typer.Argument(metavar="DST", help="What to write; the suffix tells: .ninfer or .gguf.")],
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="The .ninfer format of every matrix; vectors keep their words."),
    ] = None,
    fallback: Annotated[
        str | None,
        typer.Option(
            "--fallback",
            metavar="F",
            help="bf16 or fp32: decode to it only those tensors whose words no .ninfer format holds.",
        ),
    ] = None,
    max_file_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-file-bytes", metavar="N", help="Split the output into files of at most N bytes (4G, 512Mi, ...)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DST if it exists.")] = False,
) -> None:
    """Convert SRC to DST without changing a word that DST can hold.

    GGUF to .ninfer keeps every block byte for byte, and the rest of the file in resources, so that converting back
    gives the original GGUF again.
    """
    with progress_bar("converting") as progress:
        report = run(
            source,
            output,
            format=format,
            fallback=fallback,
            max_file_bytes=_bytes(max_file_bytes),
            force=force,
            progress=progress,
        )
    for line in report.lines():
        typer.echo(plain(line))
    for path, size in report.files:
        typer.echo(f"{plain(str(path))}: {human_bytes(size)}")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)\s*([kmgt]i?)?b?", text.lower())
    if match is None:
        raise ArgumentError(
            "--max-file-bytes is not a size", expected="a number such as 4000000000, 4G or 512Mi", found=repr(text)
        )
    return int(match[1]) * _UNITS[match[2] or ""]
