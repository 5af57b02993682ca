"""The last step of decoding: binary32 to the type that was asked for. Which rule of it a value is an example of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import convert
from quantform.testing.rules import DECISIONS, OPERATOR, Rule

__all__ = ["OUTPUT_RULES", "output_rules"]

# The operator's text says it of its profiles, and we say it of the `.ninfer` formats, whose text has one type only.
_TEXT = f"{OPERATOR}; of `.ninfer` formats {DECISIONS}"
_MEANINGS = {
    "special": "Zeros keep their sign, infinities and NaN stay what they are",
    "nearest": "A value goes to the nearest one of the type",
    "ties-to-even": "A value halfway between two goes to the one whose word is even",
    "overflow": "A finite value beyond the type's largest, once rounded, becomes infinity of its sign",
    "subnormal": "Small values become subnormal ones, or a zero of their sign, and are not flushed",
}
_SPECIAL, _NEAREST, _TIE, _OVERFLOW, _SUBNORMAL = range(5)
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}

OUTPUT_RULES = (
    *(
        Rule(f"output.{name}.{kind}", meaning, _TEXT)
        for name in _SMALLEST_NORMAL
        for kind, meaning in _MEANINGS.items()
    ),
    Rule("output.float64.special", _MEANINGS["special"], _TEXT),
    Rule("output.float64.nearest", "A value is widened exactly", _TEXT),
)


def output_rules(name: str, expected: npt.NDArray[Any], exact: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
    """Which elements are examples of which rule of conversion to an output type.

    Args:
        name: The output type, not `"float32"`.
        expected: The values in that type.
        exact: The same in binary64, before they were rounded.

    Returns:
        Boolean arrays of the values' shape by rule; every element is in one, and none is empty.
    """
    rounded = convert(expected, np.dtype(np.float64))
    kinds = np.full(expected.shape, _NEAREST, np.uint8)
    if name != "float64":
        words = np.asarray(expected.view(np.uint16))
        with np.errstate(all="ignore"):
            step = np.where(np.abs(exact) > np.abs(rounded), 1, -1)
            other = convert((words + step).astype(np.uint16).view(expected.dtype), np.dtype(np.float64))
            ties = (exact != rounded) & (np.abs(exact - other) == np.abs(exact - rounded))
        kinds[ties] = _TIE
        kinds[np.abs(rounded) < _SMALLEST_NORMAL[name]] = _SUBNORMAL
        kinds[np.isinf(rounded)] = _OVERFLOW
    kinds[(exact == 0) | ~np.isfinite(exact)] = _SPECIAL
    return {
        f"output.{name}.{kind}": kinds == number for number, kind in enumerate(_MEANINGS) if (kinds == number).any()
    }
