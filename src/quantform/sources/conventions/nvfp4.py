"""NVFP4 weights: E2M1 codes, E4M3FN scales of 16, and one binary32 number for each whole matrix.

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
from quantform.layouts.block_scale import equal_share
from quantform.sources._protocol import Tensor
from quantform.sources.conventions.part_rules import E4M3FN_SCALE, POSITIVE, PartRule
from quantform.sources.conventions.weight import Chosen, QuantizedWeight, positive_scalar, require, row_words
from quantform.sources.divisors import DivisorRuns

__all__ = ["Nvfp4Weight"]

_GROUP = 16


class Nvfp4Weight(QuantizedWeight):
    """An NVFP4 weight `[N, K]`, or a bank of experts `[E, N, K]`; its words are those of the format `nvfp4`.

    Words of a bank are those of one matrix `[E * N, K]`, in which each expert has the divisor that the checkpoint gives
    it, or the one for all.

    Args:
        name: The logical name.
        parts: `codes`, `scales` and `global`, and perhaps `input`.
        source: The file, for errors.
        reciprocal: Whether the stored numbers multiply, as ModelOpt's do.
    """

    importable = True

    def __init__(self, name: str, parts: dict[str, Tensor], source: str, *, reciprocal: bool) -> None:
        codes = parts["codes"]
        if len(codes.shape) not in {2, 3}:
            raise FileError(
                "an NVFP4 weight is no matrix",
                where=f"{source}, tensor {codes.name!r}",
                expected="uint8 [N, K / 2], or [E, N, K / 2] for a bank of experts",
                found=f"{codes.format} {list(codes.shape)}",
            )
        *bank, rows, half = codes.shape
        columns = half * 2
        super().__init__(name, (*bank, rows, columns), "nvfp4", parts, source)
        self.convention = f"{'modelopt' if reciprocal else 'compressed-tensors'}-nvfp4{'-bank' if bank else ''}"
        self._reciprocal = reciprocal
        if columns == 0 or columns % _GROUP:
            raise FileError(
                "a row of an NVFP4 weight is not whole groups",
                where=self.where("codes"),
                expected=f"K a positive multiple of {_GROUP}",
                found=columns,
            )
        require(self, "codes", ("uint8",), (codes.shape,))
        require(self, "scales", ("e4m3fn",), ((*bank, rows, columns // _GROUP),))
        for part in ("global", "input"):
            if part in parts:
                experts = tuple(bank)
                one = not bank or parts[part].size == 1
                require(self, part, ("fp32",), () if one else (experts, (*experts, 1), (*experts, 1, 1)))

    def part_rules(self) -> dict[str, tuple[PartRule, ...]]:
        """Scales that are finite and have no sign, and positive divisors; a multiplier's reciprocal is the divisor."""
        divisor = PartRule(POSITIVE.rule, POSITIVE.problem, POSITIVE.expected, self._illegal)
        return {"scales": (E4M3FN_SCALE,), "global": (divisor,), "input": (divisor,)}

    def _illegal(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        illegal = POSITIVE.breaks(words)
        if self._reciprocal:
            with np.errstate(all="ignore"):
                illegal |= ~np.isfinite(np.float32(1) / words.view(np.float32))
        return illegal

    def divisor_runs(self) -> DivisorRuns:
        """The divisor of each expert; neighbours of equal divisors are one run, and a matrix is one."""
        words = self._divisors(np.arange(self.parts["global"].size, dtype=np.int64))
        return DivisorRuns.even(self.matrix[0], words).merged()

    def activation_divisor(self) -> np.uint32 | None:
        """The binary32 word of the input's divisor, of a bank the smallest one; None where the checkpoint has none."""
        if "input" not in self.parts:
            return None
        words = [self._positive("input", index) for index in range(self.parts["input"].size)]
        return min(words)  # positive binary32 words are ordered as their values

    def words(self, rows: Rows | None = None) -> Nvfp4Words:
        """Codes and scales as they are stored, and the fewest divisors that say what the rows have.

        Words of all rows of a bank have the shape `[E * N, K]`; see also `QuantizedWeight.words`.
        """
        chosen = self.chosen(rows)
        numbers = np.asarray(chosen, np.int64)
        each = self.matrix[0] // max(1, self.parts["global"].size)
        expert = numbers // max(1, each)
        expert = expert[:: equal_share(expert)] if numbers.size else np.zeros(1, np.int64)
        divisors = self._divisors(expert)
        codes = row_words(self.parts["codes"], chosen)
        scales = row_words(self.parts["scales"], chosen)
        _check_scales(self, chosen, scales)
        return Nvfp4Words(FORMATS["nvfp4"], (len(chosen), self.shape[-1]), codes, scales, divisors)

    def _divisors(self, experts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        needed, inverse = np.unique(experts, return_inverse=True)
        words: npt.NDArray[np.uint32] = np.array([self._positive("global", int(one)) for one in needed], np.uint32)
        return words[inverse]

    def _positive(self, part: str, index: int) -> np.uint32:
        return positive_scalar(self, part, reciprocal=self._reciprocal, index=index)

    def _values(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self.words(chosen).decode("float32")
        return values


def _check_scales(weight: QuantizedWeight, chosen: Chosen, scales: npt.NDArray[np.uint8]) -> None:
    def scale_at(row: int, group: int) -> tuple[str, str]:
        place = f"{weight.where('scales')}, row {int(chosen[row])}, group {group}"
        return place, hex_word(int(scales[row, group]), SCALARS["e4m3fn"])

    tally = Tally(E4M3FN_SCALE.problem, E4M3FN_SCALE.expected, scale_at)
    tally.add(E4M3FN_SCALE.breaks(scales))
    tally.settle()
