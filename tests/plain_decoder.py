"""A decoder of all packed profiles and `.ninfer` formats in plain steps, made to be got wrong one step at a time.

Values are binary64 numbers that `rounded` brings to binary32 after each operation. What tests change is a method.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import FLOAT_OUTPUTS, convert
from quantform.packed import PROFILES
from quantform.packed.codebooks import IQ4, codebooks

Array = npt.NDArray[Any]

E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12]) / 2
# code bits, group, bytes of a group's low and high bits, what was added to codes
GROUPED = {
    "q2_g64_fp16": (2, 64, 16, 0, 1),
    "q4_g64_fp16": (4, 64, 32, 0, 0),
    "q5_g64_fp16": (5, 64, 32, 8, 0),
    "q6_g64_fp16": (6, 64, 32, 16, 0),
    "q8_g32_fp16": (8, 32, 32, 0, 0),
    "t2_g128_fp16": (2, 128, 32, 0, 0),
}


def align(value: int, multiple: int = 256) -> int:
    return (value + multiple - 1) // multiple * multiple


def fields(data: Array, width: int, group: int) -> Array:
    """Of `group` bytes at a time, the lowest `width` bits of each, then the next ones."""
    shifts = np.arange(0, 8, width)[:, None]
    whole = data.shape[1] // group
    cut = data.reshape(len(data), whole, 1, group).astype(int) >> shifts & (1 << width) - 1
    return cut.reshape(len(data), whole * 8 // width * group)


def words(data: Array, size: int = 2) -> Array:
    """All little-endian numbers of a field."""
    found: Array = (data.reshape(len(data), data.shape[1] // size, size).astype(int) << 8 * np.arange(size)).sum(axis=2)
    return found


def word(data: Array, at: int, size: int = 2) -> Array:
    """A little-endian number of every block."""
    return words(data[:, at : at + size], size)[:, 0]


def signed(values: Array, bits: int) -> Array:
    return np.where(values >> bits - 1 & 1, values - (1 << bits), values)


def spread(values: Array, times: int) -> Array:
    return np.repeat(values, times, axis=-1)


class PlainDecoder:
    """Decodes; a mistake is a subclass with another method."""

    def __call__(self, payload: Array, format: str, shape: tuple[int, ...], dtype: str, divisors: int = 1) -> Array:
        with np.errstate(all="ignore"):
            format = format.replace("gguf_", "gguf:")
            if format in PROFILES:
                blocks = payload.reshape(payload.size // PROFILES[format].bytes, PROFILES[format].bytes)
                values = self.packed(format.partition(":")[2], blocks)
            elif format in GROUPED:
                values = self.grouped(payload, shape, *GROUPED[format])
            elif format == "nvfp4":
                values = self.nvfp4(payload, shape, divisors)
            elif format.startswith("fp8"):
                values = self.fp8(payload, shape, format.endswith("bf16"))
            else:
                values = self.direct(payload, format)
            return self.converted(values.reshape(shape), dtype)

    # --- numbers

    def rounded(self, values: Array) -> Array:
        return values.astype(np.float32).astype(np.float64)

    def times(self, a: Array, b: Array) -> Array:
        return self.rounded(np.asarray(a, np.float64) * b)

    def plus(self, a: Array, b: Array) -> Array:
        return self.rounded(a + b)

    def minus(self, a: Array, b: Array) -> Array:
        return self.rounded(a - b)

    def scaled(self, d: Array, local: Array, codes: Array) -> Array:
        """`M(M(d, local), codes)`."""
        return self.times(self.times(d, local), codes)

    def half(self, stored: Array) -> Array:
        return stored.astype(np.uint16).view(np.float16).astype(np.float64)

    def single(self, stored: Array) -> Array:
        return stored.astype(np.uint32).view(np.float32).astype(np.float64)

    def bfloat(self, stored: Array) -> Array:
        return self.single(stored.astype(np.uint32) << 16)

    def e4m3(self, stored: Array) -> Array:
        e, m = stored.astype(int) >> 3 & 15, stored.astype(int) & 7
        magnitude = np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7))
        return np.where(stored >> 7, -magnitude, magnitude)

    def converted(self, values: Array, dtype: str) -> Array:
        """Values, binary32 numbers unless they are integers, in the type that was asked for."""
        narrow = {"float16": self.to_half, "bfloat16": self.to_bfloat}.get(dtype)
        return values.astype(FLOAT_OUTPUTS[dtype]) if narrow is None else narrow(values)

    def to_half(self, values: Array) -> Array:
        return values.astype(np.float16)

    def to_bfloat(self, values: Array) -> Array:
        return convert(values, FLOAT_OUTPUTS["bfloat16"])  # ml_dtypes rounds twice

    # --- packed profiles

    def packed(self, name: str, b: Array) -> Array:
        if name in {"iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"}:
            return self.grid(name, b)
        if name in {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"}:
            return self.kquant(name, b)
        return self.simple(name, b)

    def simple(self, name: str, b: Array) -> Array:
        if name in {"mxfp4", "nvfp4"}:
            return self.mxfp4(b) if name == "mxfp4" else self.nvfp4_blocks(b)
        at = {"tq1_0": 52, "tq2_0": 64}.get(name, 0)
        d = self.single(word(b, 0, 4))[:, None] if name == "q8_k" else self.half(word(b, at))[:, None]
        if name == "q1_0":
            return np.where(fields(b[:, 2:], 1, 1), d, -d)
        product = self.times(d, self.codes(name, b))
        return self.plus(product, self.half(word(b, 2))[:, None]) if name in {"q4_1", "q5_1"} else product

    def codes(self, name: str, b: Array) -> Array:
        """What multiplies the scale."""
        if name.startswith("q8"):
            first, count = {"q8_0": (2, 32), "q8_1": (4, 32), "q8_k": (4, 256)}[name]
            return signed(b[:, first : first + count].astype(int), 8)
        if name in {"q2_0", "tq2_0", "tq1_0"}:
            digits = {"q2_0": lambda: fields(b[:, 2:], 2, 1), "tq2_0": lambda: fields(b[:, :64], 2, 32)}
            return digits.get(name, lambda: self.trits(b))() - 1
        nibbles = fields(b[:, -16:], 4, 16)
        if name in {"q5_0", "q5_1"}:
            nibbles = nibbles + 16 * (word(b, 2 if name == "q5_0" else 4, 4)[:, None] >> np.arange(32) & 1)
        return IQ4[nibbles] if name == "iq4_nl" else nibbles - {"q4_0": 8, "q5_0": 16}.get(name, 0)

    def trits(self, b: Array) -> Array:
        parts = []
        for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
            parts += [b[:, start : start + width].astype(int) * 3**p % 256 * 3 // 256 for p in range(count)]
        return np.concatenate(parts, axis=1)

    def mxfp4(self, b: Array) -> Array:
        e = b[:, :1].astype(int)
        d = self.single(np.where(e < 2, 0x00200000 << np.minimum(e, 1), (e - 1) << 23))
        return self.times(d, (2 * E2M1 + 0.0)[fields(b[:, 1:], 4, 16)])

    def nvfp4_blocks(self, b: Array) -> Array:
        e = b[:, :4].astype(int)
        d = np.where((e == 0) | (e == 127), 0.0, self.e4m3(e & 127) / 2)
        return self.times(spread(d, 16), (2 * E2M1 + 0.0)[fields(b[:, 4:], 4, 8)])

    def kquant(self, name: str, b: Array) -> Array:
        if name == "q2_k":
            d, dmin = (self.half(word(b, at))[:, None] for at in (80, 82))
            low, high = spread(b[:, :16] & 15, 16), spread(b[:, :16] >> 4, 16)
            return self.minus(self.scaled(d, low, fields(b[:, 16:80], 2, 32)), self.times(dmin, high))
        if name == "q3_k":
            d = self.half(word(b, 108))[:, None]
            local = fields(b[:, 96:104], 4, 8) + 16 * fields(b[:, 104:108], 2, 4) - 32
            codes = fields(b[:, 32:96], 2, 32) - 4 * (1 - fields(b[:, :32], 1, 32))
            return self.scaled(d, spread(local, 16), codes)
        if name == "q6_k":
            d = self.half(word(b, 208))[:, None]
            codes = fields(b[:, :128], 4, 64) + 16 * fields(b[:, 128:192], 2, 32) - 32
            return self.scaled(d, spread(signed(b[:, 192:208].astype(int), 8), 16), codes)
        d = self.half(word(b, 0))[:, None]
        if name == "iq4_xs":
            local = fields(b[:, 4:8], 4, 1) + 16 * fields(b[:, 2:4], 2, 1) - 32
            return self.scaled(d, spread(local, 32), IQ4[fields(b[:, 8:], 4, 16)])
        dmin, s = self.half(word(b, 2))[:, None], b[:, 4:16].astype(int)
        low = np.concatenate([s[:, :4] & 63, s[:, 8:] & 15 | s[:, :4] >> 6 << 4], axis=1)
        high = np.concatenate([s[:, 4:8] & 63, s[:, 8:] >> 4 | s[:, 4:8] >> 6 << 4], axis=1)
        codes = fields(b[:, -128:], 4, 32)
        if name == "q5_k":
            codes = codes + 16 * fields(b[:, 16:48], 1, 32)
        return self.minus(self.scaled(d, spread(low, 32), codes), self.times(dmin, spread(high, 32)))

    def grid(self, name: str, b: Array) -> Array:
        """Codebook rows, eight values a lane, 32 lanes."""
        grids = codebooks()
        d = self.half(word(b, 0))[:, None]
        if name in {"iq1_s", "iq1_m"}:
            return self.ternary_grid(name, b, d, grids["iq1s_grid"])
        if name == "iq2_xxs":
            pairs = words(b[:, 2:], 4)
            rows = fields(b[:, 2:].reshape(len(b), 8, 8)[:, :, :4].reshape(len(b), 32), 8, 1)
            second = pairs[:, 1::2]
            marks, t, factor = (spread(second, 4) >> np.tile([0, 7, 14, 21], 8)) & 127, second >> 28, 0.25
            local = spread(t, 4)
        elif name == "iq2_xs":
            q = words(b[:, 2:66])
            rows, marks, local, factor = q & 511, q >> 9, spread(fields(b[:, 66:], 4, 1), 2), 0.25
        elif name == "iq2_s":
            rows = self.grid_row(b[:, 2:34], fields(b[:, 66:74], 2, 1), 4)
            marks, local, factor = b[:, 34:66].astype(int), spread(fields(b[:, 74:], 4, 1), 2), 0.25
        elif name == "iq3_xxs":
            rows, last = b[:, 2:66].astype(int), words(b[:, 66:], 4)
            marks, local, factor = (spread(last, 4) >> np.tile([0, 7, 14, 21], 8)) & 127, spread(last >> 28, 4), 0.5
        else:
            rows = self.grid_row(b[:, 2:66], fields(b[:, 66:74], 1, 1), 8)
            marks, local, factor = b[:, 74:106].astype(int), spread(fields(b[:, 106:], 4, 1), 4), 0.0
        if name in {"iq2_xxs", "iq2_xs", "iq3_xxs"}:
            marks = marks | self.parity(marks) << 7
        signs = 1 - 2 * (marks[:, :, None] >> np.arange(8) & 1)
        c = self.times(self.times(d, 0.5 + local), np.array(factor)) if factor else self.times(d, 1 + 2 * local)
        table = grids[
            {"iq2_xxs": "iq2xxs_grid", "iq2_xs": "iq2xs_grid", "iq2_s": "iq2s_grid"}.get(
                name, "iq3xxs_grid" if name == "iq3_xxs" else "iq3s_grid"
            )
        ]
        values = table[rows].reshape(len(b), 32, 8).astype(np.float64)
        return self.times(self.times(c[:, :, None], values), signs)

    def grid_row(self, low: Array, high: Array, lanes: int) -> Array:  # noqa: ARG002 - a mistake's business
        """The number of a row from its low byte and the bits above; those of `lanes` rows lie in one word."""
        row: Array = low.astype(int) + 256 * high
        return row

    def parity(self, marks: Array) -> Array:
        bits: Array = (marks[..., None] >> np.arange(7) & 1).sum(axis=-1)
        return bits & 1

    def ternary_grid(self, name: str, b: Array, d: Array, table: Array) -> Array:
        if name == "iq1_s":
            high = words(b[:, 34:])
            rows = self.grid_row(b[:, 2:34], spread(high, 4) >> np.tile([0, 3, 6, 9], 8) & 7, 4)
            t, minus = spread(high >> 12 & 7, 4), spread(high >> 15, 4)
        else:
            w, nibbles = words(b[:, 48:]), fields(b[:, 32:48], 4, 1)
            d = self.half((w >> 12 << 4 * np.arange(4)).sum(axis=1))[:, None]
            rows = self.grid_row(b[:, :32], nibbles & 7, 2)
            t, minus = spread(spread(w, 4) >> np.tile([0, 3, 6, 9], 4) & 7, 2), nibbles >> 3
        c = self.times(d, 2 * t + 1)
        delta = np.where(minus, -0.125, 0.125)
        return self.times(c[:, :, None], self.plus(table[rows].astype(np.float64), delta[:, :, None]))

    # --- `.ninfer` formats

    def direct(self, payload: Array, format: str) -> Array:
        if format == "bf16":
            return self.bfloat(words(payload.reshape(1, -1)))
        stored = words(payload.reshape(1, -1), 4)
        return self.single(stored) if format == "fp32" else signed(stored, 32)

    def row_split(self, rows: int, groups: int, low: int, high: int) -> tuple[int, int]:
        """Where the planes of high bits and of scales begin."""
        at = align(rows * groups * low)
        return at, at + align(rows * groups * high)

    def grouped(self, payload: Array, shape: Any, bits: int, group: int, low: int, high: int, added: int) -> Array:
        rows, columns = shape
        groups = align(columns, 128) // group
        high_at, scales_at = self.row_split(rows, groups, low, high)
        codes = fields(payload[: rows * groups * low].reshape(-1, low), min(bits, 4) if bits < 8 else 8, 1)
        if high:
            stream = fields(payload[high_at : high_at + rows * groups * high].reshape(-1, high), bits - 4, 1)
            codes = codes + 16 * stream
        codes = codes - added if added else signed(codes, bits)
        scales = self.half(words(payload[scales_at:].reshape(1, -1)).reshape(-1, 1))
        return self.times(scales, codes).reshape(rows, -1)[:, :columns]

    def tile_offset(self, n: Array, g: Array, shape: Any) -> Array:
        tile = n // 128 * (shape[1] // 64) + g // 4
        offset: Array = tile * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4
        return offset

    def quotient(self, code: Array, scale: Array, divisor: Array) -> Array:
        return self.rounded(code * scale / divisor)

    def nvfp4(self, payload: Array, shape: Any, divisors: int) -> Array:
        rows, columns = shape
        plane, scales = align(rows * columns // 2), rows * columns // 16
        codes = fields(payload[: rows * columns // 2].reshape(rows, -1), 4, 1)
        n, g = np.arange(rows)[:, None], np.arange(columns // 16)
        stored = payload[plane : plane + scales][self.tile_offset(n, g, shape)]
        d = self.single(words(payload[plane + scales :].reshape(1, -1), 4)[0])
        return self.quotient(E2M1[codes], spread(self.e4m3(stored), 16), d[self.divisor_of(n, rows, divisors)])

    def divisor_of(self, n: Array, rows: int, divisors: int) -> Array:
        return n // (rows // divisors)

    def row_scales_at(self, rows: int, columns: int) -> int:
        return align(rows * columns)

    def fp8(self, payload: Array, shape: Any, bf16: bool) -> Array:
        rows, columns = shape
        if bf16:
            codes, at = payload[: rows * columns].reshape(shape), self.row_scales_at(rows, columns)
            scales = self.bfloat(words(payload[at : at + 2 * rows].reshape(rows, 2)))
        else:
            records = payload.reshape(rows, columns + 2)
            codes, scales = records[:, :columns], self.half(words(records[:, columns:]))
        return self.times(self.e4m3(codes), scales)
