"""The header of a safetensors file: what it may say, and that it says it of the bytes that are there.

A file is the header's length (8 bytes, little-endian), the header (JSON that begins with `{`), and the data. The header
maps each tensor's name to its type, its shape and where its bytes begin and end in the data; `__metadata__` maps
strings to strings. The tensors cover the data exactly: nothing overlaps, nothing is left over, no byte can hide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quantform._files import MappedFile
from quantform._scalars import SCALARS, Scalar
from quantform._sizes import U64_MAX
from quantform.errors import FileError, TruncatedFileError
from quantform.sources.safetensors_json import parse_json

__all__ = ["HEADER_MAX", "TYPE_BITS", "Entry", "Header", "read_header"]

HEADER_MAX = 100_000_000
"""The most bytes that the format allows a header."""

_SMALL = 1 << 20  # bytes of a header that may hold anything without making many objects
_OUTLINE = msgspec.json.Decoder(dict[str, dict[str, str | list[int] | int | float | bool | None]])
_DTYPE_MAX = 32  # characters; it is shown in listings

_SCALAR_OF = {
    "BOOL": "bool",
    "F4": "e2m1",
    "F6_E2M3": "e2m3",
    "F6_E3M2": "e3m2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "e5m2",
    "F8_E4M3": "e4m3fn",
    "F8_E8M0": "e8m0",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "fp16",
    "BF16": "bf16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "fp32",
    "F64": "fp64",
    "I64": "int64",
    "U64": "uint64",
}

TYPE_BITS = {"C64": 64, **{name: SCALARS[scalar].bits for name, scalar in _SCALAR_OF.items()}}
"""Bits of an element of every type that the format has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header.

    Attributes:
        name: Its name.
        dtype: The format's name of its type, `"F8_E4M3"`; any other name is kept, for listings.
        shape: Its dimensions.
        offset: First byte in the file.
        nbytes: Bytes of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def known(self) -> bool:
        """Whether the format has the type."""
        return self.dtype in TYPE_BITS

    @property
    def scalar(self) -> Scalar | None:
        """The scalar type of its words; None where this package has none."""
        name = _SCALAR_OF.get(self.dtype)
        return None if name is None else SCALARS[name]


@dataclass(frozen=True, slots=True)
class Header:
    """A whole header.

    Attributes:
        entries: The tensors in the order of their bytes.
        metadata: `__metadata__`, empty where there is none.
        data_offset: First byte of the data in the file.
    """

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]
    data_offset: int


