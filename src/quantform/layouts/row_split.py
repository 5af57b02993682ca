"""`row_split_k128_v1`: grouped integers in up to three planes, low code bits, high code bits and scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from quantform._native import kernels
from quantform._rows import runs
from quantform._sizes import align_up
from quantform.formats import FORMATS, Format, GroupedFormat, GroupedWords, Words
from quantform.formats.checks import words_of
from quantform.formats.rows import RowWords
from quantform.formats.tiles import tiles
from quantform.layouts.faults import WINDOW_COLUMNS, Fault, Faults, Piece
from quantform.layouts.lanes import pack_lanes, unpack_lanes
from quantform.layouts.layout import (
    PLANE_ALIGNMENT,
    Payload,
    Plane,
    ReadInto,
    RowPlaneLayout,
    as_matrix,
    record_as,
)

__all__ = ["RowSplitLayout"]

Bytes = npt.NDArray[np.uint8]

_ROW_MULTIPLE = 128


class RowSplitLayout(RowPlaneLayout):
    """The grouped formats as `[N, K]`; every row is extended to a multiple of 128 lanes.

    Codes of a width that does not divide 8 are split: four bits of each in the first plane, the others in the second.
    Lanes past K have code 0, and groups past the last logical one have scale 0x0000.
    """

    name = "row_split_k128_v1"
    formats = tuple(record.name for record in FORMATS.values() if isinstance(record, GroupedFormat))

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:
        """Refuse other formats, ranks other than 2, empty matrices and divisors."""
        record = self._known(format)
        self._no_divisors(divisors)
        return record, as_matrix(shape)

    def planes(self, format: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """The planes of the code's parts, then that of the scales; where codes are not split, there is one part."""
        grouped = record_as(format, GroupedFormat)
        rows, columns = shape
        lanes = align_up(columns, _ROW_MULTIPLE)
        planes, offset = [], 0
        for _, bits in _parts(grouped):
            planes.append(Plane(offset, lanes * bits // 8))
            offset = align_up(offset + rows * planes[-1].row_bytes, PLANE_ALIGNMENT)
        return *planes, Plane(offset, lanes // grouped.group * 2)

    def pack(self, words: Words) -> Payload:
        """Split, join and extend the codes; place the scales."""
        record, shape = self.check(words.format, words.shape)
        record.validate(words)
        grouped, words = record_as(record, GroupedFormat), words_of(record, words, GroupedWords)
        payload = np.zeros(self.encoded_size(record, shape), np.uint8)
        *codes, scales = self._views(payload, record, shape)
        for rows, columns in tiles(shape[0], shape[1], _ROW_MULTIPLE):
            tile = words.codes[rows, columns]
            lanes = np.full((len(tile), align_up(tile.shape[1], _ROW_MULTIPLE)), grouped.code_offset, np.uint8)
            lanes[:, : tile.shape[1]] = _to_words(tile, grouped)
            first = columns.start
            for plane, (shift, bits) in zip(codes, _parts(grouped), strict=True):
                some = slice(first * bits // 8, (first + lanes.shape[1]) * bits // 8)
                plane[rows, some] = pack_lanes((lanes >> np.uint8(shift)) & np.uint8((1 << bits) - 1), bits)
        scales.view("<u2")[:, : words.scales.shape[1]] = words.scales
        return payload

    def row_words(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> RowWords:  # noqa: ARG002
        """The planes, whose rows end with padding."""
        codes, *high, scales = self._views(data, format, shape)
        return RowWords(format.name, shape[1], codes, high[0] if high else None, scales)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> GroupedWords:  # noqa: ARG002
        grouped = record_as(format, GroupedFormat)
        *planes, scales = self._views(data, format, shape)
        codes = np.empty(shape, np.int8)
        for rows, columns in tiles(shape[0], shape[1], _ROW_MULTIPLE):
            tile = codes[rows, columns]
            lanes = np.zeros((len(tile), align_up(tile.shape[1], _ROW_MULTIPLE)), np.uint8)
            first = columns.start
            for plane, (shift, bits) in zip(planes, _parts(grouped), strict=True):
                some = slice(first * bits // 8, (first + lanes.shape[1]) * bits // 8)
                lanes |= unpack_lanes(plane[rows, some], bits) << np.uint8(shift)
            tile[...] = _to_codes(lanes[:, : tile.shape[1]], grouped)
        words = scales.view("<u2")[:, : grouped.groups(shape[1])]
        return GroupedWords(format, shape, codes, words.astype(np.uint16, order="C"))

    def _views(self, payload: Payload, format: Format, shape: tuple[int, ...]) -> list[Bytes]:
        """The planes of a payload, as matrices of bytes that share its memory."""
        planes = self.planes(format, shape)
        ends = (plane.offset + shape[0] * plane.row_bytes for plane in planes)
        return [
            payload[plane.offset : end].reshape(shape[0], plane.row_bytes)
            for plane, end in zip(planes, ends, strict=True)
        ]

    def _offset_of(self, format: Format, shape: tuple[int, ...], part: str, row: int, index: int) -> int:
        codes, *_, scales = self.planes(format, shape)
        if part == "scales":
            return scales.offset + row * scales.row_bytes + 2 * index
        return codes.offset + row * codes.row_bytes + index * _parts(record_as(format, GroupedFormat))[0][1] // 8

    def _windows(self, read: ReadInto, format: Format, shape: tuple[int, ...], row: int) -> Iterator[Piece]:
        """Whole multiples of 128 lanes: the bytes of each are those of a matrix of its own."""
        columns = shape[1]
        for column in range(0, columns, WINDOW_COLUMNS):
            width = min(WINDOW_COLUMNS, columns - column)
            payload = np.zeros(self.encoded_size(format, (1, width)), np.uint8)
            for source, target in zip(self.planes(format, shape), self.planes(format, (1, width)), strict=True):
                skipped = source.row_bytes * column // align_up(columns, _ROW_MULTIPLE)
                span = payload[target.offset : target.offset + target.row_bytes]
                read(source.offset + row * source.row_bytes + skipped, span)
            yield Piece(payload, (1, width), row, column)

    def _row_padding(self, format: Format, shape: tuple[int, ...], piece: Piece, limit: int) -> Iterator[Faults]:
        """The lanes past the last column, and the scales past the last group."""
        grouped = record_as(format, GroupedFormat)
        _, columns = piece.shape
        lanes = align_up(columns, _ROW_MULTIPLE) - columns // 8 * 8
        *codes, scales = self._views(piece.payload, format, piece.shape)
        *planes, scale_plane = self.planes(format, shape)
        if columns % _ROW_MULTIPLE:
            padding = np.zeros((1, lanes), np.uint8)
            padding[:, columns % 8 :] = 1
            for plane, view, (shift, bits) in zip(planes, codes, _parts(grouped), strict=True):
                ones = (1 << bits) - 1
                mask = pack_lanes(padding * np.uint8(ones), bits)[0]
                zeros = pack_lanes(padding * np.uint8(grouped.code_offset >> shift & ones), bits)[0]
                yield from _row_end_faults(plane, view, piece.row, "a code past the last column", mask, zeros, limit)
        logical = 2 * grouped.groups(columns)
        mask = np.full(scales.shape[1] - logical, 0xFF, np.uint8)
        kind = "a scale past the last group"
        yield from _row_end_faults(scale_plane, scales, piece.row, kind, mask, np.zeros_like(mask), limit)


def _parts(format: GroupedFormat) -> tuple[tuple[int, int], ...]:
    """`(lowest bit, bits)` of the parts of a code word, by plane."""
    if 8 % format.code_bits == 0:
        return ((0, format.code_bits),)
    return (0, 4), (4, format.code_bits - 4)


def _to_words(codes: npt.NDArray[np.int8], format: GroupedFormat) -> Bytes:
    """Code words, `(q + offset) mod 2**bits`; arithmetic on bytes is modulo 256 already."""
    words: Bytes = (codes.view(np.uint8) + np.uint8(format.code_offset)) & np.uint8((1 << format.code_bits) - 1)
    return words


def _to_codes(words: Bytes, format: GroupedFormat) -> npt.NDArray[np.int8]:
    """The signed codes of code words: two's complement, or moved by the format's offset."""
    if format.code_offset:
        return (words - np.uint8(format.code_offset)).view(np.int8)
    sign = np.uint8(1 << format.code_bits - 1)
    return ((words ^ sign) - sign).view(np.int8)


def _row_end_faults(
    plane: Plane, view: Bytes, row: int, kind: str, mask: Bytes, expected: Bytes, limit: int
) -> Iterator[Faults]:
    """Compare the ends of rows with what they should be, in the bits of the mask; the rows' ends are the plane's."""
    if not mask.any():
        return
    ends = view[:, view.shape[1] - mask.size :]
    if kernels is not None and kernels.rows_match(ends, mask, expected):
        return
    down, byte = np.nonzero((ends ^ expected) & mask)
    if down.size:
        first = []
        apart = mask.size + 1  # so that no stretch goes on in another row
        for begin, end in islice(runs(down * apart + byte), limit):
            at, byte_of_row = divmod(begin, apart)
            there, keep = int(ends[at, byte_of_row]), int(~mask[byte_of_row])
            offset = plane.offset + (row + at + 1) * plane.row_bytes - mask.size + byte_of_row
            right = f"0x{int(expected[byte_of_row]) | there & keep:02X}"
            problem = f"{kind} is not canonical"
            first.append(Fault("padding", problem, offset, right, f"0x{there:02X}", row + at, count=end - begin))
        yield Faults(down.size, tuple(first))
