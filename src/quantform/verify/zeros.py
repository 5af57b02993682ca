"""Whole pages of zeros in a tensor: legal words almost everywhere, and what a broken download leaves in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantform._sizes import human_bytes
from quantform.verify.report import Finding, Report

__all__ = ["PAGE_BYTES", "ZeroPages"]

PAGE_BYTES = 4096
"""Zeros in a row from which on they are counted: file systems keep, and lose, no less than that."""

_LOOKS = 4  # bytes of a page that are looked at first, since hardly any page has zeros in all of these places


class ZeroPages:
    """Counts the pages of a tensor's file that are zeros in the tensor; all of its payload passes by, each byte once.

    Args:
        locate: Gives the file that has a byte of the payload, and its offset there: pages are the file's. Where it
            gives None, they are the payload's.

    Attributes:
        count: How many bytes the pages have.
        first: Where the first one begins, in the payload.
    """

    def __init__(self, locate: Callable[[int], tuple[Path, int] | None]) -> None:
        self._locate = locate
        self.count = 0
        self.first: int | None = None
        place = locate(0)
        self._shift = 0 if place is None else place[1] % PAGE_BYTES
        self._begun: dict[int, int] = {}  # the first byte of pages that are zeros as far as seen, by the next one

    def __call__(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Look at bytes that were read."""
        head = min(-(offset + self._shift) % PAGE_BYTES, data.size)
        begun = self._begun.pop(offset, None)
        if begun is not None and not data[:head].any():
            self._go_on(begun, offset + head)
        pages = data[head : head + (data.size - head) // PAGE_BYTES * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        likely = np.flatnonzero(~pages[:, :: PAGE_BYTES // _LOOKS].any(axis=1))
        zeros = [index for index in likely.tolist() if not pages[index].any()]
        if zeros:
            self._add(offset + head + zeros[0] * PAGE_BYTES, len(zeros) * PAGE_BYTES)
        tail = data[head + pages.size :]
        if tail.size and not tail.any():
            self._go_on(offset + head + pages.size, offset + data.size)

    def passed(self, begin: int, end: int) -> None:
        """Take note of a hole, which has no bytes to look at."""
        self._add(begin, end - begin)

    def report_to(self, report: Report, name: str) -> None:
        """A remark, if there are any."""
        if self.first is None:
            return
        path, at = self._locate(self.first) or (None, self.first)
        problem = (
            f"{human_bytes(self.count)} are zeros, whole pages of {PAGE_BYTES} bytes, the first at byte {at} of "
            f"{'its data' if path is None else path.name}; a download or copy may have left them out"
        )
        report.add(Finding("zeros", name, problem, None if path is None else str(path), None if path is None else at))

    def _go_on(self, begin: int, end: int) -> None:
        """A page has zeros up to `end`, where it may end or go on in another piece."""
        if end - begin == PAGE_BYTES:
            self._add(begin, PAGE_BYTES)
        else:
            self._begun[end] = begin

    def _add(self, at: int, count: int) -> None:
        self.count += count
        self.first = at if self.first is None else min(at, self.first)
