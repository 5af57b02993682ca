"""Arrays in memory behave as the tensors of a file do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, UnknownNameError
from quantform.sources.arrays import ArraySource


def numbers(scalar: str, shape: tuple[int, ...]) -> np.ndarray:
    record = SCALARS[scalar]
    rng = np.random.default_rng(5)
    high = 2 if scalar == "bool" else 1 << min(record.bits, 62)
    return rng.integers(0, high, shape).astype(record.word_dtype).view(record.dtype)


def variants(array: np.ndarray) -> dict[str, np.ndarray]:
    found = {
        "plain": array,
        "transposed": np.ascontiguousarray(array.T).T,
        "reversed": np.ascontiguousarray(array[::-1, :, ::-1])[::-1, :, ::-1],
        "strided": np.repeat(array, 2, axis=2)[:, :, ::2],
        "fortran": np.asfortranarray(array),
    }
    if array.dtype.itemsize > 1 and array.dtype.kind in "fiu":
        found["big-endian"] = array.astype(array.dtype.newbyteorder(">"))
        found["big-endian strided"] = np.repeat(found["big-endian"], 2, axis=0)[::2]
    return found


@pytest.mark.parametrize("scalar", SCALARS)
def test_every_type_in_every_arrangement(scalar: str) -> None:
    array = numbers(scalar, (2, 3, 4))
    little = array.view(SCALARS[scalar].word_dtype).astype(SCALARS[scalar].stored_dtype)
    with ArraySource(variants(array)) as source:
        for name, tensor in source.items():
            assert tensor.format == scalar, name
            assert (tensor.shape, tensor.nbytes) == ((2, 3, 4), little.nbytes)
            assert tensor.payload().tobytes() == little.tobytes(), name
            words = tensor.words().words
            assert words.dtype == SCALARS[scalar].word_dtype
            assert words.tobytes() == little.astype(words.dtype).tobytes(), name
            assert tensor.decode().tobytes() == array.tobytes(), name
            for rows in ([5, 1, -1], slice(1, 4), slice(None, None, -2), []):
                some = tensor.words(rows)
                matrix = words.reshape(6, 4)
                want = matrix[rows] if rows != [] else matrix[:0]
                assert (some.words == want).all(), (name, rows)
                assert some.shape == want.shape
            out = np.empty(little.nbytes - 4, np.uint8)
            tensor.read_into(3, out)
            assert out.tobytes() == little.tobytes()[3:-1], name


def test_nan_payloads_survive_a_change_of_byte_order() -> None:
    words = np.array([0x7F800001, 0xFFC01234, 0x80000000], np.uint32)
    source = ArraySource({"x": words.astype(">u4").view(">f4")})
    assert source["x"].words().words.tolist() == words.tolist()
    assert source["x"].decode().view(np.uint32).tolist() == words.tolist()


def test_scalars_vectors_and_empty_arrays() -> None:
    source = ArraySource({"s": np.array(2, np.float32), "v": np.arange(6.0)[::2], "e": np.zeros((0, 3))})
    assert source["s"].decode().shape == ()
    assert source["v"].decode().tolist() == [0, 2, 4]
    assert source["v"].decode(rows=[0, 0]).tolist() == [[0, 2, 4]] * 2
    assert source["e"].decode().shape == (0, 3)
    assert source["e"].payload().size == 0


def test_values_are_converted_once() -> None:
    value = np.array([1 + 2**-8 + 2**-40])  # just above a tie of BF16
    assert ArraySource({"x": value})["x"].decode("bfloat16").astype(float)[0] == 1 + 2**-7


def test_nothing_is_copied_beforehand() -> None:
    array = np.zeros((4, 4), np.float32)
    source = ArraySource({"x": array})
    array[2, 2] = 5
    assert source["x"].decode(rows=[2])[0, 2] == 5


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        np.array(["a"]),
        np.array([None]),
        np.zeros(3, complex),
        np.zeros(3, "M8[s]"),
        np.zeros(3, [("a", "f4")]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.zeros(3, ml_dtypes.int4),
        None,
    ],
    ids=str,
)
def test_what_is_no_array_of_numbers_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"array 'bad'"):
        ArraySource({"good": np.zeros(1), "bad": value})


def test_other_arguments_are_refused() -> None:
    arrays: Any
    for arrays in ([], {1: np.zeros(1)}, np.zeros(3)):
        with pytest.raises(ArgumentError, match=r"not a mapping"):
            ArraySource(arrays)
    source = ArraySource({"x": np.zeros((2, 2))})
    with pytest.raises(UnknownNameError, match=r"'y'"):
        source["y"]
    with pytest.raises(ArgumentError, match=r"array 'x'.*outside"):
        source["x"].words([2])
    for offset, size in ((-1, 1), (32, 1), (31, 2)):
        with pytest.raises(ArgumentError, match=r"outside"):
            source["x"].read_into(offset, np.empty(size, np.uint8))
