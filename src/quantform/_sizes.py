"""Exact sizes: shapes, products and alignments that are checked before anything is allocated or read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from quantform.errors import ArgumentError

__all__ = [
    "PIECE_BYTES",
    "U64_MAX",
    "align_up",
    "as_shape",
    "ceil_div",
    "counted",
    "fits_u64",
    "human_bytes",
    "pieces",
    "product",
    "read_pieces",
]

Bytes = npt.NDArray[np.uint8]

U64_MAX = 2**64 - 1

PIECE_BYTES = 4 << 20
"""How much of a file is held at a time while it streams through."""


def ceil_div(value: int, by: int) -> int:
    """The quotient rounded up, exactly."""
    return -(-value // by)


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `value`."""
    return ceil_div(value, alignment) * alignment


def product(factors: Iterable[int]) -> int:
    """The exact product; 1 for no factors."""
    result = 1
    for factor in factors:
        result *= factor
    return result


def fits_u64(value: int, what: str) -> int:
    """`value` itself, when it fits an unsigned 64-bit integer.

    Raises:
        ArgumentError: It does not; the formats of this package count in unsigned 64-bit integers.
    """
    if not 0 <= value <= U64_MAX:
        raise ArgumentError(f"{what} does not fit an unsigned 64-bit integer", expected=f"0 to {U64_MAX}", found=value)
    return value


def as_shape(shape: Sequence[int], *, minimum_rank: int = 0, maximum_rank: int | None = None) -> tuple[int, ...]:
    """`shape` as a tuple of nonnegative Python integers.

    Raises:
        ArgumentError: It is not a sequence of integers, a dimension is negative, or the rank is out of range.
    """
    if isinstance(shape, (str, bytes)):
        raise ArgumentError("shape is not a sequence of integers", found=repr(shape))
    try:
        if bool in map(type, shape):
            raise TypeError  # noqa: TRY301 - a boolean is an index in Python, but no dimension
        dimensions = tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentError("shape is not a sequence of integers", found=repr(shape)) from None
    for axis, dimension in enumerate(dimensions):
        if dimension < 0:
            raise ArgumentError(f"dimension {axis} of shape {list(dimensions)} is negative", found=dimension)
    if len(dimensions) < minimum_rank or (maximum_rank is not None and len(dimensions) > maximum_rank):
        allowed = f"at least {minimum_rank}" if maximum_rank is None else f"{minimum_rank} to {maximum_rank}"
        raise ArgumentError(f"shape {list(dimensions)} has rank {len(dimensions)}", expected=f"rank {allowed}")
    return dimensions


def pieces(nbytes: int, unit: int) -> Iterator[tuple[int, int]]:
    """`(offset, count)` of pieces of a few megabytes that are whole units; the last may be shorter."""
    step = max(unit, PIECE_BYTES // unit * unit)
    for offset in range(0, nbytes, step):
        yield offset, min(step, nbytes - offset)


def read_pieces(read: Callable[[int, Bytes], None], nbytes: int, unit: int = 1) -> Iterator[tuple[int, Bytes]]:
    """`(offset, data)` of a few megabytes at a time in order; data are valid until the next are asked for.

    Args:
        read: Fills an array with the bytes from an offset on.
        nbytes: How many bytes there are.
        unit: Pieces are multiples of so many bytes; the last may be shorter.
    """
    buffer = np.empty(min(nbytes, max(unit, PIECE_BYTES)), np.uint8)
    for offset, count in pieces(nbytes, unit):
        data = buffer[:count]
        read(offset, data)
        yield offset, data


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `"1 tensor"`, `"3 tensors"`; `plural` is given where it takes more than an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def human_bytes(count: int) -> str:
    """A size as a person reads it: `"253.1 MB"`; powers of 1000."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} EB"
