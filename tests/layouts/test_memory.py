"""Checking, decoding and placing a large tensor needs little memory beside the result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS, reader_of
from words_maker import make_words

NAMES = ["fp32", "q2_g64_fp16", "q5_g64_fp16", "q8_g32_fp16", "nvfp4", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"]
SHAPE = (2048, 1024)
SCRATCH = 3 << 20


def peak_beside(use: Callable[[], object]) -> int:
    """Bytes that were held at the worst moment and are neither there before nor in what is returned."""
    tracemalloc.start()
    try:
        result = use()
        kept, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return peak - kept


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory(name: str) -> None:
    record = FORMATS[name]
    layout = LAYOUTS[record.default_layout]
    words = make_words(record, SHAPE, np.random.default_rng(1))
    payload = layout.pack(words)
    uses: dict[str, Callable[[], object]] = {
        "validate": words.validate,
        "decode": words.decode,
        "pack": lambda: layout.pack(words),
        "decode payload": lambda: layout.decode(payload, record, SHAPE),
        "decode rows": lambda: layout.decode(payload, record, SHAPE, rows=slice(None, None, -1)),
        "unpack": lambda: layout.unpack(payload, record, SHAPE),
        "faults": lambda: list(layout.faults(reader_of(payload), record, SHAPE)),
    }
    if name != "fp32":  # whole arrays are NumPy's own to convert
        uses["decode to bfloat16"] = lambda: words.decode("bfloat16")
    peaks = {use: peak_beside(run) for use, run in uses.items()}
    assert max(peaks.values()) < SCRATCH, peaks
