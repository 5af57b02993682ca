"""The operator's contract: values worked out by hand, shapes, types, and every refusal."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bits import bits_of
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import ArgumentError, QuantformError, UnknownNameError
from quantform.packed import PROFILES, Profile, dequantize_packed

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def decode(payload: bytes, identifier: str) -> list[float]:
    return [float(v) for v in dequantize_packed(payload, identifier, [PROFILES[identifier].values])]


# --- worked out by hand from the rules ------------------------------------------------------------------------------


def test_q4_0_low_nibbles_first_offset_eight() -> None:
    # bytes 0x10, 0x32, ... : low nibbles 0, 2, 4, ... then 0 again after 0xFE; high nibbles 1, 3, 5, ...
    quants = bytes(low | (low + 1) << 4 for low in (0, 2, 4, 6, 8, 10, 12, 14)) * 2
    low = [0.5 * (v - 8) for v in (0, 2, 4, 6, 8, 10, 12, 14)] * 2
    high = [0.5 * (v - 8) for v in (1, 3, 5, 7, 9, 11, 13, 15)] * 2
    assert decode(half(0.5) + quants, "gguf:q4_0") == low + high


def test_q5_1_fifth_bits_and_minimum() -> None:
    # every nibble 3; the mask sets bits 0 and 31: those two values are 19; d = 2, m = -1
    payload = half(2) + half(-1) + bytes([0x01, 0, 0, 0x80]) + b"\x33" * 16
    assert decode(payload, "gguf:q5_1") == [37.0] + [5.0] * 30 + [37.0]


def test_iq4_nl_looks_up_the_table() -> None:
    payload = half(-2) + bytes(j | (15 - j) << 4 for j in range(16))
    table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    assert decode(payload, "gguf:iq4_nl") == [-2.0 * v for v in table] + [-2.0 * v for v in reversed(table)]


def test_mxfp4_unit_scale() -> None:
    # exponent byte 127 stands for 2^0
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    payload = bytes([127]) + bytes(range(8)) + bytes(range(8, 16))
    assert decode(payload, "gguf:mxfp4") == values + [0.0] + [-v for v in values[1:]] + [0.0] * 16


def test_q2_k_rounds_each_product_and_the_difference() -> None:
    # d, dmin = 1 + 2^-10; scale 15, code 3, minimum 15: products are exact here, so are both sides
    d = 1 + 2.0**-10
    payload = bytes([0xFF]) * 16 + bytes([0xFF]) * 64 + half(d) + half(d)
    assert set(decode(payload, "gguf:q2_k")) == {float(np.float32(d * 15 * 3) - np.float32(d * 15))}


def test_negative_zero_products_keep_their_sign() -> None:
    payload = half(-1.0) + bytes([0x88]) * 16  # code 8 - 8 = 0 under a negative scale
    assert np.signbit(dequantize_packed(payload, "gguf:q4_0", [32])).all()


def test_tq1_0_digits_of_every_byte() -> None:
    # a byte is ceil(256 n / 243) for the base-3 number n; every other byte follows the wrapped rule
    for byte in range(256):
        payload = bytes([byte]) + bytes(51) + half(1.0)
        values = dequantize_packed(payload, "gguf:tq1_0", [256])
        digits = [values[32 * p] for p in range(5)]
        fraction, expected = Fraction(byte, 256), []
        for _ in range(5):
            fraction = (fraction - int(fraction)) * 3
            expected.append(float(int(fraction) - 1))
        assert digits == expected, byte


@pytest.mark.parametrize("byte", range(256))
def test_every_mxfp4_scale_byte(byte: int) -> None:
    payload = bytes([byte]) + bytes([0x17] * 16)  # codes 7 (six) and 1 (one half)
    values = dequantize_packed(payload, "gguf:mxfp4", [32])
    scale = Fraction(2) ** (byte - 127)
    for value, code in ((values[0], Fraction(6)), (values[16], Fraction(1, 2))):
        exact = scale * code
        if exact >= 2**128:
            assert np.isposinf(value)
        else:
            assert Fraction(float(value)) == exact


@pytest.mark.parametrize("byte", range(256))
def test_every_nvfp4_scale_byte(byte: int) -> None:
    payload = bytes([byte, 0, 0, 0]) + bytes([0x6F] * 32)  # codes 15 (minus six) and 6 (four)
    values = dequantize_packed(payload, "gguf:nvfp4", [64])
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte in {0, 127}:
        scale = Fraction(0)
    elif exponent == 0:
        scale = Fraction(mantissa, 512)
    else:
        scale = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    assert Fraction(float(values[0])) == -6 * scale
    assert Fraction(float(values[8])) == 4 * scale
    assert not values[16:].any()


def test_iq1_m_block_scale_is_gathered_from_four_words() -> None:
    # 1.5 is 0x3E00: nibbles 0, 0, E, 3 in the tops of the words; local scales 0 give a factor of one
    scales = b"".join(struct.pack("<H", nibble << 12) for nibble in (0x0, 0x0, 0xE, 0x3))
    values = dequantize_packed(bytes(48) + scales, "gguf:iq1_m", [256])
    # row 0 of the grid is eight times minus one; the shift is an eighth up
    assert (values == 1.5 * -0.875).all()


def test_q1_0_is_plus_or_minus_the_scale() -> None:
    values = dequantize_packed(half(3.0) + bytes([0b10]) + bytes(15), "gguf:q1_0", [128])
    assert values[1] == 3.0
    assert (np.delete(values, 1) == -3.0).all()


@pytest.mark.parametrize(("identifier", "first", "count"), [("gguf:q8_1", 2, 2), ("gguf:q8_k", 260, 32)])
def test_cached_sums_do_not_enter(identifier: str, first: int, count: int) -> None:
    profile = PROFILES[identifier]
    payload = np.random.default_rng(1).integers(0, 256, profile.bytes, np.uint8)
    payload[:4] = np.frombuffer(half(0.75) + b"\0\0" if first == 2 else struct.pack("<f", 0.75), np.uint8)
    other = payload.copy()
    other[first : first + count] ^= 0xFF
    expected = dequantize_packed(payload, identifier, [profile.values])
    assert np.array_equal(dequantize_packed(other, identifier, [profile.values]), expected)


# --- the contract, for every profile --------------------------------------------------------------------------------


@ALL
@given(data=st.data())
def test_any_bytes_of_the_right_length_decode(profile: Profile, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(0, 5))
    payload = data.draw(st.binary(min_size=blocks * profile.bytes, max_size=blocks * profile.bytes))
    values = dequantize_packed(payload, profile.identifier, [blocks, profile.values])
    assert values.shape == (blocks, profile.values)
    assert values.dtype == np.float32


@ALL
@given(data=st.data())
def test_any_other_length_is_refused(profile: Profile, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(0, 4))
    length = data.draw(st.integers(0, 6 * profile.bytes).filter(lambda n: n != blocks * profile.bytes))
    with pytest.raises(ArgumentError, match="wrong length") as caught:
        dequantize_packed(bytes(length), profile.identifier, [blocks, profile.values])
    assert caught.value.expected == f"{blocks * profile.bytes} bytes"
    assert caught.value.found == f"{length} bytes"


@ALL
@pytest.mark.parametrize("output", FLOAT_OUTPUTS)
def test_output_types_round_once(profile: Profile, output: str, packed_vectors: dict[str, np.ndarray]) -> None:
    payload = packed_vectors[f"{profile.name.lower()}/payload"]
    shape = [len(payload), profile.values]
    single = packed_vectors[f"{profile.name.lower()}/bits"].view(np.float32).reshape(shape)
    values = dequantize_packed(payload.reshape(-1), profile.identifier, shape, output)
    assert values.dtype == FLOAT_OUTPUTS[output]
    if output == "bfloat16":
        # to nearest, ties to even, on the words themselves
        words = single.view(np.uint32).astype(np.uint64)
        rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
        finite = ~np.isnan(single)
        assert np.array_equal(values.view(np.uint16)[finite], rounded[finite])
        assert np.isnan(values[~finite].astype(np.float32)).all()
    else:
        with np.errstate(all="ignore"):
            expected = single.astype(FLOAT_OUTPUTS[output])
        assert np.array_equal(values, expected, equal_nan=True)
        assert np.array_equal(np.signbit(values[~np.isnan(values)]), np.signbit(expected[~np.isnan(expected)]))


@ALL
def test_results_do_not_depend_on_chunks_or_alignment(profile: Profile) -> None:
    blocks = (1 << 16) // profile.values * 2 + 3
    payload = np.random.default_rng(profile.ggml_type).integers(0, 256, blocks * profile.bytes + 1, np.uint8)
    shifted = payload[1:]
    shifted.flags.writeable = False
    whole = dequantize_packed(shifted, profile.identifier, [blocks * profile.values])
    for first in (0, 1, blocks // 2, blocks - 1):
        piece = shifted[first * profile.bytes : (first + 1) * profile.bytes]
        one = dequantize_packed(piece, profile.identifier, [profile.values])
        assert np.array_equal(bits_of(one), bits_of(whole[first * profile.values : (first + 1) * profile.values]))


@ALL
@pytest.mark.parametrize("lead", [(0,), (3, 0), (0, 2**40), ()])
def test_zero_dimensions_give_empty_tensors(profile: Profile, lead: tuple[int, ...]) -> None:
    last = profile.values if lead else 0
    values = dequantize_packed(b"", profile.identifier, [*lead, last])
    assert values.shape == (*lead, last)
    with pytest.raises(ArgumentError, match="not whole"):
        dequantize_packed(b"", profile.identifier, [0, *lead, profile.values - 1])


@ALL
def test_out_is_filled_and_returned(profile: Profile) -> None:
    payload = np.random.default_rng(7).integers(0, 256, 4 * profile.bytes, np.uint8)
    out = np.full((2, 2 * profile.values), np.nan, np.float64)
    result = dequantize_packed(payload, profile.identifier, out.shape, np.float64, out=out)
    assert result is out
    assert np.array_equal(out, dequantize_packed(payload, profile.identifier, out.shape, "float64"), equal_nan=True)


@pytest.mark.parametrize(
    "x",
    [
        np.frombuffer(bytes(36), np.uint8)[::1],
        np.zeros(72, np.uint8)[::2],
        np.zeros(36, np.uint8)[::-1],
        bytearray(36),
        memoryview(bytes(72))[::2],
        np.zeros((4, 9), np.uint8, order="F").data,
    ],
    ids=["read-only", "strided", "reversed", "bytearray", "memoryview", "Fortran memoryview"],
)
def test_payloads_of_every_kind(x: object) -> None:
    assert not dequantize_packed(x, "gguf:q4_0", [2, 32]).any()  # type: ignore[arg-type]


def test_a_memoryview_is_read_in_c_order() -> None:
    data = np.random.default_rng(3).integers(0, 128, (4, 36), np.uint8)
    values = dequantize_packed(data.reshape(-1), "gguf:q4_0", [8, 32])
    orders: tuple[Literal["C", "F"], ...] = ("C", "F")
    for order in orders:
        view = np.array(data, order=order).data
        assert np.array_equal(dequantize_packed(view, "gguf:q4_0", [8, 32]), values, equal_nan=True)


def test_bfloat16_by_type() -> None:
    assert dequantize_packed(bytes(18), "gguf:q4_0", [32], ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


class HasIndex:
    def __index__(self) -> int:
        return 32


def test_dimensions_may_be_anything_with_an_index() -> None:
    assert dequantize_packed(bytes(18), "gguf:q4_0", np.array([1, 32])).shape == (1, 32)  # type: ignore[arg-type]
    assert dequantize_packed(bytes(18), "gguf:q4_0", [HasIndex()]).shape == (32,)  # type: ignore[list-item]


# --- refusals -------------------------------------------------------------------------------------------------------

READ_ONLY = np.zeros(32, np.float32)
READ_ONLY.flags.writeable = False
SHARED = np.zeros(128, np.uint8)
RELEASED = memoryview(bytes(18))
RELEASED.release()

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown identifier": ({"format": "gguf:q4_9"}, "no packed profile is called 'gguf:q4_9'. Did you mean 'gguf:q4_"),
    "upper case": ({"format": "gguf:Q4_0"}, "Did you mean 'gguf:q4_0'"),
    "parameterized": ({"format": "gguf:q4_0<32>"}, "Did you mean 'gguf:q4_0'"),
    "no prefix": ({"format": "q4_0"}, "gguf:q4_0"),
    "no string": ({"format": 2}, "no packed profile"),
    "scalar shape": ({"shape": []}, "has rank 0; expected rank at least 1"),
    "negative": ({"shape": [-1, 32]}, "dimension 0 of shape [-1, 32] is negative; found -1"),
    "negative and zero": ({"shape": [0, -32]}, "is negative"),
    "float": ({"shape": [1.0, 32]}, "not a sequence of integers"),
    "bool": ({"shape": [True, 32]}, "not a sequence of integers"),
    "string": ({"shape": "32"}, "not a sequence of integers"),
    "integer": ({"shape": 32}, "not a sequence of integers"),
    "unaligned": ({"shape": [1, 48]}, "not whole Q4_0 blocks; expected a multiple of 32, found 48"),
    "huge dimension": ({"shape": [2**63, 32]}, "dimension 0 of shape does not fit a signed 64-bit integer"),
    "byte count overflow": (
        {"shape": [2**62, 32]},
        f"expected at most {2**63 - 1}, found {2**62 * 18}",
    ),
    "wrapping byte count": ({"shape": [2**62, 4, 32]}, "too many bytes"),
    "rank": ({"shape": [1] * 64 + [32]}, "no NumPy array has this shape"),
    "huge and empty": ({"x": b"", "shape": [2**57, 0, 32]}, "no NumPy array has this shape"),
    "int8": ({"x": np.zeros(18, np.int8)}, "x is not a vector of bytes; expected uint8 [n], found int8 [18]"),
    "matrix": ({"x": np.zeros((1, 18), np.uint8)}, "found uint8 [1, 18]"),
    "released": ({"x": RELEASED}, "x is a memoryview that was released"),
    "list": ({"x": [0] * 18}, "x is not a vector of bytes"),
    "int32 output": ({"output_dtype": "int32"}, "output_dtype is not an output type; expected float32, float16"),
    "float8 output": ({"output_dtype": ml_dtypes.float8_e4m3fn}, "output_dtype"),
    "big-endian output": ({"output_dtype": ">f4"}, "output_dtype"),
    "no output": ({"output_dtype": None}, "output_dtype"),
    "nonsense output": ({"output_dtype": "flaot32"}, "output_dtype"),
    "out of wrong type": ({"out": np.zeros(32, np.float64)}, "out has the wrong type or shape; expected float32 [32]"),
    "out of wrong shape": ({"out": np.zeros((1, 32), np.float32)}, "found float32 [1, 32]"),
    "out is a list": ({"out": [0.0] * 32}, "found list"),
    "out is strided": ({"out": np.zeros(64, np.float32)[::2]}, "not a writable C-contiguous array"),
    "out is read-only": ({"out": READ_ONLY}, "not a writable"),
    "out overlaps": ({"x": SHARED[:18], "out": SHARED.view(np.float32)}, "out overlaps x"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    change, fragment = REFUSALS[case]
    arguments: dict[str, Any] = {"x": bytes(18), "format": "gguf:q4_0", "shape": [32], "output_dtype": "float32"}
    with pytest.raises(QuantformError) as caught:
        dequantize_packed(**{**arguments, **change})
    assert fragment in str(caught.value)
    assert isinstance(caught.value, UnknownNameError if "format" in change else ArgumentError)
