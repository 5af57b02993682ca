"""Rows that lie in the objects of an artifact, read as if they were one object."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._rows import ChosenRows, Rows, as_rows, matrix_shape
from quantform._sizes import ceil_div, human_bytes, product
from quantform.container import Artifact, TensorRecord
from quantform.errors import ArgumentError, QuantformError, UnsupportedError
from quantform.formats import FORMATS, BlockWords, DirectFormat, DirectWords, GroupedWords, Nvfp4Words, Words
from quantform.formats.checks import words_of
from quantform.layouts import LAYOUTS, Plane, RowPlaneLayout
from quantform.layouts.block_scale import BlockScaleLayout, equal_share
from quantform.sources.divisors import DivisorRuns

__all__ = ["Extent", "Gathered", "Matrix", "join", "whole", "words_as"]

_Bytes = npt.NDArray[np.uint8]

# Values decoded at a time.
_PIECE_VALUES = 1 << 20


class Extent(NamedTuple):
    """Elements `[begin, end)` of an object."""

    record: TensorRecord
    begin: int
    end: int

    def is_rows(self, columns: int) -> bool:
        """Whether these are whole rows of the object, of so many columns."""
        own = matrix_shape(self.record.shape)[1]
        return own == columns and self.begin % columns == 0 == self.end % columns


class _Segment(NamedTuple):
    """Bytes that lie at `source` of the artifact's payload and belong at `target` of the matrix's own."""

    target: int
    source: int
    size: int

    def read(self, artifact: Artifact, offset: int, out: _Bytes) -> None:
        """Fill `out` with the segment's bytes from `offset` on."""
        artifact.read_into(self.source + offset, out)

    def locate(self, offset: int) -> int:
        """Where in the artifact's payload the segment's byte at `offset` is."""
        return self.source + offset


