"""Arguments and options that several commands have, which mean the same in each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AnyFile", "Force", "Json"]

AnyFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A GGUF, safetensors, .onnx or .ninfer file.", readable=False)
]
Force = Annotated[bool, typer.Option("--force", help="Replace what there is under the output's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, also of an error, and no text.")]
