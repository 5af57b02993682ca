"""`nvfp4_maxabs` against its scalar definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_oracle import nvfp4
from encoder_values import values
from quantform.encode import encode
from quantform.errors import ArgumentError, ValuesError
from quantform.formats import FORMATS, Nvfp4Words
from quantform.methods import METHODS, Input, Request
from quantform.methods.nvfp4_maxabs import e2m1_codes


def encoded(array: npt.ArrayLike) -> Nvfp4Words:
    words = encode(array, "nvfp4", "nvfp4_maxabs")
    assert isinstance(words, Nvfp4Words)
    words.validate()
    return words


def codes_of(words: Nvfp4Words) -> list[list[int]]:
    return np.stack([words.codes & 15, words.codes >> 4], axis=-1).reshape(words.shape).tolist()  # type: ignore[no-any-return]


def test_e2m1_ties_and_saturation() -> None:
    ties = np.array([0, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -0.75], np.float32)
    assert e2m1_codes(ties).tolist() == [0, 8, 0, 2, 2, 4, 4, 6, 6, 7, 10]
    below, above = np.nextafter(ties[2:9], np.float32(0)), np.nextafter(ties[2:9], np.float32(9))
    assert e2m1_codes(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert e2m1_codes(above).tolist() == [1, 2, 3, 4, 5, 6, 7]


@settings(max_examples=150)
@given(data=st.data())
def test_oracle(data: st.DataObject) -> None:
    rows, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    source = data.draw(values(rows * groups * 16, 3.4e38)).reshape(rows, groups * 16)
    if 0 < np.abs(source).max() < 1e-34:  # the divisor would not be finite
        source[0, 0] = 1
    words = encoded(source)
    codes, scales, divisor = nvfp4(source.tolist())
    assert words.divisors.tolist() == [divisor]
    assert words.scales.tolist() == scales
    assert codes_of(words) == codes


def test_known_group() -> None:
    source = np.zeros((1, 32))
    source[0, :8] = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    source[0, 8:16] = -source[0, :8]
    source[0, 31] = 2.0**-20
    words = encoded(source)
    assert words.divisors.view(np.float32).tolist() == [448.0]
    assert words.scales.tolist() == [[0x7E, 0x00]]
    assert words.codes[0, :8].tobytes().hex(" ") == "10 32 54 76 98 ba dc fe"
    assert not words.codes[0, 8:].any()  # under a zero scale every code is 0
    np.testing.assert_array_equal(words.decode()[0, :16], source[0, :16])


def test_zeros() -> None:
    words = encoded(np.full((2, 16), -0.0))
    assert words.divisors.view(np.float32).tolist() == [1.0]
    assert not words.scales.any()
    assert not words.codes.any()


def test_the_divisor_is_of_the_whole_tensor() -> None:
    rng = np.random.default_rng(5)
    source = rng.standard_normal((40, 32)).astype(np.float32)
    source[39, 31] = 100
    whole = encoded(source)
    parts = (Input.of_values(source[:13], "a"), Input.of_values(source[13:], "b"))
    job = METHODS["nvfp4_maxabs"].start(Request(format=FORMATS["nvfp4"], shape=(40, 32), inputs=parts))
    assert job.divisors == 1
    for rows in (1, 7, 40):
        pieces = [job.rows(first, end) for first, end in job.chunks(rows)]
        for name in ("codes", "scales"):
            joined = np.concatenate([getattr(piece, name) for piece in pieces])
            np.testing.assert_array_equal(joined, getattr(whole, name))
        assert all(getattr(piece, "divisors").tolist() == whole.divisors.tolist() for piece in pieces)  # noqa: B009


def test_refused_sources() -> None:
    with pytest.raises(ArgumentError, match="not whole groups"):
        encode(np.ones((1, 24)), "nvfp4")
    with pytest.raises(ArgumentError, match="holds matrices"):
        encode(np.ones((1, 1, 16)), "nvfp4")
    source = np.ones((5, 16))
    source[4, 3] = np.nan
    with pytest.raises(ValuesError, match="values, row 4, column 3: the value is not finite"):
        encode(source, "nvfp4")
    with pytest.raises(ValuesError, match="too small for an nvfp4 divisor"):
        encode(np.full((1, 16), 1e-40), "nvfp4")
