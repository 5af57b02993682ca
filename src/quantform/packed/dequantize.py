"""The operator `DequantizePacked` on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._native import kernels, thread_limit
from quantform._outputs import OUTPUT_NUMBERS, as_output_bytes, check_output, empty_output
from quantform._rows import ChosenRows, as_kernel_rows
from quantform._scalars import FLOAT_OUTPUTS, convert
from quantform._scalars import output_dtype as checked_output_dtype
from quantform._sizes import as_shape, product
from quantform.errors import ArgumentError
from quantform.packed.profiles import Profile
from quantform.packed.registry import PROFILES

__all__ = ["dequantize_packed", "dequantize_rows", "payload_bytes"]

_INT64_MAX = 2**63 - 1
# Values decoded at a time: temporaries stay in the second-level cache, and the loop's own cost does not show.
_CHUNK_VALUES = 1 << 16
# Takes all six arguments and does plain calls at once, where to look at the arguments here would take longer than to
# decode. It returns None for all others, and for all that is wrong.
_decode_plain = (
    kernels.plain_decoder({name: profile.ggml_type for name, profile in PROFILES.items()}, FLOAT_OUTPUTS)
    if kernels is not None
    else None
)


def payload_bytes(profile: Profile, shape: Sequence[int]) -> int:
    """Exact bytes of a payload of `shape`, by the operator's length rule.

    Raises:
        ArgumentError: Rank 0, a negative or huge dimension, a last dimension that is not whole blocks (also where
            another dimension is zero), or more bytes than a tensor can have.
    """
    return _sized(profile, shape)[1]


def _sized(profile: Profile, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """`shape` as exact integers, and its payload's bytes."""
    dimensions = as_shape(shape, minimum_rank=1)
    if (largest := max(dimensions)) > _INT64_MAX:
        axis = dimensions.index(largest)
        raise ArgumentError(f"dimension {axis} of shape does not fit a signed 64-bit integer", found=largest)
    blocks, rest = divmod(dimensions[-1], profile.values)
    if rest:
        raise ArgumentError(
            f"the last dimension of shape {list(dimensions)} is not whole {profile.name} blocks",
            expected=f"a multiple of {profile.values}",
            found=dimensions[-1],
        )
    size = product(dimensions[:-1]) * blocks * profile.bytes
    if size > _INT64_MAX:
        raise ArgumentError(
            f"the payload of {profile.identifier} {list(dimensions)} has too many bytes",
            expected=f"at most {_INT64_MAX}",
            found=size,
        )
    return dimensions, size


def dequantize_packed(
    x: npt.ArrayLike,
    format: str,
    shape: Sequence[int],
    output_dtype: npt.DTypeLike = "float32",
    *,
    out: npt.NDArray[Any] | None = None,
    threads: int | None = None,
) -> npt.NDArray[Any]:
    """Decode packed blocks: the operator `DequantizePacked` of opset 29.

    Args:
        x: The payload, uint8 `[n]` or any bytes-like object; blocks in C order of `shape`, multibyte fields
            little-endian. It may be read-only, unaligned or strided.
        format: One of the 27 identifiers, case-sensitive, `"gguf:q4_k"`.
        shape: The logical shape, rank 1 or more; the last dimension is a multiple of the block's values.
        output_dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"` (or the NumPy type).
        out: Where to put the values: a C-contiguous, writable array of that shape and type that does not overlap `x`.
        threads: How many threads the compiled kernels may use; by default `QUANTFORM_THREADS` of the environment, else
            every CPU that the process may use. Small outputs take one. The values do not depend on it.

    Returns:
        The values, `shape`-d: computed in binary32 with one rounding an operation and converted once, to nearest with
        ties to even. NaN payloads are unspecified.

    Raises:
        UnknownNameError: `format` is no profile; it takes no parameters.
        ArgumentError: The payload's type or length, the shape, the type or `out` breaks the operator's contract, or
            `threads` is out of range.
    """
    if _decode_plain is not None:
        values: npt.NDArray[Any] | None = _decode_plain(x, format, shape, output_dtype, out, threads)
        if values is not None:
            return values
    profile = PROFILES[format]
    dtype = checked_output_dtype(output_dtype)
    dimensions, size = _sized(profile, shape)
    limit = thread_limit(threads)
    data = _payload(x)
    if data.size != size:
        raise ArgumentError(
            f"the payload of {format} {list(dimensions)} has the wrong length",
            expected=f"{size} bytes",
            found=f"{data.size} bytes",
        )
    if out is None:
        out = empty_output(dimensions, dtype)
    else:
        check_output(out, dimensions, dtype, data, "x")
    if size and kernels is not None:
        number, target = OUTPUT_NUMBERS[dtype], as_output_bytes(out)
        kernels.decode_packed(profile.ggml_type, np.ascontiguousarray(data), number, target, limit)
    elif size:
        _decode_by_numpy(profile, data, out.reshape(-1, profile.values))
    return out


def dequantize_rows(
    blocks: npt.NDArray[np.uint8], profile: Profile, rows: ChosenRows, out: npt.NDArray[Any], threads: int | None = None
) -> None:
    """Decode some rows of whole blocks; no other row is read, and none is copied as a whole.

    Args:
        blocks: uint8 `[N, row bytes]`, C-contiguous.
        profile: What the blocks are.
        rows: Numbers below N, in any order, repeats allowed.
        out: Where to put the values, `[len(rows), K]` of one of the four output types, C-contiguous.
        threads: See `dequantize_packed`.
    """
    limit = thread_limit(threads)
    if not out.size:
        return
    if kernels is not None:
        number, target = OUTPUT_NUMBERS[out.dtype], as_output_bytes(out)
        kernels.decode_block_rows(profile.ggml_type, blocks, *as_kernel_rows(rows), number, target, limit)
        return
    step = max(1, _CHUNK_VALUES // out.shape[1])
    for first in range(0, len(rows), step):
        some = blocks[np.asarray(rows[first : first + step], np.int64)]
        _decode_by_numpy(profile, some.reshape(-1), out[first : first + step].reshape(-1, profile.values))


def _decode_by_numpy(profile: Profile, data: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
    step = _CHUNK_VALUES // profile.values
    with np.errstate(all="ignore"):  # infinities, NaN and lost bits are part of the arithmetic, not accidents
        for first in range(0, len(out), step):
            end = min(first + step, len(out))
            piece = np.ascontiguousarray(data[first * profile.bytes : end * profile.bytes])
            out[first:end] = convert(profile.decode(piece.view(profile.block)), out.dtype)


def _payload(x: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    if isinstance(x, (bytes, bytearray, memoryview)):
        try:
            view = memoryview(x)
        except ValueError as error:
            raise ArgumentError(
                "x is a memoryview that was released", expected="uint8 [n] or a bytes-like object"
            ) from error
        return np.frombuffer(view if view.c_contiguous else view.tobytes(), np.uint8)
    data = np.asarray(x)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ArgumentError(
            "x is not a vector of bytes", expected="uint8 [n]", found=f"{data.dtype} {list(data.shape)}"
        )
    return data
