"""The meaning of words: one record per registered numeric format."""

from __future__ import annotations

from quantform._registry import Registry
from quantform.formats.direct import DIRECT_FORMATS, DirectFormat, direct_format
from quantform.formats.fp8_row import FP8_ROW_FORMATS, RowScaledFormat
from quantform.formats.gguf import GGUF_FORMATS, GgufFormat, block_format
from quantform.formats.grouped import GROUPED_FORMATS, GroupedFormat
from quantform.formats.nvfp4 import NVFP4, Nvfp4Format
from quantform.formats.record import Format
from quantform.formats.words import BlockWords, DirectWords, GroupedWords, Nvfp4Words, RowScaledWords, Words

__all__ = [
    "FORMATS",
    "BlockWords",
    "DirectFormat",
    "DirectWords",
    "Format",
    "GgufFormat",
    "GroupedFormat",
    "GroupedWords",
    "Nvfp4Format",
    "Nvfp4Words",
    "RowScaledFormat",
    "RowScaledWords",
    "Words",
    "block_format",
    "direct_format",
]

FORMATS: Registry[Format] = Registry(
    "format",
    [*DIRECT_FORMATS, *GROUPED_FORMATS, NVFP4, *FP8_ROW_FORMATS, *GGUF_FORMATS],
    key=lambda record: record.name,
)
"""Every registered `.ninfer` format (Section 1), in the order of the specification."""
