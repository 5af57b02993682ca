"""NVFP4 weights: E2M1 codes, E4M3FN scales of 16, and one binary32 number for the whole matrix.

The number's direction is what tells the two conventions apart. In compressed-tensors, `weight_global_scale` divides. In
ModelOpt, `weight_scale_2` multiplies; the divisor is then its reciprocal, rounded once to binary32. The same holds for
their activations: `input_global_scale` divides, `input_scale` multiplies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows
from quantform._scalars import SCALARS
from quantform.errors import FileError
from quantform.formats import FORMATS, Nvfp4Words
from quantform.formats.checks import Tally, hex_word
from quantform.sources._protocol import Tensor
from quantform.sources.conventions.weight import Chosen, QuantizedWeight, positive_scalar, require, row_words

__all__ = ["Nvfp4Bank", "Nvfp4Weight"]

_GROUP = 16
_LARGEST_SCALE = 0x7E


class Nvfp4Weight(QuantizedWeight):
    """An NVFP4 weight `[N, K]`; its words are those of the format `nvfp4`, with one divisor.

    Args:
        name: The logical name.
        parts: `codes`, `scales` and `global`, and perhaps `input`.
        source: The file, for errors.
        reciprocal: Whether the stored numbers multiply, as ModelOpt's do.
    """

    importable = True

    def __init__(self, name: str, parts: dict[str, Tensor], source: str, *, reciprocal: bool) -> None:
        codes = parts["codes"]
        if len(codes.shape) != 2:
            raise FileError(
                "an NVFP4 weight is no matrix",
                where=f"{source}, tensor {codes.name!r}",
                expected="uint8 [N, K / 2]",
                found=f"{codes.format} {list(codes.shape)}",
            )
        rows, columns = codes.shape[0], codes.shape[1] * 2
        super().__init__(name, (rows, columns), "nvfp4", parts, source)
        self.convention = "modelopt-nvfp4" if reciprocal else "compressed-tensors-nvfp4"
        self._reciprocal = reciprocal
        if columns == 0 or columns % _GROUP:
            raise FileError(
                "a row of an NVFP4 weight is not whole groups",
                where=self.where("codes"),
                expected=f"K a positive multiple of {_GROUP}",
                found=columns,
            )
        require(self, "codes", ("uint8",), ((rows, columns // 2),))
        require(self, "scales", ("e4m3fn",), ((rows, columns // _GROUP),))
        require(self, "global", ("fp32",), ())
        if "input" in parts:
            require(self, "input", ("fp32",), ())

    def divisor(self) -> np.uint32:
        """The weight divisor's binary32 word.

        Raises:
            WordsError: It is not finite and positive.
        """
        return positive_scalar(self, "global", reciprocal=self._reciprocal)

    def activation_divisor(self) -> np.uint32 | None:
        """The binary32 word of the input's divisor; None where the checkpoint has none."""
        return positive_scalar(self, "input", reciprocal=self._reciprocal) if "input" in self.parts else None

    def words(self, rows: Rows | None = None) -> Nvfp4Words:
        """Codes and scales as they are stored, and the divisor; see `QuantizedWeight.words`."""
        chosen = self.chosen(rows)
        divisors = np.array([self.divisor()], np.uint32)
        codes = row_words(self.parts["codes"], chosen)
        scales = row_words(self.parts["scales"], chosen)
        _check_scales(self, chosen, scales)
        return Nvfp4Words(FORMATS["nvfp4"], (len(chosen), self.shape[1]), codes, scales, divisors)

    def _values(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self.words(chosen).decode("float32")
        return values


class Nvfp4Bank(QuantizedWeight):
    """A bank `[E, N, K]` of NVFP4 matrices, with one divisor for each or one for all; it has values and no words.

    Args:
        name: The logical name.
        parts: `codes`, `scales` and `global`, and perhaps `input`, which is not used.
        source: The file, for errors.
        reciprocal: Whether the stored numbers multiply, as ModelOpt's do.
    """

    def __init__(self, name: str, parts: dict[str, Tensor], source: str, *, reciprocal: bool) -> None:
        codes = parts["codes"]
        convention = f"{'modelopt' if reciprocal else 'compressed-tensors'}-nvfp4-bank"
        super().__init__(name, (*codes.shape[:-1], codes.shape[-1] * 2), convention, parts, source)
        self.convention = convention
        self._reciprocal = reciprocal
        experts, rows, columns = self.shape
        if columns == 0 or columns % _GROUP:
            raise FileError(
                "a row of an NVFP4 weight is not whole groups",
                where=self.where("codes"),
                expected=f"K a positive multiple of {_GROUP}",
                found=columns,
            )
        require(self, "codes", ("uint8",), (codes.shape,))
        require(self, "scales", ("e4m3fn",), ((experts, rows, columns // _GROUP),))
        one = parts["global"].size == 1
        require(self, "global", ("fp32",), () if one else ((experts,), (experts, 1), (experts, 1, 1)))

    def _values(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        numbers = np.asarray(chosen, np.int64)
        expert = numbers // max(1, self.shape[1])
        if self.parts["global"].size == 1:
            expert = np.zeros_like(expert)
        needed, inverse = np.unique(expert, return_inverse=True)
        divisors = np.array(
            [positive_scalar(self, "global", reciprocal=self._reciprocal, index=int(one)) for one in needed], np.uint32
        )
        codes, scales = row_words(self.parts["codes"], chosen), row_words(self.parts["scales"], chosen)
        _check_scales(self, chosen, scales)
        words = Nvfp4Words(FORMATS["nvfp4"], (len(numbers), self.shape[2]), codes, scales, divisors[inverse])
        values: npt.NDArray[np.float32] = words.decode("float32")
        return values


def _check_scales(weight: QuantizedWeight, chosen: Chosen, scales: npt.NDArray[np.uint8]) -> None:
    def scale_at(row: int, group: int) -> tuple[str, str]:
        place = f"{weight.where('scales')}, row {int(chosen[row])}, group {group}"
        return place, hex_word(int(scales[row, group]), SCALARS["e4m3fn"])

    tally = Tally("a scale of the weight is not legal", "a finite E4M3FN word without sign, 0x00 to 0x7E", scale_at)
    tally.add(scales > _LARGEST_SCALE)
    tally.settle()
