"""The arithmetic of split artifacts: how much payload each file holds, and which bytes of which file a range is."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from quantform._sizes import ceil_div, fits_u64
from quantform.container.header import PAGE
from quantform.errors import ArgumentError

__all__ = ["MAX_FILES", "PayloadMap", "Piece", "part_name", "split_payload"]

MAX_FILES = 100_000
"""More files than this are refused when an artifact is written; the directory lists them all."""


class Piece(NamedTuple):
    """A stretch of payload that lies in one file.

    Attributes:
        file: Index in `files`; 0 is the entry.
        offset: First byte in that file, headers counted.
        size: Bytes.
    """

    file: int
    offset: int
    size: int


class PayloadMap:
    """Where the bytes of the logical payload lie.

    Args:
        start: Offset of the payload in the entry file.
        sizes: Payload bytes of each file, each positive.
    """

    def __init__(self, start: int, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._start = start
        self._bounds = (0, *accumulate(self.sizes))

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload."""
        return self._bounds[-1]

    def payload_start(self, file: int) -> int:
        """Offset of the payload in a file."""
        return PAGE if file else self._start

    def file_size(self, file: int) -> int:
        """Bytes of a whole file."""
        return self.payload_start(file) + self.sizes[file]

    def pieces(self, offset: int, count: int) -> Iterator[Piece]:
        """The range of the payload, which must lie inside it, cut at the boundaries of files, in order."""
        file = bisect_right(self._bounds, offset) - 1
        while count:
            inside = offset - self._bounds[file]
            taken = min(count, self.sizes[file] - inside)
            yield Piece(file, self.payload_start(file) + inside, taken)
            offset, count, file = offset + taken, count - taken, file + 1


def split_payload(payload_bytes: int, start: int, max_file_bytes: int | None) -> tuple[int, ...]:
    """Payload bytes of each file when no file may be longer than `max_file_bytes`.

    Args:
        payload_bytes: Bytes of the logical payload, positive.
        start: Offset of the payload in the entry file.
        max_file_bytes: The limit, header, directory and gaps counted; None is no limit.

    Raises:
        ArgumentError: A size leaves U64, the limit leaves no room for payload, or it makes more than `MAX_FILES` files.
    """
    total = fits_u64(start + fits_u64(payload_bytes, "the size of the payload"), "the size of the artifact")
    if max_file_bytes is None:
        return (payload_bytes,)
    try:
        limit = 0 if isinstance(max_file_bytes, bool) else operator.index(max_file_bytes)
    except TypeError:
        limit = 0
    if limit < 1:
        raise ArgumentError("max_file_bytes is not a positive integer", found=repr(max_file_bytes))
    if total <= limit:
        return (payload_bytes,)
    entry = (limit - start) // PAGE * PAGE
    part = (limit - PAGE) // PAGE * PAGE
    if entry <= 0 or part <= 0:
        raise ArgumentError(
            "max_file_bytes leaves no room for payload",
            expected=f"at least {max(start, PAGE) + PAGE} bytes",
            found=limit,
        )
    count = ceil_div(payload_bytes - entry, part)
    if count >= MAX_FILES:
        raise ArgumentError(
            "max_file_bytes makes too many files",
            expected=f"at most {MAX_FILES}",
            found=count + 1,
            hint="Allow longer files",
        )
    return (entry, *[part] * (count - 1), payload_bytes - entry - part * (count - 1))


def part_name(entry_name: str, index: int) -> str:
    """The name of part `index` (from 1) of the entry called `entry_name`."""
    return f"{entry_name}.part-{index:04d}"
