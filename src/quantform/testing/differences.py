"""What is wrong with what a decoder or an encoder made of a vector, and which rule says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform._scalars import FLOAT_OUTPUTS, convert
from quantform.formats import Words
from quantform.layouts import LAYOUTS
from quantform.testing.legal_words import arrays_of
from quantform.testing.outputs import output_rules
from quantform.testing.unrounded import unrounded
from quantform.testing.vectors import EncoderVector, Vector

__all__ = ["Difference", "exercised", "no_result", "values_differences", "words_difference"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing that is wrong about one vector by one rule.

    Attributes:
        rule: The rule's identifier.
        vector: The vector's identifier.
        failure: `"failed to run"` where there is nothing to compare: the code under test raised an error; the program
            failed, was killed, or took too long; or the result is missing or of another size, type or shape. Else
            `"wrong values"`: numbers, words or padding differ, or an encoder took what it must refuse.
        output: The output type that was asked for; empty for an encoder.
        problem: What is wrong, for short.
        where: Which element, block or word; empty where the whole result is wrong.
        expected: The value and its bits, or what else was expected.
        found: The same of what was found.
        detail: What else is known: what a program wrote to standard error, or where an error was raised.
        cause: The error that the code under test raised.
    """

    rule: str
    vector: str
    failure: Literal["wrong values", "failed to run"]
    output: str = ""
    problem: str
    where: str = ""
    expected: str = ""
    found: str = ""
    detail: str = ""
    cause: BaseException | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        kind = f" as {self.output}" if self.output else ""
        parts = [f"{self.vector}{kind}: {self.problem}", self.where, self.expected_and_found]
        return "; ".join(filter(None, parts)) + (f"\n{self.detail}" if self.detail else "")

    @property
    def expected_and_found(self) -> str:
        """Both, as far as they are known, in one phrase."""
        parts = (("expected", self.expected), ("found", self.found))
        return ", ".join(f"{name} {text}" for name, text in parts if text)


def exercised(vector: Vector, output: str) -> dict[str, Array]:
    """The elements of a vector by the rules that say what their conversion to an output type gives."""
    if output == "float32":
        return {}
    wide = _wide(vector, output)
    return _kinds(vector, output) | ({} if wide is None else {wide.rule: wide.shows})


def _kinds(vector: Vector, output: str) -> dict[str, Array]:
    return output_rules(output, vector.values[output], vector.values["float64"])


class _Wide(NamedTuple):
    """What a decoder gives that makes another type of values that were not rounded to binary32.

    Attributes:
        rule: The rule that says that they are.
        values: The values that it gives.
        shows: Which of them that mistake changes. Of types narrower than binary32 it moves some to the number above and
            some to that below, so that it cannot be taken for wrong rounding.
    """

    rule: str
    values: Array
    shows: Array


def _wide(vector: Vector, output: str) -> _Wide | None:
    found = unrounded(vector)
    if found is None:
        return None
    rule, exact = found
    expected = vector.values[output]
    values = convert(exact, FLOAT_OUTPUTS[output])
    shows = ~_same(values, expected) & (exact != 0)
    with np.errstate(invalid="ignore"):  # NaN
        up = shows & (np.abs(values) > np.abs(expected))
    if output == "float64":
        return _Wide(rule, values, shows) if shows.any() else None
    return _Wide(rule, values, shows) if up.any() and (shows & ~up).any() else None


def values_differences(
    vector: Vector, output: str, found: object, right: npt.NDArray[np.bool_] | None
) -> tuple[list[Difference], npt.NDArray[np.bool_] | None]:
    """Compare values with those of a vector, bit for bit, NaN payloads aside.

    Args:
        vector: The vector.
        output: The output type.
        found: What the decoder gave.
        right: Which binary32 values of the same vector were right; where they were, a fault is one of conversion.

    Returns:
        The first difference by each rule that is broken, and which elements are right; None if there are no elements to
        compare because the result is no array of the type and shape.
    """
    expected = vector.values[output]
    array = _as_output(found, output)
    if array is None or array.shape != expected.shape:
        kind = (
            f"{found.dtype} {list(found.shape)}"
            if isinstance(found, (np.ndarray, np.generic))
            else type(found).__name__
        )
        wanted = f"{output} {list(expected.shape)}"
        problem = "the result has the wrong type or shape"
        return [no_result(vector, problem, wanted, kind, output)], None
    same = _same(array, expected)
    if same.all():
        return [], same
    blamed = {vector.rule: ~same}
    if right is not None and output != "float32":
        blamed = {vector.rule: ~same & ~right, **_conversions(vector, output, array, ~same & right)}
    return [_value_difference(vector, rule, output, mask, array) for rule, mask in blamed.items() if mask.any()], same


def _conversions(vector: Vector, output: str, found: Array, wrong: Array) -> dict[str, Array]:
    """Values that are wrong though they are right in binary32, by the rule that is broken.

    Where leaving binary32 out explains all that it would change, that is the mistake; else each is of its kind.
    """
    wide, blamed = _wide(vector, output), dict[str, Array]()
    if wide is not None and ((wrong & _same(found, wide.values)) | ~wide.shows).all():
        blamed[wide.rule] = wide.shows
        wrong = wrong & ~wide.shows
    return blamed | {rule: wrong & mask for rule, mask in _kinds(vector, output).items()}


def _same(one: Array, other: Array) -> Array:
    """Which elements have the same bits, or are both NaN."""
    with np.errstate(invalid="ignore"):  # signaling NaN
        same: Array = (_words(one) == _words(other)) | (np.isnan(one) & np.isnan(other))
    return same