def read_header(file: MappedFile) -> Header:
    """Read and check the header; of the data, only its length is looked at.

    Raises:
        TruncatedFileError: The file ends before the header does.
        FileError: The header is not what the format allows, or does not fit the file.
    """
    where = str(file.path)
    if file.size < 8:
        raise TruncatedFileError(
            "the file ends inside the header's length", where=where, expected="8 bytes", found=file.size
        )
    length = int.from_bytes(file.read(0, 8), "little")
    if length > HEADER_MAX:
        raise FileError(
            "the header is longer than the format allows",
            where=where,
            expected=f"at most {HEADER_MAX} bytes",
            found=length,
            hint="This may be no safetensors file",
        )
    if length > file.size - 8:
        raise TruncatedFileError(
            "the file ends inside the header", where=where, expected=f"{length} bytes", found=file.size - 8
        )
    raw = file.read(8, length)
    if raw[:1] != b"{":
        raise FileError("the header does not begin with '{'", where=f"{where}, byte 8", found=repr(raw[:8]))
    if length > _SMALL:
        _check_outline(raw, where)
    document = parse_json(raw, where, what="header")
    metadata = _metadata(document.pop("__metadata__", {}), where)
    data_offset = 8 + length
    entries = [_entry(name, members, where, data_offset) for name, members in document.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_cover(entries, data_offset, file)
    return Header(tuple(entries), metadata, data_offset)


def _check_outline(raw: bytes, where: str) -> None:
    """Refuse a large header that is not tensors' entries, before millions of other objects are made of it."""
    try:
        _OUTLINE.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FileError("the header is no map of tensors", where=where, found=str(error)[:200]) from None


def _metadata(members: object, where: str) -> dict[str, str]:
    where = f"{where}, __metadata__"
    if not isinstance(members, dict):
        raise FileError("the metadata is no object", where=where, found=type(members).__name__)
    for name, value in members.items():
        if not isinstance(value, str):
            raise FileError(
                f"the metadata {name!r} is no string", where=where, expected="a string", found=type(value).__name__
            )
    return members


def _entry(name: str, members: Any, where: str, data_offset: int) -> Entry:  # noqa: ANN401 - JSON
    where = f"{where}, tensor {name!r}"
    if not isinstance(members, dict):
        raise FileError("the tensor's entry is no object", where=where, found=type(members).__name__)
    missing = [member for member in ("dtype", "shape", "data_offsets") if member not in members]
    if missing:
        raise FileError(f"the tensor's entry has no {missing[0]}", where=where)
    dtype = members["dtype"]
    if not isinstance(dtype, str) or not dtype.isascii() or not dtype.isprintable() or not 0 < len(dtype) <= _DTYPE_MAX:
        raise FileError("dtype is no type's name", where=where, found=repr(dtype)[:_DTYPE_MAX])
    shape = _integers(members["shape"], "shape", where)
    offsets = _integers(members["data_offsets"], "data_offsets", where)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(
            "data_offsets is not a range", where=where, expected="[begin, end], begin <= end", found=list(offsets[:4])
        )
    begin, end = offsets
    entry = Entry(name, dtype, shape, data_offset + begin, end - begin)
    _check_size(entry, where)
    return entry


def _integers(value: object, member: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise FileError(f"{member} is no list", where=where, expected="a list of integers", found=type(value).__name__)
    for index, item in enumerate(value):
        if type(item) is not int or not 0 <= item <= U64_MAX:
            raise FileError(
                f"{member}[{index}] is no unsigned 64-bit integer", where=where, found=repr(item)[:_DTYPE_MAX]
            )
    return tuple(value)


def _check_size(entry: Entry, where: str) -> None:
    """That the bytes are as many as type and shape make; an unknown type makes any number."""
    bits = TYPE_BITS.get(entry.dtype)
    if bits is None:
        return
    total = 0 if 0 in entry.shape else bits
    for dimension in entry.shape if total else ():
        total *= dimension
        if total > U64_MAX * 8:
            raise FileError("the shape has more bytes than 64 bits count", where=where, found=list(entry.shape[:16]))
    if total % 8:
        raise FileError(f"elements of {entry.dtype} do not fill whole bytes", where=where, found=f"{total} bits")
    if total // 8 != entry.nbytes:
        raise FileError(
            f"data_offsets do not fit {entry.dtype} {list(entry.shape[:16])}",
            where=where,
            expected=f"{total // 8} bytes",
            found=entry.nbytes,
        )


def _check_cover(entries: list[Entry], data_offset: int, file: MappedFile) -> None:
    at = data_offset
    for entry in entries:
        if entry.offset != at:
            raise FileError(
                "the tensor overlaps the one before it" if entry.offset < at else "bytes before the tensor are unused",
                where=f"{file.path}, tensor {entry.name!r}",
                expected=f"data_offsets from {at - data_offset} on",
                found=entry.offset - data_offset,
            )
        at += entry.nbytes
    if at > file.size:
        raise TruncatedFileError(
            "the file ends before its tensors do",
            where=f"{file.path}, tensor {entries[-1].name!r}",
            expected=f"{at} bytes",
            found=file.size,
        )
    if at < file.size:
        raise FileError(
            "the file goes on after its last tensor", where=str(file.path), expected=f"{at} bytes", found=file.size
        )
