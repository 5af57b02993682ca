"""Which words the tensors of a quantized weight may hold, each tensor by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["E4M3FN_CODE", "E4M3FN_SCALE", "EXPONENT_SCALE", "FLOAT_SCALE", "POSITIVE", "ZERO_POINT", "PartRule"]

Words = npt.NDArray[Any]
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


def _not_below_infinity(words: Words) -> Places:
    """BF16 and binary32 words with a sign, infinite or NaN."""
    infinity = 0x7F80 if words.itemsize == 2 else 0x7F800000
    found: Places = words >= infinity
    return found


def _not_positive(words: Words) -> Places:
    found: Places = (words == 0) | _not_below_infinity(words)
    return found


E4M3FN_CODE = PartRule(
    "code", "a code of the weight is NaN", "a finite E4M3FN word", lambda words: (words & 0x7F) == 0x7F
)
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
POSITIVE = PartRule(
    "divisor", "a divisor of the weight is not legal", "a finite positive binary32 number", _not_positive
)
ZERO_POINT = PartRule("zero-point", "a zero point of the weight is not zero", "0", lambda words: words != 0)
