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
    starts = [_start(file, header, info) for info in header.tensors]
    _check_whole(file, header, sizes, starts)
    starts = [min(start, file.size) for start in starts]  # of those without elements
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


def _start(file: MappedFile, header: GGUFHeader, info: TensorInfo) -> int:
    if info.offset % header.alignment:
        raise GGUFError(
            "the tensor's offset is not aligned",
            where=f"{file.path}, tensor {info.name!r}",
            expected=f"a multiple of {header.alignment}",
            found=info.offset,
        )
    return align_up(header.end, header.alignment) + info.offset


def _check_whole(file: MappedFile, header: GGUFHeader, sizes: list[int | None], starts: list[int]) -> None:
    """Every tensor must end within the file; one without elements may stand behind the last one's padding."""
    ends = [_least_end(*each) for each in zip(header.tensors, sizes, starts, strict=True)]
    limits = [align_up(file.size, header.alignment) if size == 0 else file.size for size in sizes]
    cut = [index for index, (end, limit) in enumerate(zip(ends, limits, strict=True)) if end > limit]
    if cut:
        first = min(cut, key=starts.__getitem__)
        raise TruncatedFileError(
            f"the file ends before its tensors do: {len(cut)} of {len(ends)} are not whole",
            where=f"{file.path}, tensor {header.tensors[first].name!r} at byte {starts[first]}",
            expected=f"at least {max(ends)} bytes",
            found=file.size,
        )


def _least_end(info: TensorInfo, size: int | None, start: int) -> int:
    """The byte behind a tensor; where its type's geometry is not settled, behind its first byte."""
    exact = size == 0 or ggml_type(info.type).settled
    return start + (size if size is not None and exact else 1)


def _check_apart(
    file: MappedFile,
    header: GGUFHeader,
    sizes: list[int | None],
    before: tuple[int, int],
    after: tuple[int, int],
) -> None:
    (first, start), (second, following) = before, after
    info = header.tensors[first]
    end = _least_end(info, sizes[first], start)
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
