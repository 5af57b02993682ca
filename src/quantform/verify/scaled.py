"""Quantized weights of a checkpoint whose codes are multiplied by scales: codes are looked at beside their scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform._sizes import PIECE_BYTES, ceil_div, counted
from quantform._spans import units_of
from quantform.layouts.faults import CHECKED_BYTES, WINDOW_COLUMNS, read_through
from quantform.sources.conventions import ScaledWeight
from quantform.verify.parts import PartReport
from quantform.verify.reading import Meter
from quantform.verify.report import Finding, Report
from quantform.verify.rules import RULES

__all__ = ["read_scaled"]

Array = npt.NDArray[Any]


def read_scaled(report: Report, weight: ScaledWeight, meter: Meter) -> None:
    """Every byte of the codes and scales, each once, by the rules of each and by those of pairs.

    Codes in holes of the file are not read, since zeros are legal under any scale.
    """
    codes, scales = PartReport(report, weight, "codes", weight.shape[-1]), PartReport(report, weight, "scales")
    _Reader(weight, codes, scales, meter).read()
    codes.conclude()
    scales.conclude()


class _Reader:
    """Goes through a weight by its bands: the rows that share a row of scales, or several such where they are short."""

    def __init__(self, weight: ScaledWeight, codes_report: PartReport, scales_report: PartReport, meter: Meter) -> None:
        codes, scales = weight.parts["codes"], weight.parts["scales"]
        self._weight = weight
        self._meter = meter
        self._codes, self._scales = codes_report, scales_report
        self._read_codes, self._read_scales = self._codes.reader(meter), self._scales.reader(meter)
        self._scalar = SCALARS[scales.format]
        self._overflows = 0
        rows, columns = weight.matrix
        self._row_bytes = codes.nbytes // max(1, rows)
        self._values = max(1, columns) // max(1, self._row_bytes)  # in a byte: one code, or two
        self._across = ceil_div(columns, weight.block[1])
        self._band_bytes = self._across * self._scalar.nbytes
        self._scales_nbytes = scales.nbytes
        # A matrix has its own bands; matrices of whole bands are as one, and so is what has one scale for everything.
        self._height, self._rows = weight.block[0], weight.shape[-2]
        if scales.size == 1:
            self._height = self._rows = rows
        elif self._rows % self._height == 0:
            self._rows = rows

    def read(self) -> None:
        """Every band in order."""
        if not self._row_bytes:
            self._scales.read(self._meter)
            return
        columns, at = self._weight.shape[-1], 0
        bands = self._scales_nbytes // self._band_bytes
        for first, end in (*self._stored(), (bands, bands)):
            if at < first:  # codes of holes are zeros, which are legal under any scale
                rows = self._first_row(at), self._first_row(first)
                self._codes.passed(self._meter, *(row * self._row_bytes for row in rows))
                self._scales.read(self._meter, at * self._band_bytes, first * self._band_bytes)
            for begin, stop in self._bands(self._first_row(first), self._first_row(end)):
                for column in range(0, columns, step := self._window()):
                    self._read_region(begin, stop, column, min(column + step, columns))
            at = end
        if self._overflows:
            problem = f"{counted(self._overflows, 'value')} not finite"
            self._codes.report.add(Finding("nonfinite-value", self._weight.name, problem, count=self._overflows))

    def _stored(self) -> Iterator[tuple[int, int]]:
        """Bands of which codes are stored."""
        codes = self._weight.parts["codes"]
        rows = units_of(codes.stored_spans(0, codes.nbytes), self._row_bytes)
        return units_of(((self._band(first), self._band(end - 1) + 1) for first, end in rows), 1)

    def _bands(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Bands of which the codes are few enough to be read together, one at least, within one matrix."""
        bands = 1
        if self._window() >= self._weight.shape[-1]:  # else a region's scales would not be one stretch
            bands = max(1, PIECE_BYTES // (self._height * self._row_bytes))
        together = bands * self._height
        while first < end:
            matrix = first // self._rows * self._rows
            stop = min(first + together, matrix + self._rows, end)
            yield first, stop
            first = stop

    def _band(self, row: int) -> int:
        """The band of a row; behind the last row, that behind the last."""
        matrix, inside = divmod(row, self._rows)
        return matrix * ceil_div(self._rows, self._height) + inside // self._height

    def _first_row(self, band: int) -> int:
        matrix, inside = divmod(band, ceil_div(self._rows, self._height))
        return matrix * self._rows + inside * self._height

    def _window(self) -> int:
        """Columns of long rows that are looked at together: as many scales as fit, one at least."""
        width = self._weight.block[1]
        return max(1, WINDOW_COLUMNS // width) * width

    def _read_region(self, first: int, end: int, begin: int, stop: int) -> None:
        """Some columns of whole bands: their scales, and then the codes under these."""
        width = self._weight.block[1]
        down = range(self._band(first), self._band(end - 1) + 1)
        across = range(begin // width, ceil_div(stop, width))
        words = np.empty(len(down) * len(across), self._scalar.stored_dtype)
        at = down.start * self._across + across.start
        self._read_scales(at * self._scalar.nbytes, words.view(np.uint8))
        self._scales.check(words, at)
        scales = self._weight.scale_values(words.astype(self._scalar.word_dtype, copy=False))
        scales = scales.reshape(len(down), len(across))
        doubtful = any(rule.doubtful(scales).any() for rule in self._weight.pair_rules())
        for row, column, codes in self._code_pieces(first, end, begin, stop):
            self._codes.check(codes.reshape(-1), row * self._row_bytes + column // self._values)
            if doubtful:
                self._check_pairs(codes, row, column, scales, down.start, across.start)

    def _code_pieces(self, first: int, end: int, begin: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """Row, column and words of pieces: some whole rows, or a part of one row."""
        size = self._row_bytes
        left, right = begin // self._values, stop // self._values
        whole = right - left == size
        unit = size if whole and size <= CHECKED_BYTES else 1
        for rows in [range(first, end)] if whole else (range(row, row + 1) for row in range(first, end)):
            begun, ended = rows.start * size + left, (rows.stop - 1) * size + right
            for offset, data in read_through(self._read_codes, begun, ended, unit):
                if unit == size:
                    yield offset // size, 0, data.reshape(-1, size)
                    continue
                at = offset
                while at < offset + data.size:
                    row, byte = divmod(at, size)
                    part = data[at - offset :][: size - byte]
                    yield row, byte * self._values, part[None, :]
                    at += part.size

    def _check_pairs(self, words: Array, row: int, column: int, scales: Array, band: int, block: int) -> None:
        codes = self._weight.code_values(words)
        down = [self._band(one) - band for one in range(row, row + len(codes))]
        across = np.arange(column, column + codes.shape[1]) // self._weight.block[1] - block
        under = scales[down][:, across]
        for rule in self._weight.pair_rules():
            wrong = rule.breaks(codes, under)
            if RULES[rule.rule].remark:
                self._overflows += int(np.count_nonzero(wrong))
            elif wrong.any():
                places = np.argwhere(wrong)
                begin = row * self._weight.shape[-1] + column
                found = (
                    (begin + down * self._weight.shape[-1] + right, f"{codes[down, right]} * {under[down, right]}")
                    for down, right in places[: self._codes.report.max_findings].tolist()
                )
                self._codes.add(rule, len(places), found)
