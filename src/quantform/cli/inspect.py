"""`quantform inspect`: what is in a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quantform._sizes import human_bytes, product
from quantform.cli._options import AnyFile, Json
from quantform.cli._output import echo, plain, print_json, print_table
from quantform.errors import QuantformError
from quantform.sources import Checkpoint, GGUFSource, Source, Tensor, open_source
from quantform.sources.conventions import QuantizedWeight, UnsupportedWeight

__all__ = ["register"]

_LONGEST_VALUE = 100
_LONGEST_TEXT = 1 << 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="inspect")(inspect)


def inspect(
    file: AnyFile,
    json: Json = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="Also list every metadata key with its value.")] = False,
) -> None:
    """Show what is in FILE: its tensors, their shapes, formats and sizes, and totals by format.

    Only headers are read, whatever the size of the file. The quantized weights of a checkpoint are listed as what they
    are together, with the convention that they follow as their format.
    """
    with open_source(file) as source:
        if json:
            print_json(_document(source))
        else:
            _tables(source, metadata=metadata)


def _tables(source: Source[Any], *, metadata: bool) -> None:
    tensors: list[Tensor] = list(source.values())
    sizes = {path: _size(path) for path in source.files}
    total = human_bytes(sum(filter(None, sizes.values())))
    echo(f"{plain(str(source.path))}: {source.describe()}, {total}")
    for path, size in sizes.items():
        if size is None:
            echo(f"missing: {plain(str(path))}")
    for label, keys in (("name", ("general.name", "name")), ("architecture", ("general.architecture",))):
        found = next((key for key in keys if key in source.metadata), None)
        if found is not None:
            echo(f"{label}: {plain(_short(_value(source, found)))}")
    echo()
    if metadata:
        print_table(("metadata", "value"), [(key, _short(_value(source, key))) for key in source.metadata])
        echo()
    rows_of_tensors = [
        (
            tensor.name,
            _shape(tensor.shape),
            _format(tensor),
            f"{tensor.bits_per_weight:.4g}",
            human_bytes(tensor.nbytes),
        )
        for tensor in tensors
    ]
    print_table(("tensor", "shape", "format", "bits/weight", "size"), rows_of_tensors, right=(3, 4))
    echo()
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
    for heading, reasons in (("cannot be read", _unreadable(source)), ("left out", _dropped(source))):
        if reasons:
            echo()
            print_table((heading, "reason"), [(one["name"], one["reason"]) for one in reasons])


def _document(source: Source[Any]) -> dict[str, Any]:
    tensors: list[Tensor] = list(source.values())
    return {
        "path": plain(str(source.path)),
        "kind": source.kind,
        "description": source.describe(),
        "files": [{"path": plain(path.name), "bytes": _size(path)} for path in source.files],
        "metadata": {key: _jsonable(_value(source, key)) for key in source.metadata},
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "format": _format(tensor),
                "bytes": tensor.nbytes,
                "bits_per_weight": tensor.bits_per_weight,
            }
            for tensor in tensors
        ],
        "totals": _totals(tensors),
        "unreadable": _unreadable(source),
        "dropped": _dropped(source),
    }


def _format(tensor: Tensor) -> str:
    return tensor.convention if isinstance(tensor, QuantizedWeight) else tensor.format


def _unreadable(source: Source[Any]) -> list[dict[str, str]]:
    """The weights of a checkpoint that can only be listed, and why."""
    weights = [tensor for tensor in source.values() if isinstance(tensor, UnsupportedWeight)]
    return [{"name": weight.name, "reason": weight.reason} for weight in weights]


def _dropped(source: Source[Any]) -> list[dict[str, str]]:
    """The tensors of a checkpoint that no weight needs, and why."""
    dropped = source.dropped if isinstance(source, Checkpoint) else ()
    return [{"name": one.name, "reason": one.reason} for one in dropped]


def _totals(tensors: Iterable[Tensor]) -> dict[str, dict[str, Any]]:
    """Counts by format and, last, of all; formats with the most bytes first."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(_format(tensor), []).append(tensor)
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


def _size(path: Path) -> int | None:
    """Bytes of a file; None where a part of an artifact is missing, which is no obstacle to looking at the rest."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _value(source: Source[Any], key: str) -> object:
    """A metadata value; what it is instead where it is very long or cannot be read."""
    if isinstance(source, GGUFSource):
        field = source.metadata.field(key)
        if field.type_name == "string" and field.nbytes > _LONGEST_TEXT:
            return f"<string of {field.nbytes - 8} bytes>"
    try:
        return source.metadata[key]
    except QuantformError as error:
        return f"<{error.problem}>"


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
