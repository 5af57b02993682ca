"""Hypothesis strategies for payloads: any profile, format and shape. They need the extra `test`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._sizes import product
from quantform.errors import ArgumentError, MissingExtraError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat, Nvfp4Format, Nvfp4Words, Words
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES, Profile
from quantform.testing.legal_words import legal_words
from quantform.testing.plain_random import PlainRandom

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "quantform.testing.strategies needs the package hypothesis, which is not installed",
        hint="Install the extra: pip install 'quantform[test]'",
    ) from error

__all__ = ["Payload", "payloads", "shapes", "words"]

_NEAR_EDGES = (1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A legal payload.

    Attributes:
        format: The profile's or format's name.
        shape: The logical shape.
        data: uint8 `[n]`.
        divisors: How many divisors it has.
        words: Its words; None for a profile, every byte of which is legal.
    """

    format: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    divisors: int = 1
    words: Words | None = None


def shapes(format: str) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes that a profile or a format in its layout has, around the edges of groups, blocks and rows."""
    record = _record(format)
    if isinstance(record, Profile):
        return _block_shapes(st.lists(st.integers(0, 4), max_size=2), record)
    if isinstance(record, DirectFormat):
        return st.lists(st.integers(0, 5), max_size=4).map(tuple)
    if isinstance(record, GgufFormat):
        return _block_shapes(st.lists(st.integers(0, 4), min_size=1, max_size=1), record.profile)
    if isinstance(record, Nvfp4Format):
        return st.tuples(st.integers(1, 6).map(lambda n: 128 * n), st.integers(1, 3).map(lambda n: 64 * n))
    return st.tuples(st.integers(1, 5), st.sampled_from(_NEAR_EDGES) | st.integers(1, 300))


def words(format: str, shape: tuple[int, ...] | None = None) -> st.SearchStrategy[Words]:
    """Legal words of a numeric format, of one shape or of any."""
    record = _record(format)
    if isinstance(record, Profile):
        raise ArgumentError("a packed profile has no words", found=format)
    chosen = shapes(format) if shape is None else st.just(shape)
    return chosen.flatmap(lambda dimensions: _words(record, dimensions))


def payloads(format: str, shape: tuple[int, ...] | None = None) -> st.SearchStrategy[Payload]:
    """Legal payloads of a profile, or of a numeric format in its layout, of one shape or of any."""
    record = _record(format)
    if not isinstance(record, Profile):
        return words(format, shape).map(_packed)
    chosen = shapes(format) if shape is None else st.just(shape)
    return chosen.flatmap(lambda dimensions: _blocks(record, dimensions))


def _record(format: str) -> Profile | Format:
    return PROFILES[format] if format in PROFILES else FORMATS[format]


def _block_shapes(lead: st.SearchStrategy[list[int]], profile: Profile) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(lead, st.integers(1, 3)).map(lambda drawn: (*drawn[0], drawn[1] * profile.values))


def _blocks(profile: Profile, shape: tuple[int, ...]) -> st.SearchStrategy[Payload]:
    size = product(shape) // profile.values * profile.bytes
    return st.binary(min_size=size, max_size=size).map(
        lambda data: Payload(profile.identifier, shape, np.frombuffer(data, np.uint8))
    )


def _words(record: Format, shape: tuple[int, ...]) -> st.SearchStrategy[Words]:
    tiles = shape[0] // 128 if isinstance(record, Nvfp4Format) else 1
    divisors = st.sampled_from([count for count in range(1, tiles + 1) if tiles % count == 0])
    return st.builds(
        lambda seed, count: legal_words(record, shape, PlainRandom(str(seed)), count),
        st.integers(0, 2**32 - 1),
        divisors,
    )


def _packed(words: Words) -> Payload:
    data = LAYOUTS[words.format.default_layout].pack(words)
    divisors = words.divisors.size if isinstance(words, Nvfp4Words) else 1
    return Payload(words.format.name, words.shape, data, divisors, words)
