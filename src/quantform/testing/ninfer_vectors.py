"""The vectors of the `.ninfer` formats in their layouts, each about one rule of the formats' text."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform.formats import (
    FORMATS,
    DirectFormat,
    DirectWords,
    Format,
    GgufFormat,
    GroupedFormat,
    GroupedWords,
    Nvfp4Format,
    Nvfp4Words,
    RowScaledFormat,
    RowScaledWords,
    Words,
)
from quantform.formats.small_floats import E4M3FN
from quantform.layouts import LAYOUTS
from quantform.testing.edges import EDGES, edge_words
from quantform.testing.legal_words import arrays_of, legal_words
from quantform.testing.packed_vectors import packed_vectors
from quantform.testing.plain_random import PlainRandom
from quantform.testing.rules import DECISIONS, LAYOUT_TEXT, Rule
from quantform.testing.special_words import BFLOAT16, BINARY16, BINARY32, BINARY32_NONFINITE, INT32
from quantform.testing.vectors import Vector, outputs_of

__all__ = ["NINFER_RULES", "family_of", "ninfer_vectors"]

Case = tuple[str, Words]
"""The rule's last part (or a whole identifier of another family), and the words."""

_EDGES = "A product is an ordinary number of binary32, however near it is to the edge of a narrower type"
_DIRECT = {"words": ("Every word has its value: zeros of both signs, subnormals, infinities, NaN", "3.1")}
_GROUPED = {
    "codes": ("Every legal code is worth itself times the scale of its group", "5"),
    "order": ("Lanes lie in the code plane from the lowest bits of the first byte on", LAYOUT_TEXT),
    "high": ("The bits above the lowest four of every code are a stream of their own in the second plane", LAYOUT_TEXT),
    "scale": ("A scale is a binary16 multiplier: subnormal, normal, the largest", "6.2"),
    "signed-scale": ("A negative scale multiplies with its sign", "6.2"),
    "zero-sign": ("A zero code under a negative scale is negative zero, under a positive one positive zero", "6.2"),
    "zero-scale": ("A zero scale makes zeros", "5"),
    "edges": (_EDGES, "6.2"),
    "groups": ("Each group has its own scale; the last of a row may be partial, and none crosses a row", "4"),
    "together": ("Legal words drawn over all codes and scales", "6.2"),
}
_NVFP4 = {
    "codes": ("A code is one of 16 E2M1 words, both zeros among them", "3.3"),
    "order": ("The low nibble of a byte is the smaller column", LAYOUT_TEXT),
    "scales": ("A scale is a nonnegative finite E4M3FN word, 0x00 to 0x7E, that multiplies", "3.3"),
    "divisor": ("The divisor divides: its reciprocal, rounded, gives other values", "3.3"),
    "divisor-range": ("A divisor is any finite positive binary32 word, from the smallest subnormal on", "3.3"),
    "binary32": ("The quotient is rounded to binary32, and other types are made of that number", DECISIONS),
    "divisors": ("Each of several divisors belongs to an equal share of consecutive rows", "3.3"),
    "together": ("Legal words drawn over all codes, scales and divisors", "3.3"),
}
_FP8 = {
    "codes": ("A code is a finite E4M3FN word of either sign", "3.4"),
    "scale": ("A scale is a nonnegative finite word of the format's 16-bit type that multiplies its row", "3.4"),
    "zeros": ("Zero codes keep their sign, under a zero scale too", "3.4"),
    "rows": ("Each row has its own scale", "3.4"),
    "edges": (_EDGES, "3.4"),
    "binary32": ("The product is rounded to binary32, where it may overflow, and other types are made of that", "3.4"),
    "together": ("Legal words drawn over all codes and scales", "3.4"),
}
_LAYOUT = {
    "layout.contiguous.order": ("Words follow one another in C order, little-endian", LAYOUT_TEXT),
    "layout.contiguous.scalar": ("A tensor without axes is one word", LAYOUT_TEXT),
    "layout.contiguous.empty": ("A tensor without elements has no bytes", LAYOUT_TEXT),
    "layout.row_split.padding": (
        "Rows are extended to 128 lanes, and planes begin at multiples of 256 bytes",
        LAYOUT_TEXT,
    ),
    "layout.block_scale.order": ("Scales lie in tiles of 128 rows and four groups, row of tiles by row", LAYOUT_TEXT),
    "layout.row_scale.padding": ("The scales follow the codes at the next multiple of 256 bytes", LAYOUT_TEXT),
}
_SCALE_ONE = {"bf16": 0x3F80, "fp16": 0x3C00}


