"""What a comparison found, for programs and for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from quantform._sizes import counted
from quantform.compare.measure import Errors
from quantform.compare.pairing import Side
from quantform.errors import ArgumentError

__all__ = ["ORDERS", "Compared", "Comparison", "Shapes", "Uncompared", "check_max_error"]


def check_max_error(max_error: float) -> None:
    """Check a relative error that is to be the largest.

    Raises:
        ArgumentError: It is negative, infinite or not a number.
    """
    if not 0 <= max_error < math.inf:
        raise ArgumentError(
            "max_error (--max-error) is no relative error", expected="a finite number from 0 on", found=f"{max_error:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Errors):
    """How far a tensor of B is from that of A.

    Attributes:
        name: The tensor's name in A.
        other_name: Its name in B.
        shape: The shape of both.
        format: How A stores it.
        other_format: How B does.
        bytes: The payload's bytes in A.
        other_bytes: Those in B.
        same: `"bytes"`, if one encoding and equal payloads; `"values"`, if every value has the same bits in binary64
            (NaN of any payload counts as the same); else None. 64-bit integers have no `"values"`: binary64 does not
            hold them all.
    """

    name: str
    other_name: str
    shape: tuple[int, ...]
    format: str
    other_format: str
    bytes: int
    other_bytes: int
    same: Literal["bytes", "values"] | None

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def bits_per_weight(self) -> float:
        """Bits an element in A; 0 without elements."""
        return self.bytes * 8 / self.size if self.size else 0.0

    @property
    def other_bits_per_weight(self) -> float:
        """Bits an element in B; 0 without elements."""
        return self.other_bytes * 8 / self.size if self.size else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self) | {
            "shape": list(self.shape),
            "bits_per_weight": self.bits_per_weight,
            "other_bits_per_weight": self.other_bits_per_weight,
        }


@dataclass(frozen=True, slots=True)
class Shapes:
    """Two tensors that belong together and have different shapes."""

    name: str
    other_name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A tensor whose values cannot be read on one side, and why."""

    name: str
    other_name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Errors):
    """All values that were compared, as if they were one tensor.

    Attributes:
        tensors: How many tensors.
        weights: Their elements.
        bytes: Their bytes in A.
        other_bytes: Their bytes in B.
    """

    tensors: int
    weights: int
    bytes: int
    other_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits an element in A; 0 without elements."""
        return self.bytes * 8 / self.weights if self.weights else 0.0

    @property
    def other_bits_per_weight(self) -> float:
        """Bits an element in B; 0 without elements."""
        return self.other_bytes * 8 / self.weights if self.weights else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values, without a place, which would be one in no tensor."""
        return {key: value for key, value in asdict(self).items() if key not in {"row", "column"}} | {
            "bits_per_weight": self.bits_per_weight,
            "other_bits_per_weight": self.other_bits_per_weight,
        }


def _falling(number: Callable[[Compared], Any]) -> Callable[[list[Compared]], list[Compared]]:
    return lambda tensors: sorted(tensors, key=number, reverse=True)


ORDERS: dict[str, Callable[[list[Compared]], list[Compared]]] = {
    "error": _falling(lambda one: one.badness),
    "largest": _falling(lambda one: math.inf if one.max_abs is None else one.max_abs),
    "size": _falling(lambda one: one.size),
    "name": lambda tensors: sorted(tensors, key=lambda one: one.name),
    "file": list,
}
"""The orders in which tensors are listed; `"file"` is A's own."""


@dataclass(slots=True)
class Comparison:
    """How far the tensors of B are from those of A, the reference.

    Attributes:
        a: What A is.
        b: What B is.
        tensors: The tensors that were compared, in the order asked for.
        total: All of them together; its largest difference is that of the worst.
        only_a: Names of tensors that B has not, and their elements.
        only_b: Names of tensors that A has not, and their elements.
        shapes: Tensors whose shapes differ.
        unreadable: Tensors of which this package cannot read one side's values.
        broken: Tensors of which one side's file is broken.
    """

    a: Side
    b: Side
    tensors: list[Compared]
    total: Total
    only_a: dict[str, int] = field(default_factory=dict)
    only_b: dict[str, int] = field(default_factory=dict)
    shapes: list[Shapes] = field(default_factory=list)
    unreadable: list[Uncompared] = field(default_factory=list)
    broken: list[Uncompared] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no file is broken. Differences are no fault."""
        return not self.broken

    def beyond(self, max_error: float) -> list[str]:
        """The tensors of A that are not within a relative RMS error.

        That is: it is larger or has no number, values are incomparable, or the tensor could not be compared. One
        without elements is within any error, and may be missing in B.

        Raises:
            ArgumentError: The error is none: negative, infinite or not a number.
        """
        check_max_error(max_error)
        return [
            *(one.name for one in self.tensors if one.badness > (False, max_error)),
            *(one.name for one in self.shapes),
            *(one.name for one in (*self.unreadable, *self.broken)),
            *(name for name, weights in self.only_a.items() if weights),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            **{
                name: asdict(side) | {"bits_per_weight": side.bits_per_weight}
                for name, side in (("a", self.a), ("b", self.b))
            },
            "ok": self.ok,
            "total": self.total.as_dict(),
            "tensors": [one.as_dict() for one in self.tensors],
            "only_a": self.only_a,
            "only_b": self.only_b,
            "shapes": [
                asdict(one) | {"shape": list(one.shape), "other_shape": list(one.other_shape)} for one in self.shapes
            ],
            "unreadable": [asdict(one) for one in self.unreadable],
            "broken": [asdict(one) for one in self.broken],
        }

    def notes(self) -> list[str]:
        """Lines for people about what the table of tensors does not show."""
        lines = [
            *(f"only in A: {name}" for name in self.only_a),
            *(f"only in B: {name}" for name in self.only_b),
            *(
                f"shapes differ: {one.name}: {list(one.shape)} in A, {list(one.other_shape)} in B"
                for one in self.shapes
            ),
            *(f"not compared: {one.name}: {one.reason}" for one in self.unreadable),
            *(f"broken: {one.name}: {one.reason}" for one in self.broken),
            *(f"called {one.other_name} in B: {one.name}" for one in self.tensors if one.other_name != one.name),
        ]
        for one in self.tensors:
            sides = (one.reference_nan, one.reference_infinite, one.other_nan, one.other_infinite)
            if any(sides) or one.incomparable:
                found = "the numbers are finite"
                if any(sides):
                    found = f"{sides[0]} NaN and {sides[1]} infinite in A, {sides[2]} and {sides[3]} in B"
                lines.append(f"not finite: {one.name}: {counted(one.incomparable, 'difference')}; {found}")
        return lines
