"""`quantform formats`: what this package knows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quantform._registry import near_matches
from quantform.cli._options import Json
from quantform.cli._output import echo, print_json, print_table
from quantform.errors import UnknownNameError
from quantform.formats import FORMATS, Format
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES, Profile

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="formats")(formats)


def formats(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One format, profile or layout.")] = None,
    json: Json = False,
) -> None:
    """List the numeric formats, packed profiles and storage layouts, or tell about one."""
    if name is not None:
        _one(name, json=json)
        return
    if json:
        print_json(
            {
                "formats": [_format(record) for record in FORMATS.values()],
                "profiles": [_profile(record) for record in PROFILES.values()],
                "layouts": [_layout(key) for key in LAYOUTS],
            }
        )
        return
    print_table(
        (".ninfer format", "category", "bits/weight", "layout"),
        [(f.name, f.category, f"{f.bits_per_weight:g}", f.default_layout) for f in FORMATS.values()],
        right=(2,),
    )
    echo()
    print_table(
        ("packed profile", "ggml name", "ggml type", "values", "bytes", "bits/weight"),
        [
            (p.identifier, p.name, str(p.ggml_type), str(p.values), str(p.bytes), f"{p.bits_per_weight:g}")
            for p in PROFILES.values()
        ],
        right=(2, 3, 4, 5),
    )
    echo()
    print_table(
        ("storage layout", "alignment", "formats"),
        [(record.name, str(record.alignment), _accepts(record.formats)) for record in LAYOUTS.values()],
        right=(1,),
    )


def _one(name: str, *, json: bool) -> None:
    if name in FORMATS:
        document = _format(FORMATS[name])
    elif name in PROFILES:
        document = _profile(PROFILES[name])
    elif name in LAYOUTS:
        document = _layout(name)
    else:
        raise UnknownNameError(
            f"no format, packed profile or layout is called {name!r}",
            hint=near_matches(name, [*FORMATS, *PROFILES, *LAYOUTS]),
        )
    if json:
        print_json(document)
        return
    width = max(map(len, document))
    for key, value in document.items():
        shown = (
            ", ".join(map(str, value))
            if isinstance(value, list)
            else f"{value:g}"
            if isinstance(value, float)
            else value
        )
        echo(f"{key.replace('_', ' '):<{width}}  {shown}")


def _format(record: Format) -> dict[str, Any]:
    return {
        "name": record.name,
        "kind": "numeric format",
        "category": record.category,
        "bits_per_weight": record.bits_per_weight,
        "layouts": [layout.name for layout in LAYOUTS.values() if record.name in layout.formats],
        "section": record.section,
    }


def _profile(record: Profile) -> dict[str, Any]:
    return {
        "name": record.identifier,
        "kind": "packed profile",
        "ggml_name": record.name,
        "ggml_type": record.ggml_type,
        "values": record.values,
        "bytes": record.bytes,
        "bits_per_weight": record.bits_per_weight,
        "fields": [_field(record, name) for name in record.block.names or ()],
    }


def _field(record: Profile, name: str) -> str:
    member = record.block[name]
    kind = {"f2": "binary16", "f4": "binary32", "u1": "u8", "i1": "i8", "u2": "u16", "i2": "i16"}[
        f"{member.base.kind}{member.base.itemsize}"
    ]
    return f"{kind} {name}" + (f"[{member.shape[0]}]" if member.shape else "")


def _layout(name: str) -> dict[str, Any]:
    layout = LAYOUTS[name]
    return {
        "name": layout.name,
        "kind": "storage layout",
        "alignment": layout.alignment,
        "formats": list(layout.formats) or ["resources only"],
    }


def _accepts(names: tuple[str, ...]) -> str:
    if not names:
        return "resources only"
    return ", ".join(names) if len(names) <= 6 else f"{len(names)} formats, {names[0]} ... {names[-1]}"
