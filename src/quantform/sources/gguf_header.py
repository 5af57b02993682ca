"""The header of one GGUF file: what it declares, read within its bounds and checked on its own terms.

```
"GGUF"  u32 version  u64 tensors  u64 pairs
pairs:    string key, u32 type, value
tensors:  string name, u32 rank, u64 dimensions[rank], u32 type, u64 offset
padding to a multiple of general.alignment, then the data; offsets count from there
```
A string is a u64 length and that many bytes. Where the version reads as a small number in big-endian order, everything
is big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantform._sizes import align_up, product
from quantform.errors import GGUFError, TruncatedFileError
from quantform.sources.gguf_cursor import Cursor
from quantform.sources.gguf_metadata import GGUFField, GGUFMetadata, read_field

if TYPE_CHECKING:
    from quantform._files import MappedFile

__all__ = ["GGUFHeader", "TensorInfo", "read_header"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_PREAMBLE = 24
# The fewest bytes of a metadata pair (empty key, type, one byte) and of a tensor (empty name, rank 0, type, offset).
_PAIR_BYTES = 8 + 4 + 1
_TENSOR_BYTES = 8 + 4 + 4 + 8
_RANK = 4
_COUNT_MAX = 2**60 - 1  # so that eight bytes an element still make an array
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT_MAX = 1 << 30
# Several times the tensors of any model, of experts one by one too: a record costs much more memory than bytes.
_RECORDS_MAX = 1 << 18

_OTHER_FILES = {
    b"lmgg": "This is a model file from before GGUF; convert it with a program of its time",
    b"fmgg": "This is a model file from before GGUF; convert it with a program of its time",
    b"tjgg": "This is a model file from before GGUF; convert it with a program of its time",
    b"vers": "This looks like a Git LFS pointer; download the file that it stands for",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of one tensor.

    Attributes:
        name: Its name.
        shape: Dimensions in C order, last axis fastest; the file has them reversed.
        type: ggml's type number.
        offset: First byte, counted from the start of the data.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the data of one file.

    Attributes:
        version: 2 or 3.
        big_endian: The byte order of the whole file, data included.
        metadata: Keys and lazy values.
        tensors: In the order of the header.
        alignment: What tensors' offsets are multiples of.
        end: First byte after the last tensor's entry.
        data_offset: Where offsets count from, `end` rounded up; never beyond the file.
    """

    version: int
    big_endian: bool
    metadata: GGUFMetadata
    tensors: tuple[TensorInfo, ...]
    alignment: int
    end: int
    data_offset: int


def read_header(file: MappedFile) -> GGUFHeader:
    """Read and check the header of `file`.

    Raises:
        GGUFError: It is no GGUF file, of a version that is not read, or breaks the format's rules.
        TruncatedFileError: Something that the header declares does not fit the file.
    """
    version, big_endian = _version(file)
    cursor = Cursor(file, 8, big_endian=big_endian)
    tensor_count = cursor.u64("the number of tensors")
    pair_count = cursor.u64("the number of metadata pairs")
    cursor.require(pair_count * _PAIR_BYTES + tensor_count * _TENSOR_BYTES, _census(pair_count, tensor_count))
    if max(pair_count, tensor_count) > _RECORDS_MAX:
        raise GGUFError(
            "the header has more than is read",
            where=f"{file.path}, byte 8",
            expected=f"at most {_RECORDS_MAX} metadata pairs, and as many tensors",
            found=_census(pair_count, tensor_count).removeprefix("a header of "),
        )
    metadata = GGUFMetadata(file, _pairs(cursor, pair_count), big_endian=big_endian)
    alignment = _alignment(file, metadata)
    tensors = _tensors(cursor, tensor_count)
    return GGUFHeader(
        version=version,
        big_endian=big_endian,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        end=cursor.at,
        data_offset=min(align_up(cursor.at, alignment), file.size),
    )


def _census(pairs: int, tensors: int) -> str:
    return f"a header of {pairs} metadata pairs and {tensors} tensors"


