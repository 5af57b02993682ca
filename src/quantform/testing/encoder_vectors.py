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
from quantform.packed import PROFILES
from quantform.testing.legal_words import arrays_of
from quantform.testing.plain_random import PlainRandom
from quantform.testing.rules import Rule
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
        "candidates": ("The candidate of least squared error wins, the first of equals, codes by reciprocal", "7"),
        "importance": ("Errors are weighted by one number an input channel", "7"),
        "negative-scales": ("Negative candidates compete where they are asked for", "7"),
        "zero-group": ("A group of zeros has scale +0 and codes 0", "7"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "fp8_row_maxabs": {
        "bf16-first": ("Values are rounded to BF16 before anything else", "3.4"),
        "scale": ("The largest magnitude / 448 is rounded to binary32 and then to the scale's type", "3.4"),
        "ties-to-even": ("The product with the rounded reciprocal is rounded to E4M3FN, ties to even", "3.4"),
        "rescue": ("The scale of a nonzero row that would round to zero becomes the smallest subnormal", "3.4"),
        "zero-row": ("A row of zeros of either sign has scale +0 and codes +0", "3.4"),
        "together": ("Rows of ordinary values", "3.4"),
        "refused-overflow": ("A scale beyond its type is refused", "3.4"),
        "refused-tiny": ("A row is refused whose scale has no finite reciprocal", "3.4"),
        "refused-nonfinite": (_NOT_FINITE, "8"),
    },
    "nvfp4_maxabs": {
        "divisor": ("The divisor is 2688 / the tensor's largest magnitude, rounded once", "3.3"),
        "scales": ("A scale is a group's largest scaled magnitude / 6, at most 448, rounded to E4M3FN", "3.3"),
        "ties-to-even": ("A scaled value over its scale is rounded to E2M1, ties to the even code", "3.3"),
        "zero-group": ("A group whose scale is zero has codes 0; a tensor of zeros has divisor 1", "3.3"),
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
    """One source; `refused` says that the text demands a refusal."""

    rule: str
    values: Array
    refused: bool = False
    source: str = ""
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
    case.values.flags.writeable = False
    return EncoderVector(
        identifier=f"{method}/{name}/{case.rule}" + (f"-{source.removeprefix('gguf:')}" if case.source else ""),
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
    group, qmin, qmax = record.group, record.qmin, record.qmax
    doubles = _normal(random, (2, group)).astype(np.float64) * (1 + 2.0**-25 + 2.0**-40)
    yield _Case("source-rounding", doubles)
    halves = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-22, 2.0**-24 * 1.5, 2.0**-24 * 2.5])
    peaks = _normal(random, (5, group)) * np.float32(0)
    peaks[:, 0] = halves * qmax
    yield _Case("scale-rounding", peaks)
    yield _Case("reciprocal", _near_ties(record, random))
    ties = (np.arange(group) - group // 2 + 0.5).clip(qmin, qmax).astype(np.float32)
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


def _search(record: GroupedFormat, random: PlainRandom) -> Iterator[_Case]:
    values = _normal(random, (3, 192))
    yield _Case("candidates", values)
    importance = (random.integers(0, 1000, 192) * 2.0**-8).astype(np.float32)
    yield _Case("importance", values.copy(), parameters={"importance": importance})
    skewed = values.copy()
    skewed[:, ::32] = np.abs(skewed[:, ::32]) * 4
    yield _Case("negative-scales", skewed, parameters={"importance": importance, "negative_scales": True})
    yield _Case("zero-group", np.zeros((1, record.group), np.float32))
    yield from _refusals()


def _fp8_row(name: str, random: PlainRandom) -> Iterator[_Case]:
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32).view(np.float32)
    yield _Case("bf16-first", np.concatenate([ties, _normal(random, (28,))])[None])
    peaks = np.zeros((4, 8), np.float32)
    peaks[:, 0] = np.array([448, 450, 1.0, 0.1])
    yield _Case("scale", peaks)
    steps = np.array([448, 17, 18, 19, -17, 2.0**-10, 3 * 2.0**-10, 5 * 2.0**-10], np.float32)
    yield _Case("ties-to-even", np.stack([steps, steps / 64]))
    if name.endswith("fp16"):
        yield _Case("rescue", _f32(2.0**-22, -(2.0**-23), 0.0, 2.0**-31))
    else:  # the smallest BF16 subnormal has no finite reciprocal
        yield _Case("refused-tiny", _f32(2.0**-126, 0.0), refused=True)
    yield _Case("zero-row", np.array([[0.0, -0.0], [1.0, -0.0]], np.float32))
    yield _Case("together", _normal(random, (3, 160)))
    if name.endswith("fp16"):
        yield _Case("refused-overflow", np.full((1, 4), 65520.0 * 448, np.float32), refused=True)
    yield from _refusals()


def _nvfp4(random: PlainRandom) -> Iterator[_Case]:
    yield _Case("divisor", _normal(random, (128, 64)))
    spread = _normal(random, (128, 64)) * np.exp2(np.arange(128) % 24 - 12).astype(np.float32)[:, None]
    yield _Case("scales", spread)
    halves = np.zeros((128, 64), np.float32)
    halves[:, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
    halves[0, 16] = 2688
    yield _Case("ties-to-even", halves)
    zeros = np.zeros((128, 64), np.float32)
    zeros[::2] = -0.0
    yield _Case("zero-group", zeros)
    bad = np.zeros((128, 64), np.float32)
    bad[100, 60] = np.nan
    yield _Case("refused-nonfinite", bad, refused=True)


def _imports(name: str, random: PlainRandom) -> Iterator[_Case]:
    record = FORMATS[name]
    if isinstance(record, GgufFormat):
        blocks = random.integers(0, 256, (3, 2 * record.profile.bytes)).astype(np.uint8)
        yield _Case("blocks", blocks, source=record.profile.identifier)
        return
    for kind in MOVED_BLOCKS.get(name, ()):
        identifier = f"gguf:{kind.lower()}"
        if identifier in PROFILES:
            good, bad = _movable(identifier, name, random)
            yield _Case("moved", good, source=identifier)
            if bad is not None:
                yield _Case("refused", bad, source=identifier, refused=True)


def _movable(identifier: str, name: str, random: PlainRandom) -> tuple[Array, Array | None]:
    """Blocks of two rows whose words the format admits, and some that it does not."""
    profile = PROFILES[identifier]
    count = 256 // profile.values
    blocks = np.zeros((2, count), profile.block)
    scales = random.integers(0x0001, 0x7C00, (2, 2)).astype(np.uint16) | np.array([[0], [0x8000]], np.uint16)
    blocks["d"] = np.repeat(scales, count // 2, axis=1).view(np.float16) if count > 1 else scales[:, :1].view("<f2")
    shape = blocks["q"].shape
    if name == "q8_g32_fp16":
        blocks["q"] = random.integers(-127, 128, shape)
    elif name == "q2_g64_fp16" or profile.name == "TQ1_0":  # any code; the digits of any byte are ternary
        blocks["q"] = random.integers(0, 256, shape)
    else:
        codes = random.integers(0, 3, (*shape, 4))
        blocks["q"] = (codes << np.array([0, 2, 4, 6])).sum(axis=-1)
    bad = blocks.copy()
    if name == "q8_g32_fp16":
        bad["q"][1, 2, 5] = -128
    elif profile.name in {"Q2_0", "TQ2_0"} and name == "t2_g128_fp16":
        bad["q"][1, 0, 3] = 0xFF
    else:
        bad["d"][1, 0] = np.inf
    return blocks.view(np.uint8).reshape(2, -1), bad.view(np.uint8).reshape(2, -1)
