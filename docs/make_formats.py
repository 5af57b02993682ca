"""Writes `formats.md` beside this file from the registries: `python docs/make_formats.py`."""

from __future__ import annotations

from pathlib import Path

import quantform as qf

TARGET = Path(__file__).with_name("formats.md")


def table(header: list[str], rows: list[list[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def build() -> str:
    """The whole page."""
    formats = [
        [f"`{f.name}`", f.category, f"{f.bits_per_weight:g}", f"`{f.default_layout}`", f.section] for f in qf.formats()
    ]
    profiles = [
        [f"`{p.identifier}`", p.name, p.ggml_type, p.values, p.bytes, f"{p.bits_per_weight:g}"] for p in qf.profiles()
    ]
    layouts = [
        [f"`{layout.name}`", layout.alignment, ", ".join(f"`{name}`" for name in layout.formats) or "resources only"]
        for layout in qf.layouts()
    ]
    return (
        "# Formats\n\n"
        "Made by `docs/make_formats.py` from the records; not edited by hand.\n\n"
        "## Numeric formats of `.ninfer`\n"
        "Bits are those of full groups, without padding. Sections are the specification's.\n\n"
        + table(["name", "category", "bits/weight", "layout", "section"], formats)
        + "\n## Packed profiles of `DequantizePacked`\n\n"
        + table(["identifier", "ggml name", "ggml type", "values", "bytes", "bits/weight"], profiles)
        + "\n## Storage layouts\n\n"
        + table(["name", "alignment", "formats"], layouts)
    )


if __name__ == "__main__":
    TARGET.write_text(build())
    print(TARGET)
