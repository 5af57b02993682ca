"""Writes GGUF files for tests, sound and broken ones, without any of quantform's code.

```python
build([tensor("w", (2, 32), Q4_0, blocks)], {"general.name": "toy", "n": typed("uint64", 7)}, big_endian=True)
```
A metadata value is a Python value (bool, int, float, str, bytes for a string of any bytes, a list of one kind) or
`typed(name, value)`. Shapes are in C order. What a broken file declares wrongly is an argument: `tensor_count=`,
`pair_count=`, `tensor(offset=..., rank=...)`, or raw bytes in place of a value.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BF16",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "Q1_0",
    "Q2_0",
    "Q4_0",
    "Q4_K",
    "Q8_0",
    "GGUFTensorSpec",
    "Raw",
    "Typed",
    "build",
    "part_name",
    "split_metadata",
    "tensor",
    "typed",
]

F32, F16, Q4_0, Q8_0, Q4_K, I8, I16, I32, I64, F64, BF16, Q1_0, Q2_0 = 0, 1, 2, 8, 12, 24, 25, 26, 27, 28, 30, 41, 42

_NUMBERS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Typed:
    """A metadata value of a named type; the type of an array is that of its elements."""

    type: str
    value: Any


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes, under a type number of any kind."""

    type: int
    data: bytes


@dataclass(frozen=True)
class GGUFTensorSpec:
    """A tensor to write; see `tensor`."""

    name: str | bytes
    shape: tuple[int, ...]
    type: int
    data: bytes
    offset: int | None
    rank: int | None


def typed(type: str, value: Any) -> Typed:
    """A value (or a list of values) of one of GGUF's types: `"uint8"` to `"float64"`, `"bool"`, `"string"`."""
    return Typed(type, value)


def tensor(
    name: str | bytes,
    shape: Sequence[int],
    type: int,
    data: bytes = b"",
    *,
    offset: int | None = None,
    rank: int | None = None,
) -> GGUFTensorSpec:
    """A tensor.

    Args:
        name: Its name; bytes for one that is not UTF-8.
        shape: Its dimensions in C order.
        type: ggml's number of its type.
        data: Its bytes, in the byte order of the file.
        offset: What the header says of its place; None is where its data really is.
        rank: What the header says of its rank; None is the truth.
    """
    return GGUFTensorSpec(name, tuple(shape), type, bytes(data), offset, rank)


def build(
    tensors: Sequence[GGUFTensorSpec] = (),
    metadata: Mapping[str, Any] | Mapping[bytes, Any] | Sequence[tuple[str | bytes, Any]] = (),
    *,
    alignment: int = 32,
    version: int = 3,
    big_endian: bool = False,
    magic: bytes = b"GGUF",
    tensor_count: int | None = None,
    pair_count: int | None = None,
    pad_end: bool = True,
) -> bytes:
    """The bytes of a GGUF file.

    Args:
        tensors: Tensors, whose data follows in this order.
        metadata: Keys and values, in order; a sequence of pairs may repeat keys.
        alignment: Of the data; written as `general.alignment` when it is not 32 and the metadata lacks it.
        version: What the file says.
        big_endian: The byte order of every number of the header.
        magic: The first four bytes.
        tensor_count: What the file says; None is the truth.
        pair_count: What the file says; None is the truth.
        pad_end: Whether the last tensor is padded like the others.
    """
    order = ">" if big_endian else "<"
    pairs: list[tuple[str | bytes, Any]] = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    if alignment != 32 and all(key != "general.alignment" for key, _ in pairs):
        pairs.append(("general.alignment", alignment))
    head = magic + struct.pack(
        f"{order}IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    for key, value in pairs:
        head += _string(order, key) + _value(order, value)
    data = b""
    for spec in tensors:
        head += _string(order, spec.name) + struct.pack(
            f"{order}I{len(spec.shape)}QIQ",
            len(spec.shape) if spec.rank is None else spec.rank,
            *reversed(spec.shape),
            spec.type,
            len(data) if spec.offset is None else spec.offset,
        )
        data += spec.data
        if pad_end or spec is not tensors[-1]:
            data += bytes(-len(data) % alignment)
    return head + bytes(-len(head) % alignment if tensors else 0) + data


def split_metadata(number: int, count: int, tensors: int) -> dict[str, Any]:
    """The keys of one part of a split model; parts count from zero."""
    return {
        "split.no": typed("uint16", number),
        "split.count": typed("uint16", count),
        "split.tensors.count": typed("int32", tensors),
    }


def part_name(stem: str, number: int, count: int) -> str:
    """The file name of one part; parts count from zero, their names from one."""
    return f"{stem}-{number + 1:05}-of-{count:05}.gguf"


def _string(order: str, text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(f"{order}Q", len(data)) + data


def _value(order: str, value: Any) -> bytes:
    """Type and value, as a metadata pair has them after its key."""
    if isinstance(value, Raw):
        return struct.pack(f"{order}I", value.type) + value.data
    number, data = _encoded(order, value)
    return struct.pack(f"{order}I", number) + data


def _encoded(order: str, value: Any) -> tuple[int, bytes]:
    if isinstance(value, Typed) and not isinstance(value.value, list):
        return _scalar(order, value.type, value.value)
    if isinstance(value, Typed):
        element = _STRING if value.type == "string" else _NUMBERS[value.type][0]
        items = [_scalar(order, value.type, item)[1] for item in value.value]
    elif isinstance(value, list):
        encoded = [_encoded(order, item) for item in value]
        element = encoded[0][0]
        items = [data for _, data in encoded]
    else:
        return _scalar(order, _type_of(value), value)
    return _ARRAY, struct.pack(f"{order}IQ", element, len(items)) + b"".join(items)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return (
            "uint32" if 0 <= value < 2**32 else "int32" if -(2**31) <= value < 0 else "uint64" if value > 0 else "int64"
        )
    return "float32" if isinstance(value, float) else "string"


def _scalar(order: str, type: str, value: Any) -> tuple[int, bytes]:
    if type == "string":
        return _STRING, _string(order, value)
    number, code = _NUMBERS[type]
    return number, struct.pack(f"{order}{code}", value)
