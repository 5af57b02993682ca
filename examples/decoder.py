"""A decoder of two formats, as a program of somebody else's: what `quantform conform --run` is shown with.

    python3 examples/decoder.py FORMAT PAYLOAD SHAPE OUTPUT [--mistake]

It needs nothing but Python. Exit code 77 says that a format is not implemented. `--mistake` takes neighbouring values
from the two nibbles of a byte, as some other formats do.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path


def q4_0(block: bytes, *, mistake: bool) -> list[float]:
    """32 values: a binary16 scale times a nibble less 8; all low nibbles first."""
    scale, *quants = struct.unpack("<e16B", block)
    codes = [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]
    if mistake:
        codes = [code for byte in quants for code in (byte & 15, byte >> 4)]
    return [scale * (code - 8) for code in codes]


def q8_0(block: bytes) -> list[float]:
    """32 values: a binary16 scale times a signed byte."""
    scale, *codes = struct.unpack("<e32b", block)
    return [scale * code for code in codes]


def main() -> int:
    """Decode one payload to binary32 numbers."""
    format, payload, _, output, *options = sys.argv[1:]
    data = Path(payload).read_bytes()
    values: list[float] = []
    if format == "gguf:q4_0":
        for first in range(0, len(data), 18):
            values += q4_0(data[first : first + 18], mistake="--mistake" in options)
    elif format == "gguf:q8_0":
        for first in range(0, len(data), 34):
            values += q8_0(data[first : first + 34])
    else:
        return 77
    Path(output).write_bytes(struct.pack(f"<{len(values)}f", *values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
