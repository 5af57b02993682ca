"""`quantform convert`: from one file format to another, and what that would do."""

from __future__ import annotations

import json as json_module
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from quantform.cli._options import Force, Json
from quantform.cli._output import echo, plain, print_json, print_report, print_table, progress_bar
from quantform.convert import Plan
from quantform.convert import convert as run
from quantform.convert import plan as make_plan
from quantform.errors import ArgumentError

__all__ = ["register"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="convert")(convert)


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="A GGUF file, a safetensors file, index or directory, an ONNX model, or a .ninfer entry file.",
            readable=False,
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="DST", help="What to write; the suffix tells: .ninfer, .gguf or .onnx.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="R",
            help="FILE.py[:FUNCTION] or FILE.toml: what each parameter gets. A Python file is run, with all rights of "
            "yours: use only those that you have read.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="F",
            help="The .ninfer format of every matrix that it can hold; vectors keep their words.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="M", help="How the words of --format are made: grouped_search, ..."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="K=V", help="A parameter of --method, its value as JSON; repeatable."),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            "--imatrix",
            metavar="FILE",
            help="Importance of channels for grouped_search: llama.cpp's file or an import.",
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="NAME=PATH", help="A further source for the recipe; repeatable."),
    ] = None,
    component: Annotated[
        list[str] | None,
        typer.Option(
            "--component", metavar="NAME=PATH", help="A further component of DST (vision, mtp, ...); repeatable."
        ),
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
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="D",
            help="Where a .onnx DST has its weights: reference (in SRC, as they are; the default), copy (in DST.data), "
            "inline.",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            "--opset",
            metavar="N",
            help="The operators of a .onnx DST: 29 (has DequantizePacked; the default), or earlier ones, which do it.",
        ),
    ] = None,
    qdq: Annotated[
        bool,
        typer.Option(
            "--qdq", help="In a .onnx DST, write the standard DequantizeLinear where it holds a tensor's words."
        ),
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="How many threads encode; by default every CPU.")
    ] = None,
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what each parameter would become, and write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Convert SRC to DST without changing a word that DST can hold, unless a format or a recipe asks for it.

    GGUF to .ninfer keeps every block byte for byte, and the rest of the file in resources, so that converting back
    gives the original GGUF again. Configuration, tokenizer and templates beside a safetensors model go along. GGUF to
    .onnx keeps the blocks packed, and in the GGUF file; it needs the extra `onnx`.

    DST appears when it is complete. A conversion that is stopped or killed leaves nothing under that name, what was
    there before stays, and the next one starts over.
    """
    what: dict[str, Any] = {
        "recipe": recipe,
        "format": format,
        "method": method,
        "parameters": _parameters(parameter),
        "imatrix": imatrix,
        "sources": _named(named, "--source"),
        "components": _named(component, "--component"),
        "fallback": fallback,
    }
    limit = _bytes(max_file_bytes)
    if dry_run:
        if output.suffix != ".ninfer":
            raise ArgumentError("only a conversion to .ninfer is planned", where=str(output), expected="*.ninfer")
        _show(make_plan(source, **what, output=output, max_file_bytes=limit, force=force), json=json)
        return
    with progress_bar("converting") as progress:
        report = run(
            source,
            output,
            **what,
            max_file_bytes=limit,
            data=data,
            opset=opset,
            qdq=qdq,
            threads=threads,
            force=force,
            progress=progress,
        )
    print_report(report, json=json)


def _show(planned: Plan, *, json: bool) -> None:
    if json:
        print_json(planned.as_dict())
        return
    print_table(planned.header, planned.rows(), right=(6,))
    echo()
    for line in planned.lines():
        echo(plain(line))


def _named(given: list[str] | None, option: str) -> dict[str, str] | None:
    """`NAME=PATH` options as a mapping."""
    if not given:
        return None
    paths: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or name in paths:
            raise ArgumentError(f"{option} is no NAME=PATH, or names one twice", found=repr(text))
        paths[name] = path
    return paths


def _parameters(given: list[str] | None) -> dict[str, Any] | None:
    """`K=V` options; a value that is no JSON is a text."""
    if not given:
        return None
    parameters: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ArgumentError("--parameter is no K=V", expected="negative_scales=true", found=repr(text))
        try:
            parameters[name] = json_module.loads(value)
        except (ValueError, RecursionError):
            parameters[name] = value
    return parameters


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,20})\s*([kmgt]i?)?b?", text.lower())
    if match is None:
        raise ArgumentError(
            "--max-file-bytes is not a size", expected="a number such as 4000000000, 4G or 512Mi", found=repr(text)
        )
    return int(match[1]) * _UNITS[match[2] or ""]