def family_of(record: Format) -> str:
    """What the format's rules begin with: `"grouped.q4"`."""
    if isinstance(record, DirectFormat):
        return f"direct.{record.name}"
    if isinstance(record, GroupedFormat):
        return f"grouped.{record.name.partition('_')[0]}"
    if isinstance(record, RowScaledFormat):
        return f"fp8_row.{record.scale.name}"
    return record.name


def _rules() -> Iterator[Rule]:
    for record in FORMATS.values():
        for name, (meaning, section) in _meanings(record).items():
            if _applies(record, name):
                yield Rule(f"{family_of(record)}.{name}", meaning, section)
    for name, (meaning, section) in _LAYOUT.items():
        yield Rule(name, meaning, section)


def _applies(record: Format, name: str) -> bool:
    if name == "high":
        return isinstance(record, GroupedFormat) and record.code_bits in {5, 6}
    if name == "edges":  # two bits double a scale at most
        return not (isinstance(record, GroupedFormat) and record.code_bits == 2)
    if name == "binary32":  # binary16 scales keep products within binary32
        return not (isinstance(record, RowScaledFormat) and record.scale.name == "fp16")
    return True


def _meanings(record: Format) -> Mapping[str, tuple[str, str]]:
    kinds: dict[type[Format], Mapping[str, tuple[str, str]]] = {
        DirectFormat: _DIRECT,
        GroupedFormat: _GROUPED,
        Nvfp4Format: _NVFP4,
        RowScaledFormat: _FP8,
    }
    return kinds.get(type(record), {})


NINFER_RULES = tuple(_rules())


@functools.cache
def ninfer_vectors(name: str) -> tuple[Vector, ...]:
    """The vectors of a numeric format in each of its layouts."""
    record = FORMATS[name]
    layouts = [layout.name for layout in LAYOUTS.values() if name in layout.formats]
    if isinstance(record, GgufFormat):
        packed = packed_vectors(record.profile.identifier)
        return tuple(_as_rows(vector, record, layout) for layout in layouts for vector in packed)
    return tuple(_vector(record, rule, words, layout) for layout in layouts for rule, words in _cases(record))


def _as_rows(vector: Vector, record: GgufFormat, layout: str) -> Vector:
    """A profile's vector as a matrix of the format that keeps its blocks."""
    shape = matrix_shape(vector.shape)
    return replace(
        vector,
        identifier=f"{record.name}/{vector.identifier.partition('/')[2]}",
        format=record.name,
        layout=layout,
        shape=shape,
        words={"blocks": vector.payload.reshape(shape[0], record.row_bytes(shape[1]))},
        values={name: values.reshape(shape) for name, values in vector.values.items()},
    )


def _vector(record: Format, rule: str, words: Words, layout: str) -> Vector:
    words.validate()
    payload = LAYOUTS[layout].pack(words).copy()
    payload.flags.writeable = False
    values = words.decode()
    return Vector(
        identifier=f"{record.name}/{rule.removeprefix('layout.').replace('.', '-')}",
        rule=rule if rule in _LAYOUT else f"{family_of(record)}.{rule}",
        format=record.name,
        layout=layout,
        shape=words.shape,
        divisors=words.divisors.size if isinstance(words, Nvfp4Words) else 1,
        payload=payload,
        words=arrays_of(words),
        values=outputs_of(values),
        block=getattr(record, "group", words.shape[-1] if words.shape else 1),
    )


