"""Blocks whose values are a code times a scale, cut into the arrays that uniform quantization elsewhere consists of.

Of the 27 profiles these are the ones that lose nothing and do not grow by it: codes in the order of their values, one
binary16 scale a block, and for Q4_1 one binary16 minimum. Both directions here are exact inverses of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform.packed.bits import planes
from quantform.packed.profiles import Profile
from quantform.packed.registry import PROFILES

__all__ = ["LINEAR", "Linear"]

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Linear:
    """How a profile's blocks come apart.

    Attributes:
        profile: The profile, with a scale `d`, codes `q`, and a minimum `m` if `affine`.
        type: The type of the codes, as ONNX calls it.
        width: Bits of a code; those of a byte stand for consecutive values, lowest first.
        group: Bytes of a block whose lowest codes precede all their higher ones.
        flip: What is exclusive-ored to each byte, so that an offset of half the range becomes a sign.
        zero_point: The code that stands for zero, where that is not the code 0.
        affine: Whether a minimum is added.
    """

    profile: Profile
    type: str
    width: int
    group: int
    flip: int = 0
    zero_point: int = 0
    affine: bool = False

    @property
    def code_bytes(self) -> int:
        """Bytes of a block's codes."""
        return self.profile.values * self.width // 8

    def codes(self, blocks: U8) -> U8:
        """The codes of whole blocks, `[n * code_bytes]`."""
        stored = np.ascontiguousarray(self._fields(blocks)["q"]).view(np.uint8)
        if self.width == 8:
            return stored.reshape(-1)
        return _pack(planes(stored, self.width, self.group), self.width) ^ np.uint8(self.flip)

    def field(self, blocks: U8, name: str) -> U8:
        """The scales (`"d"`) or minima (`"m"`) of whole blocks, little-endian, `[n * 2]`."""
        return np.ascontiguousarray(self._fields(blocks)[name]).view(np.uint8).reshape(-1)

    def blocks(self, codes: U8, scales: U8, minima: U8 | None = None) -> U8:
        """Whole blocks of their parts, `[n * bytes]`."""
        count = scales.size // 2
        out = np.empty(count, self.profile.block)
        out["d"] = scales.view("<f2")
        if minima is not None:
            out["m"] = minima.view("<f2")
        if self.width == 8:
            out["q"] = codes.view(np.int8).reshape(count, self.profile.values)
        else:
            values = planes((codes ^ np.uint8(self.flip)).reshape(count, self.code_bytes), self.width, 1)
            # The other way round: the codes of one byte are those `group` values apart.
            apart = values.reshape(count, self.code_bytes // self.group, 8 // self.width, self.group).swapaxes(2, 3)
            out["q"] = _pack(np.ascontiguousarray(apart), self.width).reshape(count, self.code_bytes)
        return out.view(np.uint8)

    def _fields(self, blocks: U8) -> npt.NDArray[np.void]:
        fields: npt.NDArray[np.void] = np.ascontiguousarray(blocks).view(self.profile.block)
        return fields


def _pack(values: U8, width: int) -> U8:
    """Codes of a few bits in bytes, the first in the lowest bits."""
    packed = values.reshape(-1, 8 // width) << np.arange(0, 8, width, dtype=np.uint8)
    packed_bytes: U8 = np.bitwise_or.reduce(packed, axis=1)
    return packed_bytes


LINEAR: dict[str, Linear] = {
    record.profile.identifier: record
    for record in (
        Linear(PROFILES["gguf:q4_0"], "INT4", 4, 16, flip=0x88),
        Linear(PROFILES["gguf:q4_1"], "UINT4", 4, 16, affine=True),
        Linear(PROFILES["gguf:q8_0"], "INT8", 8, 32),
        Linear(PROFILES["gguf:tq2_0"], "UINT2", 2, 32, zero_point=1),
        Linear(PROFILES["gguf:q2_0"], "UINT2", 2, 1, zero_point=1),
    )
}
"""The profiles that come apart, by identifier."""
