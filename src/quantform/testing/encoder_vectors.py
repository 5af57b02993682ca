"""The vectors of the methods: sources, and the words or the refusal that the text demands."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from quantform.encode import encode
from quantform.errors import ValuesError, WordsError
from quantform.formats import FORMATS, BlockWords, GgufFormat, GroupedFormat, Words, block_format
from quantform.formats.fp8_row import FP8_ROW_FORMATS
from quantform.layouts import LAYOUTS
from quantform.methods.grouped_absmax import ENCODED_FORMATS, absmax_scales, reciprocals
from quantform.methods.import_encoded import MOVED_BLOCKS
from quantform.packed import PROFILES, Profile
from quantform.testing.legal_words import arrays_of
from quantform.testing.plain_random import PlainRandom
from quantform.testing.rules import Rule
from quantform.testing.search_groups import search_groups
from quantform.testing.vectors import EncoderVector

__all__ = ["ENCODER_RULES", "encoder_vectors"]

Array = npt.NDArray[Any]

_NOT_FINITE = "An infinity or NaN is refused, not encoded"
_MEANINGS = {
    "cast_direct": {
        "same-bits": ("Words of the target's own type keep their bits, NaN payloads included", "3.1"),
        "nearest": ("A value is rounded once from its own type, to nearest, ties to even", "3.1"),
        "integers": ("int32 takes integers from any type", "3.1"),
        "refused-fraction": ("int32 refuses what is no integer", "3.1"),
        "refused-range": ("What the target cannot hold is refused", "3.1"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "grouped_absmax": {
        "source-rounding": ("A source value is first rounded to binary32", "7.2"),
        "scale-rounding": ("amax / qmax is rounded to binary32, and that to binary16, ties to even", "7.2"),
        "reciprocal": ("A code is the value times the rounded reciprocal of the scale, not the quotient", "7.2"),
        "ties-to-even": ("The product is rounded to an integer, ties to even", "7.2"),
        "rescue": ("A scale that would round to zero becomes 2^-24", "7.2"),
        "clamp": ("The clamp to the legal codes comes after rounding", "7.2"),
        "zero-group": ("A group of zeros of either sign has scale +0 and codes 0", "7.2"),
        "partial-group": ("The last group of a row is encoded from its own values only", "4"),
        "together": ("Groups of ordinary values", "7.2"),
        "refused-overflow": ("A scale beyond binary16 is refused", "7.2"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "grouped_search": {
        "source-rounding": ("A source value is first rounded to binary32", "7"),
        "candidates": ("The candidate of least squared error wins, the first of equals, codes by reciprocal", "7"),
        "ratios": ("The largest magnitude / qmax times 0.70, 0.72 ... 1.18 competes", "7"),
        "full-range": ("So does the first value of largest magnitude, with its sign, / qmin, times the same", "7"),
        "powers": ("So do 1/4, 1/2, 2 and 4 times the max-abs scale", "7"),
        "neighbours": ("So do the scales whose words are 1 and 2 beside that of the max-abs scale", "7"),
        "least-squares": (
            "So do the least-squares scale of the max-abs codes, 1/2 and 2 of it, and 1 and 2 beside it",
            "7",
        ),
        "refit": ("The least-squares scale of the best codes so far competes last, with the words beside it", "7"),
        "rounding": ("A computed scale is rounded to binary32 and then to binary16", "7"),
        "sums": ("Weighted squares of residuals are summed in binary64, halves of the lanes onto halves", "7"),
        "importance": ("Errors are weighted by one number an input channel", "7"),
        "negative-scales": ("Negative candidates compete where they are asked for", "7"),
        "zero-group": ("A group of zeros has scale +0 and codes 0", "7"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "fp8_row_maxabs": {
        "bf16-first": ("Values are rounded to BF16 before anything else", "3.4"),
        "scale": ("The largest magnitude / 448 is rounded to binary32 and then to the scale's type", "3.4"),
        "reciprocal": ("A code is the value times the rounded reciprocal of the scale, not the quotient", "3.4"),
        "ties-to-even": ("The product with the rounded reciprocal is rounded to E4M3FN, ties to even", "3.4"),
        "clamp": ("The product is clamped to 448 and -448, where its scale was rounded down", "3.4"),
        "rescue": ("The scale of a nonzero row that would round to zero becomes the smallest subnormal", "3.4"),
        "zero-row": ("A row of zeros of either sign has scale +0 and codes +0", "3.4"),
        "together": ("Rows of ordinary values", "3.4"),
        "refused-overflow": ("A scale beyond its type is refused", "3.4"),
        "refused-tiny": ("A row is refused whose scale has no finite reciprocal", "3.4"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "nvfp4_maxabs": {
        "source-rounding": ("A source value is first rounded to binary32", "3.3"),
        "divisor": ("The divisor is 2688 / the tensor's largest magnitude, rounded once", "3.3"),
        "scales": ("A scale is a group's largest scaled magnitude / 6, at most 448, rounded to E4M3FN", "3.3"),
        "quotient": ("A scaled value is divided by its scale, not multiplied by a reciprocal", "3.3"),
        "ties-to-even": ("A scaled value over its scale is rounded to E2M1, ties to the even code", "3.3"),
        "zero-group": ("A group whose scale is zero has codes 0; a tensor of zeros has divisor 1", "3.3"),
        "refused-tiny": ("A tensor is refused whose divisor is not finite", "3.3"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "import_encoded": {
        "blocks": ("Blocks are copied byte for byte", "8"),
        "moved": ("Codes and scales move from blocks into planes, and no bit changes", "8"),
        "refused": ("Words that the format does not admit are refused, not repaired", "8"),
    },
}

ENCODER_RULES = tuple(
    Rule(f"encode.{method}.{name}", meaning, section)
    for method, rules in _MEANINGS.items()
    for name, (meaning, section) in rules.items()
)


@dataclass(frozen=True, slots=True)
class _Case:
    """One source; `refused` says that the text demands a refusal, `part` tells vectors of one rule apart."""

    rule: str
    values: Array
    refused: bool = False
    source: str = ""
    part: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@functools.cache
def encoder_vectors(method: str, name: str) -> tuple[EncoderVector, ...]:
    """The vectors of a method that makes the format `name`; none where it does not."""
    return tuple(_vector(method, name, case) for case in _cases(method, name))


def _vector(method: str, name: str, case: _Case) -> EncoderVector:
    record = FORMATS[name]
    source = case.source or ("bfloat16" if case.values.dtype == ml_dtypes.bfloat16 else case.values.dtype.name)
    words: Words | None = None
    given = _blocks(case.values, source) if case.source else case.values
    try:
        words = encode(given, record, method=method, **case.parameters)
    except (ValuesError, WordsError):
        if not case.refused:
            raise
    shape = given.shape
    payload = None
    if words is not None:
        payload = LAYOUTS[record.default_layout].pack(words).copy()
        payload.flags.writeable = False
    for array in (case.values, *case.parameters.values()):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    parts = (case.rule, case.part, case.source.removeprefix("gguf:"))
    return EncoderVector(
        identifier=f"{method}/{name}/" + "-".join(filter(None, parts)),
        rule=f"encode.{method}.{case.rule}",
        format=name,
        method=method,
        source=source,
        shape=shape,
        values=case.values,
        parameters=case.parameters,
        layout=record.default_layout,
        payload=payload,
        words={} if words is None else arrays_of(words),
    )


def _blocks(values: Array, source: str) -> BlockWords:
    profile = PROFILES[source]
    shape = (len(values), values.shape[1] // profile.bytes * profile.values)
    return BlockWords(block_format(profile), shape, values)


def _cases(method: str, name: str) -> Iterator[_Case]:
    random, record = PlainRandom(f"{method} {name}"), FORMATS[name]
    if method == "cast_direct" and record.category == "direct":
        yield from _cast(name, random)
    elif method == "grouped_absmax" and record in ENCODED_FORMATS and isinstance(record, GroupedFormat):
        yield from _absmax(record, random)
    elif method == "grouped_search" and record in ENCODED_FORMATS and isinstance(record, GroupedFormat):
        yield from _search(record, random)
    elif method == "fp8_row_maxabs" and record in FP8_ROW_FORMATS:
        yield from _fp8_row(name, random)
    elif method == "nvfp4_maxabs" and name == "nvfp4":
        yield from _nvfp4(random)
    elif method == "import_encoded":
        yield from _imports(name, random)


def _normal(random: PlainRandom, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Numbers about like weights: the mean of four, exact in binary32."""
    drawn = random.integers(-(1 << 20), 1 << 20, (4, *shape)).sum(axis=0)
    values: npt.NDArray[np.float32] = (drawn * 2.0**-26).astype(np.float32)
    return values