def _cases(record: Format) -> Iterator[Case]:
    random = PlainRandom(record.name)
    if isinstance(record, DirectFormat):
        yield from _direct(record, random)
    elif isinstance(record, GroupedFormat):
        yield from _grouped(record, random)
    elif isinstance(record, Nvfp4Format):
        yield from _nvfp4(record, random)
    elif isinstance(record, RowScaledFormat):
        yield from _fp8(record, random)


def _direct(record: DirectFormat, random: PlainRandom) -> Iterator[Case]:
    def words(values: Sequence[int] | npt.NDArray[np.int64], shape: tuple[int, ...]) -> Words:
        return DirectWords(record, shape, np.array(values, record.scalar.word_dtype).reshape(shape))

    special = {
        "fp32": (0, 0x80000000, *BINARY32, *BINARY32_NONFINITE, *_around_ties()),
        "bf16": (0, 0x8000, *BFLOAT16),
        "int32": INT32,
    }[record.name]
    drawn = random.integers(0, 1 << record.scalar.bits, 256)
    yield "words", words([*special, *drawn.tolist()], (1, len(special) + 256))
    ones = {"fp32": 0x3F800000, "bf16": 0x3F80, "int32": 1}[record.name]
    step = {"fp32": 1 << 21, "bf16": 1 << 5, "int32": 1}[record.name]
    yield "layout.contiguous.order", words(ones + step * np.arange(30), (2, 3, 5))
    yield "layout.contiguous.scalar", words([ones], ())
    yield "layout.contiguous.empty", words([], (3, 0, 2))


def _around_ties() -> list[int]:
    """The binary32 words at the ties of binary16 and bfloat16 beside their edges, and those just below and above."""
    ties = [edge.low for edges in EDGES.values() for edge in edges if edge.low == edge.high]
    words: list[int] = np.array(ties, np.float32).view(np.uint32).tolist()
    return [word + step for word in words for step in (-1, 0, 1)]


