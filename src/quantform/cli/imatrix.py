"""`quantform imatrix`: llama.cpp's importance matrix as vectors by parameter name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from quantform._sizes import counted
from quantform.cli._options import Force
from quantform.cli._output import echo, plain
from quantform.recipes import import_importance

__all__ = ["register"]

_LISTED = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="imatrix")(imatrix)


def imatrix(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="The GGUF file that llama-imatrix wrote.", readable=False)
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.safetensors", help="Where to write the vectors.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="config.json",
            help="The model's config: name the vectors by layer and role, text/layers/0/mlp/down.",
            readable=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Import an importance matrix: in_sum2 / max(counts, 1) of each weight, F32, one value an input channel."""
    imported = import_importance(source, output, config=config, force=force)
    kinds = Counter("expert bank" if len(shape) > 1 else "vector" for shape in imported.shapes.values())
    found = ", ".join(counted(count, kind) for kind, count in kinds.items())
    echo(plain(f"{output}: {found}"))
    if imported.unused:
        names = ", ".join(map(repr, imported.unused[:_LISTED])) + (", ..." if len(imported.unused) > _LISTED else "")
        left = counted(len(imported.unused), "vector")
        echo(plain(f"{source}: {left} left out, without a role in the config's layers: {names}"))
