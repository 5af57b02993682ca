# ruff: noqa: INP001 - a script of the build, in a folder of C++ headers
"""Writes the grids of the i-quants as a C++ source file: `make_codebooks.py CODEBOOKS_JSON OUTPUT_CPP`.

The numbers stay in one place, the package's data file. Each row becomes one integer whose lowest byte is its first
value; the rows of IQ1 are multiplied by eight (see iquants.hpp).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_FACTORS = {"iq1s_grid": 8}


def rows(name: str, entry: dict[str, Any]) -> list[int]:
    """The rows of one grid as unsigned integers."""
    bits, width, values, packed = (entry[key] for key in ("bits", "width", "values", "packed"))
    data = bytes.fromhex("".join(packed))
    fields = [byte >> shift & ((1 << bits) - 1) for byte in data for shift in range(0, 8, bits)]
    numbers = bytes(values[field] * _FACTORS.get(name, 1) & 0xFF for field in fields)
    return [int.from_bytes(numbers[at : at + width], "little") for at in range(0, len(numbers), width)]


def main(source: str, target: str) -> None:
    """Writes the whole file."""
    lines = ['#include "codebooks.hpp"', "", "namespace quantform::codebooks {"]
    for name, entry in json.loads(Path(source).read_text("ascii")).items():
        found = rows(name, entry)
        lines.append(f"const std::uint{8 * entry['width']}_t {name}[{len(found)}] = {{")
        lines += [" ".join(f"0x{row:x}," for row in found[at : at + 8]) for at in range(0, len(found), 8)]
        lines.append("};")
    lines.append("}  // namespace quantform::codebooks")
    Path(target).write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