def _version(file: MappedFile) -> tuple[int, bool]:
    where = str(file.path)
    start = file.read(0, min(file.size, _PREAMBLE))
    if start[:4] != _MAGIC[: len(start)] or not start:
        raise GGUFError(
            "not a GGUF file",
            where=where,
            expected=f"the first bytes {_MAGIC!r}",
            found=repr(start[:4]) if start else "an empty file",
            hint=_OTHER_FILES.get(start[:4]),
        )
    if len(start) < _PREAMBLE:
        raise TruncatedFileError(
            "the file ends within its first fields",
            where=where,
            expected=f"{_PREAMBLE} bytes at least",
            found=f"{len(start)} bytes",
        )
    # One magic serves both byte orders: the wrong one shows a version whose low half is zero.
    little = int.from_bytes(start[4:8], "little")
    big_endian = little != 0 and little & 0xFFFF == 0
    version = int.from_bytes(start[4:8], "big") if big_endian else little
    if version not in _VERSIONS:
        old = "Version 1 counts in 32 bits and is not read; convert the file with a program that knows both versions"
        raise GGUFError(
            f"GGUF version {version} is not read",
            where=where,
            expected=" or ".join(map(str, _VERSIONS)),
            found=version,
            hint=old if version == 1 else "A newer program may have written the file, or it is damaged",
        )
    return version, big_endian


def _pairs(cursor: Cursor, count: int) -> dict[str, GGUFField]:
    fields: dict[str, GGUFField] = {}
    for number in range(count):
        cursor.within = f"metadata pair {number + 1} of {count}"
        start = cursor.at
        key = cursor.name(f"the key of metadata pair {number + 1} of {count}")
        if key in fields:
            raise GGUFError(f"metadata key {key!r} appears twice", where=f"{cursor.file.path}, byte {start}")
        cursor.within = f"metadata key {key!r}"
        fields[key] = read_field(cursor)
    return fields


def _alignment(file: MappedFile, metadata: GGUFMetadata) -> int:
    if _ALIGNMENT_KEY not in metadata:
        return _DEFAULT_ALIGNMENT
    field = metadata.field(_ALIGNMENT_KEY)
    where = f"{file.path}, metadata key {_ALIGNMENT_KEY!r}"
    if field.type.dtype is None or field.type.dtype.kind != "u":
        raise GGUFError(
            "the alignment has the wrong type", where=where, expected="an unsigned integer", found=field.type_name
        )
    value = metadata.integer(_ALIGNMENT_KEY) or 0
    if value < 8 or value > _ALIGNMENT_MAX or value & (value - 1):
        raise GGUFError(
            "the alignment is not possible",
            where=where,
            expected=f"a power of two, 8 to {_ALIGNMENT_MAX}",
            found=value,
        )
    return value


def _tensors(cursor: Cursor, count: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for number in range(count):
        cursor.within = f"tensor {number + 1} of {count}"
        start = cursor.at
        name = cursor.name(f"the name of tensor {number + 1} of {count}")
        if name in tensors:
            raise GGUFError(f"tensor {name!r} appears twice", where=f"{cursor.file.path}, byte {start}")
        cursor.within = f"tensor {name!r}"
        shape = _shape(cursor)
        tensors[name] = TensorInfo(name, shape, cursor.u32("the type"), cursor.u64("the offset"))
    return tuple(tensors.values())


def _shape(cursor: Cursor) -> tuple[int, ...]:
    start = cursor.where()
    rank = cursor.u32("the rank")
    if rank > _RANK:
        raise GGUFError("the tensor has too many dimensions", where=start, expected=f"at most {_RANK}", found=rank)
    shape = tuple(cursor.u64(f"dimension {axis}") for axis in range(rank))[::-1]
    # Zeros do not excuse the others: rows are counted, and arrays made, from them.
    if product(dimension for dimension in shape if dimension) > _COUNT_MAX:
        raise GGUFError(
            "the tensor has more elements than can be counted",
            where=start,
            expected=f"dimensions whose product is at most {_COUNT_MAX}",
            found=list(shape),
        )
    return shape
