"""The six grids of the i-quants, read from the data file beside this one ("IQ codebooks").

The numbers derive from ggml under the MIT licence (`codebooks.LICENSE`). A row is a point of the grid; an index in a
block picks a row.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files

import numpy as np
import numpy.typing as npt

__all__ = ["FP4", "IQ4", "codebook", "codebooks"]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The nonlinear table of IQ4_NL and IQ4_XS."""

FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The E2M1 values doubled; both zeros are positive."""


@functools.cache
def codebooks() -> dict[str, npt.NDArray[np.float32]]:
    """Every grid by name, float32 `[rows, width]`, read-only; loaded on first use.

    Successive fields of a few bits, the least significant first within each byte, pick a value each.
    """
    text = (files("quantform.packed") / "codebooks.json").read_text("ascii")
    grids = {}
    for name, entry in json.loads(text).items():
        packed = np.frombuffer(bytes.fromhex("".join(entry["packed"])), np.uint8)
        shifts = np.arange(0, 8, entry["bits"], dtype=np.uint8)
        fields = (packed[:, None] >> shifts) & ((1 << entry["bits"]) - 1)
        grid = np.array(entry["values"], np.float32)[fields].reshape(-1, entry["width"])
        grid.flags.writeable = False
        grids[name] = grid
    return grids


def codebook(name: str) -> npt.NDArray[np.float32]:
    """One grid, float32 `[rows, width]`."""
    return codebooks()[name]