def _f32(*values: float) -> npt.NDArray[np.float32]:
    return np.array([values], np.float32)


def _refusals(rule: str = "refused-nonfinite") -> Iterator[_Case]:
    values = np.zeros((2, 64), np.float32)
    values[1, 3] = np.inf
    yield _Case(rule, values, refused=True)


def _cast(name: str, random: PlainRandom) -> Iterator[_Case]:
    if name == "bf16":
        words = np.array([[0, 0x8000, 1, 0x7F80, 0xFF81, 0x7FC5, 0x3F81]], np.uint16)
        yield _Case("same-bits", words.view(ml_dtypes.bfloat16))
        ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF, 0x00008000, 0x00018000, 1], np.uint32)
        yield _Case("nearest", np.concatenate([ties.view(np.float32), _normal(random, (57,))])[None])
        # by way of binary32 these become ties, and then 1.0 and 1 + 2^-6
        yield _Case("nearest", np.array([[1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40]]), part="doubles")
        yield _Case("refused-range", _f32(3.4e38), refused=True)
    elif name == "fp32":
        words32 = np.array([[0, 0x80000000, 1, 0x7F800000, 0xFF800001, 0x7FC00005]], np.uint32)
        yield _Case("same-bits", words32.view(np.float32))
        exact = [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 2.0**-150, 3 * 2.0**-150, 0.1]
        yield _Case("nearest", np.array([exact], np.float64))
        yield _Case("refused-range", np.array([[1e39]]), refused=True)
    else:
        yield _Case("same-bits", np.array([[0, -1, 2**31 - 1, -(2**31)]], np.int32))
        yield _Case("integers", _f32(0.0, -0.0, 1.0, -16777216.0, 2147483520.0, -2147483648.0))
        yield _Case("refused-fraction", _f32(1.0, 0.5), refused=True)
        yield _Case("refused-range", _f32(2147483648.0), refused=True)
    source = _f32(1.0, np.nan) if name != "fp32" else _f32(1.0, np.nan).astype(np.float64)
    yield _Case("refused-nonfinite", source, refused=True)


