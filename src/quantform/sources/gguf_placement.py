"""Where the tensors of one GGUF file lie, and whether what the header declares can be true."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from quantform._sizes import align_up, product
from quantform.errors import GGUFError, TruncatedFileError
from quantform.sources.gguf_types import GGMLType, ggml_type

if TYPE_CHECKING:
    from quantform._files import MappedFile
    from quantform.sources.gguf_header import GGUFHeader, TensorInfo

__all__ = ["Placement", "place_tensors"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The bytes of one tensor.

    Attributes:
        info: What the header says.
        type: What its type number stands for.
        offset: First byte in the file.
        span: Bytes from there to the next tensor, or to the end of the file: padding included, and therefore the most
            that the tensor can have.
        nbytes: Bytes by the type's own geometry; None where that is unknown or does not divide the rows.
        agrees: Whether `nbytes`, padded, fills the span. It always does where the header leaves no gap.
    """

    info: TensorInfo
    type: GGMLType
    offset: int
    span: int
    nbytes: int | None
    agrees: bool


def place_tensors(file: MappedFile, header: GGUFHeader) -> tuple[Placement, ...]:
    """Place every tensor, in the order of the header.

    Types whose block size is unknown or unsettled never fail here: their spans are what the neighbours leave.

    Raises:
        GGUFError: An offset is not aligned, a row is not whole blocks, or tensors overlap.
        TruncatedFileError: Data lies beyond the end of the file.
    """
    sizes = [_size(file, info) for info in header.tensors]
    starts = [_start(file, header, info, size) for info, size in zip(header.tensors, sizes, strict=True)]
    # Tensors without elements take no bytes and may stand anywhere, also where another begins.
    occupied = sorted((starts[index], index) for index, size in enumerate(sizes) if size != 0)
    spans = [0] * len(sizes)
    for (start, index), (following, neighbour) in pairwise([*occupied, (file.size, -1)]):
        spans[index] = following - start
        if neighbour >= 0:
            _check_apart(file, header, sizes, (index, start), (neighbour, following))
    return tuple(
        _placement(header, info, start, span, size)
        for info, start, span, size in zip(header.tensors, starts, spans, sizes, strict=True)
    )


def _size(file: MappedFile, info: TensorInfo) -> int | None:
    """Bytes by the type's geometry; None where that is not to be had."""
    record = ggml_type(info.type)
    columns = info.shape[-1] if info.shape else 1
    if record.settled and columns % (record.values or 1):
        raise GGUFError(
            f"a row of {record.name} is not whole blocks",
            where=f"{file.path}, tensor {info.name!r}",
            expected=f"a last dimension that is a multiple of {record.values}",
            found=list(info.shape),
        )
    if 0 in info.shape:
        return 0
    if record.values is None or record.bytes is None or columns % record.values:
        return None
    return product(info.shape) // record.values * record.bytes


def _start(file: MappedFile, header: GGUFHeader, info: TensorInfo, size: int | None) -> int:
    where = f"{file.path}, tensor {info.name!r}"
    if info.offset % header.alignment:
        raise GGUFError(
            "the tensor's offset is not aligned",
            where=where,
            expected=f"a multiple of {header.alignment}",
            found=info.offset,
        )
    start = align_up(header.end, header.alignment) + info.offset
    if size == 0:
        if start > align_up(file.size, header.alignment):
            raise TruncatedFileError(
                "the tensor begins beyond the file",
                where=where,
                expected=f"byte {start}",
                found=f"{file.size} bytes in all",
            )
        return min(start, file.size)
    exact = size is not None and ggml_type(info.type).settled
    needed = size if exact and size is not None else 1
    if start + needed > file.size:
        raise TruncatedFileError(
            "the tensor's data ends beyond the file",
            where=where,
            expected=f"{'' if exact else 'at least '}{needed} bytes at byte {start}",
            found=f"{max(file.size - start, 0)} bytes there, {file.size} in all",
        )
    return start


def _check_apart(
    file: MappedFile,
    header: GGUFHeader,
    sizes: list[int | None],
    before: tuple[int, int],
    after: tuple[int, int],
) -> None:
    (first, start), (second, following) = before, after
    info, size = header.tensors[first], sizes[first]
    end = start + (size if size is not None and ggml_type(info.type).settled else 1)
    if following < end:
        raise GGUFError(
            f"tensor {info.name!r} overlaps tensor {header.tensors[second].name!r}",
            where=str(file.path),
            expected=f"the second to begin at byte {end} or later",
            found=f"byte {following}",
        )


def _placement(header: GGUFHeader, info: TensorInfo, start: int, span: int, size: int | None) -> Placement:
    agrees = size is not None and size <= span and align_up(size, header.alignment) == align_up(span, header.alignment)
    return Placement(info, ggml_type(info.type), start, span, size, agrees)