def _grouped(record: GroupedFormat, random: PlainRandom) -> Iterator[Case]:
    group, one = record.group, 0x3C00

    def words(codes: npt.NDArray[np.int64], scales: npt.ArrayLike) -> Words:
        full = np.broadcast_to(np.asarray(scales, np.uint16), (len(codes), record.groups(codes.shape[1])))
        return GroupedWords(record, codes.shape, codes.astype(np.int8), full.copy())

    def column(values: Sequence[int], width: int) -> npt.NDArray[np.int64]:
        return np.repeat(np.array(values)[:, None], width, axis=1)

    some = range(record.qmin, record.qmax + 1) if record.code_bits < 8 else (-127, -64, -1, 0, 1, 64, 126, 127)
    yield "codes", words(column(list(some), group), one)
    mixed = random.integers(record.qmin, record.qmax + 1, (4, 256))
    if record.code_bits == 8:  # every one of them
        mixed = np.arange(4 * 256).reshape(4, 256) % 255 - 127
    yield "order", words(mixed, one)
    if record.code_bits in {5, 6}:
        highs = 1 << record.code_bits - 4
        yield "high", words(random.integers(-(highs // 2), highs // 2, (4, 256)) * 16 + 5, one)
    words16 = [word for word in BINARY16 if word < 0x8000]
    both = np.tile(np.repeat([1, record.qmax], group // 2), (len(words16), 1))  # products of more bits than a scale has
    yield "scale", words(both, [[word] for word in words16])
    yield "signed-scale", words(both, [[word | 0x8000] for word in words16])
    yield "zero-sign", words(column([0] * 4, group), [[0x3C00], [0xBC00], [0x0001], [0x8001]])
    if record.any_finite_scale:
        yield "zero-scale", words(column([-1, 0, 1, 2] * 2, group), [[0]] * 4 + [[0x8000]] * 4)
    else:
        yield "zero-scale", words(column([0] * 2, group), 0)
    if _applies(record, "edges"):
        values = np.arange(1, record.qmax + 1)
        edges = edge_words(values.astype(np.float64), np.dtype(np.float16))
        yield "edges", words(column([int(values[at]) for at, _ in edges], group), [[word] for _, word in edges])
    columns = max(2 * group, 128) + group // 2 + 1  # rows of several times 128 lanes
    scales = one + 0x80 * np.arange(3 * record.groups(columns)).reshape(3, -1)
    yield "groups", words(np.ones((3, columns), np.int64), scales)
    yield "layout.row_split.padding", words(np.ones((3, 1), np.int64), [[one], [one + 0x400], [one + 0x800]])
    yield "together", legal_words(record, (5, 257), random)


def _nvfp4(record: Nvfp4Format, random: PlainRandom) -> Iterator[Case]:
    one, single = 0x38, 0x3F800000

    def words(
        shape: tuple[int, int],
        codes: npt.ArrayLike = 0x22,
        scales: npt.ArrayLike = one,
        divisors: Sequence[int] = (single,),
    ) -> Words:
        rows, columns = shape
        return Nvfp4Words(
            record,
            shape,
            np.broadcast_to(np.asarray(codes, np.uint8), (rows, columns // 2)).copy(),
            np.broadcast_to(np.asarray(scales, np.uint8), (rows, columns // record.group)).copy(),
            np.array(divisors, np.uint32),
        )

    small = (128, 64)
    each = np.repeat(np.arange(512).reshape(128, 4) % 16 * 0x11, 8, axis=1)
    yield "codes", words(small, codes=each)
    yield "order", words(small, codes=random.integers(0, 256, (128, 32)))
    yield "layout.block_scale.order", words((256, 128), scales=8 * random.integers(1, 15, (256, 8)))
    yield "scales", words(small, scales=np.arange(512).reshape(128, 4) % 127)
    codes = random.integers(0, 256, (128, 32))
    yield "divisor", words(small, codes, random.integers(1, 127, (128, 4)), [0x40400000])
    wide = random.integers(0, 256, (256, 32))
    yield "divisor-range", words((256, 64), wide, random.integers(0, 127, (256, 4)), [0x00000001, 0x7F7FFFFF])
    yield "divisors", words((512, 64), divisors=[0x40000000, 0x3F000000])  # of two tiles each
    together = legal_words(record, (256, 64), random, 2)
    # Quotients by these round to ties of binary16 and bfloat16, 65520 among them: by the first from below to those that
    # round up, by the second from above to those that round down.
    arrays_of(together)["divisors"][...] = 0x3C500D01, 0x3F83C659
    yield "together", together


def _fp8(record: RowScaledFormat, random: PlainRandom) -> Iterator[Case]:
    one = _SCALE_ONE[record.scale.name]
    step = 1 << (7 if record.scale.name == "bf16" else 10)

    def words(codes: npt.ArrayLike, scales: Sequence[int]) -> Words:
        array = np.asarray(codes, np.uint8)
        return RowScaledWords(record, array.shape, array, np.array(scales, np.uint16))

    finite = np.arange(127)
    yield "codes", words(np.stack([finite, finite | 0x80]), [one, one])
    special = (0x0001, step - 1, step, one, one + 1, one + 3, record.infinity - 1)
    yield "scale", words([[0x38, 0x7E, 0xB9, 0x01]] * len(special), special)
    yield "zeros", words([[0x00, 0x80, 0x80]] * 2, [one, 0])
    yield "rows", words(np.full((9, 33), 0x38), [one + step * row for row in range(9)])
    both = np.concatenate([finite[1:], finite[1:] | 0x80])
    edges = edge_words(E4M3FN[both].astype(np.float64), record.scale.dtype, signed=False)
    yield "edges", words([[both[at]] * 4 for at, _ in edges], [word for _, word in edges])
    if record.default_layout == "row_scale_v1":  # codes that end at such a multiple
        yield "layout.row_scale.padding", words(np.full((16, 32), 0x38), [one + step * (row % 9) for row in range(16)])
    yield "together", legal_words(record, (5, 257), random)
