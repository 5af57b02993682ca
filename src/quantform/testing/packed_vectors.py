"""The vectors of the packed profiles, made from their benches: one part at a time, and then all together."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from quantform._sizes import ceil_div
from quantform.packed import PROFILES
from quantform.packed.codebooks import codebook
from quantform.testing.edges import edge_words
from quantform.testing.packed_parts import BENCHES, Bench, Part
from quantform.testing.plain_random import PlainRandom
from quantform.testing.rules import OPERATOR, Rule
from quantform.testing.special_words import BINARY16, BINARY16_FEW, BINARY16_NONFINITE, BINARY32, BINARY32_NONFINITE
from quantform.testing.vectors import Vector, outputs_of

__all__ = ["PACKED_RULES", "packed_vectors"]

Bytes = npt.NDArray[np.uint8]

_SHARED = (
    ("zero-sign", "A zero has the sign that IEEE arithmetic gives it: that of the product, and of the sum"),
    ("nonfinite", "Scales that are infinite or NaN are numbers like any other: infinity times zero is NaN"),
    ("rounding", "A result of more than 24 significant bits is rounded once to binary32, to nearest, ties to even"),
    ("binary32", "What other types are made of is the value in binary32, and not one of more bits"),
    ("overflow", "A product beyond the largest binary32 number, once rounded, is infinity of its sign"),
    ("edges", "A product is an ordinary number of binary32, however near it is to the edge of a narrower type"),
    ("blocks", "Blocks follow one another in C order of the shape, the last axis fastest"),
    ("together", "All parts at once: random blocks with ordinary, huge and tiny scales, and any bytes at all"),
    ("empty", "A dimension of zero makes an empty tensor of a payload without bytes"),
)

# Bytes that give every item of a part the same value, by the item's width; fewer where blocks are large.
_FILLS = {
    1: b"\x00\xff",
    2: b"\x00\x55\xaa\xff",
    4: bytes(0x11 * code for code in range(16)),
    8: b"\x00\x01\x55\x7f\x80\xaa\xff",
}
_FEW_FILLS = {**_FILLS, 4: b"\x00\x11\x77\x88\xee\xff"}


class _Scale(NamedTuple):
    """The words of a block's scale.

    Attributes:
        field: Where it lies.
        kind: Its words' type.
        zeros: Its zeros.
        ones: Words for 1 and, where there is one, -1.
        step: What doubles an ordinary word.
        largest: The largest finite word.
        smallest: The smallest that is not zero.
        ordinary: The first ordinary word, and the one after the last.
        sign: Its sign bit; 0 where it has none.
        type: What NumPy calls its type; None where that has none.
    """

    field: str
    kind: str
    zeros: tuple[int, ...]
    ones: tuple[int, ...]
    step: int
    largest: int
    smallest: int
    ordinary: tuple[int, int]
    sign: int = 0
    type: Any = None


_HALF = _Scale(
    *("d", "<u2", (0, 0x8000), (0x3C00, 0xBC00), 0x0400, 0x7BFF, 0x0001, (0x2400, 0x5400), 0x8000, np.float16),
)
_SINGLE = _Scale(
    *("d", "<u4", (0, 0x80000000), (0x3F800000, 0xBF800000), 0x00800000, 0x7F7FFFFF, 0x00000001),
    *((0x3C800000, 0x42800000), 0x80000000, np.float32),
)
_E8M0 = _Scale(
    *("exponent", "u1", (), (0x7F,), 1, 0xFF, 0x00, (0x70, 0x90)),
    type=ml_dtypes.float8_e8m0fnu,
)
_E4M3 = _Scale("scales", "u1", (0x00, 0x7F), (0x38,), 8, 0x7E, 0x01, (0x10, 0x60))


class _Grid(NamedTuple):
    """Where the rows of a codebook stand in a block: `items` of them, bits above the eighth `stride` bits apart."""

    name: str
    items: int
    stride: int = 0


_GRIDS = {
    "gguf:iq2_xxs": _Grid("iq2xxs_grid", 32),
    "gguf:iq2_xs": _Grid("iq2xs_grid", 32),
    "gguf:iq3_xxs": _Grid("iq3xxs_grid", 64),
    "gguf:iq1_s": _Grid("iq1s_grid", 32, 3),
    "gguf:iq3_s": _Grid("iq3s_grid", 64, 1),
    "gguf:iq2_s": _Grid("iq2s_grid", 32, 2),
    "gguf:iq1_m": _Grid("iq1s_grid", 32, 4),
}


def _rules() -> Iterator[Rule]:
    for bench in BENCHES.values():
        stem = _stem(bench)
        if bench.scale:
            kind = "32" if _wide(bench) else "16"
            yield Rule(f"{stem}.d", f"d, a binary{kind} number of either sign, {bench.scale}", OPERATOR)
        for part in bench.parts:
            yield Rule(f"{stem}.{part.name}", part.says, OPERATOR)
            if part.order:
                yield Rule(f"{stem}.{part.name}-order", part.order, OPERATOR)
        if bench.grid is not None:
            low, high = bench.grid
            yield Rule(f"{stem}.grid", low, OPERATOR)
            if high:
                yield Rule(f"{stem}.high", high, OPERATOR)
        if bench.offset is not None:
            name, says = bench.offset
            yield Rule(f"{stem}.{name}", f"{name}, a binary16 number of either sign, {says}", OPERATOR)
    for name, meaning in _SHARED:
        yield Rule(f"packed.{name}", meaning, OPERATOR)


def _stem(bench: Bench) -> str:
    return f"packed.{bench.identifier.removeprefix('gguf:')}"


def _wide(bench: Bench) -> bool:
    return "d" in bench.rest and PROFILES[bench.identifier].block["d"].itemsize == 4


PACKED_RULES = tuple(_rules())


@functools.cache
def packed_vectors(identifier: str) -> tuple[Vector, ...]:
    """The vectors of a profile, those first that a decoder needs to get right first."""
    return tuple(_Maker(BENCHES[identifier]).vectors())


class _Maker:
    """Makes the vectors of one profile. Blocks are uint8 `[n, S]` until they are decoded."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.profile = PROFILES[bench.identifier]
        self.large = self.profile.values > 64
        self.scale = _SINGLE if _wide(bench) else _HALF
        if not bench.scale:
            self.scale = _E8M0 if "exponent" in bench.rest else _E4M3
        self.halves = BINARY16_FEW if self.large else BINARY16
        self.words, self.nonfinite = self.halves, BINARY16_NONFINITE
        if _wide(bench):
            self.words, self.nonfinite = BINARY32, BINARY32_NONFINITE

    def vectors(self) -> Iterator[Vector]:
        bench, stem = self.bench, _stem(self.bench)
        if bench.scale:
            yield self.vector(f"{stem}.d", self.scaled(self.words))
        for part in bench.parts:
            yield from self.part(part, f"{stem}.{part.name}")
        if bench.grid is not None:
            yield from self.grid(_GRIDS[bench.identifier], stem)
        if bench.offset is not None:
            blocks = self.at_rest(len(self.halves), bench.offset_rest)
            self.put_words(blocks, bench.offset[0], self.halves)
            yield self.vector(f"{stem}.{bench.offset[0]}", blocks)
        yield self.vector("packed.zero-sign", self.zeros())
        if bench.scale:
            yield self.vector("packed.nonfinite", self.not_finite())
        if bench.seven or _wide(bench):
            yield self.vector("packed.rounding", self.rounded())
            yield self.vector("packed.binary32", self.nearly_ties())
        if bench.overflow:
            words, codes = bench.overflow
            yield self.vector("packed.overflow", self.scaled(words, codes))
        if len(blocks := self.edges()):
            yield self.vector("packed.edges", blocks)
        yield self.vector("packed.blocks", self.in_a_row(), (2, 1, 2 * self.profile.values))
        yield self.vector("packed.together", self.together())
        yield self.vector("packed.empty", self.at_rest(0), (3, 0, self.profile.values))

    def vector(self, rule: str, blocks: Bytes, shape: tuple[int, ...] | None = None) -> Vector:
        payload = np.ascontiguousarray(blocks).reshape(-1)
        payload.flags.writeable = False
        shape = (len(blocks), self.profile.values) if shape is None else shape
        values = np.zeros(shape, np.float32)
        if payload.size:
            with np.errstate(all="ignore"):  # infinities and NaN are part of the arithmetic, not accidents
                values[...] = self.profile.decode(payload.view(self.profile.block)).reshape(shape)
        return Vector(
            identifier=f"{self.bench.identifier}/{rule.rpartition('.')[2]}",
            rule=rule,
            format=self.bench.identifier,
            shape=shape,
            payload=payload,
            words={"blocks": payload.reshape(-1, self.profile.bytes)},
            values=outputs_of(values),
            block=self.profile.values,
        )

    def part(self, part: Part, rule: str) -> Iterator[Vector]:
        random, size = PlainRandom(rule), self.field(self.at_rest(0), part.place).shape[1]
        if part.ignored:
            blocks = self.at_rest(4)
            self.put(blocks, part, random.integers(0, 256, (4, size)))
            yield self.vector(rule, blocks)
            return
        if part.width:
            fills = np.frombuffer((_FEW_FILLS if self.large else _FILLS)[part.width], np.uint8)
            blocks = self.at_rest(len(fills), part.beside)
            self.put(blocks, part, np.repeat(fills[:, None], size, axis=1))
        else:  # every byte in turn
            blocks = self.at_rest(256 // size, part.beside)
            self.put(blocks, part, np.arange(256).reshape(-1, size))
        yield self.vector(rule, blocks)
        if part.order:
            count = min(8, ceil_div(256, size)) if part.width == 8 else 2 if self.large else 8
            blocks = self.at_rest(count, part.beside)
            items = random.integers(0, 256, (count, size))
            if part.width == 8 and count * size >= 256:
                items = np.arange(count * size).reshape(count, size) % 256
            self.put(blocks, part, items)
            yield self.vector(f"{rule}-order", blocks)

    def grid(self, grid: _Grid, stem: str) -> Iterator[Vector]:
        """The first 256 rows of the codebook in turn, and in disorder those that take more bits."""
        rows = np.arange(len(codebook(grid.name)))
        first = 256 if grid.stride else len(rows)
        yield self.vector(f"{stem}.grid", self.of_rows(grid, rows[:first]))
        if grid.stride:
            # One bit is set and clear by turns only if rows without it are there too; two or three differ anyway.
            rest = rows if grid.stride == 1 else rows[first:]
            order = np.argsort(PlainRandom(grid.name).words(len(rest)), kind="stable")
            yield self.vector(f"{stem}.high", self.of_rows(grid, rest[order]))

    def of_rows(self, grid: _Grid, rows: npt.NDArray[np.int64]) -> Bytes:
        """Blocks with these rows of the codebook, one after the other."""
        rows = rows.reshape(-1, grid.items)
        blocks = self.at_rest(len(rows))
        if self.bench.identifier == "gguf:iq2_xxs":
            self.field(blocks, "q").reshape(-1, 8, 8)[:, :, :4] = rows.reshape(-1, 8, 4)
        elif self.bench.identifier == "gguf:iq2_xs":
            self.field(blocks, "q")[...] = rows.astype("<u2").view(np.uint8)
        else:
            self.field(blocks, "q")[:, : grid.items] = rows & 0xFF
        if grid.stride:
            together = {1: 8, 2: 4, 3: 4, 4: 2}[grid.stride]
            shifts = np.arange(together) * grid.stride
            words: npt.NDArray[np.int64] = ((rows >> 8).reshape(len(rows), -1, together) << shifts).sum(axis=2)
            field = self.field(blocks, "high")
            field[...] = words.astype("<u2" if words.shape[1] * 2 == field.shape[1] else "u1").view(np.uint8)
        return blocks

    def zeros(self) -> Bytes:
        """Zero scales under codes of both signs, zero codes under scales of both, with offsets of both."""
        bench, scale = self.bench, self.scale
        cases: list[tuple[Mapping[str, bytes], tuple[int, ...]]] = [({}, scale.zeros)]
        cases += [(bench.minus, scale.zeros)] if bench.minus else []
        cases += [(bench.zero, scale.ones)] if bench.zero else []
        offsets = (0x0000, 0x8000) if bench.offset else (0x0000,)
        made = []
        for codes, words in cases:
            for word in words:
                blocks = self.at_rest(len(offsets), codes)
                self.put_scale(blocks, (word,) * len(offsets))
                if bench.offset:
                    self.put_words(blocks, bench.offset[0], offsets)
                made.append(blocks)
        for codes in bench.local:
            for word in scale.ones:
                blocks = self.at_rest(len(offsets), codes)
                self.put_scale(blocks, (word,) * len(offsets))
                if bench.offset:
                    self.put_words(blocks, bench.offset[0], (0x3C00, 0xBC00))
                made.append(blocks)
        return np.concatenate(made)

    def not_finite(self) -> Bytes:
        """Infinite and NaN scales, over zero codes too, and such offsets."""
        bench = self.bench
        made = [self.scaled(self.nonfinite)]
        if bench.zero:
            made.append(self.scaled(self.nonfinite[:1], bench.zero))
        if bench.offset:
            blocks = self.at_rest(len(BINARY16_NONFINITE) + 1)
            self.put_words(blocks, bench.offset[0], (*BINARY16_NONFINITE, self.nonfinite[0]))
            self.put_scale(blocks[-1:], self.nonfinite[:1])  # infinity beside infinity
            made.append(blocks)
        return np.concatenate(made)

    def rounded(self) -> Bytes:
        """Products or sums of more than 24 bits, and ties to the even number below and above."""
        count = 2 if self.large else 10
        random = PlainRandom(f"{self.bench.identifier} rounding")
        if self.bench.offset is None:  # binary32 scales
            blocks = self.at_rest(count + 2, {"q": b"\x7f\x03\xfd"})
            self.put_scale(blocks, [*self.ordinary(random, count), 0x3F800001, 0xBF800003])
            return blocks
        blocks = self.at_rest(count + 4)
        large = _ordinary(_HALF._replace(ordinary=(0x6800, 0x7800)), random, count)
        self.put_scale(blocks, [*large, 0x3C95, 0x3C95, 0xBC95, 0xBC95])
        small = _ordinary(_HALF._replace(ordinary=(0x0C00, 0x2400)), random, count)
        self.put_words(blocks, self.bench.offset[0], [*small, 0x0001, 0x8003, 0x0001, 0x0003])
        return blocks

    def nearly_ties(self) -> Bytes:
        """Values that are ties of narrower types in binary32, and above or below them before they are rounded."""
        if self.bench.offset is None:
            words = (0x3EAB1556, 0xBEAAEAAA, 0xBEAB5556, 0x3EACAAAA)
            return self.scaled(words, {"q": b"\x03\xfd"})
        # 293 / 128 and 295 / 128 lie halfway between numbers of bfloat16, and seven times those between binary16's.
        words = (0x4094, 0xC094, 0x409C, 0xC09C)
        blocks = self.scaled(words, self.bench.seven)
        blocks = np.concatenate([blocks, blocks])
        self.put_words(blocks, self.bench.offset[0], [0x0001] * 4 + [0x8001] * 4)
        return blocks

    def edges(self) -> Bytes:
        """Products at the edges of narrower types, every value of a block alike; none where that cannot be."""
        if self.scale.type is None:
            return self.at_rest(0)
        blocks = np.concatenate([self.alike(part) for part in self.bench.parts if not part.ignored])
        values = self.profile.decode(blocks.reshape(-1).view(self.profile.block))
        pairs = edge_words(values[:, 0].astype(np.float64), np.dtype(self.scale.type))
        blocks = blocks[[at for at, _ in pairs]]
        self.put_scale(blocks, [word for _, word in pairs])
        return blocks

    def alike(self, part: Part) -> Bytes:
        """Blocks under a scale of one with a part that is the same everywhere, small positive items first."""
        fills = np.arange(256) if part.width == 8 else np.frombuffer(_FILLS.get(part.width, b""), np.uint8)
        blocks = self.scaled(self.scale.ones[:1] * len(fills))
        self.put(blocks, part, np.repeat(fills[:, None], self.field(blocks, part.place).shape[1], axis=1))
        return blocks

    def in_a_row(self) -> Bytes:
        """Four blocks whose scales are 1, 2, 4 and 8."""
        return self.scaled([self.scale.ones[0] + step * self.scale.step for step in range(4)])

    def together(self) -> Bytes:
        """Random bytes under ordinary scales, under the largest and the smallest, and as they are."""
        few = 1 if self.large else 4
        random = PlainRandom(f"{self.bench.identifier} together")
        blocks = self.drawn(6 * few, random)
        scales = [*self.ordinary(random, 2 * few), *[self.scale.largest] * few, *[self.scale.smallest] * few]
        self.put_scale(blocks[: 4 * few], scales)
        if self.bench.offset:
            self.put_words(blocks[: 4 * few], self.bench.offset[0], _ordinary(_HALF, random, 4 * few))
        return blocks

    def scaled(self, words: Sequence[int], settings: Mapping[str, bytes] | None = None) -> Bytes:
        """A block for each word of the scale, the other fields at rest."""
        blocks = self.at_rest(len(words), settings)
        self.put_scale(blocks, words)
        return blocks

    def ordinary(self, random: PlainRandom, count: int) -> list[int]:
        return _ordinary(self.scale, random, count)

    def at_rest(self, count: int, settings: Mapping[str, bytes] | None = None) -> Bytes:
        """Blocks at rest, but for some fields."""
        blocks = np.zeros((count, self.profile.bytes), np.uint8)
        self.fill(blocks, {**self.bench.rest, **(settings or {})})
        return blocks

    def drawn(self, count: int, random: PlainRandom, settings: Mapping[str, bytes] | None = None) -> Bytes:
        """Blocks of random bytes, but for some fields."""
        blocks = random.integers(0, 256, (count, self.profile.bytes)).astype(np.uint8)
        self.fill(blocks, settings or {})
        return blocks

    def fill(self, blocks: Bytes, settings: Mapping[str, bytes]) -> None:
        """Set fields of all blocks to bytes that repeat."""
        for name, repeated in settings.items():
            field = self.field(blocks, name)
            field[...] = np.resize(np.frombuffer(repeated, np.uint8), field.shape[1])

    def field(self, blocks: Bytes, name: str) -> Bytes:
        """The bytes of a field, `[n, bytes]`, sharing the blocks' memory."""
        names = self.profile.block.names or ()
        ends = np.cumsum([self.profile.block[each].itemsize for each in names])
        end = int(ends[names.index(name)])
        return blocks[:, end - self.profile.block[name].itemsize : end]

    def put(self, blocks: Bytes, part: Part, items: npt.NDArray[Any]) -> None:
        """Set the bits of a part, and no others."""
        field = self.field(blocks, part.place)
        mask = np.resize(np.frombuffer(part.mask, np.uint8), field.shape[1])
        field[...] = field & ~mask | items.astype(np.uint8) & mask

    def put_words(self, blocks: Bytes, name: str, words: Sequence[int], kind: str = "<u2") -> None:
        """Set a field of every block to a word of its own."""
        field = self.field(blocks, name)
        stored = np.array(words, kind)[:, None].view(np.uint8)
        field[...] = np.tile(stored, field.shape[1] // stored.shape[1])

    def put_scale(self, blocks: Bytes, words: Sequence[int]) -> None:
        """Set the block's scale, wherever it is, to a word of each block's own."""
        if self.bench.identifier == "gguf:iq1_m":
            nibbles = np.array(words)[:, None] >> np.array([0, 4, 8, 12]) & 15
            tops = self.field(blocks, "scales")[:, 1::2]
            tops[...] = tops & 0x0F | nibbles.astype(np.uint8) << 4
        else:
            self.put_words(blocks, self.scale.field, words, self.scale.kind)


def _ordinary(scale: _Scale, random: PlainRandom, count: int) -> list[int]:
    """Words of ordinary size, half of them negative where there is a sign."""
    words = random.integers(*scale.ordinary, count)
    return [int(word) for word in words | random.integers(0, 2, count) * scale.sign]