def _absmax(record: GroupedFormat, random: PlainRandom) -> Iterator[_Case]:
    group, qmax = record.group, record.qmax
    yield _Case("source-rounding", _doubles(record, random))
    halves = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-22, 2.0**-24 * 1.5, 2.0**-24 * 2.5])
    peaks = _normal(random, (5, group)) * np.float32(0)
    peaks[:, 0] = halves * qmax
    yield _Case("scale-rounding", peaks)
    yield _Case("scale-rounding", _quotients(record), part="quotient")
    yield _Case("reciprocal", _near_ties(record, random))
    ties = (np.arange(group) - group // 2 + 0.5).clip(0.5 - qmax, qmax - 0.5).astype(np.float32)
    ties[0] = qmax
    yield _Case("ties-to-even", np.stack([ties, ties / 4]))
    tiny = np.zeros((3, group), np.float32)
    tiny[:, :3] = np.float32(2.0**-26 * qmax) * np.array([[1, -1, 0.5], [1.5, -0.25, 0], [2.0**-120, 0, 0]])
    yield _Case("rescue", tiny)
    over = np.zeros((2, group), np.float32)
    over[:, :4] = np.float32(1.45 * 2.0**-24 * qmax) * np.array([[1, -1, 0.9, -0.9], [-1, 1, 0.7, -0.7]])
    yield _Case("clamp", over)
    zeros = np.zeros((2, group), np.float32)
    zeros[1, ::2] = -0.0
    yield _Case("zero-group", zeros)
    yield _Case("partial-group", _normal(random, (3, 2 * group + 3)))
    yield _Case("together", _normal(random, (4, 256)))
    yield _Case("refused-overflow", np.full((1, group), 65520.0 * qmax, np.float32), refused=True)
    yield from _refusals()


def _doubles(record: GroupedFormat, random: PlainRandom) -> npt.NDArray[np.float64]:
    """A group under a scale of 1 whose values are codes, but for some that binary32 makes ties, which go back."""
    doubles = random.integers(1 - record.qmax, record.qmax, (1, record.group)).astype(np.float64)
    doubles[0, 0] = record.qmax
    doubles[0, 1:5] = np.array([2.5, 1.5, -2.5, -1.5]) * (1 + np.array([1, -1, 1, -1]) * 2.0**-30)
    return doubles


def _near_ties(record: GroupedFormat, random: PlainRandom) -> npt.NDArray[np.float32]:
    """Groups in which the reciprocal's product and the quotient give different codes."""
    groups = np.zeros((2048, record.group), np.float32)
    words = random.integers(0x2C00, 0x3C00, 2048).astype(np.uint16)
    scales = words.view(np.float16).astype(np.float32)
    codes = random.integers(record.qmin, record.qmax, groups.shape)
    groups[...] = scales[:, None] * (codes.astype(np.float32) + np.float32(0.5))
    groups[:, 0] = scales * np.float32(record.qmax)
    own = absmax_scales(np.abs(groups).max(axis=1), record.qmax)
    products = np.rint(groups * reciprocals(own)[:, None])
    quotients = np.rint(groups / own.astype(np.float32)[:, None])
    chosen: npt.NDArray[np.float32] = groups[(products != quotients).any(axis=1)][:8]
    return chosen


def _quotients(record: GroupedFormat) -> npt.NDArray[np.float32]:
    """Groups whose largest magnitude over `qmax`, and times its reciprocal, have different scales."""
    ties = (np.arange(2049, 4096, 2) * 2.0**-11 * record.qmax).astype(np.float32)
    beside = [np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(np.inf))]
    amax, qmax = np.concatenate(beside), np.float32(record.qmax)
    differ = (amax / qmax).astype(np.float16) != (amax * (np.float32(1) / qmax)).astype(np.float16)
    groups = np.zeros((4, record.group), np.float32)
    groups[:, 1] = amax[differ][:4] * np.array([1, -1, 1, -1], np.float32)
    return groups


