"""`quantform decode`: one tensor's values as a NumPy file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform.cli._options import AnyFile, Force
from quantform.cli._output import echo, plain, progress_bar, row_slice
from quantform.npy import write_npy
from quantform.sources import open_source

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="decode")(decode)


def decode(
    file: AnyFile,
    tensor: Annotated[str, typer.Argument(metavar="TENSOR", help="The tensor's name, as `inspect` lists it.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="X.npy", help="Where to write the values.")],
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="A:B", help="Only rows A to B - 1, counted from 0.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="D",
            help="float32, float16, bfloat16 or float64; by default the type that rounds nothing.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Decode one tensor exactly and write it as a NumPy file, a piece at a time.

    bfloat16 has no type in the .npy format: its words are written as two-byte voids, which
    `array.view(ml_dtypes.bfloat16)` turns back into numbers.
    """
    with open_source(file) as source, progress_bar("decoding") as progress:
        shape, written = write_npy(
            source[tensor],
            output,
            dtype=dtype,
            rows=row_slice(rows, source[tensor].matrix[0]),
            force=force,
            sources=source.files,
            progress=progress,
        )
    echo(f"{plain(str(output))}: {written} {list(shape)}")
