"""`encode`: what it accepts, and that every format can be had."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from quantform._scalars import SCALARS
from quantform.encode import encode
from quantform.errors import ArgumentError, UnknownNameError, UnsupportedError, ValuesError, WordsError
from quantform.formats import FORMATS, DirectWords, Format, GroupedWords
from quantform.methods import default_method


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str) -> None:
    record = FORMATS[name]
    source = np.arange(-256, 256).reshape(2, 256)
    if record.category == "gguf":
        blocks = np.zeros((2, record.row_bytes(256)), np.uint8)  # type: ignore[attr-defined]
        words = encode(blocks, name)
    elif name in {"q2_g64_fp16", "t2_g128_fp16"}:
        with pytest.raises(UnsupportedError, match="import_encoded needs words"):
            encode(source, name)
        count = record.groups(256)  # type: ignore[attr-defined]
        words = encode(
            GroupedWords(record, (2, 256), np.zeros((2, 256), np.int8), np.zeros((2, count), np.uint16)), name
        )
    else:
        words = encode(source, name)
    words.validate()
    assert words.format is record
    assert words.decode().shape == (2, 256)


def test_words_of_direct_formats_are_values() -> None:
    words = encode([[1.0, -2.0]], "bf16")
    assert isinstance(words, DirectWords)
    assert encode(words, "fp32", "cast_direct").decode().tolist() == [[1.0, -2.0]]
    assert encode(words, "q8_g32_fp16").decode().shape == (1, 2)


def test_records_and_nested_lists() -> None:
    assert encode([[1, 2], [3, 4]], FORMATS["int32"]).decode().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ArgumentError, match="not an array"):
        encode([[1, 2], [3]], "int32")


@pytest.mark.parametrize("name", ["q4_g64_fp16", "fp8_e4m3fn_row_bf16", "fp32"])
@pytest.mark.parametrize("shape", [(2**40, 64), (2**46, 2**12), (2**50, 2**12)])
def test_words_that_no_memory_holds(name: str, shape: tuple[int, int]) -> None:
    values = np.broadcast_to(np.int8(1), shape)
    with pytest.raises(UnsupportedError, match="do not fit into memory"):
        encode(values, name)


@pytest.mark.parametrize("format", [None, 4, ["bf16"], Format])
def test_formats_that_are_none(format: object) -> None:
    with pytest.raises(ArgumentError, match="neither a name nor a format"):
        encode([1.0], format)  # type: ignore[arg-type]


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'q4_g64_fp16'"):
        encode([1.0], "q4_g64")
    with pytest.raises(UnknownNameError, match="no conversion method"):
        encode([1.0], "bf16", "cast")


def test_illegal_words_are_refused() -> None:
    record = FORMATS["t2_g128_fp16"]
    words = GroupedWords(record, (1, 4), np.full((1, 4), -2, np.int8), np.full((1, 1), 0x3C00, np.uint16))
    with pytest.raises(WordsError, match="row 0, group 0, column 0"):
        encode(words, "t2_g128_fp16")


@pytest.mark.parametrize("name", SCALARS)
def test_every_number_type(name: str) -> None:
    scalar = SCALARS[name]
    source = np.array([[1, 2, 4, 0.5 if scalar.is_float else 1]]).astype(scalar.dtype)
    expected = source.astype(np.float32)
    assert encode(source, "fp32").decode().tolist() == expected.tolist()
    if name != "bool":
        assert encode(source, "q8_g32_fp16").decode().tolist() == encode(expected, "q8_g32_fp16").decode().tolist()
    source = np.array([[1, np.nan if scalar.is_float else 1]]).astype(scalar.dtype)
    if name != "fp32" and not np.isfinite(source[0, 1]):
        with pytest.raises(ValuesError, match="row 0, column 1: the value is not finite"):
            encode(source, "fp32")


SIGNALLING = {
    "float16": ("<u2", 0x7C01),
    "float32": ("<u4", 0x7F800001),
    "float64": ("<u8", 0x7FF0000000000001),
    "bfloat16": ("<u2", 0x7F81),
}


@pytest.mark.parametrize("kind", SIGNALLING)
@pytest.mark.parametrize("name", [name for name in FORMATS if default_method(FORMATS[name]).name != "import_encoded"])
def test_a_signalling_nan_is_refused_without_a_warning(name: str, kind: str) -> None:
    word_type, word = SIGNALLING[kind]
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    words = np.ones((128, 256), dtype).view(word_type)
    words[3, 5] = word
    if FORMATS[name].category == "direct" and kind == SCALARS[name].dtype.name:  # its own words are kept
        kept = encode(words.view(dtype), name)
        assert isinstance(kept, DirectWords)
        assert kept.words[3, 5] == word
        return
    with pytest.raises(ValuesError, match="row 3, column 5: the value "):
        encode(words.view(dtype), name)
