"""Weights whose codes are multiplied by scales: one for the tensor, a row, a group of a row, or a block.

One rule covers them all: a scale belongs to a block of `height` rows and `width` columns, blocks at the edges may be
smaller, and `value = code * scale` in binary32, rounded once. A scale stored as an 8-bit exponent e is 2^(e - 127).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import Rows, runs
from quantform._scalars import SCALARS
from quantform._sizes import ceil_div, product
from quantform.errors import FileError, WordsError
from quantform.formats import FORMATS, RowScaledWords
from quantform.formats.checks import Tally, hex_word
from quantform.formats.small_floats import E2M1, E4M3FN
from quantform.sources._protocol import Tensor
from quantform.sources.conventions.part_rules import (
    BF16_SCALE,
    E4M3FN_CODE,
    EXPONENT_SCALE,
    FLOAT_SCALE,
    OVERFLOW,
    UNSCALED,
    ZERO_POINT,
    PairRule,
    PartRule,
    as_bf16,
)
from quantform.sources.conventions.weight import Chosen, QuantizedWeight, flat_words, require, row_words

__all__ = ["RowScaledWeight", "ScaledWeight"]

_EXPONENTS = ("uint8", "e8m0")
_FLOATS = ("bf16", "fp32")


class ScaledWeight(QuantizedWeight):
    """A weight `[..., N, K]` of E4M3FN or E2M1 codes under scales `[..., ceil(N / height), ceil(K / width)]`.

    Args:
        name: The logical name.
        parts: `codes` and `scales`, and perhaps `zero`, which must then be zero everywhere.
        source: The file, for errors.
        convention: What the form is called.
        block: `(height, width)` of a scale's block, both at least 1.
        packed: Whether the codes are E2M1, two in a byte, the low half first; else they are E4M3FN.
        whole: Whether each block is a whole matrix; then the scales may also be `[E]` for E of them, or just one.
        exponents: Whether the scales are 8-bit exponents; else they are BF16 or binary32.
    """

    def __init__(
        self,
        name: str,
        parts: dict[str, Tensor],
        source: str,
        *,
        convention: str,
        block: tuple[int, int],
        packed: bool = False,
        exponents: bool = False,
        whole: bool = False,
    ) -> None:
        codes = parts["codes"]
        if len(codes.shape) < 2:
            raise FileError(
                "a quantized weight is no matrix", where=f"{source}, tensor {codes.name!r}", found=list(codes.shape)
            )
        shape = (*codes.shape[:-1], codes.shape[-1] * 2) if packed else codes.shape
        super().__init__(name, shape, convention, parts, source)
        self.convention = convention
        self.block = block
        self._packed = packed
        self._exponents = exponents
        self._whole = whole
        *leading, rows, columns = shape
        self._grid = (ceil_div(rows, block[0]), ceil_div(columns, block[1]))
        require(self, "codes", ("uint8",) if packed else ("e4m3fn",), (codes.shape,))
        require(self, "scales", _EXPONENTS if exponents else _FLOATS, self._scale_shapes(tuple(leading)))
        self._zero_checked = "zero" not in parts

    def part_rules(self) -> dict[str, tuple[PartRule, ...]]:
        """Codes that are no NaN, scales that are finite and have no sign, zero points that are zero."""
        rules: dict[str, tuple[PartRule, ...]] = {
            "scales": (EXPONENT_SCALE if self._exponents else FLOAT_SCALE,),
            "zero": (ZERO_POINT,),
        }
        return rules if self._packed else {"codes": (E4M3FN_CODE,), **rules}

    def pair_rules(self) -> tuple[PairRule, ...]:
        """What codes may not be under their scales."""
        return (OVERFLOW,)

    def check_zero_points(self) -> None:
        """Check that zero points, where there are any, are all zero: then they change no value.

        Raises:
            WordsError: One is not.
        """
        if not self._zero_checked:
            zero = self.parts["zero"]
            words = flat_words(zero, 0, zero.size)
            if words.any():
                raise WordsError(
                    "a zero point of the weight is not zero",
                    where=f"{self.where('zero')}, element {int(np.argmax(words != 0))}",
                    expected=0,
                    found=hex(int(words[np.argmax(words != 0)])),
                )
            self._zero_checked = True

    def _scale_shapes(self, leading: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        down, across = self._grid
        shapes: list[tuple[int, ...]] = [(*leading, down, across)]
        if self._whole and self.parts["scales"].size == 1:
            return ()
        if leading and across == 1:
            shapes.append((*leading, down))
        if leading and self._whole:
            shapes.append(leading)
        if not leading:
            shapes.append((down, 1, across, 1))  # as ModelOpt writes blocks
            if across == 1:
                shapes.append((down,))
        if product(leading) * down * across == 1:
            return ()
        return tuple(shapes)

    def _values(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        self.check_zero_points()
        codes = self._codes(chosen)
        scales = self._scales(chosen)
        width = self.block[1]
        columns = codes.shape[1]
        if scales.shape[1] > 1:
            scales = np.repeat(scales, width, axis=1)[:, :columns]

        def value_at(row: int, column: int) -> tuple[str, str]:
            place = f"{self.where()}, row {int(chosen[row])}, column {column}"
            return place, f"{codes[row, column]} * {scales[row, min(column, scales.shape[1] - 1)]}"

        if OVERFLOW.doubtful(scales).any():
            tally = Tally(OVERFLOW.problem, OVERFLOW.expected, value_at)
            tally.add(OVERFLOW.breaks(codes, scales))
            tally.settle()
        values: npt.NDArray[np.float32] = codes * scales
        return values

    def _codes(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        words = row_words(self.parts["codes"], chosen)
        if not self._packed:
            self._check_codes(chosen, words)
        return self.code_values(words)

    def _check_codes(self, chosen: Chosen, words: npt.NDArray[Any]) -> None:
        def code_at(row: int, column: int) -> tuple[str, str]:
            place = f"{self.where('codes')}, row {int(chosen[row])}, column {column}"
            return place, hex_word(int(words[row, column]), SCALARS["e4m3fn"])

        tally = Tally(E4M3FN_CODE.problem, E4M3FN_CODE.expected, code_at)
        tally.add(E4M3FN_CODE.breaks(words))
        tally.settle()

    def _scales(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        """The scales of each chosen row, `[len(chosen), blocks across]`, checked."""
        down, across = self._grid
        height = self.block[0]
        rows = self.shape[-2]
        numbers = np.asarray(chosen, np.int64)
        bank, row = np.divmod(numbers, max(1, rows))
        tensor = self.parts["scales"]
        block = np.zeros_like(numbers) if tensor.size == 1 else bank * down + row // height
        needed, inverse = np.unique(block, return_inverse=True)
        words = [flat_words(tensor, first * across, end * across) for first, end in runs(needed)]
        joined = np.concatenate(words).reshape(len(needed), across) if words else np.zeros((0, across), np.uint8)
        scales = self.scale_values(joined)
        self._check_scales(needed, joined)
        return scales[inverse]

    def code_values(self, words: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """What words of codes `[n, ...]` are worth, `[n, values]`."""
        if not self._packed:
            values: npt.NDArray[np.float32] = E4M3FN[words]
            return values
        pairs = np.stack([words & 0xF, words >> 4], axis=-1)
        return E2M1[pairs.reshape(words.shape[0], words.shape[1] * 2)]

    def scale_values(self, words: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """What words of scales are worth, in any number of axes."""
        dtype = SCALARS["e8m0" if self._exponents else self.parts["scales"].format].dtype
        values: npt.NDArray[np.float32] = words.view(dtype).astype(np.float32)
        return values

    def _check_scales(self, needed: npt.NDArray[np.int64], words: npt.NDArray[Any]) -> None:
        tensor = self.parts["scales"]

        def scale_at(row: int, column: int) -> tuple[str, str]:
            place = f"{self.where('scales')}, scale row {int(needed[row])}, scale column {column}"
            return place, hex_word(int(words[row, column]), SCALARS["e8m0" if self._exponents else tensor.format])

        rule = EXPONENT_SCALE if self._exponents else FLOAT_SCALE
        tally = Tally(rule.problem, rule.expected, scale_at)
        tally.add(rule.breaks(words))
        tally.settle()


class RowScaledWeight(ScaledWeight):
    """An FP8 weight `[N, K]` with one scale, or one a row; its words are those of `fp8_e4m3fn_row_bf16`.

    A bank of experts `[E, N, K]` has one scale, or one an expert, or one a row; its words are those of one matrix
    `[E * N, K]`. A scale for several rows is repeated for each. Scales in binary32 are rounded to BF16 in the words;
    the values that `decode` gives are those of the stored scales.
    """

    importable = True

    def __init__(self, name: str, parts: dict[str, Tensor], source: str, *, per_tensor: bool) -> None:
        codes = parts["codes"]
        kind = "tensor" if per_tensor else "row"
        if len(codes.shape) < 2:
            raise FileError(
                f"a weight with one scale a {kind} is no matrix",
                where=f"{source}, tensor {codes.name!r}",
                expected="[N, K]",
                found=list(codes.shape),
            )
        *bank, rows, columns = codes.shape
        block = (max(1, rows) if per_tensor else 1, max(1, columns))
        whole = per_tensor and bool(bank)
        super().__init__(name, parts, source, convention=f"fp8-per-{kind}", block=block, whole=whole)
        self.format = "fp8_e4m3fn_row_bf16"

    def part_rules(self) -> dict[str, tuple[PartRule, ...]]:
        """See `ScaledWeight.part_rules`; scales also have to be within BF16, which the words have."""
        rules = super().part_rules()
        return {**rules, "scales": (*rules["scales"], BF16_SCALE)}

    def pair_rules(self) -> tuple[PairRule, ...]:
        """Codes under a zero scale are zeros; values that overflow are legal in words, and only refused as values."""
        return UNSCALED, replace(OVERFLOW, rule="nonfinite-value")

    @property
    def rounds_scales(self) -> bool:
        """Whether the stored scales are wider than the words', so that the words may differ from the values."""
        return self.parts["scales"].format == "fp32"

    def words(self, rows: Rows | None = None) -> RowScaledWords:
        """Codes as they are stored, and the BF16 scale of each row; see `QuantizedWeight.words`."""
        chosen = self.chosen(rows)
        self.check_zero_points()
        codes = row_words(self.parts["codes"], chosen)
        self._check_codes(chosen, codes)
        stored = self._scales(chosen)[:, 0] if len(chosen) else np.zeros(0, np.float32)
        scales = as_bf16(stored)

        def scale_at(row: int, _: int) -> tuple[str, str]:
            return f"{self.where('scales')}, row {int(chosen[row])}", str(float(stored[row]))

        tally = Tally(BF16_SCALE.problem, BF16_SCALE.expected, scale_at)
        tally.add(BF16_SCALE.breaks(stored.view(np.uint32))[:, None])
        tally.settle()

        def code_at(row: int, column: int) -> tuple[str, str]:
            place = f"{self.where('codes')}, row {int(chosen[row])}, column {column}"
            return place, hex_word(int(codes[row, column]), SCALARS["e4m3fn"])

        if UNSCALED.doubtful(stored).any():
            unscaled = Tally(UNSCALED.problem, UNSCALED.expected, code_at)
            unscaled.add(UNSCALED.breaks(self.code_values(codes), stored[:, None]))
            unscaled.settle()
        return RowScaledWords(FORMATS["fp8_e4m3fn_row_bf16"], (len(chosen), self.shape[-1]), codes, scales)
