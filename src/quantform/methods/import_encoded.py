"""`import_encoded`: words that exist already, as the words of a format that holds them without rounding.

Words of the target format pass as they are. Some of ggml's blocks hold a grouped format's codes and scales in another
order; those are moved. Everything is checked by the target's own rules, and nothing is repaired or recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, UnsupportedError, WordsError
from quantform.formats import BlockWords, Format, GgufFormat, GroupedWords, Nvfp4Words, Words
from quantform.formats.assemble import join
from quantform.formats.checks import hex_word
from quantform.formats.fp8_row import FP8_ROW_FORMATS
from quantform.formats.gguf import GGUF_FORMATS
from quantform.formats.grouped import GROUPED_FORMATS, GroupedFormat
from quantform.formats.nvfp4 import NVFP4
from quantform.methods.method import Job, Method, Options, SpanJob, at_input
from quantform.methods.request import Input, Request, Span
from quantform.methods.values import pieces
from quantform.packed import Profile

__all__ = ["IMPORT_ENCODED", "MOVED_BLOCKS", "move_blocks"]

MOVED_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "q2_g64_fp16": ("Q2_0",),
    "q8_g32_fp16": ("Q8_0",),
    "t2_g128_fp16": ("TQ1_0", "TQ2_0", "Q2_0", "PQ2_0", "PTQ1_0"),
}
"""ggml's (and two other) block types whose codes and scales a grouped format holds, by the format's name."""


def move_blocks(words: BlockWords, profile: Profile, target: GroupedFormat, first_row: int) -> GroupedWords:
    """The codes and scales of whole rows of blocks, in `target`'s order.

    A code is what its block decodes to under a scale of one. A block of more values than a group repeats its scale; the
    blocks of a group of more values than a block must share theirs.

    Raises:
        WordsError: Two blocks of a group have different scale words.
    """
    rows, columns = words.shape
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, target.groups(columns)), np.uint16)
    for some in pieces(rows, columns):
        blocks = np.ascontiguousarray(words.blocks[some]).view(profile.block)
        count = len(blocks)
        own = blocks["d"].astype(np.float16).view(np.uint16)
        scales[some] = _group_scales(own, profile, target, first_row + some.start)
        ones = blocks.reshape(-1).copy()
        ones["d"] = 1
        codes[some] = profile.decode(ones).reshape(count, columns).astype(np.int8)
    return GroupedWords(target, words.shape, codes, scales)


def _group_scales(
    own: npt.NDArray[np.uint16], profile: Profile, target: GroupedFormat, first_row: int
) -> npt.NDArray[np.uint16]:
    if profile.values >= target.group:
        return np.repeat(own, profile.values // target.group, axis=1)
    together = target.group // profile.values
    leaders = own[:, ::together]
    differ = own != np.repeat(leaders, together, axis=1)[:, : own.shape[1]]
    if differ.any():
        row, block = divmod(int(np.argmax(differ)), own.shape[1])
        fp16 = SCALARS["fp16"]
        raise WordsError(
            f"the {profile.name} blocks of a group have different scales, and {target} has one",
            where=f"row {first_row + row}, group {block // together}",
            expected=hex_word(int(leaders[row, block // together]), fp16),
            found=f"{hex_word(int(own[row, block]), fp16)} in block {block}",
            hint="q2_g64_fp16 keeps both",
        )
    return leaders


def _imported(span: Span, words: Words, target: Format) -> Words:
    """The words of one read, in the target format, legal."""
    stored = words.format
    if isinstance(words, BlockWords) and isinstance(stored, GgufFormat):
        stored.validate(words)
        if isinstance(target, GgufFormat) and stored.profile == target.profile:
            return replace(words, format=target)
        if isinstance(target, GroupedFormat) and stored.profile.name in MOVED_BLOCKS.get(target.name, ()):
            moved = move_blocks(words, stored.profile, target, span.place[0])
            try:
                moved.validate(span.place[0])
            except WordsError as error:
                name = stored.profile.name
                error.hint = f"{target} holds only some {name} blocks; choose another format for this tensor"
                raise
            return moved
    elif stored.name == target.name:
        words.validate(span.place[0])
        return words
    raise UnsupportedError(
        f"{target} does not hold the words of {stored} without rounding",
        expected=_sources(target),
        hint="A method that takes values quantizes what the words decode to",
    )


def _sources(target: Format) -> str:
    blocks = MOVED_BLOCKS.get(target.name, ())
    return " or ".join([f"words of {target}", *(f"{name} blocks" for name in blocks)])


@dataclass(frozen=True, slots=True)
class _Nvfp4Job(Job):
    """NVFP4 words of one or more source matrices, each with divisors of its own.

    Attributes:
        request: The request; every input has its divisors.
        owners: The target's divisor words, each for as many rows.
    """

    request: Request
    owners: npt.NDArray[np.uint32]

    @property
    def divisors(self) -> int:
        return len(self.owners)

    def rows(self, first: int, end: int) -> Words:
        share = self.request.rows // len(self.owners)
        parts = [at_input(part, self._encode) for span in self.request.spans(first, end) for part in _by_divisor(span)]
        if first // share != (end - 1) // share and (first % share or end % share):
            raise ArgumentError(
                "the rows asked for belong to several divisors",
                expected=f"whole shares of {share} rows, or rows of one",
                found=(first, end),
            )
        joined = cast("Nvfp4Words", join(self.request.format, (end - first, self.request.columns), parts))
        return replace(joined, divisors=self.owners[first // share : (end - 1) // share + 1])

    def _encode(self, span: Span) -> Words:
        words = cast("Nvfp4Words", _imported(span, span.words(), self.request.format))
        known = cast("npt.NDArray[np.uint32]", span.input.divisors)
        expected = known[span.first // (span.input.rows // len(known))]
        other = words.divisors[words.divisors != expected]
        if other.size:
            raise WordsError(
                "rows of one source matrix have different divisors",
                where=f"row {span.place[0]}",
                expected=hex_word(int(expected), SCALARS["fp32"]),
                found=hex_word(int(other[0]), SCALARS["fp32"]),
            )
        return words


def _by_divisor(span: Span) -> Iterator[Span]:
    """`span` cut where the rows of its input's next divisor begin."""
    share = span.input.rows // len(cast("npt.NDArray[np.uint32]", span.input.divisors))
    first = span.first
    while first < span.end:
        end = min(span.end, (first // share + 1) * share)
        yield Span(span.input, first, end)
        first = end


def _with_divisors(source: Input, probe: Words) -> Input:
    """`source`, its divisor words known and sharing its rows evenly."""
    divisors = cast("Nvfp4Words", probe).divisors if source.divisors is None else source.divisors
    if len(divisors) == 0 or source.rows % len(divisors) or (source.divisors is None and len(divisors) != 1):
        raise ArgumentError(
            "the divisors do not share the rows evenly",
            where=source.name,
            expected=f"{source.rows} rows in equal parts",
            found=f"{len(divisors)} divisors",
        )
    return replace(source, divisors=divisors)


def _stacked(request: Request) -> Job:
    """A job whose divisors are those of all inputs, or the one that several inputs have in common."""
    inputs = [(source, cast("npt.NDArray[np.uint32]", source.divisors)) for source in request.inputs]
    owners = np.concatenate([divisors for _, divisors in inputs])
    if len(inputs) > 1 and (owners == owners[0]).all():
        return _Nvfp4Job(request, owners[:1])
    shares = {source.name: source.rows // len(divisors) for source, divisors in inputs}
    if len(set(shares.values())) > 1:
        raise ArgumentError(
            "matrices with different divisors are stacked only where they have equal row counts",
            found=", ".join(f"{name}: {rows} rows a divisor" for name, rows in shares.items()),
            hint="Keep them apart",
        )
    return _Nvfp4Job(request, owners)


def _begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - there are none
    target = request.format

    def encode(span: Span) -> Words:
        return _imported(span, span.words(), target)

    # The first row of every input shows at once whether its words are of a kind that the target holds.
    probes = [at_input(Span(source, 0, 1), encode) for source in request.inputs]
    if target.name == NVFP4.name:
        known = map(_with_divisors, request.inputs, probes)
        return _stacked(replace(request, inputs=tuple(known)))
    return SpanJob(request, encode)


IMPORT_ENCODED = Method(
    name="import_encoded",
    summary="Keeps words that exist already, moved where a grouped format holds a block's codes; never rounds.",
    takes="words",
    targets=tuple(record.name for record in (*GROUPED_FORMATS, NVFP4, *FP8_ROW_FORMATS, *GGUF_FORMATS)),
    section="2",
    begin=_begin,
)
