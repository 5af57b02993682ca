"""`quantform inspect`: what is in a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quantform._sizes import human_bytes, product
from quantform.cli._output import plain, print_json, print_table
from quantform.sources import Source, Tensor, open_source

__all__ = ["register"]

_LONGEST_VALUE = 100


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="inspect")(inspect)


def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A GGUF file (any one of a split set) or a .ninfer entry file.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="Also list every metadata key with its value.")] = False,
) -> None:
    """Show what is in FILE: its tensors, their shapes, formats and sizes, and totals by format.

    Only headers are read, whatever the size of the file.
    """
    with open_source(file) as source:
        if json:
            print_json(_document(source))
        else:
            _tables(source, metadata=metadata)


def _tables(source: Source[Any], *, metadata: bool) -> None:
    tensors: list[Tensor] = list(source.values())
    size = sum(path.stat().st_size for path in source.files)
    typer.echo(f"{plain(str(source.path))}: {source.describe()}, {human_bytes(size)}")
    name = source.metadata.get("general.name", source.metadata.get("name"))
    architecture = source.metadata.get("general.architecture")
    for label, value in (("name", name), ("architecture", architecture)):
        if isinstance(value, str):
            typer.echo(f"{label}: {plain(value)}")
    typer.echo()
    if metadata:
        rows = [(key, _short(value)) for key, value in source.metadata.items()]
        print_table(("metadata", "value"), rows)
        typer.echo()
    rows_of_tensors = [
        (tensor.name, _shape(tensor.shape), tensor.format, f"{tensor.bits_per_weight:.4g}", human_bytes(tensor.nbytes))
        for tensor in tensors
    ]
    print_table(("tensor", "shape", "format", "bits/weight", "size"), rows_of_tensors, right=(3, 4))
    typer.echo()
    totals = _totals(tensors)
    print_table(
        ("format", "tensors", "weights", "bits/weight", "size"),
        [
            (
                name,
                str(row["tensors"]),
                f"{row['weights']:,}",
                f"{row['bits_per_weight']:.4g}",
                human_bytes(row["bytes"]),
            )
            for name, row in totals.items()
        ],
        right=(1, 2, 3, 4),
    )


def _document(source: Source[Any]) -> dict[str, Any]:
    tensors: list[Tensor] = list(source.values())
    return {
        "path": plain(str(source.path)),
        "kind": source.kind,
        "description": source.describe(),
        "files": [{"path": plain(path.name), "bytes": path.stat().st_size} for path in source.files],
        "metadata": {key: _jsonable(value) for key, value in source.metadata.items()},
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "format": tensor.format,
                "bytes": tensor.nbytes,
                "bits_per_weight": tensor.bits_per_weight,
            }
            for tensor in tensors
        ],
        "totals": _totals(tensors),
    }


def _totals(tensors: Iterable[Tensor]) -> dict[str, dict[str, Any]]:
    """Counts by format and, last, of all; formats with the most bytes first."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.format, []).append(tensor)
    ordered = sorted(groups.items(), key=lambda item: -sum(tensor.nbytes for tensor in item[1]))
    if len(ordered) != 1:
        ordered.append(("total", [tensor for _, members in ordered for tensor in members]))
    totals = {}
    for name, members in ordered:
        weights = sum(product(tensor.shape) for tensor in members)
        size = sum(tensor.nbytes for tensor in members)
        totals[name] = {
            "tensors": len(members),
            "weights": weights,
            "bytes": size,
            "bits_per_weight": size * 8 / weights if weights else 0.0,
        }
    return totals


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - a metadata value of any type
    """A metadata value for `--json`: arrays only by what they are, numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_jsonable(member) for member in value]
    return {"array": repr(value), "length": len(value)} if hasattr(value, "__len__") else repr(value)
