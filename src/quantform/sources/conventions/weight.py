"""A quantized weight that a checkpoint keeps as several tensors: its face, and reading one tensor beside another."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, as_rows
from quantform._scalars import SCALARS, Scalar, convert, output_dtype
from quantform._sizes import product
from quantform.errors import ArgumentError, FileError, QuantformError, UnsupportedError, WordsError
from quantform.formats import DirectWords, Words
from quantform.sources._protocol import Tensor
from quantform.sources.conventions.part_rules import PartRule

__all__ = [
    "BrokenWeight",
    "Chosen",
    "QuantizedWeight",
    "UnsupportedWeight",
    "flat_words",
    "positive_scalar",
    "require",
    "row_words",
]

Array = npt.NDArray[Any]
Chosen = range | npt.NDArray[np.int64]

_PIECE_VALUES = 1 << 20
_ARRAY_MAX = 2**63 - 1


class QuantizedWeight(Tensor):
    """One logical weight, made of several tensors of a checkpoint.

    Attributes:
        name: The weight's name, `"P.weight"`, whatever the tensors are called.
        shape: Its logical shape.
        format: The registered format that `words` gives, or, where it gives none, the convention's name.
        convention: Which convention the tensors follow.
        companions: The names of the tensors that make it up; the codes come first.
        nbytes: Bytes of all of them.
        importable: Whether `words` works: a registered format holds exactly such words.
    """

    convention: str
    importable = False
    joined = False

    def __init__(self, name: str, shape: tuple[int, ...], format: str, parts: dict[str, Tensor], source: str) -> None:
        self.name = name
        self.shape = shape
        self.format = format
        self.parts = parts
        self.companions = tuple(part.name for part in parts.values())
        self.nbytes = sum(part.nbytes for part in parts.values())
        self._source = source

    def words(self, rows: Rows | None = None) -> Words:
        """The words as they are stored, checked, of all rows or of some (shape `[len(rows), K]`).

        Raises:
            UnsupportedError: No registered format holds them.
            WordsError: A code or scale is not legal; names the tensor, the row and the column or group.
        """
        del rows
        raise UnsupportedError(
            f"weights of the convention {self.convention} are not words of a registered format",
            where=self.where(),
            hint="Decode the values and quantize them again",
        )

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> Array:
        """The values, computed in binary32 and converted once; beside the result, only a bounded piece is held.

        Args:
            dtype: One of the four output types; None is float32.
            rows: Which rows of the flattened leading axes; None is all of them.

        Raises:
            ArgumentError: A row is outside the weight, or `dtype` is another type.
            WordsError: A code or scale is not legal; names the tensor, the row and the column or group.
        """
        try:
            wanted = output_dtype("float32" if dtype is None else dtype, "dtype")
        except ArgumentError as error:
            raise error.at(self.where()) from None
        chosen = self.chosen(rows)
        columns = self.matrix[1]
        out = self._allocate(self.shape if rows is None else (len(chosen), columns), wanted)
        matrix = out.reshape(len(chosen), columns)
        step = max(1, _PIECE_VALUES // max(1, columns))
        for first in range(0, len(chosen), step):
            matrix[first : first + step] = convert(self._values(chosen[first : first + step]), wanted)
        return out

    def part_rules(self) -> dict[str, tuple[PartRule, ...]]:
        """The rules of each of its tensors in which not every word is legal, by role; a word breaks one at most."""
        return {}

    def payload(self) -> npt.NDArray[np.uint8]:
        """A logical weight has no bytes of its own.

        Raises:
            UnsupportedError: Always.
        """
        self._no_bytes()

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """A logical weight has no bytes of its own.

        Raises:
            UnsupportedError: Always.
        """
        del offset, out
        self._no_bytes()

    def where(self, part: str | None = None) -> str:
        """The place of this weight, or of one of its tensors, as errors name it."""
        companion = "" if part is None or self.parts[part].name == self.name else f", {self.parts[part].name!r}"
        return f"{self._source}, tensor {self.name!r}{companion}"

    def chosen(self, rows: Rows | None) -> Chosen:
        """The row numbers meant by `rows`."""
        try:
            return as_rows(slice(None) if rows is None else rows, self.matrix[0])
        except ArgumentError as error:
            raise error.at(self.where()) from None

    def _no_bytes(self) -> NoReturn:
        raise UnsupportedError(
            "the weight is several tensors and has no bytes of its own",
            where=self.where(),
            hint=f"Its tensors do: {', '.join(self.companions)}",
        )

    def _values(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        """The values of some rows in binary32, `[len(chosen), K]`, checked."""
        raise NotImplementedError

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if product(max(1, dimension) for dimension in shape) * dtype.itemsize > _ARRAY_MAX:
            raise UnsupportedError("the values do not fit into an array", where=self.where(), found=list(shape))
        try:
            return np.empty(shape, dtype)
        except MemoryError:
            raise UnsupportedError(
                "the values do not fit into memory", where=self.where(), hint="Decode some rows at a time"
            ) from None


class UnsupportedWeight(QuantizedWeight):
    """A weight in a form that this package knows by name and does not read.

    Attributes:
        reason: What it is.
        hint: What to do instead.
        shape: The logical shape where the checkpoint says it; else the stored shape of its codes, since the logical
            one is the business of the form.
    """

    convention = "unsupported"
    decodable = False

    def __init__(
        self,
        name: str,
        parts: dict[str, Tensor],
        source: str,
        reason: str,
        hint: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        codes = next(iter(parts.values()))
        super().__init__(name, codes.shape if shape is None else shape, "unsupported", parts, source)
        self.reason = reason
        self.hint = hint or "Use an unquantized checkpoint, or dequantize this one with the program that made it"

    def words(self, rows: Rows | None = None) -> Words:
        """Refused.

        Raises:
            UnsupportedError: Always; says why.
        """
        del rows
        raise self._refusal()

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> Array:
        """Refused.

        Raises:
            UnsupportedError: Always; says why.
        """
        del dtype, rows
        raise self._refusal()

    def check(self) -> None:
        """Refused: the weight cannot be used.

        Raises:
            UnsupportedError: Always; says why.
        """
        raise self._refusal()

    def _refusal(self) -> QuantformError:
        return UnsupportedError(
            self.reason, where=self.where(), found=f"tensors {', '.join(self.companions)}", hint=self.hint
        )


class BrokenWeight(UnsupportedWeight):
    """A weight whose tensors lack one, do not fit each other, or contradict the config.

    It can be listed, so that the rest of the checkpoint stays usable; every use raises `error`.

    Attributes:
        error: What is wrong.
    """

    convention = "broken"

    def __init__(self, name: str, parts: dict[str, Tensor], source: str, error: QuantformError) -> None:
        reason = copy.copy(error)
        reason.where = reason.hint = None
        hint = error.hint or "Get the checkpoint again, or quantize the model again with the program that made it"
        super().__init__(name, parts, source, str(reason), hint)
        self.format = "broken"
        self.error = error

    def _refusal(self) -> QuantformError:
        return copy.copy(self.error)  # callers may add a place to what they catch


def row_words(tensor: Tensor, chosen: Chosen) -> Array:
    """The words of some rows of a plain tensor, `[len(chosen), K]`."""
    words = tensor.words(chosen)
    if not isinstance(words, DirectWords):
        raise UnsupportedError("a tensor of a quantized weight is itself quantized", where=tensor.name)
    return words.words


def flat_words(tensor: Tensor, first: int, end: int) -> Array:
    """The words of elements `first` to `end` of a plain tensor, counted in C order, whatever its shape."""
    scalar: Scalar = SCALARS[tensor.format]
    data = np.empty((end - first) * scalar.nbytes, np.uint8)
    tensor.read_into(first * scalar.nbytes, data)
    return data.view(scalar.stored_dtype).astype(scalar.word_dtype, copy=False)


def positive_scalar(weight: QuantizedWeight, part: str, *, reciprocal: bool, index: int = 0) -> np.uint32:
    """The binary32 word of an element of a companion, or of its reciprocal, rounded once.

    Raises:
        WordsError: The number, or its reciprocal, is not finite and positive.
    """
    word = flat_words(weight.parts[part], index, index + 1)[0]
    where = weight.where(part) + (f", element {index}" if weight.parts[part].size > 1 else "")
    stored = float(np.array(word).view(np.float32))
    if not 0 < stored < np.inf:
        raise WordsError(
            "the divisor of the weight is not legal" if not reciprocal else "the scale of the weight is not legal",
            where=where,
            expected="a finite positive binary32 number",
            found=f"0x{int(word):08X} ({stored})",
        )
    if not reciprocal:
        return np.uint32(word)
    with np.errstate(all="ignore"):
        divisor = np.float32(1.0 / stored)
    if not 0 < divisor < np.inf:
        raise WordsError(
            "the scale has no finite positive reciprocal, which the divisor would be",
            where=where,
            expected="1 / scale within binary32",
            found=f"0x{int(word):08X} ({stored})",
        )
    return np.uint32(divisor.view(np.uint32))


def require(weight: QuantizedWeight, part: str, formats: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
    """Check a companion's type and shape.

    Args:
        weight: The weight that it belongs to.
        part: Its role.
        formats: The scalar types that it may have.
        shapes: The shapes that it may have; none given stands for any shape of one element.

    Raises:
        FileError: It has another.
    """
    tensor = weight.parts[part]
    fits = tensor.shape in shapes if shapes else tensor.size == 1
    if tensor.format not in formats or not fits:
        shape = " or ".join(str(list(shape)) for shape in shapes) if shapes else "one element"
        raise FileError(
            "a tensor of the weight has the wrong type or shape",
            where=weight.where(part),
            expected=f"{' or '.join(formats)}, {shape}",
            found=f"{tensor.format} {list(tensor.shape)}",
        )
