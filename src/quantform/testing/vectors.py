"""What a vector is: bytes, what they are, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import FLOAT_OUTPUTS, convert

__all__ = ["EncoderVector", "Vector", "outputs_of"]

Array = npt.NDArray[Any]


def outputs_of(values: Array) -> dict[str, Array]:
    """Values in each of the four output types, each converted once, by the type's name; read-only.

    Every NaN is written alike: its bits are unspecified, and processors differ.
    """
    outputs = {}
    for name, dtype in FLOAT_OUTPUTS.items():
        converted = convert(values, dtype).copy()
        with np.errstate(invalid="ignore"):  # signaling NaN
            converted[np.isnan(converted)] = np.nan
        converted.flags.writeable = False
        outputs[name] = converted
    return outputs


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Vector:
    """A payload, and what a decoder makes of it.

    Attributes:
        identifier: Its stable name, `"gguf:q4_0/q-order"`.
        rule: The rule that it is about; the rules `output.*` follow from its values.
        format: The packed profile or the numeric format.
        layout: The storage layout of a numeric format; empty for a profile.
        shape: The logical shape.
        divisors: How many divisors an `nvfp4` payload has; 1 elsewhere.
        payload: uint8 `[n]`.
        words: The words in the payload by name, as `quantform.formats` has them.
        values: The values, `shape`-d, by output type.
        block: How many values along the last axis share a block, a group or a row.
    """

    identifier: str
    rule: str
    format: str
    layout: str = ""
    shape: tuple[int, ...]
    divisors: int = 1
    payload: npt.NDArray[np.uint8]
    words: Mapping[str, Array]
    values: Mapping[str, Array]
    block: int

    def __str__(self) -> str:
        return self.identifier

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identifier}>"  # arrays would bury what a test says


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class EncoderVector:
    """A source, and the words that a method makes of it.

    Attributes:
        identifier: Its stable name, `"grouped_absmax/q4_g64_fp16/rescue"`.
        rule: The rule that it is about.
        format: The target format.
        method: The method's name.
        source: What `values` are: a scalar type's NumPy name, or the packed profile of blocks to be imported.
        shape: The logical shape.
        values: The source: numbers of shape `shape`, or uint8 `[rows, row_bytes]`.
        parameters: The method's: `importance` (float32 `[K]`), `negative_scales`.
        layout: The layout of `payload`.
        payload: The words in their layout, uint8 `[n]`; None where the method must refuse the source.
        words: The words by name; none where it must refuse.
    """

    identifier: str
    rule: str
    format: str
    method: str
    source: str
    shape: tuple[int, ...]
    values: Array
    parameters: Mapping[str, Any] = field(default_factory=dict)
    layout: str
    payload: npt.NDArray[np.uint8] | None
    words: Mapping[str, Array]

    def __str__(self) -> str:
        return self.identifier

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identifier}>"  # arrays would bury what a test says