def _search(record: GroupedFormat, random: PlainRandom) -> Iterator[_Case]:
    values = _normal(random, (3, 192))
    yield _Case("candidates", values)
    importance = (random.integers(0, 1000, 192) * 2.0**-8).astype(np.float32)
    yield _Case("importance", values.copy(), parameters={"importance": importance})
    skewed = values.copy()
    skewed[:, ::32] = np.abs(skewed[:, ::32]) * 4
    yield _Case("negative-scales", skewed, parameters={"importance": importance, "negative_scales": True})
    yield _Case("zero-group", np.zeros((1, record.group), np.float32))
    pinned = np.full(record.group, 1 << 20, np.float32)  # so that no scale but 1 competes, as some would for the ties
    pinned[1:5] = 1
    yield _Case("source-rounding", _doubles(record, random), parameters={"importance": pinned})
    for found in search_groups(record):
        yield _Case(found.rule, found.values, part=found.part, parameters=found.parameters)
    yield from _refusals()


def _fp8_row(name: str, random: PlainRandom) -> Iterator[_Case]:
    half = name.endswith("fp16")
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32).view(np.float32)
    yield _Case("bf16-first", np.concatenate([ties, _normal(random, (28,))])[None])
    # ties of BF16, all but the first two by way of binary32 only, which become, or had become, ties of E4M3FN
    narrow = [1.0625 + 2.0**-8, 1.1875 - 2.0**-8, 1.0625 + 2.0**-8 + 2.0**-40, 1.1875 - 2.0**-8 - 2.0**-40]
    yield _Case("bf16-first", np.array([[448, *narrow]]), part="doubles")
    peaks = np.zeros((4, 8), np.float32)
    peaks[:, 0] = np.array([448, 450, 1.0, 0.1])
    yield _Case("scale", peaks)
    # binary16: ties among subnormal scales, two of which are none after a product with 1 / 448, and the largest scale;
    # bfloat16, where no scale is a tie: a subnormal one, and one beyond binary16
    words = [0x388C, 0x38FC, 0x3936, 0x39AF, 0x4BDF] if half else [0x0440, 0x0469, 0x7F7F]
    ends = np.zeros((len(words), 4), np.float32)
    ends[:, 0] = (np.array(words, np.uint32) << np.uint32(16)).view(np.float32)
    ends[:, 1:3] = ends[:, :1] * np.array([-0.5, 0.1], np.float32)
    yield _Case("scale", ends, part="ends")
    near = [
        [22.75, 0.000644683837890625, 0],
        [24.5, 10.9375, -12.6875],
        [26.25, 0.000743865966796875, 0.000286102294921875],
    ]
    yield _Case("reciprocal", np.array(near, np.float32))
    steps = np.array([448, 17, 18, 19, -17, 2.0**-10, 3 * 2.0**-10, 5 * 2.0**-10], np.float32)
    yield _Case("ties-to-even", np.stack([steps, steps / 64]))
    if half:
        yield _Case("rescue", _f32(2.0**-22, -(2.0**-23), 0.0, 2.0**-31))
        over = np.array([[1.4, -1.4, 1.25, -0.7], [-2.4, 2.4, 1.9, 0.3]]) * (448 * 2.0**-24)
        yield _Case("clamp", over.astype(np.float32))
    else:  # the smallest BF16 subnormal has no finite reciprocal
        subnormal = [448 * 2.0**-127, 1.5 * 2.0**-133, 2.5 * 2.0**-133, -(2.0**-134) - 2.0**-140, 2.0**-134]
        yield _Case("bf16-first", np.array([subnormal], np.float32), part="subnormal")
        yield _Case("refused-tiny", _f32(2.0**-126, 0.0), refused=True)
    yield _Case("zero-row", np.array([[0.0, -0.0], [1.0, -0.0]], np.float32))
    yield _Case("together", _normal(random, (3, 160)))
    if half:
        yield _Case("refused-overflow", np.full((1, 4), 65520.0 * 448, np.float32), refused=True)
    yield from _refusals()


