"""Damage that knows a file's structure: numbers that size things, members of JSON documents, fields of messages.

Bytes flipped anywhere rarely get past the first check of a header. These changes keep everything else right: lengths
are written anew, so that the reader arrives at the value that is wrong.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from fuzz_harness import SEPARATOR

__all__ = ["mutate"]

_NUMBERS = [0, 1, 2, 3, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**60, 2**62]
_NUMBERS += [2**63 - 1, 2**63, 2**64 - 1]
_TEXTS = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:x",
    "a\0b",
    "x" * 300,
    "\ud800",
    "\u202e",
    "é",
    "-1",
    "2e5",
]
_TEXTS += [
    "gguf:q4_k",
    "nvfp4",
    "bf16",
    "F4",
    "F6_E2M3",
    "F8_E4M3",
    "raw_bytes_v1",
    "row_split_k128_v1",
    "re:(a+)+$",
    "re:[",
]
_OTHERS: list[Any] = [None, True, False, -1, 1.5, 1e300, [], {}, [[]], {"": {}}]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """An input with one to three changes, by a target-independent look at what its files are."""
    parts = data.split(SEPARATOR)
    for _ in range(rng.choice((1, 1, 2, 3))):
        index = rng.randrange(len(parts))
        parts[index] = _mutate_file(parts[index], rng)
    return SEPARATOR.join(parts)


def _mutate_file(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        return _bytes(data, rng)
    if data.startswith(b"NINFER\0"):
        return _artifact(data, rng)
    if data.startswith(b"{"):
        return _document(data, rng)
    if data[8:9] == b"{":
        return _safetensors(data, rng)
    if data.startswith(b"GGUF"):
        return _numbers(data, rng)
    return _message(data, rng)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, repetitions, anywhere."""
    if not data:
        return bytes(rng.randrange(64))
    first = rng.randrange(len(data))
    end = min(len(data), first + rng.choice((1, 4, 8, 32, 512)))
    change: Callable[[], bytes] = rng.choice(
        [
            lambda: data[:first] + bytes([data[first] ^ 1 << rng.randrange(8)]) + data[first + 1 :],
            lambda: data[:first],
            lambda: data[:first] + data[end:],
            lambda: data[:end] + data[first:],
            lambda: data[:first] + bytes(end - first) + data[end:],
            lambda: data[:first] + b"\xff" * (end - first) + data[end:],
        ]
    )
    return change()


def _numbers(data: bytes, rng: random.Random) -> bytes:
    """A number of 4 or 8 bytes in the header becomes another one."""
    size, order = rng.choice((4, 8, 8)), "big" if data[4:5] == b"\0" else "little"
    first = rng.randrange(4, max(5, min(len(data), 4096)))
    number = rng.choice(_NUMBERS) % (1 << 8 * size)
    return data[:first] + number.to_bytes(size, order) + data[first + size :]  # type: ignore[arg-type]


def _artifact(data: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(data[8:16], "little")
    text, payload = data[32 : 32 + size], data[-(-(32 + size) // 4096) * 4096 :]
    text = _document(text, rng)
    head = data[:8] + len(text).to_bytes(8, "little") + data[16:32]
    return (head + text).ljust(-(-(32 + len(text)) // 4096) * 4096, b"\0") + payload


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    text = _document(data[8 : 8 + size], rng)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def _document(text: bytes, rng: random.Random) -> bytes:
    """One value of a JSON document becomes another, moves, is doubled, nests deeply, or is left out."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _bytes(text, rng)
    places = _places(document)
    if not places:
        return _bytes(text, rng)
    owner, key = rng.choice(places)
    change = rng.choice(["leave out", "rename", "move", "double", "nest", "value", "value", "value"])
    if change == "leave out":
        del owner[key]
    elif change == "rename" and isinstance(owner, dict):
        owner[rng.choice(_TEXTS)] = owner.pop(key)
    elif change == "move":
        other, name = rng.choice(places)
        owner[key] = copy.deepcopy(other[name])
    elif change == "double" and isinstance(owner, list):
        owner.insert(key, owner[key])
    elif change == "nest":
        owner[key] = "@deep@"
        return _written(document).replace(b'"@deep@"', b"[" * 3000 + b"]" * 3000)
    else:
        owner[key] = _value(owner[key], rng)
    return _written(document)


def _places(document: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - whatever JSON can say
    """Every value of a document, as what holds it and under which name or number."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in items:
            places.append((one, key))
            waiting.append(value)
    return places


def _value(old: Any, rng: random.Random) -> Any:  # noqa: ANN401
    """Another value: mostly of the same type."""
    others: list[Any] = [rng.choice(_OTHERS), rng.choice(_NUMBERS), rng.choice(_TEXTS)]
    if isinstance(old, int):
        others += [old + rng.choice((-1, 1, 8, -8)), others[1]] * 3
    elif isinstance(old, str):
        others += [others[2]] * 6
    return rng.choice(others)


def _written(document: Any) -> bytes:  # noqa: ANN401
    return json.dumps(document).encode()


def _message(data: bytes, rng: random.Random) -> bytes:
    """One field of a protobuf message, at any depth, becomes another, is doubled, or is left out."""
    fields = list(_fields(data, 0))
    if not fields:
        return _bytes(data, rng)
    key, start, begin, end, path = rng.choice(fields)
    choice = rng.randrange(4)
    if choice == 0:
        new = b""
    elif choice == 1:
        new = data[start:end] * 2
    elif key & 7 == 0:
        new = _varint(key) + _varint(rng.choice([*_NUMBERS, rng.randrange(32)]))
    else:
        content = rng.choice(
            [rng.choice(_TEXTS).encode("utf-8", "surrogatepass"), data[begin:end][:-1], data[begin:end] * 2]
        )
        new = _varint(key) + (_varint(len(content)) if key & 7 == 2 else b"") + content
    for outer_key, outer_start, outer_begin, outer_end in reversed(path):
        inner = data[outer_begin:start] + new + data[end:outer_end]
        new, start, end = _varint(outer_key) + _varint(len(inner)) + inner, outer_start, outer_end
    return data[:start] + new + data[end:]


def _fields(data: bytes, depth: int) -> list[tuple[int, int, int, int, list[tuple[int, int, int, int]]]]:
    """Every field: its key, where it starts, where its content begins and ends, and the messages around it."""
    found: list[tuple[int, int, int, int, list[tuple[int, int, int, int]]]] = []

    def walk(at: int, end: int, path: list[tuple[int, int, int, int]]) -> bool:
        mine = []
        while at < end:
            start = at
            key, at = _read_varint(data, at, end)
            kind = key & 7
            if at < 0 or key >> 3 == 0:
                return False
            if kind == 0:
                begin = at
                _, at = _read_varint(data, at, end)
            elif kind == 2:
                length, begin = _read_varint(data, at, end)
                at = begin + length
            else:
                begin, at = at, at + {1: 8, 5: 4}.get(kind, 1 << 62)
            if begin < 0 or at < 0 or at > end:
                return False
            mine.append((key, start, begin, at, path))
        found.extend(mine)
        for key, start, begin, stop, _ in mine:
            if key & 7 == 2 and depth + len(path) < 8:
                walk(begin, stop, [*path, (key, start, begin, stop)])
        return True

    walk(0, len(data), [])
    return found


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and the byte behind it, which is -1 where there is none."""
    number = shift = 0
    while 0 <= at < end and shift < 70:
        number |= (data[at] & 127) << shift
        if data[at] < 128:
            return number, at + 1
        at, shift = at + 1, shift + 7
    return 0, -1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
