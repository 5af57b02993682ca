"""Scalar words: what a single stored number of each plain type is (Sections 3.1 and 3.3).

A *word* is the unsigned integer with the bits of the number. Widening conversions here work on words with integer
arithmetic, so that signed zeros, subnormals, infinities and NaN payloads all survive them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from quantform._registry import Registry
from quantform.errors import ArgumentError

__all__ = ["FLOAT_OUTPUTS", "SCALARS", "Scalar", "are_finite", "as_dtype", "convert", "output_dtype"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A plain number type: its name, its NumPy dtype for values, and the dtype of its words."""

    name: str
    dtype: np.dtype[Any]
    is_float: bool

    @property
    def nbytes(self) -> int:
        """Bytes a word."""
        return self.dtype.itemsize

    @property
    def bits(self) -> int:
        """Bits of a number; fewer than its word has where a file packs several into a byte."""
        return _NARROW_BITS.get(self.name, self.nbytes * 8)

    @property
    def word_dtype(self) -> np.dtype[Any]:
        """The unsigned integer type of the same width, in native byte order."""
        return np.dtype(f"u{self.dtype.itemsize}")

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The little-endian unsigned integer type that a file holds."""
        return self.word_dtype.newbyteorder("<")


_NARROW_BITS = {"e3m2": 6, "e2m3": 6, "e2m1": 4}


def _float(name: str, dtype: npt.DTypeLike) -> Scalar:
    return Scalar(name, np.dtype(dtype), is_float=True)


def _integer(name: str) -> Scalar:
    return Scalar(name, np.dtype(name), is_float=False)


SCALARS: Registry[Scalar] = Registry(
    "scalar type",
    [
        _float("fp64", np.float64),
        _float("fp32", np.float32),
        _float("fp16", np.float16),
        _float("bf16", ml_dtypes.bfloat16),
        _float("e4m3fn", ml_dtypes.float8_e4m3fn),
        _float("e5m2", ml_dtypes.float8_e5m2),
        _float("e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        _float("e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        _float("e8m0", ml_dtypes.float8_e8m0fnu),
        _float("e3m2", ml_dtypes.float6_e3m2fn),
        _float("e2m3", ml_dtypes.float6_e2m3fn),
        _float("e2m1", ml_dtypes.float4_e2m1fn),
        *(_integer(f"{sign}int{bits}") for bits in (64, 32, 16, 8) for sign in ("", "u")),
        Scalar("bool", np.dtype(np.bool_), is_float=False),
    ],
    key=lambda scalar: scalar.name,
)
"""Every plain number type that a source file may hold."""

FLOAT_OUTPUTS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
"""The four floating-point types that a decoder may be asked for, by name."""


def output_dtype(dtype: npt.DTypeLike, argument: str = "output_dtype") -> np.dtype[Any]:
    """The NumPy dtype of one of the four floating-point output types.

    Args:
        dtype: `"float32"`, `"float16"`, `"bfloat16"`, `"float64"`, or the NumPy type itself.
        argument: What the caller's parameter is called, for the error.

    Raises:
        ArgumentError: Any other type.
    """
    if isinstance(dtype, str):
        found = FLOAT_OUTPUTS.get(dtype)
        if found is not None:
            return found
    elif dtype is not None:
        try:
            wanted = np.dtype(dtype)
        except TypeError:
            wanted = None
        if wanted is not None and wanted.newbyteorder("=") in FLOAT_OUTPUTS.values() and wanted.isnative:
            return wanted
    raise ArgumentError(f"{argument} is not an output type", expected=", ".join(FLOAT_OUTPUTS), found=repr(dtype))


def as_dtype(dtype: npt.DTypeLike, argument: str = "dtype") -> np.dtype[Any]:
    """The NumPy dtype of any scalar type, given by NumPy's name or type.

    Raises:
        ArgumentError: It names none.
    """
    if isinstance(dtype, str) and dtype in FLOAT_OUTPUTS:
        return FLOAT_OUTPUTS[dtype]
    try:
        found = np.dtype(dtype) if dtype is not None else None
    except TypeError:
        found = None
    if found is None or all(found != scalar.dtype for scalar in SCALARS.values()):
        raise ArgumentError(
            f"{argument} is not a number type", expected="float32, float16, bfloat16, int32, ...", found=repr(dtype)
        )
    return found


def convert(values: Array, dtype: np.dtype[Any]) -> Array:
    """`values` as `dtype`, each rounded once, to nearest with ties to even; overflow becomes infinity.

    No warning is raised: infinities and NaN are ordinary values here.
    """
    with np.errstate(all="ignore"):
        if dtype in _NARROWED_TWICE and values.dtype.newbyteorder("=") in _WIDER_THAN_BINARY32:
            values = _odd_binary32(values)
        return values.astype(dtype, copy=False)


def are_finite(values: Array) -> npt.NDArray[np.bool_]:
    """Which values are neither infinite nor NaN; a signalling NaN, of which ml_dtypes warns, is one like any other."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(values))


_NARROWED_TWICE = frozenset(SCALARS[name].dtype for name in ("bf16", "e4m3fn", "e5m2"))
_WIDER_THAN_BINARY32 = frozenset(np.dtype(name) for name in ("float64", "int64", "uint64", "int32", "uint32"))


def _odd_binary32(values: Array) -> npt.NDArray[np.float32]:
    """`values` in binary32, rounded to odd: what is cut off leaves a one in the last bit.

    ml_dtypes narrows everything through binary32, which would round twice. A type with fewer than 23 bits of precision
    cannot tell a value rounded to odd from the value itself, so that its own rounding is then the only one.
    """
    if values.dtype.kind in "iu":
        signed = values.dtype.kind == "i"
        magnitude = np.abs(values.astype(np.int64)).view(np.uint64) if signed else values.astype(np.uint64)
        low = magnitude & np.uint64(0xFFFFF)
        kept = magnitude - low | (low != 0).astype(np.uint64) << np.uint64(20)
        large = np.where(magnitude < np.uint64(1 << 40), magnitude, kept).astype(np.float64)
        values = np.where(values < 0, -large, large)
    nearest = values.astype(np.float32)
    back = nearest.astype(np.float64)
    words = nearest.view(np.uint32) - (np.abs(back) > np.abs(values)).astype(np.uint32)
    words |= ((back != values) & ~np.isnan(values)).astype(np.uint32)
    odd: npt.NDArray[np.float32] = np.asarray(words).view(np.float32)
    return odd
