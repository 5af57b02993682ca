"""Reading every byte once: what passes by is shown to whoever counts or checks it, and told to the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quantform._progress import Progress
from quantform._scalars import SCALARS, Scalar
from quantform._sizes import counted, human_bytes
from quantform._spans import Span
from quantform.layouts import ReadInto
from quantform.layouts.faults import SparseReader
from quantform.packed import PROFILES, Field, Profile, count_set, nonfinite_scales, nonfinite_values, undefined_scales
from quantform.verify.report import Finding, Report
from quantform.verify.zeros import ZeroPages

__all__ = ["UNUSED_BYTES", "Meter", "Observer", "StoredSpans", "ValueCounter", "unit_of", "watched"]

Bytes = npt.NDArray[np.uint8]
Observer = Callable[[int, Bytes], object]
"""Takes an offset in a payload and the bytes from there on."""
StoredSpans = Callable[[int, int], Iterable[Span]]
"""Takes where bytes of a payload begin and end, and gives those that are not in holes of a sparse file."""

UNUSED_BYTES = 64 << 20
"""As many are looked at of bytes that no tensor has: they mean nothing, and that is enough to tell what they are."""

# The bits that are all set in a scalar word which is not finite. Where a word has 8 bytes, the upper 4 are looked at.
_NONFINITE = {
    "fp16": Field(0, 2, 0x7C00),
    "bf16": Field(0, 2, 0x7F80),
    "fp32": Field(0, 4, 0x7F800000),
    "fp64": Field(4, 4, 0x7FF00000),
    "e5m2": Field(0, 1, 0x7C),
    "e4m3fn": Field(0, 1, 0x7F),
    "e8m0": Field(0, 1, 0xFF),
}
# Types in which the word of a negative zero is the only NaN.
_NEGATIVE_ZERO_NAN = ("e4m3fnuz", "e5m2fnuz")


@dataclass(slots=True)
class Meter:
    """How many bytes have been read.

    Attributes:
        progress: Is told.
        total: How many there are.
        nouns: What they make up: how many of which kind.
        done: How many have been read, to where reading ended.
        what: What is being read.
        unread: How many of them were not read: zeros of sparse files' holes, and bytes that mean nothing.
    """

    progress: Progress
    total: int = 0
    nouns: tuple[int, str] = (0, "tensor")
    done: int = 0
    what: str = ""
    unread: int = 0

    def expect(self, total: int, nouns: tuple[int, str]) -> None:
        """Before anything is read: how much there is of it, beside what was said before."""
        self.total, self.nouns = self.total + total, nouns

    def begin(self, what: str) -> None:
        """Another tensor's turn."""
        self.what = what
        self.progress(self.done, self.total, what)

    def note(self) -> str:
        """What was read, for people."""
        unread = f", {human_bytes(self.unread)} passed over" if self.unread else ""
        return f"{counted(*self.nouns)}, {human_bytes(self.done - self.unread)} read{unread}: nothing is wrong"

    def add(self, count: int) -> None:
        """Some bytes were read."""
        self.done += count
        self.progress(self.done, self.total, self.what)

    def passed(self, begin: int, end: int) -> None:
        """Bytes need not be read."""
        self.unread += end - begin
        self.add(end - begin)


def watched(
    read: ReadInto,
    meter: Meter,
    observers: Iterable[Observer] = (),
    stored: StoredSpans | None = None,
    zeros: ZeroPages | None = None,
) -> ReadInto:
    """A reader whose bytes are shown to observers.

    Args:
        read: Fills an array with bytes from an offset on.
        meter: Is told of each byte.
        observers: Are shown each.
        stored: Tells what is no hole of a sparse file, where observers have nothing to see in zeros.
        zeros: Is shown each byte, and told of holes.
    """
    watching: tuple[Observer, ...] = (*observers, *([] if zeros is None else [zeros]))

    def look(offset: int, out: Bytes) -> None:
        read(offset, out)
        for observer in watching:
            observer(offset, out)
        meter.add(out.nbytes)

    def passed(begin: int, end: int) -> None:
        if zeros is not None:
            zeros.passed(begin, end)
        meter.passed(begin, end)

    return look if stored is None else SparseReader(look, stored, passed)


def unit_of(format: str) -> Profile | Scalar | None:
    """What a plain tensor's payload is made of; None where that is not known."""
    return PROFILES.get(format) or SCALARS.get(format)


@dataclass(slots=True)
class ValueCounter:
    """Counts scales and values that are infinite or NaN: legal words, all of them.

    Attributes:
        unit: A packed profile, or a scalar type.
    """

    unit: Profile | Scalar
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a block or word, which pieces must be multiples of."""
        return self.unit.bytes if isinstance(self.unit, Profile) else self.unit.nbytes

    def __call__(self, offset: int, data: Bytes) -> None:
        """Look at a piece of the payload, which is whole units."""
        del offset
        if isinstance(self.unit, Profile):
            self._count("nonfinite-scale", nonfinite_scales(data, self.unit))
            self._count("nonfinite-value", nonfinite_values(data, self.unit))
            self._count("undefined-scale", undefined_scales(data, self.unit))
        else:
            self._count("nonfinite-value", _nonfinite_words(data, self.unit))

    def report_to(self, report: Report, name: str) -> None:
        """A remark for each kind of words that there is."""
        for rule, count in self.counts.items():
            noun, which = rule.partition("-")[::-2]
            which = {"nonfinite": "not finite", "undefined": "no number"}[which]
            report.add(Finding(rule, name, f"{counted(count, noun)} {which}", count=count))

    def _count(self, rule: str, number: int) -> None:
        if number:
            self.counts[rule] = self.counts.get(rule, 0) + number


def _nonfinite_words(data: Bytes, scalar: Scalar) -> int:
    if scalar.name in _NEGATIVE_ZERO_NAN:
        return int(np.count_nonzero(data == 0x80))
    mask = _NONFINITE.get(scalar.name)
    return 0 if mask is None else count_set(data, scalar.nbytes, mask)
