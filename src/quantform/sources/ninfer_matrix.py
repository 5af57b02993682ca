"""Rows that lie in the objects of an artifact, read as if they were one object."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, matrix_shape
from quantform._sizes import ceil_div, human_bytes
from quantform.container import Artifact, TensorRecord
from quantform.errors import ArgumentError, QuantformError, UnsupportedError
from quantform.formats import FORMATS, BlockWords, DirectFormat, DirectWords, GroupedWords, Words
from quantform.layouts import LAYOUTS, RowPlaneLayout

__all__ = ["Extent", "Matrix", "join", "whole"]

_Bytes = npt.NDArray[np.uint8]

# Values decoded at a time.
_PIECE_VALUES = 1 << 20


class Extent(NamedTuple):
    """Elements `[begin, end)` of an object."""

    record: TensorRecord
    begin: int
    end: int


class _Segment(NamedTuple):
    """Bytes that lie at `source` of the artifact's payload and belong at `target` of the matrix's own."""

    target: int
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """One payload in a layout: an object's, or that of rows taken from several.

    Nothing is checked here: whoever reads calls `Artifact.check` for the objects first.

    Attributes:
        artifact: The open artifact.
        format: The format's name, perhaps unknown; so is the layout's.
        layout: The layout's name.
        shape: The shape in which the layout holds it.
        nbytes: Bytes of the payload.
        divisors: As in the object's record.
        id: The object, if it is one whole one.
        segments: Where the payload's bytes lie, by rising target; what lies between them is zeros.
    """

    artifact: Artifact
    format: str
    layout: str
    shape: tuple[int, ...]
    nbytes: int
    divisors: int
    id: str | None
    segments: tuple[_Segment, ...]

    def reshaped(self, shape: tuple[int, ...]) -> Matrix:
        """The same bytes in another shape with as many elements, if the layout does not care: direct formats."""
        if shape == self.shape or not isinstance(FORMATS.get(self.format), DirectFormat):
            return self
        return dataclasses.replace(self, shape=shape)

    def payload(self) -> _Bytes:
        """All bytes, read-only, without a copy where they lie together in one file."""
        if self.id is not None:
            return self.artifact.view(self.id)
        try:
            out = np.empty(self.nbytes, np.uint8)
        except (MemoryError, ValueError):
            raise UnsupportedError(
                "the payload does not fit in memory",
                where=str(self.artifact.path),
                found=human_bytes(self.nbytes),
                hint="Read it in pieces",
            ) from None
        self.read_into(0, out)
        out.flags.writeable = False
        return out

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out` with bytes from `offset` on.

        Raises:
            ArgumentError: The range exceeds the payload.
        """
        end = offset + out.size
        if offset < 0 or end > self.nbytes:
            raise ArgumentError(
                "the range exceeds the tensor",
                where=str(self.artifact.path),
                expected=f"an end of at most {self.nbytes}",
                found=f"{out.size} bytes at {offset}",
            )
        done = offset
        before = bisect_right(self.segments, offset, key=attrgetter("target")) - 1
        for segment in islice(self.segments, max(before, 0), None):
            if segment.target >= end:
                break
            first, last = max(offset, segment.target), min(end, segment.target + segment.size)
            if first >= last:
                continue
            out[done - offset : first - offset] = 0
            self.artifact.read_into(segment.source + first - segment.target, out[first - offset : last - offset])
            done = last
        out[done - offset :] = 0

    def words(self, rows: Rows | None = None) -> Words:
        """The words of all rows, in `shape`, or of some, in `[len(rows), K]`."""
        layout = LAYOUTS[self.layout]
        if rows is None:
            return layout.unpack(self.payload(), self.format, self.shape, self.divisors)
        return layout.words_of_rows(self.read_into, self.format, self.shape, rows, self.divisors)

    def words_as(self, shape: tuple[int, ...]) -> Words:
        """All words, in `shape` where its rows are the stored rows and words of this kind have such shapes."""
        words = self.words()
        if shape == words.shape or not shape or shape[-1] != words.shape[-1]:
            return words
        if isinstance(words, BlockWords):
            return dataclasses.replace(words, shape=shape)
        if isinstance(words, DirectWords):
            return dataclasses.replace(words, shape=shape, words=words.words.reshape(shape))
        if isinstance(words, GroupedWords):
            scales = words.scales.reshape(*shape[:-1], -1)
            return dataclasses.replace(words, shape=shape, codes=words.codes.reshape(shape), scales=scales)
        return words

    def decode_into(self, begin: int, end: int, out: npt.NDArray[Any]) -> None:
        """Decode elements `[begin, end)` into a vector of as many, a bounded number of whole rows at a time."""
        columns = matrix_shape(self.shape)[1]
        stop = ceil_div(end, columns)
        step = max(1, _PIECE_VALUES // columns)
        for first in range(begin // columns, stop, step):
            last = min(first + step, stop)
            values = self.words(slice(first, last)).decode(out.dtype).reshape(-1)
            low, high = max(begin, first * columns), min(end, last * columns)
            out[low - begin : high - begin] = values[low - first * columns : high - first * columns]


def whole(artifact: Artifact, record: TensorRecord) -> Matrix:
    """An object as it is."""
    return Matrix(
        artifact,
        record.format,
        record.layout,
        record.shape,
        record.nbytes,
        record.divisors,
        record.id,
        (_Segment(0, record.offset, record.nbytes),),
    )


def join(artifact: Artifact, extents: Sequence[Extent]) -> Matrix | str:
    """The matrix that the extents make together, or why they make none."""
    first = extents[0].record
    if len(extents) == 1 and extents[0].end - extents[0].begin == first.elements:
        return whole(artifact, first)
    obstacle = _mixed(extents) or _torn(extents)
    if obstacle is not None:
        return obstacle
    try:
        return _stitched(artifact, extents)
    except QuantformError as error:
        return error.problem


def _mixed(extents: Sequence[Extent]) -> str | None:
    formats = {extent.record.format for extent in extents}
    layouts = {extent.record.layout for extent in extents}
    for what, names in (("formats", formats), ("layouts", layouts)):
        if len(names) > 1:
            return f"different {what}, {' and '.join(sorted(names))}"
    (format,), (layout,) = formats, layouts
    if format not in FORMATS or layout not in LAYOUTS:
        return f"{format} in {layout} is not known"
    if not isinstance(LAYOUTS[layout], RowPlaneLayout):
        return f"layout {layout} holds no rows that could be taken alone"
    return None


def _torn(extents: Sequence[Extent]) -> str | None:
    shapes = [_rows_shape(extent.record) for extent in extents]
    if any(len(shape) != 2 for shape in shapes):
        return "an object is no matrix"
    columns = shapes[0][1]
    if any(shape[1] != columns for shape in shapes):
        return "rows of different length"
    if any(extent.begin % columns or extent.end % columns for extent in extents):
        return "a part begins or ends within a row"
    return None


def _rows_shape(record: TensorRecord) -> tuple[int, ...]:
    """The shape whose rows stay together; a direct format has none to keep, every element is one."""
    return (record.elements, 1) if isinstance(FORMATS[record.format], DirectFormat) else record.shape


def _stitched(artifact: Artifact, extents: Sequence[Extent]) -> Matrix:
    """The payload of all rows as if one object held them: every plane is the parts' spans of it, one after another."""
    first = extents[0].record
    format, layout = FORMATS[first.format], LAYOUTS[first.layout]
    assert isinstance(layout, RowPlaneLayout)  # noqa: S101 - _mixed said so
    columns = _rows_shape(first)[1]
    shape = (sum(extent.end - extent.begin for extent in extents) // columns, columns)
    planes = [layout.planes(*layout.check(format, _rows_shape(extent.record))) for extent in extents]
    segments = []
    for index, target in enumerate(layout.planes(*layout.check(format, shape))):
        at = target.offset
        for extent, source in zip(extents, planes, strict=True):
            size = (extent.end - extent.begin) // columns * target.row_bytes
            skipped = extent.begin // columns * target.row_bytes
            if size:
                segments.append(_Segment(at, extent.record.offset + source[index].offset + skipped, size))
            at += size
    nbytes = layout.encoded_size(format, shape)
    return Matrix(artifact, first.format, first.layout, shape, nbytes, 1, None, tuple(segments))