class _Divisors(NamedTuple):
    """The divisor words of consecutive shares of `own` rows, the first of which begins at `row` of an object.

    There can be many more than the object has, so that each is looked up when it is read. The object's are at `source`,
    one for `share` rows.
    """

    target: int
    source: int
    size: int
    row: int
    own: int
    share: int

    def read(self, artifact: Artifact, offset: int, out: _Bytes) -> None:
        """Fill `out` with the segment's bytes from `offset` on."""
        first = offset // 4
        wanted = (self.row + np.arange(first, ceil_div(offset + out.size, 4), dtype=np.int64) * self.own) // self.share
        stored = np.empty(int(wanted[-1] - wanted[0]) + 1, "<u4")
        artifact.read_into(self.source + 4 * int(wanted[0]), stored.view(np.uint8))
        words = stored[wanted - wanted[0]].view(np.uint8)
        out[...] = words[offset - 4 * first :][: out.size]

    def locate(self, offset: int) -> int:
        """Where in the artifact's payload the byte of a divisor at `offset` is."""
        index, byte = divmod(offset, 4)
        return self.source + 4 * ((self.row + index * self.own) // self.share) + byte


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
        divisors: As in the object's record; of rows taken from several, the fewest that say what the rows have.
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
    segments: tuple[_Segment | _Divisors, ...]

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
            segment.read(self.artifact, first - segment.target, out[first - offset : last - offset])
            done = last
        out[done - offset :] = 0

    def locate(self, offset: int) -> tuple[Path, int] | None:
        """The file that has a byte, and its offset there; None of a zero that no object has."""
        at = bisect_right(self.segments, offset, key=attrgetter("target")) - 1
        segment = self.segments[at] if at >= 0 else None
        if segment is None or offset >= segment.target + segment.size:
            return None
        return self.artifact.locate(segment.locate(offset - segment.target))

    def word_offset(self, part: str, row: int, index: int) -> int | None:
        """See `NinferTensor.word_offset`."""
        layout = LAYOUTS[self.layout]
        if isinstance(layout, BlockScaleLayout):
            return layout.offset_of(self.format, self.shape, part, row, index, self.divisors)
        return (
            layout.offset_of(self.format, self.shape, part, row, index) if isinstance(layout, RowPlaneLayout) else None
        )

    def words(self, rows: Rows | None = None) -> Words:
        """The words of all rows, in `shape`, or of some, in `[len(rows), K]`."""
        layout = LAYOUTS[self.layout]
        if rows is None:
            return layout.unpack(self.payload(), self.format, self.shape, self.divisors)
        return layout.words_of_rows(self.read_into, self.format, self.shape, rows, self.divisors)

    def divisor_runs(self) -> DivisorRuns:
        """The divisors of the rows of NVFP4 words, one run for each."""
        return self.some_divisors(0, self.shape[0])

    def some_divisors(self, first: int, end: int) -> DivisorRuns:
        """Those of rows `first` to `end`; no others are read."""
        share = self.shape[0] // self.divisors
        low, high = first // share, ceil_div(end, share)
        words = np.empty(high - low, "<u4")
        self.read_into(self.nbytes - 4 * (self.divisors - low), words.view(np.uint8))
        begins = np.arange(low, high, dtype=np.int64) * share
        rows = np.minimum(begins + share, end) - np.maximum(begins, first)
        return DivisorRuns(rows, words.astype(np.uint32))

    def decode_into(self, begin: int, end: int, out: npt.NDArray[Any]) -> None:
        """Decode elements `[begin, end)` into a vector of as many."""
        if isinstance(FORMATS.get(self.format), DirectFormat):
            self.reshaped((product(self.shape), 1)).decode_rows(range(begin, end), out.reshape(-1, 1))
            return
        columns = matrix_shape(self.shape)[1]
        at = begin
        while at < end:
            row, skipped = divmod(at, columns)
            count = (end - at) // columns
            if skipped or not count:  # a part of a row
                values = np.empty((1, columns), out.dtype)
                self.decode_rows(range(row, row + 1), values)
                some = values[0, skipped : skipped + end - at]
            else:
                some = out[at - begin : at - begin + count * columns]
                self.decode_rows(range(row, row + count), some.reshape(count, columns))
            out[at - begin : at - begin + some.size] = some
            at += some.size

    def decode_rows(self, rows: ChosenRows, out: npt.NDArray[Any]) -> None:
        """Decode some rows into `[len(rows), K]`: straight from the mapped file, or else a bounded number at a time."""
        layout, columns = LAYOUTS[self.layout], out.shape[1]
        mapped = self.artifact.mapped(self.id) if self.id is not None else None
        if mapped is not None:
            layout.decode(mapped, self.format, self.shape, out.dtype, rows=rows, divisors=self.divisors, out=out)
            return
        step = max(1, _PIECE_VALUES // columns)
        for first in range(0, len(rows), step):
            some, part = rows[first : first + step], out[first : first + step]
            if isinstance(layout, RowPlaneLayout):
                payload = layout.take_rows(self.read_into, self.format, self.shape, some)
                layout.decode(payload, self.format, (len(some), columns), out.dtype, out=part)
            else:
                part[...] = self.words(some).decode(out.dtype)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of NVFP4 objects that are not whole tiles: they have words, and no payload of their own.

    Attributes:
        shape: `[N, K]`.
        extents: The object of each stretch of rows, and the first row and the end there.
    """

    shape: tuple[int, int]
    extents: tuple[tuple[Matrix, int, int], ...]

    def divisor_runs(self) -> DivisorRuns:
        """The divisors of the rows; equal neighbours are one run."""
        return DivisorRuns.joined([matrix.some_divisors(first, end) for matrix, first, end in self.extents]).merged()

    def words(self, rows: Rows | None = None) -> Nvfp4Words:
        """The words of all rows or of some, with the fewest divisors that say what the rows have."""
        count, columns = self.shape
        chosen = np.asarray(as_rows(slice(None) if rows is None else rows, count), np.int64)
        codes = np.empty((len(chosen), columns // 2), np.uint8)
        scales = np.empty((len(chosen), columns // 16), np.uint8)
        divisors, sources = np.ones(len(chosen), np.uint32), np.empty((2, len(chosen)), np.int64)
        ends = np.cumsum([end - first for _, first, end in self.extents])
        extent_of_row = np.searchsorted(ends, chosen, "right")
        objects = {id: number for number, id in enumerate(dict.fromkeys(one.id for one, _, _ in self.extents))}
        for index in np.unique(extent_of_row):
            matrix, _, end = self.extents[index]
            some = np.flatnonzero(extent_of_row == index)
            numbers = chosen[some] - ends[index] + end
            words = words_of(FORMATS[matrix.format], matrix.words(numbers), Nvfp4Words)
            codes[some], scales[some] = words.codes, words.scales
            divisors[some] = np.repeat(words.divisors, len(some) // words.divisors.size)
            sources[0, some], sources[1, some] = objects[matrix.id], numbers // (matrix.shape[0] // matrix.divisors)
        same = np.unique(sources, axis=1, return_inverse=True)[1].reshape(-1)
        own = divisors[:: equal_share(same)] if len(chosen) else np.ones(1, np.float32).view(np.uint32)
        return Nvfp4Words(FORMATS["nvfp4"], (len(chosen), columns), codes, scales, own)


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


def words_as(words: Words, shape: tuple[int, ...]) -> Words:
    """All words of a matrix, in `shape` where its rows are theirs and words of this kind have such shapes."""
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


def join(artifact: Artifact, extents: Sequence[Extent]) -> Matrix | Gathered | str:
    """The matrix that the extents make together, or their rows alone, or why they make neither."""
    first = extents[0].record
    if len(extents) == 1 and extents[0].end - extents[0].begin == first.elements:
        return whole(artifact, first)
    obstacle = _mixed(extents) or _torn(extents)
    if obstacle is not None:
        return obstacle
    try:
        return _stitched(artifact, extents) if _in_tiles(extents) else _gathered(artifact, extents)
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
    if not isinstance(LAYOUTS[layout], RowPlaneLayout | BlockScaleLayout):
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


def _in_tiles(extents: Sequence[Extent]) -> bool:
    """Whether rows can be copied as they are: any rows, or whole tiles where the layout has such."""
    layout = LAYOUTS[extents[0].record.layout]
    if not isinstance(layout, BlockScaleLayout):
        return True
    tile = layout.tile_rows * extents[0].record.shape[1]
    return not any(extent.begin % tile or extent.end % tile for extent in extents)


def _gathered(artifact: Artifact, extents: Sequence[Extent]) -> Gathered:
    columns = extents[0].record.shape[1]
    for record in (extent.record for extent in extents):
        LAYOUTS[record.layout].check(record.format, record.shape, record.divisors)
    rows = [(extent.begin // columns, extent.end // columns) for extent in extents]
    return Gathered(
        (sum(end - first for first, end in rows), columns),
        tuple((whole(artifact, extent.record), *some) for extent, some in zip(extents, rows, strict=True)),
    )


def _stitched(artifact: Artifact, extents: Sequence[Extent]) -> Matrix:
    """The payload of all rows as if one object held them: every plane is the parts' spans of it, one after another."""
    first = extents[0].record
    layout = LAYOUTS[first.layout]
    columns = _rows_shape(first)[1]
    shape = (sum(extent.end - extent.begin for extent in extents) // columns, columns)
    planes = [_planes(extent.record, _rows_shape(extent.record), extent.record.divisors) for extent in extents]
    own = _equal_share(extents) if isinstance(layout, BlockScaleLayout) else shape[0]
    divisors = shape[0] // own
    segments: list[_Segment | _Divisors] = []
    for index, target in enumerate(_planes(first, shape, divisors)):
        at = target.offset
        for extent, source in zip(extents, planes, strict=True):
            size = (extent.end - extent.begin) // columns * target.row_bytes
            skipped = extent.begin // columns * target.row_bytes
            if size:
                segments.append(_Segment(at, extent.record.offset + source[index].offset + skipped, size))
            at += size
    if isinstance(layout, BlockScaleLayout):
        segments.extend(_divisors(layout, extents, shape, own))
    nbytes = layout.encoded_size(first.format, shape, divisors)
    return Matrix(artifact, first.format, first.layout, shape, nbytes, divisors, None, tuple(segments))


def _planes(record: TensorRecord, shape: tuple[int, ...], divisors: int) -> tuple[Plane, ...]:
    layout = LAYOUTS[record.layout]
    format, checked = layout.check(record.format, shape, divisors)
    if isinstance(layout, BlockScaleLayout):
        return layout.planes(checked)
    assert isinstance(layout, RowPlaneLayout)  # noqa: S101 - _mixed said so
    return layout.planes(format, checked)


def _equal_share(extents: Sequence[Extent]) -> int:
    """As `equal_share` of all rows, which may be more than can be listed."""
    at = own = 0
    before: tuple[str, int] | None = None
    for record, begin, end in extents:
        columns, share = record.shape[1], record.shape[0] // record.divisors
        first, rows = begin // columns, (end - begin) // columns
        if before != (record.id, first // share):
            own = gcd(own, at)
        before = record.id, (first + rows - 1) // share
        change = share - first % share
        if change < rows:
            own = gcd(own, at + change)
        if change + share < rows:
            own = gcd(own, share)
        at += rows
    return gcd(own, at)


def _divisors(
    layout: BlockScaleLayout, extents: Sequence[Extent], shape: tuple[int, int], own: int
) -> Iterator[_Divisors]:
    """The divisor of each share of `own` rows, from the object that holds its first row."""
    at = 0
    for record, begin, end in extents:
        columns = record.shape[1]
        rows = (end - begin) // columns
        first, stop = ceil_div(at, own), ceil_div(at + rows, own)
        if first < stop:
            yield _Divisors(
                layout.divisor_offset(shape) + 4 * first,
                record.offset + layout.divisor_offset(record.shape),
                4 * (stop - first),
                begin // columns + first * own - at,
                own,
                record.shape[0] // record.divisors,
            )
        at += rows
