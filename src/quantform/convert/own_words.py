"""What a tensor's own words are worth in `.ninfer`: the format that holds them, or the one that holds their values."""

from __future__ import annotations

from quantform._scalars import SCALARS, Scalar
from quantform.convert.streams import Copy, Demand, Stream, direct_stream
from quantform.errors import QuantformError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat, block_format
from quantform.layouts import LAYOUTS
from quantform.methods.import_encoded import MOVED_BLOCKS
from quantform.packed import PROFILES, Profile
from quantform.packed.outside import OUTSIDE_PROFILES
from quantform.sources import GGUFTensor, RowsView, Tensor, ValuesView
from quantform.sources.conventions import QuantizedWeight

__all__ = ["FALLBACKS", "TERNARY", "cast_stream", "held_by", "home_of", "is_integer", "own_format", "source_form"]

FALLBACKS = ("bf16", "fp32")
"""Direct formats that a tensor may be decoded to."""

TERNARY = FORMATS["t2_g128_fp16"]
"""What holds the words of ternary blocks."""

# The registered type that holds every value of a scalar type that has no name of its own in `.ninfer`. The wide ones
# are tried, and refused at the first value that does not fit.
_EXACT_HOMES = {
    "fp16": "fp32",
    "fp64": "fp32",
    "e4m3fn": "bf16",
    "e5m2": "bf16",
    "e4m3fnuz": "bf16",
    "e5m2fnuz": "bf16",
    "e8m0": "bf16",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "int64": "int32",
    "uint64": "int32",
    "bool": "int32",
}


def home_of(scalar: Scalar) -> str | None:
    """The registered format that holds the values of a scalar type that has no format of its own."""
    return _EXACT_HOMES.get(scalar.name)


def is_integer(tensor: Tensor) -> bool:
    """Whether its numbers are integers."""
    scalar = SCALARS.get(tensor.format)
    return scalar is not None and not scalar.is_float


def own_format(tensor: Tensor) -> Format | None:
    """The registered format that has the tensor's very words, in its default layout; None where there is none.

    Ternary blocks that have no format of their own are codes and scales of `t2_g128_fp16` in another order.
    """
    name = block_format(PROFILES[tensor.format]).name if tensor.format in PROFILES else tensor.format
    record = FORMATS.get(name)
    if record is None and held_by(tensor, TERNARY):
        record = TERNARY
    if record is None or record.category == "direct":
        return record
    runs = tensor.divisor_runs()
    try:
        LAYOUTS[record.default_layout].check(record, tensor.matrix, 1 if runs is None else runs.shares().size)
        if record is TERNARY:
            tensor.words(slice(0, 0))  # a file may contradict the size of such blocks
    except QuantformError:
        return None
    return record


def held_by(tensor: Tensor, target: Format) -> bool:
    """Whether `import_encoded` may bring the tensor's words into a format that is not direct."""
    profile = _profile(tensor)
    if profile is not None:
        same = isinstance(target, GgufFormat) and target.profile == profile
        return same or profile.name in MOVED_BLOCKS.get(target.name, ())
    return tensor.format == target.name


def _profile(tensor: Tensor) -> Profile | None:
    """The record of the tensor's blocks, if it is made of such."""
    if isinstance(tensor, RowsView):
        return _profile(tensor.parts[0])
    record = FORMATS.get(tensor.format)
    if isinstance(record, GgufFormat):
        return record.profile
    profile = PROFILES.get(tensor.format)
    if profile is None and isinstance(tensor, GGUFTensor):
        profile = next((one for one in OUTSIDE_PROFILES.values() if one.ggml_type == tensor.ggml_type), None)
    return profile


def cast_stream(tensor: Tensor, target: DirectFormat, demand: Demand) -> Stream | None:
    """A tensor's values in a direct format, straight from its bytes; None where they are not one value a unit."""
    if not tensor.joined:
        return None
    scalar = SCALARS.get(tensor.format)
    if scalar == target.scalar:
        return Copy(tensor)
    if scalar is not None and (scalar.bits != 8 * scalar.nbytes or scalar.is_float != target.scalar.is_float):
        return None
    return direct_stream(tensor, target.scalar, demand)


def source_form(tensor: Tensor) -> str:
    """What a tensor is stored as, for listings: `"safetensors F32"`, `"gguf:q4_k"`, `"modelopt-nvfp4"`."""
    if isinstance(tensor, (RowsView, ValuesView)):
        return f"{tensor.what} {source_form(tensor.parts[0])}"
    if isinstance(tensor, QuantizedWeight):
        return tensor.convention
    if isinstance(tensor, GGUFTensor):
        return tensor.format if tensor.format in PROFILES else f"gguf {tensor.type_name}"
    kind = {"SafetensorsTensor": "safetensors", "NinferTensor": "ninfer", "ArrayTensor": "array"}
    name = getattr(tensor, "dtype_name", tensor.format)
    return f"{kind.get(type(tensor).__name__, 'other')} {name}"
