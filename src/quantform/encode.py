"""Encoding arrays: every conversion method on values in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._native import thread_limit
from quantform._scalars import SCALARS
from quantform._sizes import product
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import FORMATS, BlockWords, Format, GgufFormat, Words
from quantform.methods import METHODS, Input, Method, Request, as_method, default_method

__all__ = ["encode"]

# Of an array, and of a number in one.
_BYTES_MAX, _ITEM_MAX = 2**63 - 1, 8


def encode(
    values: npt.ArrayLike | Words,
    format: str | Format,
    method: str | Method | Callable[[Request], Any] | None = None,
    *,
    threads: int | None = None,
    **parameters: Any,  # noqa: ANN401 - each method says what it takes
) -> Words:
    """Make the words of a format from an array.

    Args:
        values: Numbers of any scalar type, the last axis being the one that groups, blocks and rows run along; or, for
            `import_encoded`, words that exist already: a `Words`, or for a `gguf_*` format the blocks as uint8
            `[..., row_bytes]`.
        format: A registered format's name, `"q4_g64_fp16"`.
        method: A conversion method's name, or a Python callable that takes a `quantform.methods.Request`. None takes
            the format's first: `cast_direct`, `grouped_absmax`, `fp8_row_maxabs` or `nvfp4_maxabs`, and
            `import_encoded` for words and for the formats that no values are encoded to.
        threads: How many threads the compiled kernels may use; by default `QUANTFORM_THREADS` of the environment, else
            every CPU of the process. The result does not depend on it.
        parameters: The method's own: `importance` (K numbers) and `negative_scales` for `grouped_search`.

    Returns:
        Legal words of the format, of the values' shape. Direct and grouped formats take any rank (grouped ones at
        least 1), FP8 and NVFP4 matrices.

    Raises:
        UnknownNameError: No format or method has this name.
        UnsupportedError: The method does not make the format, or does not start from what `values` is; or the words do
            not fit into memory.
        ArgumentError: The values' shape or type, the format's type, a parameter, or the number of threads does not fit.
        ValuesError: A value cannot be encoded; names its row and column.
        WordsError: A word is not legal in the format.
    """
    limit = thread_limit(threads)
    target = FORMATS[format] if isinstance(format, str) else format
    if not isinstance(target, Format):
        raise ArgumentError("format is neither a name nor a format", found=type(target).__name__)
    source = _source(values, target)
    if method is not None:
        chosen = as_method(method)
    elif source.values is None:
        chosen = METHODS["import_encoded"]
    else:
        chosen = default_method(target)
    request = Request(format=target, shape=source.shape, inputs=(source,), parameters=parameters, threads=limit)
    try:
        if product(source.shape) * _ITEM_MAX <= _BYTES_MAX:
            return chosen.start(request).words()
    except MemoryError:
        pass
    raise UnsupportedError(
        f"the words of {target} {list(source.shape)} do not fit into memory", hint="Encode some rows at a time"
    )


def _source(values: npt.ArrayLike | Words, target: Format) -> Input:
    if isinstance(values, Words):
        values.format.validate(values)
        return Input.of_words(values)
    try:
        array = np.asarray(values)
    except ValueError as error:  # a ragged list
        raise ArgumentError("values is not an array", found=str(error)) from None
    if array.dtype.newbyteorder("=") not in {scalar.dtype for scalar in SCALARS.values()}:
        raise ArgumentError("values has no number type that a method reads", found=str(array.dtype))
    if isinstance(target, GgufFormat) and array.dtype == np.uint8:
        return Input.of_words(_blocks(array, target))
    return Input.of_values(array)


def _blocks(array: npt.NDArray[np.uint8], target: GgufFormat) -> BlockWords:
    profile = target.profile
    if not array.ndim or not array.shape[-1] or array.shape[-1] % profile.bytes:
        raise ArgumentError(
            f"the rows are not whole {profile.name} blocks",
            expected=f"uint8 [..., a multiple of {profile.bytes}]",
            found=f"shape {list(array.shape)}",
        )
    shape = (*array.shape[:-1], array.shape[-1] // profile.bytes * profile.values)
    return BlockWords(target, shape, array.reshape(-1, array.shape[-1]))
