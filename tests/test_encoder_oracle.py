"""The oracle itself, against numbers that the specification prints and against Python's own conversions."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_oracle import BF16, E2M1, E4M3FN, FP16, FP32, Binary, RefusedError, e2m1, f16, f32, round_to, word_of


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fractions_round_as_struct_does(value: float) -> None:
    for kind, code, rounded in ((FP32, "f", f32), (FP16, "e", f16)):
        try:
            exact = round_to(Fraction(value), kind)
        except RefusedError:
            assert abs(rounded(value)) == math.inf
            continue
        assert Fraction(rounded(value)) == exact
        word = int.from_bytes(struct.pack(f"<{code}", value), "little")
        assert word_of(exact, kind, negative=str(value).startswith("-")) == word


@pytest.mark.parametrize(
    ("kind", "value", "word"),
    [
        (BF16, Fraction(1), 0x3F80),
        (BF16, Fraction(1, 2**133), 0x0001),
        (BF16, BF16.largest, 0x7F7F),
        (E4M3FN, Fraction(448), 0x7E),
        (E4M3FN, Fraction(-1), 0xB8),
        (E4M3FN, Fraction(1, 2**9), 0x01),
        (E4M3FN, Fraction(1, 2**6), 0x08),
        (E2M1, Fraction(6), 7),
        (E2M1, Fraction(-1, 2), 9),
        (FP32, FP32.largest, 0x7F7FFFFF),
    ],
)
def test_words(kind: Binary, value: Fraction, word: int) -> None:
    assert word_of(value, kind) == word


def test_e2m1_ties() -> None:
    ties = ["0", "0.25", "0.75", "1.25", "1.75", "2.5", "3.5", "5", "7", "-0.75"]
    assert [e2m1(Fraction(tie)) for tie in ties] == [0, 0, 2, 2, 4, 4, 6, 6, 7, 10]
    assert e2m1(Fraction(0), negative=True) == 8