def _as_output(found: object, output: str) -> Array | None:
    """`found` as an array of the output type; bfloat16 may come as plain 16-bit words."""
    if not isinstance(found, (np.ndarray, np.generic)):
        return None
    array, wanted = np.asarray(found), FLOAT_OUTPUTS[output]
    if output == "bfloat16" and (array.dtype == np.uint16 or array.dtype == np.dtype("V2")):
        array = array.view(wanted)
    return array if array.dtype == wanted else None


def _words(values: Array) -> Array:
    words: Array = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(values.shape)
    return words


def _value_difference(vector: Vector, rule: str, output: str, mask: Array, found: Array) -> Difference:
    flat = int(np.argmax(mask))
    index = [int(part) for part in np.unravel_index(flat, mask.shape)]
    _, columns = matrix_shape(vector.shape)
    row, column = divmod(flat, max(columns, 1))
    block, lane = divmod(column, max(vector.block, 1))
    expected = vector.values[output]
    count = int(np.count_nonzero(mask))
    return _difference(
        vector,
        rule,
        output,
        f"{count} of {mask.size} values differ",
        where=f"element {index}: row {row}, block {block}, value {lane} of it",
        expected=_shown(expected[tuple(index)]),
        found=_shown(found[tuple(index)]),
    )


def _shown(value: np.generic) -> str:
    """A number with its bits: `"-0.0 (0x80000000)"`."""
    word = int(np.asarray(value).view(f"u{value.dtype.itemsize}"))
    number = int(value) if value.dtype.kind in "iu" else float(value)
    return f"{number!r} (0x{word:0{2 * value.dtype.itemsize}X})"


def no_result(
    vector: Vector | EncoderVector,
    problem: str,
    expected: str,
    found: str,
    output: str = "",
    *,
    detail: str = "",
    cause: BaseException | None = None,
) -> Difference:
    """The result is none that can be compared."""
    return Difference(
        rule=vector.rule,
        vector=vector.identifier,
        failure="failed to run",
        output=output,
        problem=problem,
        expected=expected,
        found=found,
        detail=detail,
        cause=cause,
    )


def _difference(
    vector: Vector | EncoderVector,
    rule: str,
    output: str,
    problem: str,
    *,
    where: str = "",
    expected: str = "",
    found: str = "",
) -> Difference:
    return Difference(
        rule=rule,
        vector=vector.identifier,
        failure="wrong values",
        output=output,
        problem=problem,
        where=where,
        expected=expected,
        found=found,
    )


def words_difference(vector: EncoderVector, found: object) -> Difference | None:
    """Compare what an encoder made with the words of a vector.

    Args:
        vector: The vector.
        found: A payload in the vector's layout, bytes or a uint8 vector; arrays of words by name; or `Words`.
    """
    if vector.payload is None:
        return _difference(
            vector, vector.rule, "", "the source was encoded", expected="a refusal", found=type(found).__name__
        )
    if isinstance(found, Words):
        arrays: Mapping[str, Any] = arrays_of(found)
    elif isinstance(found, Mapping):
        arrays = found
    else:
        payload = _as_bytes(found)
        if payload is None or payload.size != vector.payload.size:
            size = type(found).__name__ if payload is None else f"{payload.size} bytes"
            problem = "the payload has the wrong length"
            return no_result(vector, problem, f"{vector.payload.size} bytes", size)
        divisors = vector.words["divisors"].size if "divisors" in vector.words else 1
        arrays = arrays_of(LAYOUTS[vector.layout].unpack(payload, vector.format, vector.shape, divisors))
        difference = _arrays_difference(vector, arrays)
        wrong = np.flatnonzero(payload != vector.payload)
        if difference is None and wrong.size:
            at = int(wrong[0])
            return _difference(
                vector,
                vector.rule,
                "",
                f"{wrong.size} bytes of padding differ",
                where=f"byte {at} of the payload",
                expected=f"0x{vector.payload[at]:02X}",
                found=f"0x{payload[at]:02X}",
            )
        return difference
    return _arrays_difference(vector, arrays)


def _as_bytes(found: object) -> npt.NDArray[np.uint8] | None:
    if isinstance(found, (bytes, bytearray, memoryview)):
        return np.frombuffer(found, np.uint8)
    if isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.ndim == 1:
        return found
    return None


def _with_sign_of(array: Array, words: Array) -> Array:
    """Integers of the same width as words of the type that the words have: it is bits that are compared."""
    integers = array.dtype.kind in "iu" and array.dtype.itemsize == words.dtype.itemsize and array.dtype.isnative
    return array.view(words.dtype) if integers else array


def _arrays_difference(vector: EncoderVector, arrays: Mapping[str, Any]) -> Difference | None:
    if vector.words.keys() - arrays.keys():
        problem = "the encoder gave other arrays"
        return no_result(vector, problem, ", ".join(sorted(vector.words)), ", ".join(map(str, arrays)) or "none")
    for name in sorted(vector.words, reverse=True):  # scales explain codes
        expected, array = vector.words[name], _with_sign_of(np.asarray(arrays[name]), vector.words[name])
        if array.shape != expected.shape or array.dtype != expected.dtype:
            return no_result(
                vector,
                f"the {name} have the wrong type or shape",
                f"{expected.dtype} {list(expected.shape)}",
                f"{array.dtype} {list(array.shape)}",
            )
        wrong = array != expected
        if wrong.any():
            index = [int(part) for part in np.unravel_index(int(np.argmax(wrong)), wrong.shape)]
            return _difference(
                vector,
                vector.rule,
                "",
                f"{np.count_nonzero(wrong)} of {wrong.size} {name} differ",
                where=f"{name}{index}",
                expected=_shown(expected[tuple(index)]),
                found=_shown(array[tuple(index)]),
            )
    return None
