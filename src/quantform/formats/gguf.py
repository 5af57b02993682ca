"""GGUF block formats: ggml's quantized blocks kept byte for byte (Section 3.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._rows import matrix_shape
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats.checks import Tally, require_array, words_of
from quantform.formats.record import Format
from quantform.formats.words import BlockWords, Words
from quantform.packed import PROFILES, Profile, dequantize_packed

__all__ = ["GGUF_FORMATS", "GgufFormat", "block_format"]

_REGISTERED = (
    *("q8_0", "q4_0", "q5_0", "q2_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq2_xxs", "iq2_xs", "iq3_xxs"),
    *("iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "iq1_m"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFormat(Format):
    """Rows of whole blocks of one packed profile; every byte of a block is legal."""

    profile: Profile

    def tallies(self, words: Words, first_row: int = 0, limit: int = 1) -> tuple[Tally, ...]:  # noqa: ARG002
        """No rules: the arrays are checked, and every block is legal."""
        self._blocks(words)
        return ()

    def decode(self, words: Words, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """What the operator `DequantizePacked` gives for the blocks."""
        blocks = self._blocks(words)
        if self.profile.identifier not in PROFILES:
            raise UnsupportedError(
                f"{self.profile.name} is not among the operator's profiles, so its values are not defined there",
                hint="Import the words into t2_g128_fp16, which has their values",
            )
        return dequantize_packed(blocks.reshape(-1), self.profile.identifier, words.shape, self.value_dtype(dtype))

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values.

        Raises:
            ArgumentError: `columns` is no multiple of the block's values.
        """
        if columns % self.profile.values:
            raise ArgumentError(
                f"a row of {self.name} is not whole blocks",
                expected=f"a multiple of {self.profile.values}",
                found=columns,
            )
        return columns // self.profile.values * self.profile.bytes

    def _blocks(self, words: Words) -> npt.NDArray[np.uint8]:
        packed = words_of(self, words, BlockWords)
        rows, columns = matrix_shape(packed.shape)
        require_array(self, "blocks", packed.blocks, np.uint8, (rows, self.row_bytes(columns)))
        return packed.blocks


def _format(profile: Profile, name: str) -> GgufFormat:
    return GgufFormat(
        name=name,
        category="gguf",
        bits_per_weight=profile.bits_per_weight,
        default_layout="gguf_blocks_v1",
        section="3.5",
        profile=profile,
    )


GGUF_FORMATS = tuple(_format(PROFILES[f"gguf:{suffix}"], f"gguf_{suffix}") for suffix in _REGISTERED)
_BY_PROFILE = {record.profile.identifier: record for record in GGUF_FORMATS}


def block_format(profile: Profile) -> GgufFormat:
    """The registered format of a profile, or one under its identifier where `.ninfer` has no name for it."""
    return _BY_PROFILE.get(profile.identifier) or _format(profile, profile.identifier)
