"""Bytes that are not those of the file that they are compared with: how many there are, and the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantform._sizes import counted
from quantform.verify.report import Finding

__all__ = ["Differing", "differs", "first_of"]


@dataclass(slots=True)
class Differing:
    """Bytes that differ, of one payload or file.

    Attributes:
        count: How many there are.
        at: The first one.
        expected: What would be right there.
        found: What is there.
    """

    count: int = 0
    at: int = 0
    expected: int = 0
    found: int = 0

    def add(self, offset: int, expected: npt.NDArray[np.uint8], found: npt.NDArray[np.uint8]) -> None:
        """Look at as many bytes of both, of which the first are at `offset`."""
        unequal = expected != found
        count = int(np.count_nonzero(unequal))
        if count and not self.count:
            first = int(np.argmax(unequal))
            self.at, self.expected, self.found = offset + first, int(expected[first]), int(found[first])
        self.count += count

    def finding(
        self,
        rule: str,
        name: str,
        place: tuple[Path, int] | None,
        *,
        row: int | None = None,
        column: int | None = None,
    ) -> Finding:
        """What there is to say of them; `place` is where the first one lies, if that is known."""
        want, have = f"0x{self.expected:02X}", f"0x{self.found:02X}"
        return first_of(
            self.count, rule, name, f"byte {self.at}", place, expected=want, found=have, row=row, column=column
        )


def first_of(
    count: int,
    rule: str,
    name: str,
    what: str,
    place: tuple[Path, int] | None,
    *,
    expected: str,
    found: str,
    row: int | None = None,
    group: int | None = None,
    column: int | None = None,
) -> Finding:
    """The first of `count` things that differ: `what` it is, and where it lies, if that is known."""
    path, offset = (None, None) if place is None else place
    more = "" if count == 1 else f", and {counted(count - 1, 'other')}"
    parts = (("row", row), ("group", group), ("column", column))
    words = "".join(f", {part} {number}" for part, number in parts if number is not None)
    where = "" if path is None else f", byte {offset} of {path.name}"
    problem = f"{what} differs{more}{words}{where}; expected {expected}, found {found}"
    file = None if path is None else str(path)
    return Finding(rule, name, problem, file, offset, row, group, column, expected, found, count)


def differs(rule: str, name: str, expected: str, found: str, where: str = "") -> Finding:
    """Something that is another than in the file that it is compared with; `where` follows "differs"."""
    return Finding(rule, name, f"differs{where}; expected {expected}, found {found}", expected=expected, found=found)
