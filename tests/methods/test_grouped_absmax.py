"""`grouped_absmax` against Section 7.2, the golden words and the specification's own numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_oracle import FP16, GRIDS, absmax
from encoder_values import values
from quantform.encode import encode
from quantform.errors import ArgumentError, UnsupportedError, ValuesError
from quantform.formats import GroupedWords
from quantform.methods import METHODS

METHOD = METHODS["grouped_absmax"]


def encoded(array: npt.ArrayLike, format: str) -> GroupedWords:
    words = encode(array, format, "grouped_absmax")
    assert isinstance(words, GroupedWords)
    words.validate()
    return words


def group(first: list[float], columns: int = 64) -> npt.NDArray[np.float32]:
    """One row that starts with these values and goes on with zeros."""
    row = np.zeros((1, columns), np.float32)
    row[0, : len(first)] = first
    return row


def test_it_makes_the_formats_that_have_an_encoder() -> None:
    assert set(METHOD.targets) == set(GRIDS)


def test_golden(ninfer_vectors: dict[str, np.ndarray]) -> None:
    keys = [key for key in ninfer_vectors if key.startswith("grouped_absmax/") and key.endswith("/source")]
    assert len(keys) == 20
    for key in keys:
        _, format, shape, _ = key.split("/")
        words = encoded(ninfer_vectors[key], format)
        for name in ("codes", "scales"):
            expected = ninfer_vectors[f"grouped_absmax/{format}/{shape}/{name}"]
            np.testing.assert_array_equal(getattr(words, name), expected, err_msg=key)
        decoded = words.decode().view(np.uint32)
        np.testing.assert_array_equal(decoded, ninfer_vectors[f"grouped_absmax/{format}/{shape}/decoded"])


@pytest.mark.parametrize("format", GRIDS)
@given(data=st.data())
def test_oracle(format: str, data: st.DataObject) -> None:
    size, qmin, qmax = GRIDS[format]
    columns = data.draw(st.sampled_from([1, size - 1, size, size + 3]))
    row = data.draw(values(columns, float(FP16.largest * qmax)))
    words = encoded(row[None, :], format)
    for index, first in enumerate(range(0, columns, size)):
        codes, scale = absmax(row[first : first + size].tolist(), qmin, qmax)
        assert words.codes[0, first : first + size].tolist() == codes
        assert words.scales[0, index] == scale


def test_partial_group() -> None:
    words = encoded(group([-7, -1, 0, 1, 7, 3.5, -3.5, 0.25], 65), "q4_g64_fp16")
    assert words.scales.tolist() == [[0x3C00, 0x0000]]
    assert words.codes[0, :8].tolist() == [-7, -1, 0, 1, 7, 4, -4, 0]
    assert not words.codes[0, 8:].any()


def test_scale_rounds_twice_as_defined() -> None:
    source = np.full((1, 64), 0x3636, np.uint16).view(ml_dtypes.bfloat16)
    assert encoded(source, "q4_g64_fp16").scales.tolist() == [[6]]


def test_codes_come_from_the_reciprocal() -> None:
    row = group([0, 0])
    row.view(np.uint32)[0, :2] = 0x41A0B334, 0x417C7BFF
    words = encoded(row, "q4_g64_fp16")
    assert words.scales.tolist() == [[0x41BD]]
    assert words.codes[0, :2].tolist() == [7, 6]


def test_ties_go_to_even() -> None:
    words = encoded(group([7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]), "q4_g64_fp16")
    assert words.codes[0, :7].tolist() == [7, 0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("format", GRIDS)
def test_underflow_is_rescued(format: str) -> None:
    assert encoded(group([2.0**-126]), format).scales[0, 0] == 0x0001
    assert not encoded(group([-0.0, 0.0]), format).scales.any()


@pytest.mark.parametrize("amplitude", [1, 2, 4, 8])
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_constant_rows(amplitude: int, factor: int) -> None:
    constant = float(amplitude * factor)
    for format, code in (("q4_g64_fp16", 7), ("q5_g64_fp16", 15)):
        words = encoded(np.full((2, 128), constant, np.float32), format)
        assert (words.codes == code).all()
        assert (words.scales == np.float16(np.float32(constant / code)).view(np.uint16)).all()


def test_q8_never_reaches_minus_128() -> None:
    words = encoded(group([-127.9, 127.0], 32), "q8_g32_fp16")
    assert words.codes.min() == -127


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "int8", ">f4", "int64"]
)
def test_every_number_type_is_rounded_once_to_binary32(dtype: npt.DTypeLike) -> None:
    source = np.arange(-60, 60).reshape(2, 60).astype(dtype)
    words = encoded(source, "q6_g64_fp16")
    expected = encoded(source.astype(np.float32), "q6_g64_fp16")
    np.testing.assert_array_equal(words.codes, expected.codes)
    np.testing.assert_array_equal(words.scales, expected.scales)


def test_leading_axes_are_rows() -> None:
    source = np.random.default_rng(1).standard_normal((2, 3, 70)).astype(np.float32)
    words = encoded(source, "q4_g64_fp16")
    flat = encoded(source.reshape(6, 70), "q4_g64_fp16")
    assert words.shape == source.shape
    np.testing.assert_array_equal(words.codes.reshape(6, 70), flat.codes)
    np.testing.assert_array_equal(words.scales.reshape(6, 2), flat.scales)
    np.testing.assert_array_equal(encoded(source[0, 0], "q4_g64_fp16").scales, flat.scales[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_source(value: float) -> None:
    source = np.zeros((2000, 70), np.float32)
    source[1234, 65] = source[1999, 0] = value
    with pytest.raises(ValuesError, match="not finite") as caught:
        encode(source, "q4_g64_fp16")
    assert caught.value.where == "values, row 1234, column 65"
    assert str(caught.value.found) == f"{value}, the first of 2"


def test_binary64_beyond_binary32() -> None:
    with pytest.raises(ValuesError, match="does not fit float32") as caught:
        encode([[0.0, 1e39]], "q4_g64_fp16")
    assert caught.value.where == "values, row 0, column 1"
    assert caught.value.found == "1e+39, the only one"


def test_scale_overflow() -> None:
    source = np.zeros((3, 130), np.float32)
    source[1, 128] = source[2, 0] = -65520.0 * 7
    with pytest.raises(ValuesError, match="does not fit binary16") as caught:
        encode(source, "q4_g64_fp16")
    assert caught.value.where == "values, row 1, group 2"
    assert caught.value.found == "458640.0, the first of 2"
    source[source != 0] = -np.nextafter(np.float32(65520 * 7), np.float32(0))
    assert encoded(source, "q4_g64_fp16").scales.max() == 0x7BFF


@pytest.mark.parametrize("method", ["grouped_absmax", "grouped_search"])
@pytest.mark.parametrize("format", ["q2_g64_fp16", "t2_g128_fp16", "nvfp4", "bf16", "gguf_q4_k"])
def test_other_targets(method: str, format: str) -> None:
    with pytest.raises(UnsupportedError, match="q4_g64_fp16 or") as caught:
        encode(np.zeros((1, 256)), format, method)
    hint = {"nvfp4": "nvfp4_maxabs or import_encoded", "bf16": "cast_direct"}.get(format, "import_encoded")
    assert str(caught.value.hint).endswith(f"is made by {hint}")


@pytest.mark.parametrize("shape", [(), (0, 64), (3, 0), (0,)])
def test_empty_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="positive last axis"):
        encode(np.zeros(shape), "q4_g64_fp16")


def test_booleans_and_parameters() -> None:
    with pytest.raises(ArgumentError, match="truth values"):
        encode(np.zeros((1, 64), bool), "q4_g64_fp16")
    with pytest.raises(ArgumentError, match="unknown grouped_absmax parameters: importance"):
        encode(np.zeros((1, 64)), "q4_g64_fp16", importance=[1])


@pytest.mark.parametrize("dtype", [object, "U3", complex, np.longdouble])
def test_other_arrays(dtype: npt.DTypeLike) -> None:
    with pytest.raises(ArgumentError, match="no number type"):
        encode(np.zeros((1, 64)).astype(dtype), "q4_g64_fp16")
