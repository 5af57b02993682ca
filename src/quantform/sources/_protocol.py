"""The one face of every file of tensors, whatever its format.

What is *not* promised: that a tensor is contiguous in its file, that two reads return the same array, or that a read is
free; each may touch the disk. What is: nothing is read before it is asked for, and every read is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from quantform._files import Closing
from quantform._registry import near_matches
from quantform._rows import Rows, matrix_shape
from quantform._scalars import SCALARS
from quantform._sizes import counted
from quantform._spans import Span
from quantform.errors import ArgumentError, UnknownNameError
from quantform.formats import Words
from quantform.sources.divisors import DivisorRuns

__all__ = ["Source", "Tensor", "check_range"]


def check_range(offset: int, count: int, nbytes: int, where: str) -> None:
    """Check that bytes lie in a payload of `nbytes`.

    Raises:
        ArgumentError: They do not.
    """
    if offset < 0 or offset + count > nbytes:
        raise ArgumentError(
            "the bytes are outside the tensor",
            where=where,
            expected=f"within {nbytes} bytes",
            found=f"{count} bytes at byte {offset}",
        )


class Tensor(ABC):
    """One tensor of an open file.

    Attributes:
        name: The name in the file.
        shape: The logical shape in C order, last axis fastest.
        format: How its numbers are stored: a packed profile (`"gguf:q4_k"`), a registered format (`"nvfp4"`) or a
            scalar type (`"fp16"`).
        nbytes: Bytes of the payload in the file.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns as `rows` arguments count them: all leading axes together, and the last."""
        return matrix_shape(self.shape)

    def check(self) -> None:  # noqa: B027 - a file whose headers say all has nothing to add
        """Check what the headers say of the tensor, without reading its payload.

        Raises:
            QuantformError: Its payload cannot be used as what it is declared to be.
        """

    @property
    def decodable(self) -> bool:
        """Whether `decode` works, as far as headers say."""
        return True

    @property
    def joined(self) -> bool:
        """Whether it has a payload of its own, so that `payload` and `read_into` work."""
        return True

    @property
    def importable(self) -> bool:
        """Whether `words` gives encoded words, not just the values themselves."""
        return self.format not in SCALARS

    def divisor_runs(self) -> DivisorRuns | None:
        """The divisors of the rows of NVFP4 words; None of any others.

        Raises:
            WordsError: A divisor is not finite and positive, where a checkpoint's conventions say so.
        """
        return None

    def activation_divisor(self) -> np.uint32 | None:
        """The binary32 word of the divisor that a checkpoint has for this weight's input; None where it has none.

        Raises:
            WordsError: It is not finite and positive.
        """
        return None

    @property
    def bits_per_weight(self) -> float:
        """Stored bits an element, padding included; 0 for an empty tensor."""
        elements = self.size
        return self.nbytes * 8 / elements if elements else 0.0

    @property
    def size(self) -> int:
        """Elements."""
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count

    @abstractmethod
    def payload(self) -> npt.NDArray[np.uint8]:
        """The stored bytes, uint8 `[nbytes]`, read-only and without a copy where the file allows it."""

    @abstractmethod
    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on; the way to stream a large tensor.

        Raises:
            FileError: The bytes are not there.
        """

    def locate(self, offset: int) -> tuple[Path, int] | None:  # noqa: ARG002
        """The file that has a byte of the payload, and the byte's offset there; None where it has no one place."""
        return None

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """Where between two bytes of the payload there are others than zeros of a sparse file's holes, as far as known.

        Raises:
            FileError: The bytes are not there.
        """
        yield begin, end

    @abstractmethod
    def words(self, rows: Rows | None = None) -> Words:
        """The words of all rows (shape as the tensor) or of some (shape `[len(rows), K]`)."""

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> npt.NDArray[Any]:
        """The values, decoded exactly and converted once.

        Args:
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`. None stands for the type that rounds nothing:
                the scalar's own for plain tensors, float32 for quantized ones.
            rows: Which rows of the flattened leading axes; None is all of them.

        Returns:
            An array of the tensor's shape, or `[len(rows), K]`.
        """
        return self.words(rows).decode(dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.format} {list(self.shape)}>"


T = TypeVar("T", bound=Tensor)


class Source(Closing, Mapping[str, T], Generic[T]):
    """An open file: a mapping of tensor names to tensors, in file order, and its metadata.

    Attributes:
        kind: `"gguf"`, `"safetensors"`, `"onnx"` or `"ninfer"`.
        path: The path that was opened.
        files: Every file that belongs to it, in order.
        metadata: What the file says of itself.
    """

    kind: str
    path: Path
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    _tensors: Mapping[str, T]

    def __getitem__(self, name: str) -> T:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise UnknownNameError(
                f"no tensor is called {name!r}", where=str(self.path), hint=near_matches(str(name), self._tensors)
            )
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - Mapping's own signature
        return self._tensors.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def describe(self) -> str:
        """One phrase for people: the kind of file, its version, how many tensors."""
        return f"{self.kind}, {counted(len(self), 'tensor')}"

    @abstractmethod
    def close(self) -> None:
        """Close every file. Arrays that were given out stay valid."""
