"""`quantform compare`: how far the tensors of one file are from those of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantform._sizes import human_bytes
from quantform._text import shortened
from quantform.cli._options import Force, Json
from quantform.cli._output import echo, plain, print_json, print_table, progress_bar
from quantform.compare import ORDERS, Compared, Comparison, Side, Total, check_max_error
from quantform.compare import compare as run
from quantform.errors import ArgumentError

__all__ = ["register"]

# Names of real models fit; the middle of longer ones is left out.
_WIDEST_NAME = 80
_HEADER = ("tensor", "shape", "A", "B", "bits A", "bits B", "relative RMS", "SNR dB", "largest", "at", "cosine")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="compare")(compare)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference: a file of any kind.", readable=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The file that is measured against it.", readable=False)],
    names: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE", help='TOML lines `"name in A" = "name in B"` for names that differ.'),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="ORDER", help=f"{', '.join(ORDERS)}; errors fall from the worst.")
    ] = "error",
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            metavar="X",
            help="Exit with 1 if a tensor of A has a relative RMS error above X, or could not be compared.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="X.html", help="Also write a report with pictures; needs the extra `report`."),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(
            "--tensor",
            metavar="NAME",
            help="The tensor of A whose codes and scales the report shows; by default the worst quantized one.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure how far each tensor of B is from that of the same name in A.

    Differences are the result and no fault: the exit code is 1 only for broken files and with --max-error.
    """
    if max_error is not None:
        check_max_error(max_error)
    if tensor is not None and html is None:
        raise ArgumentError("--tensor chooses what the report shows", hint="Add --html X.html")
    with progress_bar("comparing") as progress:
        found = run(a, b, names=names, sort=sort, html=html, tensor=tensor, force=force, progress=progress)
    beyond = [] if max_error is None else found.beyond(max_error)
    if json:
        print_json(found.as_dict() | ({} if max_error is None else {"beyond": beyond}))
    else:
        _print(found)
        for name in beyond:
            echo(plain(f"not within {max_error:g}: {name}"))
        if html is not None:
            echo(plain(f"{html}: the report"))
    if beyond or not found.ok:
        raise typer.Exit(1)


def _print(found: Comparison) -> None:
    for letter, side in (("A", found.a), ("B", found.b)):
        echo(plain(f"{letter} {_side(side)}"))
    echo()
    lines = [
        (
            shortened(plain(one.name), _WIDEST_NAME),
            "x".join(map(str, one.shape)) or "scalar",
            one.format,
            one.other_format,
            *_measures(one),
        )
        for one in found.tensors
    ]
    total = found.total
    lines.append(("total", f"{total.weights:,}", "", "", *_measures(total)))
    print_table(_HEADER, lines, right=(4, 5, 6, 7, 8, 9, 10))
    notes = found.notes()
    if notes:
        echo()
        for note in notes:
            echo(plain(note))


def _side(side: Side) -> str:
    return f"{side.path}: {side.description}, {human_bytes(side.bytes)}, {side.bits_per_weight:.4g} bits/weight"


def _measures(one: Compared | Total) -> tuple[str, ...]:
    bits = f"{one.bits_per_weight:.4g}", f"{one.other_bits_per_weight:.4g}"
    place = "-" if one.row is None else f"{one.row},{one.column}"
    same = one.same if isinstance(one, Compared) else None
    if same is not None:
        return (*bits, f"same {same}", "-", "-", "-", "-")
    if one.incomparable:
        return (*bits, f"{one.incomparable} not finite", "-", "-", place, "-")
    return (
        *bits,
        "-" if one.relative_rms is None else f"{one.relative_rms:.3e}",
        "-" if one.snr_db is None else f"{one.snr_db:.2f}",
        "-" if one.max_abs is None else f"{one.max_abs:.3e}",
        place,
        "-" if one.cosine is None else f"{one.cosine:.6f}",
    )
