"""Which words the tensors of a quantized weight may hold, each tensor by itself, and codes under their scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from quantform._scalars import convert

__all__ = [
    "BF16_SCALE",
    "E4M3FN_CODE",
    "E4M3FN_SCALE",
    "EXPONENT_SCALE",
    "FLOAT_SCALE",
    "OVERFLOW",
    "POSITIVE",
    "UNSCALED",
    "ZERO_POINT",
    "PairRule",
    "PartRule",
    "as_bf16",
]

Words = npt.NDArray[Any]
Values = npt.NDArray[np.float32]
Places = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PartRule:
    """One rule.

    Attributes:
        rule: Its short name: `"code"`, `"scale"`, `"divisor"` or `"zero-point"`.
        problem: What is wrong with a word that breaks it.
        expected: What it admits.
        breaks: Which words break it; takes words of the tensor's type, in any number of axes.
    """

    rule: str
    problem: str
    expected: str
    breaks: Callable[[Words], Places]


@dataclass(frozen=True, slots=True)
class PairRule:
    """One rule of codes under scales, all of which are legal by themselves.

    Attributes:
        rule: Its short name: `"zero-scale"`, `"overflow"`, or that of a remark.
        problem: What is wrong with a code that breaks it.
        expected: What it admits.
        doubtful: Under which scales a code can break it; takes binary32 values.
        breaks: Which codes break it; takes binary32 values of codes and of their scales, which broadcast.
    """

    rule: str
    problem: str
    expected: str
    doubtful: Callable[[Values], Places]
    breaks: Callable[[Values, Values], Places]


def as_bf16(scales: Values) -> npt.NDArray[np.uint16]:
    """The words of binary32 scales in BF16, rounded once."""
    words: npt.NDArray[np.uint16] = convert(scales, np.dtype(ml_dtypes.bfloat16)).view(np.uint16)
    return words


def _not_below_infinity(words: Words) -> Places:
    """BF16 and binary32 words with a sign, infinite or NaN."""
    infinity = 0x7F80 if words.itemsize == 2 else 0x7F800000
    found: Places = words >= infinity
    return found


def _not_positive(words: Words) -> Places:
    found: Places = (words == 0) | _not_below_infinity(words)
    return found


_BF16_OVERFLOW = 0x7F7F8000  # the binary32 word halfway to BF16's infinity
_LARGEST_CODE = np.float32(448)


def _is_nan(words: Words) -> Places:
    magnitudes = words & 0x7F
    found: Places = np.equal(magnitudes, 0x7F, out=magnitudes.view(np.bool_))  # one array less to find memory for
    return found


def _overflows(codes: Values, scales: Values) -> Places:
    with np.errstate(all="ignore"):
        found: Places = ~np.isfinite(codes * scales) & np.isfinite(codes) & np.isfinite(scales)
    return found


E4M3FN_CODE = PartRule("code", "a code of the weight is NaN", "a finite E4M3FN word", _is_nan)
E4M3FN_SCALE = PartRule(
    "scale",
    "a scale of the weight is not legal",
    "a finite E4M3FN word without sign, 0x00 to 0x7E",
    lambda words: words > 0x7E,
)
EXPONENT_SCALE = PartRule(
    "scale", "a scale of the weight is not legal", "an exponent, 0x00 to 0xFE", lambda words: words == 0xFF
)
FLOAT_SCALE = PartRule(
    "scale", "a scale of the weight is not legal", "a finite number without sign", _not_below_infinity
)
BF16_SCALE = PartRule(
    "scale",
    "a scale of the weight becomes infinite in BF16",
    "a scale within BF16",
    lambda words: (words >= _BF16_OVERFLOW) & (words < 0x7F800000),
)
POSITIVE = PartRule(
    "divisor", "a divisor of the weight is not legal", "a finite positive binary32 number", _not_positive
)
ZERO_POINT = PartRule("zero-point", "a zero point of the weight is not zero", "0", lambda words: words != 0)
UNSCALED = PairRule(
    "zero-scale",
    "a code of the weight under a zero scale is not zero",
    "0x00 or 0x80",
    lambda scales: as_bf16(scales) == 0,
    lambda codes, scales: (as_bf16(scales) == 0) & (codes != 0),
)
"""Of words whose scales are BF16, into which they may round to zero."""
OVERFLOW = PairRule(
    "overflow",
    "the product of code and scale overflows binary32",
    "a finite binary32 value",
    lambda scales: scales > np.finfo(np.float32).max / _LARGEST_CODE,
    _overflows,
)