def _nvfp4(random: PlainRandom) -> Iterator[_Case]:
    drawn = _normal(random, (128, 64))
    spread = _normal(random, (128, 64)) * np.exp2(np.arange(128) % 24 - 12).astype(np.float32)[:, None]
    yield _Case("divisor", drawn)
    # its largest magnitude is negative, and 1 / (that / 2688) is another number
    yield _Case("divisor", -np.abs(drawn) * np.float32(7 / 32), part="negative")
    yield _Case("scales", spread)
    # under a divisor of 1: scales that are ties, a subnormal one and one that is lost among them, and one that is a tie
    # only after a product with 1 / 6
    peaks = np.array([2688, 102, -114, 15 * 2.0**-9, 9 * 2.0**-9, 3 * 2.0**-9, 28.499998, 14.5], np.float32)
    ties = np.zeros((128, 64), np.float32)
    ties[:2, ::16] = peaks.reshape(2, 4)
    ties[:2, 1::16] = ties[:2, ::16] * np.float32(-0.4)
    yield _Case("scales", ties, part="ties")
    quotients = np.zeros((128, 64), np.float32)
    quotients[0, :16] = np.array([6, 1.25, 2.5, 5, -1.25, -2.5, -5, 0.25, 3.5, 0, 0, 0, 0, 0, 0, 0]) * 1.875
    below = np.nextafter(np.array([1.75, 3.5], np.float32) * np.float32(1.75), np.float32(0))
    quotients[0, 16:22] = [6 * 1.75, *below, *-below, 0.25]
    quotients[1, 0] = 2688
    yield _Case("quotient", quotients)
    halves = np.zeros((128, 64), np.float32)
    halves[:, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
    halves[0, 16] = 2688
    yield _Case("ties-to-even", halves)
    doubles = np.zeros((128, 64))
    doubles[0, :8] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]  # in binary32 the last seven are ties, which go back
    doubles[0, 1:8] *= 1 + np.array([1, -1, 1, -1, 1, -1, 1]) * 2.0**-30
    doubles[1, 0] = 2688
    yield _Case("source-rounding", doubles)
    zeros = np.zeros((128, 64), np.float32)
    zeros[::2] = -0.0
    yield _Case("zero-group", zeros)
    yield _Case("refused-tiny", np.full((128, 64), 2.0**-140, np.float32), refused=True)
    bad = np.zeros((128, 64), np.float32)
    bad[100, 60] = np.nan
    yield _Case("refused-nonfinite", bad, refused=True)


