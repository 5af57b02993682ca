"""Metadata of two GGUF files, compared."""

from __future__ import annotations

import numpy as np

from quantform._sizes import PIECE_BYTES, counted, pieces
from quantform._strict_json import shorten
from quantform.errors import ChangedFileError, QuantformError
from quantform.sources import GGUFSource
from quantform.sources.gguf import GGUFArray, GGUFShard
from quantform.sources.gguf_metadata import GGUFField
from quantform.verify.differing import differs
from quantform.verify.report import Report

__all__ = ["compare_gguf"]

_Bytes = tuple[GGUFShard, int, int]
"""A file, where in it, and how many bytes."""

_RULE = "other-metadata"
_LONG = 1 << 20
_EXCERPT = 24


def compare_gguf(report: Report, source: GGUFSource, origin: GGUFSource) -> str:
    """Remark on what differs in version, byte order, and the type and value of each key; says what was compared.

    Of the first files; the others too, where both models have as many.

    Args:
        report: Takes remarks.
        source: The file that is verified.
        origin: The other file.
    """
    alike = len(source.shards) == len(origin.shards)
    pairs = list(zip(source.shards, origin.shards, strict=alike))[: None if alike else 1]
    keys = 0
    for number, (one, two) in enumerate(pairs):
        prefix = f"{one.path.name}, " if number else ""
        if two.header.version != one.header.version:
            _remark(report, f"{prefix}GGUF version", str(two.header.version), str(one.header.version))
        if two.header.big_endian != one.header.big_endian:
            _remark(
                report, f"{prefix}byte order", *("big" if shard.header.big_endian else "little" for shard in (two, one))
            )
        for key in dict.fromkeys([*two.metadata, *one.metadata]):
            if alike or not key.startswith("split."):
                keys += 1
                _compare_key(report, prefix, key, one, two)
    return counted(keys, "key")


def _remark(report: Report, name: str, expected: str, found: str, where: str = "") -> None:
    report.add(differs(_RULE, name, expected, found, where))


def _compare_key(report: Report, prefix: str, key: str, one: GGUFShard, two: GGUFShard) -> None:
    """One key of two files; what differs within a text or an array is told."""
    shards = (two, one)
    if not all(key in shard.metadata for shard in shards):
        _remark(report, prefix + key, *(_shown(shard, key) for shard in shards))
        return
    expected, found = (shard.metadata.field(key) for shard in shards)
    if (expected.type_name, found.type_name) == ("string", "string"):
        at = _first_difference(_text(two, expected), _text(one, found))
        if at is not None:
            long = max(expected.nbytes, found.nbytes) > _EXCERPT * 3
            want, have = (_excerpt(shard, key, at) if long else _shown(shard, key) for shard in shards)
            _remark(report, prefix + key, want, have, f" from byte {at} on" if long else "")
    elif (expected.type_name, expected.count) != (found.type_name, found.count) or expected.element is None:
        want, have = (_shown(shard, key) for shard in shards)
        if want != have:
            _remark(report, prefix + key, want, have)
    else:
        _compare_arrays(report, prefix + key, key, one, two)


def _compare_arrays(report: Report, name: str, key: str, one: GGUFShard, two: GGUFShard) -> None:
    """Two arrays of as many elements of one type."""
    expected, found = two.metadata.field(key), one.metadata.field(key)
    if one.header.big_endian == two.header.big_endian:
        places = ((two, expected.offset, expected.nbytes), (one, found.offset, found.nbytes))
        if _first_difference(*places) is None:
            return
    try:
        place = _unequal(two.metadata[key], one.metadata[key])
    except ChangedFileError:
        raise
    except QuantformError as error:  # a text or boolean that is none
        _remark(report, name, "an array that can be read", error.problem)
        return
    if place is not None:
        path, want, have = place
        _remark(report, name + path, _value_text(want), _value_text(have))


def _unequal(expected: GGUFArray, found: GGUFArray) -> tuple[str, object, object] | None:
    """Where two arrays differ first, and what is there; nothing where they do not."""
    if (expected.element_type, len(expected)) != (found.element_type, len(found)):
        return "", expected, found
    if expected.element_type in {"string", "array"}:
        for index, (want, have) in enumerate(zip(expected, found, strict=True)):
            if isinstance(want, GGUFArray):
                inner = _unequal(want, have)
                if inner is not None:
                    return f"[{index}]{inner[0]}", inner[1], inner[2]
            elif want != have:
                return f"[{index}]", want, have
        return None
    sides = expected.numpy(), found.numpy()
    for first in range(0, len(expected), PIECE_BYTES):
        want, have = (side[first : first + PIECE_BYTES].astype(side.dtype.newbyteorder("=")) for side in sides)
        words = want.view(f"u{want.itemsize}") != have.view(f"u{have.itemsize}")
        if words.any():
            at = int(np.argmax(words))
            return f"[{first + at}]", want[at].item(), have[at].item()
    return None


def _text(shard: GGUFShard, field: GGUFField) -> _Bytes:
    """Where the bytes of a string are, behind its length."""
    return shard, field.offset + 8, field.nbytes - 8


def _first_difference(expected: _Bytes, found: _Bytes) -> int | None:
    """The first byte that only one side has or that differs."""
    (two, second, longest), (one, first, size) = expected, found
    for at, count in pieces(min(size, longest), 1):
        differs = two.file.view(second + at, count) != one.file.view(first + at, count)
        if differs.any():
            return at + int(np.argmax(differs))
    return None if size == longest else min(size, longest)


def _shown(shard: GGUFShard, key: str) -> str:
    """A value with its type."""
    if key not in shard.metadata:
        return "nothing"
    field = shard.metadata.field(key)
    if field.element is not None:
        return f"array of {field.count} {field.element.name}"
    if field.nbytes > _LONG:
        return f"string of {field.nbytes - 8} bytes"
    try:
        return f"{field.type_name} {_value_text(shard.metadata[key])}"
    except ChangedFileError:
        raise
    except QuantformError:
        return f"{field.type_name} {_value_text(shard.metadata.raw(key))}"


def _excerpt(shard: GGUFShard, key: str, at: int) -> str:
    """A text around a byte of it."""
    field = shard.metadata.field(key)
    first, end = max(0, at - _EXCERPT), min(field.nbytes - 8, at + _EXCERPT)
    text = shard.file.view(field.offset + 8 + first, max(0, end - first)).tobytes().decode("utf-8", "replace")
    return f"{'...' if first else ''}{text!r}{'...' if end < field.nbytes - 8 else ''}"


def _value_text(value: object) -> str:
    if isinstance(value, GGUFArray):
        return f"array of {len(value)} {value.element_type}"
    return shorten(repr(value), 80)
