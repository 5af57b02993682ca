"""Payloads made a piece at a time from one source tensor: copied, cast, or decoded.

Every stream here is linear: a whole number of source units (an element, a block) becomes as many target bytes, in
order, so that a piece needs no neighbours and memory does not grow with the tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, Scalar, are_finite
from quantform._sizes import read_pieces
from quantform.errors import UnsupportedError
from quantform.formats.exact import cast_words, inexact
from quantform.packed import PROFILES, Profile, dequantize_packed
from quantform.sources import Tensor

__all__ = ["Cast", "Copy", "Decode", "Stream", "direct_stream"]

Bytes = npt.NDArray[np.uint8]
Demand = Literal["exact", "finite", "any"]
"""What a stream asks of values: that nothing is lost, that nothing is infinite or NaN, or nothing."""


@dataclass(frozen=True, slots=True)
class Stream(ABC):
    """The target bytes of one tensor.

    Attributes:
        tensor: Where the source bytes come from.
    """

    tensor: Tensor

    @property
    @abstractmethod
    def unit(self) -> int:
        """Source bytes that are transformed together."""

    @abstractmethod
    def transform(self, data: Bytes, first: int) -> Bytes:
        """The target bytes for whole source units; `first` counts the units before them."""

    def __iter__(self) -> Iterator[Bytes]:
        """Target bytes in order; a piece is valid until the next one is asked for."""
        for offset, data in read_pieces(self.tensor.read_into, self.tensor.nbytes, self.unit):
            yield self.transform(data, offset // self.unit)

    def place(self, element: int) -> str:
        """Where an element is, for an error."""
        row, column = divmod(element, max(1, self.tensor.matrix[1]))
        return f"tensor {self.tensor.name!r}, row {row}, column {column}"


@dataclass(frozen=True, slots=True)
class Copy(Stream):
    """The bytes as they are.

    Attributes:
        granule: Pieces are multiples of so many bytes.
    """

    granule: int = 1

    @property
    def unit(self) -> int:
        """The granule."""
        return self.granule

    def transform(self, data: Bytes, first: int) -> Bytes:  # noqa: ARG002
        """The same bytes."""
        return data


@dataclass(frozen=True, slots=True)
class Cast(Stream):
    """Scalar words in another scalar type.

    Attributes:
        source: The type in the file.
        target: The type to write.
        demand: `"exact"` refuses words that would not come back, `"finite"` refuses infinities and NaN.
    """

    source: Scalar
    target: Scalar
    demand: Demand

    @property
    def unit(self) -> int:
        """One element."""
        return self.source.nbytes

    def transform(self, data: Bytes, first: int) -> Bytes:
        """The words cast.

        Raises:
            UnsupportedError: A value is not exact, or, where rounding was asked for, not finite.
        """
        words = data.view(self.source.stored_dtype).astype(self.source.word_dtype, copy=False)
        cast = cast_words(words, self.source, self.target)
        if self.demand == "exact":
            lost = inexact(words, self.source, self.target)
            if lost.size:
                value = words[lost[0] : lost[0] + 1].view(self.source.dtype)[0]
                raise UnsupportedError(
                    f"{self.source.name} does not become {self.target.name} exactly",
                    where=self.place(first + int(lost[0])),
                    found=f"{value}, and {lost.size - 1} more in this piece",
                    hint="Pass --fallback bf16 (or fp32) to round such values",
                )
        elif self.demand == "finite":
            _check_finite(self, cast.view(self.target.dtype), first)
        return cast.astype(self.target.stored_dtype, copy=False).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Decode(Stream):
    """Packed blocks decoded to a floating-point type, converted once.

    Attributes:
        profile: What the blocks are.
        target: The type to write.
        demand: `"finite"` refuses infinities and NaN.
    """

    profile: Profile
    target: Scalar
    demand: Demand

    @property
    def unit(self) -> int:
        """One block."""
        return self.profile.bytes

    def transform(self, data: Bytes, first: int) -> Bytes:
        """The values of the blocks.

        Raises:
            UnsupportedError: A value is not finite.
        """
        values = dequantize_packed(
            data, self.profile.identifier, [data.size // self.profile.bytes * self.profile.values], self.target.dtype
        )
        if self.demand == "finite":
            _check_finite(self, values, first * self.profile.values)
        return values.view(self.target.word_dtype).astype(self.target.stored_dtype, copy=False).view(np.uint8)


def direct_stream(tensor: Tensor, target: Scalar, demand: Demand) -> Stream | None:
    """The values of a tensor as words of a scalar type; None for types that cannot be decoded."""
    if tensor.format in PROFILES:
        return Decode(tensor, PROFILES[tensor.format], target, demand)
    if tensor.format in SCALARS:
        return Cast(tensor, SCALARS[tensor.format], target, demand)
    return None


def _check_finite(stream: Stream, values: npt.NDArray[np.generic], first: int) -> None:
    finite = are_finite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise UnsupportedError(
            "a value is not finite and would be rounded away from what it was",
            where=stream.place(first + bad),
            found=f"{values[bad]}, and {int(finite.size - finite.sum()) - 1} more in this piece",
            hint="Keep the tensor's own words, or repair the source",
        )
