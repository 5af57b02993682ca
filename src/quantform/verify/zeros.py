"""Whole pages of zeros in a tensor: legal words almost everywhere, and what a broken download leaves in the middle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._sizes import human_bytes
from quantform.verify.report import Finding, Place, Report

__all__ = ["PAGE_BYTES", "ZeroPages"]

PAGE_BYTES = 4096
"""Zeros in a row from which on they are counted: file systems keep, and lose, no less than that."""

_LOOKS = 4  # bytes of a page that are looked at first, since hardly any page has zeros in all of these places


@dataclass(slots=True)
class ZeroPages:
    """Counts the pages of a payload, from its first byte on, that are zeros; it watches all of it pass by.

    Attributes:
        count: How many bytes they are.
        first: Where the first one begins, in the payload.
    """

    count: int = 0
    first: int | None = None

    def __call__(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Look at bytes that were read."""
        begin = -offset % PAGE_BYTES
        pages = data[begin : begin + max(0, data.size - begin) // PAGE_BYTES * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        likely = np.flatnonzero(~pages[:, :: PAGE_BYTES // _LOOKS].any(axis=1))
        zeros = [index for index in likely.tolist() if not pages[index].any()]
        if zeros:
            self._add(offset + begin + zeros[0] * PAGE_BYTES, len(zeros) * PAGE_BYTES)

    def passed(self, begin: int, end: int) -> None:
        """Take note of a hole, which has no bytes to look at."""
        self._add(begin, end - begin)

    def report_to(self, report: Report, name: str, place: Place | None) -> None:
        """A remark, if there are any; `place` is None of tensors that do not lie in one place of a file."""
        if self.first is None:
            return
        path, at = (None, self.first) if place is None else place(self.first)
        problem = (
            f"{human_bytes(self.count)} are zeros, whole pages of {PAGE_BYTES} bytes, the first at byte {at} of "
            f"{'its data' if path is None else path.name}; a download or copy may have left them out"
        )
        report.add(Finding("zeros", name, problem, None if path is None else str(path), None if path is None else at))

    def _add(self, at: int, count: int) -> None:
        self.count += count
        self.first = at if self.first is None else min(at, self.first)