def _imports(name: str, random: PlainRandom) -> Iterator[_Case]:
    record = FORMATS[name]
    if isinstance(record, GgufFormat):
        blocks = random.integers(0, 256, (3, 2 * record.profile.bytes)).astype(np.uint8)
        yield _Case("blocks", blocks, source=record.profile.identifier)
    elif isinstance(record, GroupedFormat):
        for kind in MOVED_BLOCKS.get(name, ()):
            identifier = f"gguf:{kind.lower()}"
            if identifier in PROFILES:
                for rule, part, blocks in _movable(PROFILES[identifier], record, random):
                    values = blocks.view(np.uint8).reshape(len(blocks), -1)
                    yield _Case(rule, values, refused=rule == "refused", source=identifier, part=part)


def _movable(profile: Profile, record: GroupedFormat, random: PlainRandom) -> Iterator[tuple[str, str, Array]]:
    """Blocks of two rows whose words the format admits, and some that it does not, each for one reason."""
    count = 256 // profile.values
    good = np.zeros((2, count), profile.block)
    scales = random.integers(0x0001, 0x7C00, (2, 2)).astype(np.uint16) | np.array([[0], [0x8000]], np.uint16)
    good["d"] = np.repeat(scales, count // 2, axis=1).view(np.float16) if count > 1 else scales[:, :1].view("<f2")
    shape = good["q"].shape
    if profile.name == "Q8_0":
        good["q"] = random.integers(-127, 128, shape)
    elif record.any_finite_scale or profile.name == "TQ1_0":  # any code; the digits of any byte are ternary
        good["q"] = random.integers(0, 256, shape)
    else:
        codes = random.integers(0, 3, (*shape, 4))
        good["q"] = (codes << np.array([0, 2, 4, 6])).sum(axis=-1)
    yield "moved", "", good
    bad = good.copy()
    if profile.name == "Q8_0":
        bad["q"][1, 2, 5] = -128
    elif profile.name != "TQ1_0" and not record.any_finite_scale:
        bad["q"][1, 0, 3] = 0xFF
    else:
        bad["d"][1, 0] = np.inf
    yield "refused", "", bad
    if profile.name == "TQ1_0":
        high = good.copy()
        high["high"] = random.integers(0, 256, high["high"].shape)
        yield "moved", "high", high
    yield from _scales(profile, record, good)


# Words of the code 0, and of some others.
_CODES = {"Q8_0": (0, 1), "Q2_0": (0x55, 0x54), "TQ2_0": (0x55, 0x95), "TQ1_0": (0x80, 0x00)}


def _scales(profile: Profile, record: GroupedFormat, good: Array) -> Iterator[tuple[str, str, Array]]:
    """`good`, the first group of whose second row has another scale, and zero codes but for one or none."""
    together = max(1, record.group // profile.values)
    zero, other = _CODES[profile.name]

    def changed(scale: int, code: int | None = None) -> Array:
        blocks = good.copy()
        group = blocks[1, :together]
        group["d"] = np.uint16(scale).view(np.float16)
        if code is not None:
            for name in {"q", "high"}.intersection(profile.block.names or ()):
                group[name] = zero
            group["q"][-1, -1] = code
        return blocks

    yield "refused", "infinite", changed(0xFC00)
    yield "refused", "nan", changed(0x7E01)
    free = record.any_finite_scale
    yield "moved" if free else "refused", "negative-zero", changed(0x8000, other if free else zero)
    yield "moved", "zero-scale", changed(0x0000, zero)
    yield "moved" if free else "refused", "zero-scale-code", changed(0x0000, other)
    if together > 1:
        for row, part in enumerate(("unequal", "unequal-negative")):
            unequal = good.copy()
            unequal["d"][row, together - 1] = -unequal["d"][row, 0]
            yield "refused", part, unequal
