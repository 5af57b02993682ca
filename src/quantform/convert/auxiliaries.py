"""What a use has beside its parameter: values of three known roles, checked and brought to words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from quantform.container import Binding, TensorRecord
from quantform.errors import ArgumentError
from quantform.formats import FORMATS, DirectFormat
from quantform.sources import NinferSource

__all__ = ["COLUMNS", "DIVISOR", "SIGNS", "SIGN_MULTIPLE", "Auxiliary", "auxiliary", "divisor_of", "stored_auxiliary"]

DIVISOR = "activation_input_divisor"
SIGNS = "hadamard_signs"
COLUMNS = "input_columns"
SIGN_MULTIPLE = 1024


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """A direct tensor: its format, its shape and its little-endian bytes."""

    format: str
    shape: tuple[int, ...]
    data: bytes


def divisor_of(word: np.uint32) -> Auxiliary:
    """An activation divisor from its binary32 word.

    Raises:
        ArgumentError: It is not finite and positive.
    """
    value = np.array(word, np.uint32).view(np.float32)[()]
    if not 0 < value < np.inf:
        raise ArgumentError(f"{DIVISOR} is not finite and positive", found=str(value))
    return Auxiliary("fp32", (), np.array(word, "<u4").tobytes())


def auxiliary(role: str, value: Any, columns: int) -> Auxiliary:  # noqa: ANN401 - whatever a recipe gave
    """The words of what a recipe gave for a role.

    Args:
        role: One of the known roles.
        value: See `Recipe.use`; or an `Auxiliary`, which is checked like any other.
        columns: K of the parameter.

    Raises:
        ArgumentError: It is not what the role takes.
    """
    if isinstance(value, Auxiliary):
        value = _values(value)
    if role == DIVISOR:
        return _divisor(value)
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        given = np.asarray(None)
    if given.dtype.kind not in "iuf" and given.dtype != ml_dtypes.bfloat16:
        raise ArgumentError(f"{role} takes numbers", found=f"{given.dtype} {list(given.shape)}")
    if given.shape != (columns,):
        raise ArgumentError(f"{role} takes one number a column", expected=[columns], found=list(given.shape))
    numbers = given.astype(np.float64)
    if role == SIGNS:
        if columns % SIGN_MULTIPLE:
            raise ArgumentError(
                f"{role} is for whole transforms", expected=f"K a multiple of {SIGN_MULTIPLE}", found=columns
            )
        _refuse(role, np.abs(numbers) != 1, numbers, "+1 or -1")
        return Auxiliary("bf16", (columns,), numbers.astype(ml_dtypes.bfloat16).view(np.uint16).astype("<u2").tobytes())
    legal = (numbers == np.trunc(numbers)) & (numbers >= 0) & (numbers < columns)
    _refuse(role, ~legal, numbers, f"a column from 0 to {columns - 1}")
    order = numbers.astype("<i4")
    twice = np.bincount(order, minlength=columns) > 1
    if twice.any():
        raise ArgumentError(
            f"{role} is no permutation", expected="each column once", found=f"column {int(np.argmax(twice))} twice"
        )
    return Auxiliary("int32", (columns,), order.tobytes())


def stored_auxiliary(source: NinferSource, binding: Binding) -> Auxiliary:
    """An auxiliary of another artifact, as it is stored there.

    Raises:
        ArgumentError: It is no direct tensor.
    """
    extents: list[tuple[str, tuple[int, int] | None]] = [(part.object, part.range) for part in binding.parts or ()] or [
        (str(binding.object), None)
    ]
    data, format = b"", ""
    shape: tuple[int, ...] = ()
    for id, span in extents:
        record = source.artifact.objects[id]
        format_record = FORMATS.get(record.format) if isinstance(record, TensorRecord) else None
        if not isinstance(format_record, DirectFormat) or (format and format != format_record.name):
            raise ArgumentError("an auxiliary is no direct tensor", where=f"{source.path}, object {id!r}")
        assert isinstance(record, TensorRecord)  # noqa: S101 - it has a format
        size = format_record.scalar.nbytes
        begin, end = span or (0, record.elements)
        piece = np.empty((end - begin) * size, np.uint8)
        source.objects[id].read_into(begin * size, piece)
        data += piece.tobytes()
        format = format_record.name
        shape = record.shape if span is None else (len(data) // size,)
    return Auxiliary(format, shape, data)


def _divisor(value: Any) -> Auxiliary:  # noqa: ANN401
    if isinstance(value, (bytes, bytearray)) and len(value) == 4:
        return divisor_of(np.uint32(int.from_bytes(value, "little")))
    number = np.asarray(value) if not isinstance(value, (str, bytes, bytearray)) else np.asarray(None)
    if number.size != 1 or number.dtype.kind not in "iuf":
        raise ArgumentError(
            f"{DIVISOR} is no number",
            expected="a positive number, or the four bytes of one in binary32",
            found=repr(value),
        )
    with np.errstate(all="ignore"):
        return divisor_of(np.uint32(number.reshape(1).astype(np.float32).view(np.uint32)[0]))


def _values(given: Auxiliary) -> Any:  # noqa: ANN401
    record = FORMATS[given.format]
    assert isinstance(record, DirectFormat)  # noqa: S101 - only direct ones are made
    words = np.frombuffer(given.data, record.scalar.stored_dtype).astype(record.scalar.word_dtype)
    return words.view(record.scalar.dtype).reshape(given.shape)


def _refuse(role: str, bad: np.ndarray[Any, np.dtype[np.bool_]], numbers: Any, expected: str) -> None:  # noqa: ANN401
    if bad.any():
        column = int(np.argmax(bad))
        count = int(bad.sum())
        raise ArgumentError(
            f"{role} holds a number that it must not",
            where=f"column {column}",
            expected=expected,
            found=f"{numbers[column]}, {'the only one' if count == 1 else f'the first of {count}'}",
        )
