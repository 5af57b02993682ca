"""The codes and the scales of a quantized tensor, counted for pictures.

A scale is what a group's codes are multiplied by, all levels together. Of packed blocks, codes are what a block's own
decoder gives when its scales are set to one and its minima to zero, and a group's scale is the quotient of its values
by its codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS
from quantform.convert.inputs import input_of
from quantform.errors import UnsupportedError
from quantform.formats import BlockWords, GgufFormat, GroupedWords, Nvfp4Words, RowScaledFormat, RowScaledWords, Words
from quantform.formats.small_floats import E2M1, E4M3FN
from quantform.packed import Profile
from quantform.sources import Tensor

__all__ = ["Parts", "block_parts", "parts"]

Blocks = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_PIECE_VALUES = 1 << 18
# Scales fall into four bins an octave: the exponent of the binary32 word and two bits of its fraction.
_BIN_SHIFT = 21


@dataclass(slots=True)
class Parts:
    """How often each code and each size of scale occurs.

    Attributes:
        codes: Value of a code to its count, by rising value.
        scales: Lower end of a quarter of an octave to the count of scales of that magnitude, by rising magnitude.
        zero: Scales that are zero.
        negative: Scales below zero, which are also in `scales` by their magnitude.
        unknown: Groups of blocks all of whose codes are zero, so that their scale says nothing; and scales that are no
            finite numbers.
    """

    codes: dict[float, int] = field(default_factory=dict)
    scales: dict[float, int] = field(default_factory=dict)
    zero: int = 0
    negative: int = 0
    unknown: int = 0

    def add(self, codes: npt.NDArray[Any], scales: Floats, unknown: int = 0) -> None:
        """Count some more; `codes` as values."""
        values, counts = np.unique(codes[~np.isnan(codes)], return_counts=True)
        _count(self.codes, values, counts)
        finite = scales[np.isfinite(scales)]
        self.unknown += unknown + scales.size - finite.size
        self.zero += int(np.count_nonzero(finite == 0))
        self.negative += int(np.count_nonzero(finite < 0))
        magnitudes = np.ascontiguousarray(np.abs(finite[finite != 0]))
        bins, counts = np.unique(magnitudes.view(np.uint32) >> _BIN_SHIFT, return_counts=True)
        _count(self.scales, (bins.astype(np.uint32) << _BIN_SHIFT).view(np.float32), counts)


def _count(into: dict[float, int], values: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        number = float(value) + 0.0  # both zeros are one code
        into[number] = into.get(number, 0) + count


def parts(tensor: Tensor) -> Parts | None:
    """Count the codes and scales of a tensor, a bounded piece at a time; None where it has none that can be told.

    Raises:
        FileError: The file is broken.
    """
    rows, columns = tensor.matrix
    try:
        source = input_of(tensor.name, tensor, 0, rows, (rows, columns))
        if source.words is None or not rows * columns:
            return None
        found = Parts()
        step = max(1, _PIECE_VALUES // columns)
        for first in range(0, rows, step):
            if not _add(found, source.words(first, min(first + step, rows))):
                return None
    except UnsupportedError:
        return None
    found.codes = dict(sorted(found.codes.items()))
    found.scales = dict(sorted(found.scales.items()))
    return found


def _add(found: Parts, words: Words) -> bool:
    """Count words; false where they are no codes with scales."""
    if isinstance(words, GroupedWords):
        found.add(words.codes, words.scales.view(np.float16).astype(np.float32))
    elif isinstance(words, Nvfp4Words):
        divisors = np.repeat(words.divisors.view(np.float32), len(words.scales) // words.divisors.size)
        with np.errstate(all="ignore"):
            scales = E4M3FN[words.scales] / divisors[:, None]
        found.add(E2M1[np.stack([words.codes & 15, words.codes >> 4])], scales)
    elif isinstance(words, RowScaledWords) and isinstance(words.format, RowScaledFormat):
        found.add(E4M3FN[words.codes], words.scales.view(SCALARS[words.format.scale.name].dtype).astype(np.float32))
    elif isinstance(words, BlockWords) and isinstance(words.format, GgufFormat):
        codes, scales = block_parts(words.format.profile, words.blocks.reshape(-1))
        silent = (codes.reshape(*scales.shape, -1) == 0).all(axis=2)
        found.add(codes, scales[~silent], int(np.count_nonzero(silent)))
    else:
        return False
    return True


def block_parts(profile: Profile, payload: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """The codes `[n, B]` and the groups' scales `[n, groups]` of packed blocks.

    The scale of a group whose codes are all zero is NaN.
    """
    group, make_one = _UNIT[profile.identifier]
    blocks = np.ascontiguousarray(payload).view(profile.block).reshape(-1)
    with np.errstate(all="ignore"):
        plain = blocks.copy()
        for minimum in ("m", "dmin"):
            if minimum in (profile.block.names or ()):
                plain[minimum] = 0
        values = profile.decode(plain).reshape(len(blocks), -1, group)
        make_one(plain)
        codes = profile.decode(plain)
        grouped = codes.reshape(values.shape)
        largest = np.abs(grouped).argmax(axis=2)[..., None]
        one = np.take_along_axis(grouped, largest, axis=2)[..., 0]
        one[one == 0] = np.nan
        scales: Floats = np.take_along_axis(values, largest, axis=2)[..., 0] / one
    return codes, scales


def _set(**fields: Any) -> Callable[[Blocks], None]:  # noqa: ANN401 - what a field of a block holds
    def make_one(blocks: Blocks) -> None:
        for name, value in fields.items():
            blocks[name] = value

    return make_one


def _iq2_xxs(blocks: Blocks) -> None:
    blocks["d"] = 8
    blocks["q"][:, 3::4] &= 0x0FFF


def _iq3_xxs(blocks: Blocks) -> None:
    blocks["d"] = 4
    blocks["q"][:, 67::4] &= 0x0F


def _iq1_s(blocks: Blocks) -> None:
    blocks["d"] = 1
    blocks["high"] &= 0x8FFF


_D = _set(d=1)
_SIX_BITS = _set(d=1, scales=[1] * 4 + [0] * 4 + [1] * 4)
_EIGHTHS = _set(d=8, scales=0)
# Values under one scale, and what makes all scales of a block one.
_UNIT: dict[str, tuple[int, Callable[[Blocks], None]]] = {
    "gguf:q4_0": (32, _D),
    "gguf:q4_1": (32, _D),
    "gguf:q5_0": (32, _D),
    "gguf:q5_1": (32, _D),
    "gguf:q8_0": (32, _D),
    "gguf:q8_1": (32, _D),
    "gguf:q2_k": (16, _set(d=1, scales=1)),
    "gguf:q3_k": (16, _set(d=1, scales=[0x11] * 8 + [0xAA] * 4)),
    "gguf:q4_k": (32, _SIX_BITS),
    "gguf:q5_k": (32, _SIX_BITS),
    "gguf:q6_k": (16, _set(d=1, scales=1)),
    "gguf:q8_k": (256, _D),
    "gguf:iq2_xxs": (32, _iq2_xxs),
    "gguf:iq2_xs": (16, _EIGHTHS),
    "gguf:iq3_xxs": (32, _iq3_xxs),
    "gguf:iq1_s": (32, _iq1_s),
    "gguf:iq4_nl": (32, _D),
    "gguf:iq3_s": (32, _set(d=1, scales=0)),
    "gguf:iq2_s": (16, _EIGHTHS),
    "gguf:iq4_xs": (32, _set(d=1, scales=0x11, high=0xAAAA)),
    "gguf:iq1_m": (16, _set(scales=[0, 0, 0, 0, 0, 0xC0, 0, 0x30])),
    "gguf:tq1_0": (256, _D),
    "gguf:tq2_0": (256, _D),
    "gguf:mxfp4": (32, _set(exponent=127)),
    "gguf:nvfp4": (16, _set(scales=0x38)),
    "gguf:q1_0": (128, _D),
    "gguf:q2_0": (64, _D),
}
