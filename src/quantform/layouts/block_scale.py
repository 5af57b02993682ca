"""`block_scale_k16_m128x4_v1`: NVFP4 codes by rows, scales in tiles of 128 rows and 4 groups, then the divisors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows, runs
from quantform._scalars import SCALARS
from quantform._sizes import align_up
from quantform.errors import ArgumentError
from quantform.formats import Format, Nvfp4Format, Nvfp4Words, Words
from quantform.formats.checks import Tally, hex_word, words_of
from quantform.formats.rows import RowWords
from quantform.layouts.faults import Fault, Faults, SparseReader, byte_faults, read_through
from quantform.layouts.layout import PLANE_ALIGNMENT, Layout, Payload, Plane, ReadInto, as_count, as_matrix, record_as

__all__ = ["BlockScaleLayout", "equal_share"]

_TILE_ROWS = 128
_TILE_COLUMNS = 64
# Bytes of scale tiles that a gather of rows holds at a time; a row needs few bytes of the tile it lies in.
_GATHERED_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]


class BlockScaleLayout(Layout):
    """`nvfp4` as `[N, K]`, N a multiple of 128 and K of 64; each divisor covers whole tiles of 128 rows.

    A row's scales are not one span, so rows are read as words: its codes as they are, its scales out of their tiles.
    Whole tiles of rows are one span in each plane; see `planes`.

    Attributes:
        tile_rows: The multiple of rows that is copied without repacking.
    """

    name = "block_scale_k16_m128x4_v1"
    formats = ("nvfp4",)
    tile_rows = _TILE_ROWS

    def planes(self, shape: tuple[int, ...]) -> tuple[Plane, Plane]:
        """Codes and scales of a checked shape. The scales of whole tiles of rows lie together, not those of a row."""
        return Plane(0, shape[1] // 2), Plane(_scale_offset(shape), shape[1] // 16)

    def divisor_offset(self, shape: tuple[int, ...]) -> int:
        """Where the divisor words of a checked shape begin, little-endian, to the end of the payload."""
        return _divisor_offset(shape)

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks other than 2, partial tiles, and divisors that do not cover whole tiles."""
        record = self._known(format)
        rows, columns = as_matrix(shape)
        for axis, dimension, multiple in ((0, rows, _TILE_ROWS), (1, columns, _TILE_COLUMNS)):
            if dimension % multiple:
                raise ArgumentError(
                    f"dimension {axis} of shape {[rows, columns]} is not whole tiles of {self.name}",
                    expected=f"a multiple of {multiple}",
                    found=dimension,
                )
        count = as_count(divisors)
        if rows % (count * _TILE_ROWS):
            raise ArgumentError(
                f"{count} divisors do not share {rows} rows in whole tiles of {_TILE_ROWS}",
                expected=f"a divisor of {rows // _TILE_ROWS}",
                found=count,
            )
        return record, (rows, columns)

    def pack(self, words: Words) -> Payload:
        """Place codes and divisors; bring the scales into their tiles."""
        record, _ = self.check(words.format, words.shape)
        record.validate(words)
        words = words_of(record, words, Nvfp4Words)
        record, shape = self.check(record, words.shape, words.divisors.size)
        payload = np.zeros(self.encoded_size(record, shape, words.divisors.size), np.uint8)
        payload[: words.codes.size].reshape(words.codes.shape)[...] = words.codes
        scales, divisors = _scale_offset(shape), _divisor_offset(shape)
        _by_rows(payload[scales:divisors], shape)[...] = _in_quarters(words.scales, shape)
        payload[divisors:].view("<u4")[...] = words.divisors
        return payload

    def place(self, words: Words, shape: Sequence[int], first: int, divisors: int = 1) -> Iterator[tuple[int, Payload]]:
        """Codes, whole tiles of scales, and the divisor of each share that begins here; rows are whole tiles."""
        record, dimensions, end = self._placed(words, shape, first, divisors)
        self._whole_tiles(first, end)
        record.validate(words)
        fp4 = words_of(record, words, Nvfp4Words)
        columns = dimensions[1]
        yield first * columns // 2, np.ascontiguousarray(fp4.codes).reshape(-1)
        tiles = np.empty(fp4.scales.size, np.uint8)
        _by_rows(tiles, dimensions)[...] = _in_quarters(fp4.scales, dimensions)
        yield _scale_offset(dimensions) + first * columns // 16, tiles
        share, own = dimensions[0] // divisors, len(fp4.codes) // fp4.divisors.size
        for index in range(-(-first // share), -(-end // share)):
            word = fp4.divisors[(index * share - first) // own : (index * share - first) // own + 1]
            yield _divisor_offset(dimensions) + 4 * index, word.astype("<u4").view(np.uint8)

    def spans(
        self, format: str | Format, shape: Sequence[int], first: int, end: int, divisors: int = 1
    ) -> tuple[tuple[int, int], ...]:
        """Codes, whole tiles of scales, and the divisors of the shares that begin here; rows are whole tiles."""
        _, dimensions = self._inside(format, shape, first, end, divisors)
        self._whole_tiles(first, end)
        share = dimensions[0] // divisors
        begun, begins = -(-first // share), -(-end // share)
        planes = ((plane.offset + first * plane.row_bytes, plane.row_bytes) for plane in self.planes(dimensions))
        return (
            *((offset, (end - first) * row_bytes) for offset, row_bytes in planes),
            (_divisor_offset(dimensions) + 4 * begun, 4 * (begins - begun)),
        )

    def _whole_tiles(self, first: int, end: int) -> None:
        if first % _TILE_ROWS or end % _TILE_ROWS:
            raise ArgumentError(
                f"the rows are not whole tiles of {self.name}",
                expected=f"multiples of {_TILE_ROWS}",
                found=(first, end),
            )

    def words_of_rows(
        self,
        read: ReadInto,
        format: str | Format,
        shape: Sequence[int],
        rows: Rows,
        divisors: int = 1,
    ) -> Nvfp4Words:
        """The words of some rows; the scales of the tiles that these lie in are read whole.

        The words have as few divisors as can say what the rows have: where the rows of different source matrices are
        mixed, the rows fall into equal shares of one source matrix each, in the worst case shares of one row.
        """
        record, dimensions = self.check(format, shape, divisors)
        columns = dimensions[1]
        chosen = as_rows(rows, dimensions[0])
        codes = np.empty((len(chosen), columns // 2), np.uint8)
        at = 0
        for first, end in runs(chosen):
            read(first * columns // 2, codes[at : at + end - first].reshape(-1))
            at += end - first
        numbers = np.asarray(chosen, np.int64)
        words = np.empty(divisors, "<u4")
        read(_divisor_offset(dimensions), words.view(np.uint8))
        sources = numbers // (dimensions[0] // divisors)
        sources = sources[:: equal_share(sources)] if len(chosen) else np.zeros(1, np.int64)
        return Nvfp4Words(
            record,
            (len(chosen), columns),
            codes,
            _gather_scales(read, dimensions, numbers),
            words.astype(np.uint32)[sources],
        )

    def row_words(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowWords:  # noqa: ARG002
        """The codes by rows, and the scales by tiles."""
        rows, columns = shape
        end = _divisor_offset(shape)
        return RowWords(
            format.name,
            columns,
            data[: rows * columns // 2].reshape(rows, columns // 2),
            None,
            data[_scale_offset(shape) : end].reshape(rows // _TILE_ROWS, -1),
            tiled=True,
            divisors=data[end:].view("<f4").astype(np.float32),
        )

    def faults(
        self, read: ReadInto, format: str | Format, shape: Sequence[int], divisors: int = 1, *, limit: int = 1
    ) -> Iterator[Faults]:
        """Each plane in the order of its bytes; every code is legal."""
        record, dimensions = self.check(format, shape, divisors)
        nvfp4 = record_as(record, Nvfp4Format)
        codes, divisor_offset = dimensions[0] * dimensions[1] // 2, _divisor_offset(dimensions)
        for _ in read_through(read, 0, codes):
            pass  # that they are there to be read
        gap = read_through(read, codes, _scale_offset(dimensions))
        yield from byte_faults(gap, "the gap between planes is not canonical", limit)
        for offset, scales in read_through(read, _scale_offset(dimensions), divisor_offset):
            if not nvfp4.are_legal(scales, np.ones(1, np.uint32)):
                tally = nvfp4.scale_tally(_shown(scales, "e4m3fn"), limit)
                tally.add(nvfp4.illegal_scales(scales)[None, :])
                yield from _described(tally, offset, 1, lambda at: _scale_place(at, dimensions))
        share = dimensions[0] // divisors
        every = read.read if isinstance(read, SparseReader) else read  # no divisor may be zero
        for offset, data in read_through(every, divisor_offset, divisor_offset + 4 * divisors, 4):
            words = data.view("<u4").astype(np.uint32)
            tally = nvfp4.divisor_tally(_shown(words, "fp32"), limit)
            tally.add(nvfp4.illegal_divisors(words)[None, :])
            yield from _described(tally, offset, 4, lambda at: _divisor_place(at, dimensions, share))

    def offset_of(
        self, format: str | Format, shape: Sequence[int], part: str, row: int, index: int, divisors: int = 1
    ) -> int:
        """The byte of a word in the payload.

        Args:
            format: The tensor's format.
            shape: The tensor's shape.
            part: `"codes"`, `"scales"` or `"divisors"`.
            row: The row.
            index: The column of a code, the group of a scale; of a divisor, which is one of many rows, anything.
            divisors: The tensor's number of divisors.
        """
        _, dimensions = self.check(format, shape, divisors)
        rows, columns = dimensions
        if part == "divisors":
            return _divisor_offset(dimensions) + 4 * (row * divisors // rows)
        if part == "codes":
            return row * columns // 2 + index // 2
        tile = row // _TILE_ROWS * (columns // _TILE_COLUMNS) + index // 4
        quarter, row_in_quarter = divmod(row % _TILE_ROWS, 32)
        in_tile = row_in_quarter * 16 + quarter * 4 + index % 4
        return _scale_offset(dimensions) + tile * (_TILE_ROWS * _TILE_COLUMNS // 16) + in_tile

    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:  # noqa: ARG002
        return _divisor_offset(shape) + 4 * divisors

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> Nvfp4Words:  # noqa: ARG002
        """The codes are a view of the payload."""
        rows, columns = shape
        scales = np.empty((rows, columns // 16), np.uint8)
        _in_quarters(scales, shape)[...] = _by_rows(data[_scale_offset(shape) : _divisor_offset(shape)], shape)
        words = data[_divisor_offset(shape) :].view("<u4").astype(np.uint32)
        return Nvfp4Words(format, shape, data[: rows * columns // 2].reshape(rows, columns // 2), scales, words)


def _shown(words: npt.NDArray[Any], scalar: str) -> Callable[[int, int], tuple[str, str]]:
    return lambda _, index: ("", hex_word(int(words[index]), SCALARS[scalar]))


def _described(tally: Tally, begin: int, width: int, place: Callable[[int], dict[str, int]]) -> Iterator[Faults]:
    """The faults of a vector of words that lie one after another."""
    if tally.count:
        first = []
        for row, index in tally.places:
            offset, found = begin + index * width, tally.describe(row, index)[1]
            first.append(Fault(tally.rule, tally.problem, offset, tally.expected, found, **place(offset)))
        yield Faults(tally.count, tuple(first))


def _scale_place(offset: int, shape: tuple[int, ...]) -> dict[str, int]:
    """Row and group of the scale at an offset in the payload."""
    tile, at = divmod(offset - _scale_offset(shape), _TILE_ROWS * _TILE_COLUMNS // 16)
    down, right = divmod(tile, shape[1] // _TILE_COLUMNS)
    row_in_quarter, rest = divmod(at, 16)
    quarter, group = divmod(rest, 4)
    return {"row": down * _TILE_ROWS + quarter * 32 + row_in_quarter, "group": right * 4 + group}


def _divisor_place(offset: int, shape: tuple[int, ...], share: int) -> dict[str, int]:
    """The divisor at an offset in the payload, and the first of its rows."""
    divisor = (offset - _divisor_offset(shape)) // 4
    return {"row": divisor * share, "divisor": divisor}


def _scale_offset(shape: tuple[int, ...]) -> int:
    return align_up(shape[0] * shape[1] // 2, PLANE_ALIGNMENT)


def _divisor_offset(shape: tuple[int, ...]) -> int:
    return _scale_offset(shape) + shape[0] * shape[1] // 16


def _in_quarters(scales: Bytes, shape: tuple[int, ...]) -> Bytes:
    """Natural scales as a view `[row tile, quarter, row in quarter, column tile, group in tile]`."""
    return scales.reshape(-1, 4, 32, shape[1] // _TILE_COLUMNS, 4)


def _by_rows(plane: Bytes, shape: tuple[int, ...]) -> Bytes:
    """Stored scales, `[row tile, column tile, row in quarter, quarter, group in tile]`, as a view in natural order."""
    return plane.reshape(-1, shape[1] // _TILE_COLUMNS, 32, 4, 4).transpose(0, 3, 2, 1, 4)


def _gather_scales(read: ReadInto, shape: tuple[int, ...], rows: npt.NDArray[np.int64]) -> Bytes:
    """Natural scales of some rows, `[rows, K / 16]`, from the tiles that they lie in."""
    groups = shape[1] // 16
    scales = np.empty((len(rows), groups), np.uint8)
    tiles, tile_of_row = np.unique(rows // _TILE_ROWS, return_inverse=True)
    order = np.argsort(tile_of_row, kind="stable")
    sorted_tiles = tile_of_row[order]
    tile_bytes = _TILE_ROWS * groups
    for first, end in _batches(len(tiles), max(1, _GATHERED_BYTES // tile_bytes)):
        plane = np.empty((end - first) * tile_bytes, np.uint8)
        at = 0
        for begin, stop in runs(tiles[first:end]):
            size = (stop - begin) * tile_bytes
            read(_scale_offset(shape) + begin * tile_bytes, plane[at : at + size])
            at += size
        natural = _by_rows(plane, shape).reshape(-1, groups)
        some = order[np.searchsorted(sorted_tiles, first) : np.searchsorted(sorted_tiles, end)]
        scales[some] = natural[(tile_of_row[some] - first) * _TILE_ROWS + rows[some] % _TILE_ROWS]
    return scales


def _batches(count: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, size):
        yield first, min(first + size, count)


def equal_share(source_of_row: npt.NDArray[np.int64]) -> int:
    """Rows in each share, for the fewest equal shares of at least one row that lie in one source matrix each."""
    changes = np.flatnonzero(np.diff(source_of_row)) + 1
    return int(np.gcd.reduce(np.append(changes, source_of_row.size)))
