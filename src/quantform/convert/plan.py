"""What becomes of each tensor: decided from headers alone, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quantform._scalars import SCALARS, Scalar
from quantform.convert.streams import Copy, Demand, Stream, direct_stream
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import FORMATS, Format, block_format
from quantform.layouts import LAYOUTS, Layout
from quantform.packed import PROFILES
from quantform.sources import GGUFTensor, Tensor

__all__ = ["FALLBACKS", "TensorPlan", "home_of", "plan_tensors"]

FALLBACKS = ("bf16", "fp32")
"""Direct formats that a tensor may be decoded to."""

# The registered type that holds every value of a scalar type that has no name of its own in `.ninfer`. The wide ones
# are tried, and refused at the first value that does not fit.
_EXACT_HOMES = {
    "fp16": "fp32",
    "fp64": "fp32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "int64": "int32",
    "uint64": "int32",
}
_FINITE: Demand = "finite"
_EXACT: Demand = "exact"
_WIDE = {"fp64", "uint32", "int64", "uint64"}

_LISTED = 8


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One object to be written.

    Attributes:
        name: The parameter's name, which is the tensor's in the source.
        tensor: The source.
        method: How its words are made: `import_encoded` keeps them, `cast_direct` converts values.
        format: The object's format.
        layout: The object's layout.
        shape: The object's shape; rows of blocks for block formats, else the tensor's own.
        nbytes: Bytes of the object.
        stream: Makes them.
    """

    name: str
    tensor: Tensor
    method: str
    format: Format
    layout: Layout
    shape: tuple[int, ...]
    nbytes: int
    stream: Stream


def home_of(scalar: Scalar) -> str | None:
    """The registered format that holds the values of a scalar type that has no format of its own."""
    return _EXACT_HOMES.get(scalar.name)


def plan_tensors(
    tensors: Iterable[Tensor], *, format: str | None = None, fallback: str | None = None
) -> list[TensorPlan]:
    """Plan every tensor that has elements.

    Args:
        tensors: The source's tensors.
        format: The direct format of every matrix; None keeps each one's words.
        fallback: The direct format of tensors that no registered format holds; None refuses them.

    Raises:
        UnsupportedError: Tensors have words that no format holds; lists them and says what to do.
        ArgumentError: `format` or `fallback` is not among `FALLBACKS`.
    """
    for argument, value in (("format", format), ("fallback", fallback)):
        if value is not None and value not in FALLBACKS:
            known = f"{value} is a format that values are not yet encoded to" if value in FORMATS else repr(value)
            raise ArgumentError(f"{argument} is not a direct format", expected=" or ".join(FALLBACKS), found=known)
    plans, homeless = [], []
    for tensor in tensors:
        if 0 in tensor.shape:
            continue
        plan = _plan(tensor, format, fallback)
        if plan is None:
            homeless.append(tensor)
        else:
            plans.append(plan)
    if homeless:
        raise _refusal(homeless)
    return plans


def _plan(tensor: Tensor, format: str | None, fallback: str | None) -> TensorPlan | None:
    wanted = format if len(tensor.shape) > 1 else None
    own = _own_format(tensor)
    if own is not None and (wanted in {None, own.name} or _is_integer(tensor)):
        shape = tensor.shape if own.category == "direct" else tensor.matrix
        return _planned(tensor, "import_encoded", own, shape, Copy(tensor))
    target, demand = wanted, _FINITE
    if target is None or _is_integer(tensor):
        scalar = SCALARS.get(tensor.format)
        target, demand = (home_of(scalar) if scalar else None), _EXACT
        if fallback is not None and (target is None or tensor.format in _WIDE):
            target, demand = fallback, _FINITE
    if target is None:
        return None
    stream = direct_stream(tensor, SCALARS[target], demand)
    return None if stream is None else _planned(tensor, "cast_direct", FORMATS[target], tensor.shape, stream)


def _own_format(tensor: Tensor) -> Format | None:
    """The registered format that has the tensor's very words."""
    name = block_format(PROFILES[tensor.format]).name if tensor.format in PROFILES else tensor.format
    return FORMATS.get(name)


def _is_integer(tensor: Tensor) -> bool:
    scalar = SCALARS.get(tensor.format)
    return scalar is not None and not scalar.is_float


def _planned(tensor: Tensor, method: str, format: Format, shape: tuple[int, ...], stream: Stream) -> TensorPlan:
    layout = LAYOUTS[format.default_layout]
    return TensorPlan(tensor.name, tensor, method, format, layout, shape, layout.encoded_size(format, shape), stream)


def _refusal(tensors: list[Tensor]) -> UnsupportedError:
    names = ", ".join(f"{tensor.name!r} ({_type_name(tensor)})" for tensor in tensors[:_LISTED])
    more = f" and {len(tensors) - _LISTED} more" if len(tensors) > _LISTED else ""
    undecodable = [tensor for tensor in tensors if tensor.format not in PROFILES and tensor.format not in SCALARS]
    if undecodable:
        hint = f"{undecodable[0].name!r} cannot even be decoded: export the model with types of current ggml"
    else:
        hint = (
            "Pass --fallback bf16 (or fp32) to decode these tensors, or --format to choose one format for every matrix"
        )
    return UnsupportedError(f"no .ninfer format holds the words of {names}{more}", hint=hint)


def _type_name(tensor: Tensor) -> str:
    return tensor.type_name if isinstance(tensor, GGUFTensor) else tensor.format
