"""`quantform onnx`: work on ONNX models; one function a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform import onnx
from quantform.cli._options import Force, Json
from quantform.cli._output import print_report, progress_bar

__all__ = ["register"]

_commands = typer.Typer(rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(_commands, name="onnx", help="Work on ONNX models: put packed weights into a graph.")


@_commands.callback()
def _group() -> None:
    """Work on ONNX models; needs the extra `onnx`."""


@_commands.command()
def attach(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="The ONNX model.", readable=False)],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="The GGUF model.", readable=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The ONNX model to write.")],
    names: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="NAMES.toml",
            help='Lines \'"INITIALIZER" = "TENSOR"\'; without it, equal names are paired.',
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="D",
            help="Where OUT has its weights: reference (in WEIGHTS, as they are), copy (in OUT.onnx.data), inline.",
        ),
    ] = "reference",
    opset: Annotated[
        int | None,
        typer.Option(
            "--opset",
            metavar="N",
            help="The operators of OUT: 29 (has DequantizePacked; the default), or earlier ones, which do it.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Replace float initializers of GRAPH by packed tensors of WEIGHTS, which stay packed until the graph runs.

    Shapes are checked, and a Transpose is put in where the graph has columns first. Everything else of GRAPH is kept.
    """
    with progress_bar("attaching") as progress:
        report = onnx.attach(
            graph, weights, output, names=names, data=data, opset=opset, force=force, progress=progress
        )
    print_report(report, json=json)
