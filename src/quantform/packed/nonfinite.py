"""Scales of packed blocks that are infinite or NaN. Such blocks are legal, as all are, but have no useful values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._native import kernels
from quantform.errors import ArgumentError
from quantform.packed.profiles import Profile

__all__ = ["nonfinite_scales"]

# What values are multiplied by or moved by; cached sums (`s` of Q8_1) do not enter.
_SCALES = ("d", "dmin", "m")
_INFINITY = {2: 0x7C00, 4: 0x7F800000}
# Blocks looked at together without kernels.
_BLOCKS = 1 << 14


class _Field(NamedTuple):
    """A little-endian word of every block that is not finite where all bits of the mask are set."""

    offset: int
    width: int
    mask: int


def _fields(profile: Profile) -> list[_Field]:
    """The floating-point scales of a profile; the exponents of MXFP4 and the scales of NVFP4 are always finite."""
    if profile.name == "IQ1_M":  # the number's four hexadecimal digits top four words: the exponent is in the last two
        return [_Field(_offset(profile, "scales") + 4, 4, 0x7000C000)]
    names = [name for name in profile.block.names or () if name in _SCALES]
    widths = [profile.block[name].itemsize for name in names]
    return [_Field(_offset(profile, name), width, _INFINITY[width]) for name, width in zip(names, widths, strict=True)]


def _offset(profile: Profile, name: str) -> int:
    fields = profile.block.fields
    return fields[name][1] if fields is not None else 0


def nonfinite_scales(payload: npt.NDArray[np.uint8], profile: Profile) -> int:
    """How many of the scales and minimums in whole blocks are infinite or NaN.

    Args:
        payload: uint8 `[n]`, contiguous, whole blocks.
        profile: What the blocks are.

    Raises:
        ArgumentError: They are not whole blocks.
    """
    if payload.size % profile.bytes:
        raise ArgumentError(
            f"these are not whole {profile.name} blocks",
            expected=f"a multiple of {profile.bytes} bytes",
            found=payload.size,
        )
    count = 0
    for field in _fields(profile):
        if kernels is not None:
            count += kernels.count_set(payload, profile.bytes, *field)
            continue
        blocks = payload.reshape(-1, profile.bytes)[:, field.offset : field.offset + field.width]
        for first in range(0, len(blocks), _BLOCKS):
            words = np.ascontiguousarray(blocks[first : first + _BLOCKS]).view(f"<u{field.width}")
            count += int(np.count_nonzero((words & field.mask) == field.mask))
    return count
