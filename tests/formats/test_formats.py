"""The registry of formats against the tables of Section 1."""

from __future__ import annotations

import numpy as np
import pytest

from quantform.errors import ArgumentError, UnknownNameError
from quantform.formats import FORMATS, DirectWords, GgufFormat, GroupedFormat
from quantform.layouts import LAYOUTS
from words_maker import make_words

GROUPED = {  # code bits, group, qmin, qmax, bits a weight
    "q2_g64_fp16": (2, 64, -1, 2, 2.25),
    "q4_g64_fp16": (4, 64, -8, 7, 4.25),
    "q5_g64_fp16": (5, 64, -16, 15, 5.25),
    "q6_g64_fp16": (6, 64, -32, 31, 6.25),
    "q8_g32_fp16": (8, 32, -127, 127, 8.5),
    "t2_g128_fp16": (2, 128, -1, 1, 2.125),
}
GGUF = {  # ggml type, block values, block bytes, bits a weight
    "gguf_q8_0": (8, 32, 34, 8.50),
    "gguf_q4_0": (2, 32, 18, 4.50),
    "gguf_q5_0": (6, 32, 22, 5.50),
    "gguf_q2_0": (42, 64, 18, 2.25),
    "gguf_q2_k": (10, 256, 84, 2.625),
    "gguf_q3_k": (11, 256, 110, 3.4375),
    "gguf_q4_k": (12, 256, 144, 4.50),
    "gguf_q5_k": (13, 256, 176, 5.50),
    "gguf_q6_k": (14, 256, 210, 6.5625),
    "gguf_iq2_xxs": (16, 256, 66, 2.0625),
    "gguf_iq2_xs": (17, 256, 74, 2.3125),
    "gguf_iq3_xxs": (18, 256, 98, 3.0625),
    "gguf_iq1_s": (19, 256, 50, 1.5625),
    "gguf_iq4_nl": (20, 32, 18, 4.50),
    "gguf_iq3_s": (21, 256, 110, 3.4375),
    "gguf_iq2_s": (22, 256, 82, 2.5625),
    "gguf_iq4_xs": (23, 256, 136, 4.25),
    "gguf_iq1_m": (29, 256, 56, 1.75),
}
NAMES = [
    *("bf16", "fp32", "int32"),
    *GROUPED,
    *("nvfp4", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"),
    *GGUF,
]


def test_thirty_names_in_the_order_of_the_tables() -> None:
    assert list(FORMATS) == NAMES
    assert len(NAMES) == 30


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_numbers(name: str) -> None:
    record = FORMATS[name]
    assert isinstance(record, GroupedFormat)
    numbers = record.code_bits, record.group, record.qmin, record.qmax, record.bits_per_weight
    assert numbers == GROUPED[name]
    assert record.code_offset == (1 if name.startswith("q2") else 0)
    assert record.any_finite_scale == name.startswith("q2")


@pytest.mark.parametrize("name", GGUF)
def test_gguf_numbers(name: str) -> None:
    record = FORMATS[name]
    assert isinstance(record, GgufFormat)
    profile = record.profile
    assert (profile.ggml_type, profile.values, profile.bytes, record.bits_per_weight) == GGUF[name]


def test_other_widths() -> None:
    widths = {name: FORMATS[name].bits_per_weight for name in NAMES if name not in GROUPED and name not in GGUF}
    assert widths == {
        "bf16": 16,
        "fp32": 32,
        "int32": 32,
        "nvfp4": 4.5,
        "fp8_e4m3fn_row_bf16": 8,
        "fp8_e4m3fn_row_fp16": 8,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_record_names_its_layout(name: str) -> None:
    record = FORMATS[name]
    assert name in LAYOUTS[record.default_layout].formats
    assert str(record) == name


@pytest.mark.parametrize("name", NAMES)
def test_words_of_another_format_are_refused(name: str) -> None:
    record = FORMATS[name]
    other = FORMATS["fp32" if name == "bf16" else "bf16"]
    alien = DirectWords(other, (1, 256), np.zeros((1, 256), np.uint16))
    for use in (record.validate, record.decode):
        with pytest.raises(ArgumentError, match=record.name):
            use(alien)
    words = make_words(record, (128, 256), np.random.default_rng(3))
    words.validate()
    with pytest.raises(ArgumentError, match="dtype is not an output type"):
        words.decode("int8")


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="q4_g64_fp16"):
        FORMATS["q4_g64_fp61"]
