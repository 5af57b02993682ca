"""What a packed profile is: one record per fixed block layout of the operator `DequantizePacked`.

The records stand beside their decoders, one family a file; `quantform.packed` lists them in one registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BlockDecoder", "Profile", "block"]

BlockDecoder = Callable[[Any], npt.NDArray[np.float32]]
"""Takes blocks as a structured array `[n]` of the profile's fields, gives their binary32 values `[n, B]`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A packed block layout: `values` numbers in `bytes` bytes.

    Attributes:
        identifier: The operator's case-sensitive name, `"gguf:q4_k"`.
        name: ggml's name, `"Q4_K"`.
        ggml_type: ggml's number for the type, as GGUF files store it.
        values: Decoded values a block (B).
        block: NumPy's packed little-endian structure of one block; its fields are those of the specification's
            table, in that order.
        decode: The readable decoder, vectorized over blocks.
    """

    identifier: str
    name: str
    ggml_type: int
    values: int
    block: np.dtype[Any]
    decode: BlockDecoder = field(repr=False, compare=False)

    @property
    def bytes(self) -> int:
        """Bytes a block (S)."""
        return self.block.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Stored bits a decoded value, exactly."""
        return self.bytes * 8 / self.values


def block(*members: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    """The packed structure of a block: `(name, little-endian type)` or `(name, type, count)`, in order."""
    return np.dtype(list(members))
