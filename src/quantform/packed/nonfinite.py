"""Scales of packed blocks that are infinite or NaN. Such blocks are legal, as all are, but have no useful values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._native import kernels
from quantform.errors import ArgumentError
from quantform.packed.dequantize import dequantize_packed
from quantform.packed.profiles import Profile

__all__ = ["Field", "count_set", "nonfinite_scales", "nonfinite_values", "undefined_scales"]

# What values are multiplied by or moved by; cached sums (`s` of Q8_1) do not enter.
_SCALES = ("d", "dmin", "m")
_INFINITY = {2: 0x7C00, 4: 0x7F800000}
# Blocks looked at together without kernels.
_BLOCKS = 1 << 14


class Field(NamedTuple):
    """A little-endian word of every block, of 1, 2 or 4 bytes, and the bits of it that are looked at."""

    offset: int
    width: int
    mask: int


def _fields(profile: Profile) -> list[Field]:
    """The floating-point scales of a profile; the exponents of MXFP4 and the scales of NVFP4 are always finite."""
    if profile.name == "IQ1_M":  # the number's four hexadecimal digits top four words: the exponent is in the last two
        return [Field(_offset(profile, "scales") + 4, 4, 0x7000C000)]
    names = [name for name in profile.block.names or () if name in _SCALES]
    widths = [profile.block[name].itemsize for name in names]
    return [Field(_offset(profile, name), width, _INFINITY[width]) for name, width in zip(names, widths, strict=True)]


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
    _check_whole(payload, profile)
    return sum(count_set(payload, profile.bytes, field) for field in _fields(profile))


def nonfinite_values(payload: npt.NDArray[np.uint8], profile: Profile) -> int:
    """How many of the values of whole blocks are infinite or NaN in binary32.

    Only blocks whose scales admit such values are decoded; a scale is not finite, or so large that a product overflows.

    Args:
        payload: uint8 `[n]`, contiguous, whole blocks.
        profile: What the blocks are, one of the registered ones.

    Raises:
        ArgumentError: They are not whole blocks.
    """
    _check_whole(payload, profile)
    suspicious = [field for field in _suspicious(profile) if count_set(payload, profile.bytes, field)]
    if not suspicious:
        return 0
    count, blocks = 0, payload.reshape(-1, profile.bytes)
    for first in range(0, len(blocks), _BLOCKS):
        some = blocks[first : first + _BLOCKS]
        chosen = some[np.logical_or.reduce([_are_set(some, field) for field in suspicious])]
        shape = (len(chosen) * profile.values,)
        values = dequantize_packed(chosen.reshape(-1), profile.identifier, shape, "float32")
        count += int(np.count_nonzero(~np.isfinite(values)))
    return count


def undefined_scales(payload: npt.NDArray[np.uint8], profile: Profile) -> int:
    """How many scale bytes of whole blocks mean no number in the type that they are named after, though they decode.

    The exponent 0xFF of MXFP4 is NaN as E8M0; scales of NVFP4 from 0x7F on are NaN, or have a sign, as E4M3.

    Raises:
        ArgumentError: They are not whole blocks.
    """
    _check_whole(payload, profile)
    if profile.name == "MXFP4":
        return count_set(payload, profile.bytes, Field(_offset(profile, "exponent"), 1, 0xFF))
    if profile.name == "NVFP4":
        scales = payload.reshape(-1, profile.bytes)[:, :4]
        return int(np.count_nonzero(scales >= 0x7F))
    return 0


def count_set(payload: npt.NDArray[np.uint8], size: int, field: Field) -> int:
    """How many blocks of `size` bytes have all bits of the field's mask."""
    if kernels is not None:
        return int(kernels.count_set(payload, size, *field))
    blocks = payload.reshape(-1, size)
    pieces = (blocks[first : first + _BLOCKS] for first in range(0, len(blocks), _BLOCKS))
    return sum(int(np.count_nonzero(_are_set(piece, field))) for piece in pieces)


def _are_set(blocks: npt.NDArray[np.uint8], field: Field) -> npt.NDArray[np.bool_]:
    words = np.ascontiguousarray(blocks[:, field.offset : field.offset + field.width]).view(f"<u{field.width}")[:, 0]
    found: npt.NDArray[np.bool_] = (words & field.mask) == field.mask
    return found


def _suspicious(profile: Profile) -> list[Field]:
    """What is set in every block that has a value which is not finite.

    Sums and products of binary16 scales and local integers stay below 2^40. Q8_K multiplies a binary32 scale by up to
    128; MXFP4 half a power of two by up to 12.
    """
    if profile.name == "Q8_K":
        return [Field(_offset(profile, "d"), 4, 0x7C000000)]
    if profile.name == "MXFP4":
        return [Field(_offset(profile, "exponent"), 1, 0xFC)]
    return _fields(profile)


def _check_whole(payload: npt.NDArray[np.uint8], profile: Profile) -> None:
    if payload.size % profile.bytes:
        raise ArgumentError(
            f"these are not whole {profile.name} blocks",
            expected=f"a multiple of {profile.bytes} bytes",
            found=payload.size,
        )
