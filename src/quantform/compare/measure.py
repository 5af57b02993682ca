"""How far two tensors are apart, in binary64: sums that depend on the values and on nothing else.

Values are numbered in C order and fall into blocks of 4096. The terms of a block are added in halves (term i and term
i + 2048, and so on), the sums of blocks pair by pair as they come, so that no piece in which values are read, no
thread and no instruction set changes a bit. A block whose squares would leave binary64 is scaled by a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import convert
from quantform.convert.inputs import input_of
from quantform.sources import NinferTensor, Tensor

__all__ = ["Errors", "Measure", "Sums", "measure"]

Vector = npt.NDArray[np.float64]
Scaled = tuple[float, int]
"""A sum: the first number times two to the power of the second, which is 0 wherever that can be."""

_BLOCK = 4096
# Blocks worked on at a time: the temporaries stay in the second-level cache.
_BATCH = 16
# Values read at a time. A longer row is read in windows where its source lets it be, else whole.
_PIECE_VALUES = 1 << 17
_WINDOW_COLUMNS = 1024
# Sums of squares within these bounds lost nothing that counts to overflow or underflow.
_LOW, _HIGH = 2.0**-900, 2.0**900
_BINARY64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far values are from those of a reference, in binary64.

    The same infinity, or NaN, on both sides is no difference, and enters no sum. Any other element whose difference is
    not finite is incomparable: an infinity or NaN on one side, infinities of both signs, or a difference that
    overflows. One such element is an error beyond every number: then nothing here but the counts is a number.

    Attributes:
        relative_rms: Root of the sum of squared differences over that of the squared reference. 0 where nothing
            differs; None where an element is incomparable, where the reference alone is 0, or where the quotient is
            not finite.
        snr_db: `-20 log10(relative_rms)`; None where that is not finite.
        max_abs: The largest absolute difference; None where an element is incomparable.
        row: Where that is first, or the first element that is incomparable: a row of the flattened leading axes. None
            where nothing differs.
        column: Its column.
        cosine: The cosine of the angle between both, as vectors; None where an element is incomparable or a side is 0.
        differing: Elements that are not the same binary64 number: a zero of the other sign counts, NaN of another
            payload does not.
        incomparable: Elements whose difference is not finite, and that are not the same on both sides.
        reference_nan: Elements of the reference that are not a number.
        reference_infinite: Those that are infinite.
        other_nan: Elements of the other side that are not a number.
        other_infinite: Those that are infinite.
    """

    relative_rms: float | None
    snr_db: float | None
    max_abs: float | None
    row: int | None
    column: int | None
    cosine: float | None
    differing: int
    incomparable: int
    reference_nan: int
    reference_infinite: int
    other_nan: int
    other_infinite: int

    @property
    def badness(self) -> tuple[bool, float]:
        """Sorts worse errors behind better ones."""
        return self.incomparable > 0, math.inf if self.relative_rms is None else self.relative_rms

    def as_fields(self) -> dict[str, Any]:
        """The measures by name, for a record that has more to say."""
        return {one.name: getattr(self, one.name) for one in fields(Errors)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is known of two tensors when all their values have been seen; those of several tensors can be added.

    Attributes:
        difference: Sum of squared differences.
        reference: Sum of squares of the reference.
        other: Sum of squares of the other side.
        product: Sum of the products of both sides.
        largest: The largest absolute difference; infinity where an element is incomparable.
        place: The first element that has it, in C order; None where nothing differs, or where tensors were added.
        differing: See `Errors`, as the rest.
    """

    difference: Scaled = (0.0, 0)
    reference: Scaled = (0.0, 0)
    other: Scaled = (0.0, 0)
    product: Scaled = (0.0, 0)
    largest: float = 0.0
    place: int | None = None
    differing: int = 0
    incomparable: int = 0
    reference_nan: int = 0
    reference_infinite: int = 0
    other_nan: int = 0
    other_infinite: int = 0

    def __add__(self, more: Sums) -> Sums:
        return Sums(
            difference=_plus(self.difference, more.difference),
            reference=_plus(self.reference, more.reference),
            other=_plus(self.other, more.other),
            product=_plus(self.product, more.product),
            largest=max(self.largest, more.largest),
            differing=self.differing + more.differing,
            incomparable=self.incomparable + more.incomparable,
            reference_nan=self.reference_nan + more.reference_nan,
            reference_infinite=self.reference_infinite + more.reference_infinite,
            other_nan=self.other_nan + more.other_nan,
            other_infinite=self.other_infinite + more.other_infinite,
        )

    def errors(self, columns: int) -> Errors:
        """The measures; `columns` are those of a row, by which the place is told."""
        relative = None if self.incomparable else _root_of_quotient(self.difference, self.reference)
        row, column = (None, None) if self.place is None else divmod(self.place, columns)
        return Errors(
            relative_rms=relative,
            snr_db=-20 * math.log10(relative) if relative else None,
            max_abs=None if self.incomparable else self.largest,
            row=row,
            column=column,
            cosine=None if self.incomparable else _cosine(self.product, self.reference, self.other),
            differing=self.differing,
            incomparable=self.incomparable,
            reference_nan=self.reference_nan,
            reference_infinite=self.reference_infinite,
            other_nan=self.other_nan,
            other_infinite=self.other_infinite,
        )


def measure(reference: Tensor, other: Tensor, told: Callable[[int], None] = lambda _: None) -> Sums:
    """Compare two tensors of one shape, decoded a bounded piece at a time.

    Args:
        reference: What the other should be. Given as both, it is decoded once.
        other: A tensor with as many elements, which may lie in rows of another length.
        told: Called with the number of elements done.

    Raises:
        UnsupportedError: The values of one cannot be read.
        FileError: The file of one is broken.
    """
    reference.check()
    other.check()
    running, done = Measure(), 0
    if other is reference:
        pairs: Iterator[tuple[Vector, Vector]] = ((values, values) for values in _vectors(reference))
    else:
        pairs = _aligned(_vectors(reference), _vectors(other))
    for one, two in pairs:
        running.add(one, two)
        done += one.size
        told(done)
    return running.sums()


def _vectors(tensor: Tensor) -> Iterator[Vector]:
    """The values in C order, some at a time."""
    if isinstance(tensor, NinferTensor):  # a parameter without a shape is one long row
        tensor = tensor.as_stored()
    rows, columns = tensor.matrix
    if not rows or not columns:
        return
    source = input_of(tensor.name, tensor, 0, rows, (rows, columns))
    if source.window is not None and columns > max(_PIECE_VALUES, _WINDOW_COLUMNS):
        step = max(_WINDOW_COLUMNS, _PIECE_VALUES // _WINDOW_COLUMNS * _WINDOW_COLUMNS)
        for row in range(rows):
            for begin in range(0, columns, step):
                yield convert(source.window(row, begin, min(begin + step, columns)), _BINARY64).reshape(-1)
        return
    step = max(1, _PIECE_VALUES // columns)
    for first in range(0, rows, step):
        end = min(first + step, rows)
        # Without a reader, the tensor itself says why it has no values.
        values = tensor.decode(rows=slice(first, end)) if source.values is None else source.values(first, end)
        yield convert(values, _BINARY64).reshape(-1)


def _aligned(one: Iterator[Vector], two: Iterator[Vector]) -> Iterator[tuple[Vector, Vector]]:
    """The same elements of both, whatever the pieces in which each side comes."""
    left = right = np.empty(0)
    while True:
        left = next(one, left) if not left.size else left
        right = next(two, right) if not right.size else right
        count = min(left.size, right.size)
        if not count:
            return
        yield left[:count], right[:count]
        left, right = left[count:], right[count:]


class Measure:
    """Takes the values of a reference and of another side in C order, in any pieces."""

    def __init__(self) -> None:
        self._difference, self._reference, self._other, self._product = (_Pairwise() for _ in range(4))
        self._waiting = np.zeros((2, _BLOCK))
        self._filled = 0
        self._seen = 0
        self._largest = 0.0
        self._place: int | None = None
        self._differing = self._incomparable = 0
        self._nan, self._infinite = [0, 0], [0, 0]

    def add(self, reference: Vector, other: Vector) -> None:
        """Take the next values, as many of both sides."""
        at = 0
        if self._filled:
            at = min(_BLOCK - self._filled, reference.size)
            self._wait(reference[:at], other[:at])
            if self._filled == _BLOCK:
                self._blocks(self._waiting[:1], self._waiting[1:])
                self._filled = 0
        whole = at + (reference.size - at) // _BLOCK * _BLOCK
        for first in range(at, whole, _BLOCK * _BATCH):
            some = slice(first, min(first + _BLOCK * _BATCH, whole))
            self._blocks(reference[some].reshape(-1, _BLOCK), other[some].reshape(-1, _BLOCK))
        if whole < reference.size:
            self._wait(reference[whole:], other[whole:])

    def sums(self) -> Sums:
        """What all values make together; the last one."""
        if self._filled:
            self._waiting[:, self._filled :] = 0
            self._blocks(self._waiting[:1], self._waiting[1:])
            self._filled = 0
        return Sums(
            difference=self._difference.total(),
            reference=self._reference.total(),
            other=self._other.total(),
            product=self._product.total(),
            largest=self._largest,
            place=self._place,
            differing=self._differing,
            incomparable=self._incomparable,
            reference_nan=self._nan[0],
            reference_infinite=self._infinite[0],
            other_nan=self._nan[1],
            other_infinite=self._infinite[1],
        )

    def _wait(self, reference: Vector, other: Vector) -> None:
        end = self._filled + reference.size
        self._waiting[0, self._filled : end] = reference
        self._waiting[1, self._filled : end] = other
        self._filled = end

    def _blocks(self, one: Vector, two: Vector) -> None:
        """Whole blocks, `[n, 4096]`."""
        with np.errstate(all="ignore"):  # infinities and NaN are looked for, and sums that overflow are made again
            difference = two - one
            squares = difference * difference
            largest = float(squares.max())
            if not math.isfinite(largest):  # perhaps only the square overflows
                one, two = self._finite(one, two, difference)
                difference = two - one
                squares = difference * difference
            differing = int(np.count_nonzero(one.view(np.uint64) != two.view(np.uint64)))
            self._differing += differing
            if differing and not largest < self._largest * self._largest:
                self._look_for_largest(difference)
            self._difference.extend(_squared(difference, squares))
            of_one = _squared(one, np.multiply(one, one, out=squares))
            of_two = of_one if two is one else _squared(two, np.multiply(two, two, out=squares))
            self._product.extend(_multiplied(one, two, of_one, of_two))
            self._reference.extend(of_one)
            self._other.extend(of_two)
        self._seen += one.size

    def _finite(self, one: Vector, two: Vector, difference: Vector) -> tuple[Vector, Vector]:
        """Both sides with zeros for what enters no sum, which is counted."""
        out = ~np.isfinite(difference)
        for side, values in enumerate((one, two)):
            self._nan[side] += int(np.count_nonzero(np.isnan(values)))
            self._infinite[side] += int(np.count_nonzero(np.isinf(values)))
        wrong = out & ~((one == two) | (np.isnan(one) & np.isnan(two)))
        incomparable = int(np.count_nonzero(wrong))
        if incomparable and not self._incomparable:
            self._largest, self._place = math.inf, self._seen + int(wrong.argmax())
        self._incomparable += incomparable
        self._differing += incomparable
        return np.where(out, 0.0, one), np.where(out, 0.0, two)

    def _look_for_largest(self, difference: Vector) -> None:
        magnitudes = np.abs(difference)
        at = int(magnitudes.argmax())
        found = float(magnitudes.flat[at])
        if found > self._largest:
            self._largest, self._place = found, self._seen + at


class _Pairwise:
    """A sum of sums of blocks: of two equal stretches always one is added to the other."""

    def __init__(self) -> None:
        self._levels: list[Scaled | None] = []

    def extend(self, sums: list[Scaled]) -> None:
        """Add the next blocks."""
        for one in sums:
            level, carried = 0, one
            while level < len(self._levels) and (before := self._levels[level]) is not None:
                carried = _plus(before, carried)
                self._levels[level] = None
                level += 1
            if level == len(self._levels):
                self._levels.append(None)
            self._levels[level] = carried

    def total(self) -> Scaled:
        """The sum."""
        total = (0.0, 0)
        for one in self._levels:
            if one is not None:
                total = _plus(one, total)
        return total


def _plus(one: Scaled, two: Scaled) -> Scaled:
    if one[1] == two[1]:
        return one[0] + two[0], one[1]
    if not one[0] or not two[0]:
        return one if one[0] else two
    small, large = sorted((one, two), key=lambda scaled: scaled[1])
    return large[0] + math.ldexp(small[0], small[1] - large[1]), large[1]


def _folded(terms: Vector) -> Vector:
    """The sums of the terms of each block, which are lost."""
    width = terms.shape[1]
    while width > 1:
        width //= 2
        np.add(terms[:, :width], terms[:, width : 2 * width], out=terms[:, :width])
    return terms[:, 0].copy()


def _squared(values: Vector, squares: Vector) -> list[Scaled]:
    """The sums of squares of blocks; `squares` are lost."""
    sums = _folded(squares)
    found: list[Scaled] = [(one, 0) for one in sums.tolist()]
    for block in np.flatnonzero(~((sums > _LOW) & (sums < _HIGH))):
        scaled, exponent = _scaled(values[block])
        found[block] = float(_folded(scaled * scaled)[0]), 2 * exponent
    return found


def _multiplied(one: Vector, two: Vector, of_one: list[Scaled], of_two: list[Scaled]) -> list[Scaled]:
    """The sums of products of blocks, given their sums of squares."""
    found: list[Scaled] = [(product, 0) for product in _folded(one * two).tolist()]
    for block, (first, second) in enumerate(zip(of_one, of_two, strict=True)):
        if first[1] or second[1]:
            (left, exponent), (right, more) = _scaled(one[block]), _scaled(two[block])
            found[block] = float(_folded(left * right)[0]), exponent + more
    return found


def _scaled(values: Vector) -> tuple[Vector, int]:
    """One block `[1, 4096]` with a largest magnitude of about 1, and the power of two that was taken out."""
    exponent = math.frexp(float(np.abs(values).max()))[1]
    return np.ldexp(values[None], -exponent), exponent


def _split(number: Scaled) -> Scaled:
    """The same number with a first part from 0.5 to 1."""
    fraction, exponent = math.frexp(number[0])
    return fraction, exponent + number[1]


def _root_of_quotient(number: Scaled, by: Scaled) -> float | None:
    """The root of a quotient; 0 for 0, None where it is not finite."""
    if not number[0]:
        return 0.0
    if not by[0]:
        return None
    (above, exponent), (below, less) = _split(number), _split(by)
    half, odd = divmod(exponent - less, 2)
    try:
        return math.ldexp(math.sqrt(above * (1 + odd) / below), half)
    except OverflowError:
        return None


def _cosine(product: Scaled, one: Scaled, two: Scaled) -> float | None:
    if not one[0] or not two[0]:
        return None
    if not product[0]:
        return 0.0
    (above, exponent), (left, less), (right, lesser) = _split(product), _split(one), _split(two)
    half, odd = divmod(less + lesser, 2)
    cosine = math.ldexp(above / math.sqrt(left * right * (1 + odd)), exponent - half)
    return max(-1.0, min(1.0, cosine))
