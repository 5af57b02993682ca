"""Ternary blocks that some releases use and ggml does not define: PQ2_0 and PTQ1_0, 128 values under one scale.

They are no profiles of the operator `DequantizePacked` and have no `.ninfer` block format. Their records let a GGUF
reader size and hand over such tensors, and `import_encoded` bring them into `t2_g128_fp16` without rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._registry import Registry
from quantform.packed.legacy import decode_q2_0
from quantform.packed.profiles import Profile, block
from quantform.packed.ternary import trits

__all__ = ["OUTSIDE_PROFILES"]


def decode_ptq1_0(blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """`d * (digit - 1)`: five digits a byte, 16 bytes and then 8, and four in each of the last two bytes."""
    q = blocks["q"]
    digits = np.concatenate((trits(q[:, :16], 5), trits(q[:, 16:], 5), trits(blocks["high"], 4)), axis=1)
    return blocks["d"].astype(np.float32)[:, None] * (digits.astype(np.float32) - 1)


OUTSIDE_PROFILES: Registry[Profile] = Registry(
    "ternary block type",
    [
        Profile("gguf:pq2_0", "PQ2_0", 142, 128, block(("d", "<f2"), ("q", "u1", 32)), decode_q2_0),
        Profile(
            "gguf:ptq1_0", "PTQ1_0", 143, 128, block(("q", "u1", 24), ("high", "u1", 2), ("d", "<f2")), decode_ptq1_0
        ),
    ],
    key=lambda profile: profile.identifier,
)
"""The block types outside ggml by their identifiers, in the order of their type numbers."""
