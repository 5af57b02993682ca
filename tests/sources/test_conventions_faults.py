"""Every way in which the tensors of a quantized weight can be wrong."""

# ruff: noqa: E501 - tables have one case a line

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantform.errors import FileError, WordsError
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import BrokenWeight, Checkpoint, UnsupportedWeight
from quantized_weights import (
    BF16,
    BLOCKS,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8,
    MXFP4,
    NVFP4,
    U8,
    blocks,
    compressed,
    f8,
    f32,
    modelopt,
    rows,
    same,
    weight,
)

# --- words that are not legal ---

NAN = 0x7F800001
WORDS_FAULTS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("NVFP4: a scale with a sign", compressed(weight_scale=f8([[0x38], [0xB8]])), None, "'p.weight_scale', row 1, group 0.*0xB8"),
    ("NVFP4: a scale -0", compressed(weight_scale=f8([[0x80], [0x38]])), None, "row 0, group 0.*0x80"),
    ("NVFP4: a scale NaN", compressed(weight_scale=f8([[0x7F], [0x7F]])), None, "row 0, group 0.*0x7F.*first of 2"),
    ("NVFP4: a divisor 0", compressed(weight_global_scale=f32(0)), None, "'p.weight_global_scale'.*0.0"),
    ("NVFP4: a divisor -1", compressed(weight_global_scale=f32(-1)), None, "finite positive.*-1.0"),
    ("NVFP4: a divisor inf", compressed(weight_global_scale=f32(np.inf)), None, "finite positive.*inf"),
    ("NVFP4: a divisor NaN", compressed(weight_global_scale=np.array(NAN, np.uint32).view(np.float32)), None, "7F800001"),
    ("ModelOpt: a scale 0", modelopt(weight_scale_2=f32(0)), None, "'p.weight_scale_2'.*0.0"),
    ("ModelOpt: a scale inf", modelopt(weight_scale_2=f32(np.inf)), None, "finite positive"),
    ("ModelOpt: a scale without reciprocal", modelopt(weight_scale_2=f32(1e-40)), None, "reciprocal"),
    ("rows: a code NaN", rows(f32(1), weight=f8([[0x38, 0x7F]])), None, "'p.weight', row 0, column 1.*0x7F"),
    ("rows: a code -NaN", rows(f32(1), weight=f8([[0x38, 0], [0, 0xFF]])), None, "row 1, column 1.*0xFF"),
    ("rows: a scale -1", rows(f32([1, -1])), None, "'p.weight_scale', scale row 1.*-1.0"),
    ("rows: a scale -0", rows(f32([1, -0.0])), None, "scale row 1.*-0.0"),
    ("rows: a scale inf", rows(f32([np.inf, 1])), None, "scale row 0.*inf"),
    ("rows: a scale NaN", rows(np.array([np.nan, 1], BF16)), None, "scale row 0.*nan"),
    ("blocks: a code 0x7F", blocks(weight=f8(np.full((130, 200), 0x7F))), BLOCKS, "row 0, column 0.*0x7F"),
    ("blocks: a code 0xFF", blocks(weight=f8(np.full((130, 200), 0xFF))), BLOCKS, "row 0, column 0.*0xFF"),
    ("blocks: a scale -1", blocks(weight_scale_inv=f32([[1, 1], [1, -1]])), BLOCKS, "scale row 1, scale column 1.*-1.0"),
    ("blocks: a scale inf", blocks(weight_scale_inv=f32([[1, np.inf], [1, 1]])), BLOCKS, "scale row 0, scale column 1.*inf"),
    ("blocks: a scale NaN", blocks(weight_scale_inv=f32([[1, 1], [np.nan, 1]])), BLOCKS, "scale row 1, scale column 0.*nan"),
    ("blocks: an overflow", blocks(weight=f8(np.full((130, 200), 0x7E)), weight_scale_inv=np.full((2, 2), np.finfo(np.float32).max)), BLOCKS, "overflows binary32.*448.0"),
    ("exponents: NaN", {"p.weight_packed": np.zeros((1, 16), np.uint8), "p.weight_scale": np.array([[255]], np.uint8)}, MXFP4, "0xFF"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "settings", "message"), [case[1:] for case in WORDS_FAULTS], ids=[case[0] for case in WORDS_FAULTS])  # fmt: skip
def test_illegal_words_are_named_with_their_place(tensors: dict[str, Any], settings: Any, message: str) -> None:
    tensor = weight(tensors, settings)
    for use in (tensor.decode, tensor.words) if tensor.importable else (tensor.decode,):
        with pytest.raises(WordsError, match=message) as caught:
            use()
        assert "'p.weight'" in str(caught.value)


def test_places_count_the_rows_of_the_whole_weight() -> None:
    tensor = weight(rows(f32(1), weight=f8([[0x38], [0x7F], [0x38]])))
    with pytest.raises(WordsError, match=r"row 1, column 0"):
        tensor.words([2, 1])
    same(tensor.decode(rows=[2, 0]), [[1], [1]])


def test_words_need_zero_codes_under_a_zero_scale_and_scales_within_bf16() -> None:
    tensor = weight(rows(f32([0, 1])))
    with pytest.raises(WordsError, match=r"row 0, column 0.*0x38"):
        tensor.words()
    same(tensor.decode(), [[0, -0.0, 0], [0.5, -0.5, -0.0]])
    with pytest.raises(WordsError, match=r"row 0, column 0"):
        weight(rows(f32([1e-45, 1]))).words()  # rounds to zero
    with pytest.raises(WordsError, match=r"infinite in BF16"):
        weight(rows(f32(np.finfo(np.float32).max))).words()


def test_an_activation_divisor_is_checked() -> None:
    for bad in (0.0, -1.0, np.inf, np.nan):
        for tensors in (compressed(input_global_scale=f32(bad)), modelopt(input_scale=f32(bad))):
            tensor = weight(tensors)
            tensor.words()
            with pytest.raises(WordsError, match=r"input"):
                tensor.activation_divisor()


# --- tensors that do not fit ---

HEADER_FAULTS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("NVFP4: no scales", compressed(weight_scale=None), None, "lacks one.*'p.weight_scale'"),
    ("NVFP4: no divisor", compressed(weight_global_scale=None), None, "lacks one.*'p.weight_global_scale'"),
    ("NVFP4: scales of another shape", compressed(weight_scale=f8([[0x38]])), None, r"e4m3fn, \[2, 1\], found e4m3fn \[1, 1\]"),
    ("NVFP4: scales of another type", compressed(weight_scale=f32([[1], [1]])), None, "expected e4m3fn.*found fp32"),
    ("NVFP4: two divisors", compressed(weight_global_scale=f32([1, 2])), None, "one element.*found fp32 .2."),
    ("NVFP4: a divisor in BF16", compressed(weight_global_scale=np.array(1, BF16)), None, "fp32, one element, found bf16"),
    ("NVFP4: an input divisor in BF16", compressed(input_global_scale=np.array(1, BF16)), None, "input_global_scale.*found bf16"),
    ("NVFP4: K no multiple of 16", compressed(weight_packed=np.zeros((2, 9), np.uint8)), None, "whole groups.*found 18"),
    ("NVFP4: K zero", compressed(weight_packed=np.zeros((2, 0), np.uint8)), None, "whole groups"),
    ("NVFP4: a vector", compressed(weight_packed=np.zeros(8, np.uint8)), None, "no matrix"),
    ("NVFP4: the config says 8 bits", compressed(), MXFP4, "disagree.*groups of 16.*group of 32"),
    ("MXFP4: the config says NVFP4", {"p.weight_packed": np.zeros((1, 16), np.uint8), "p.weight_scale": np.array([[1]], np.uint8)}, NVFP4, "disagree.*groups of 32"),
    ("ModelOpt: no second scale", modelopt(weight_scale_2=None), None, "lacks one.*'p.weight_scale_2'"),
    ("ModelOpt: a second scale a row", modelopt(weight_scale_2=f32([1, 1])), None, "one element"),
    ("rows: three scales", rows(f32([1, 2, 3])), None, "nothing says what"),
    ("rows: three scales and a config", rows(f32([1, 2, 3])), FP8_CHANNEL, r"\[2, 1\].*found fp32 \[3\]"),
    ("rows: scales in F16", rows(np.array([1, 2], np.float16)), None, "expected bf16 or fp32.*found fp16"),
    ("rows: scales as exponents", rows(np.array([1, 2], np.uint8)), None, "found uint8"),
    ("rows: one scale where the config says rows", rows(f32([1])), FP8_CHANNEL, r"\[2, 1\].*found fp32 \[1\]"),
    ("rows: a vector", rows(f32(1), weight=f8(np.zeros(2))), None, "no matrix"),
    ("rows: a bank with other scales", rows(f32([1, 2, 3]), weight=f8(np.zeros((2, 2, 2)))), FP8_TENSOR, r"\[2, 1, 1\].*found fp32 \[3\]"),
    ("NVFP4: a bank with other divisors", modelopt(weight=np.zeros((2, 2, 8), np.uint8), weight_scale=f8(np.zeros((2, 2, 1))), weight_scale_2=f32([1, 2, 3])), None, r"\[2\] or.*found fp32 \[3\]"),
    ("NVFP4: a bank with K no multiple of 16", modelopt(weight=np.zeros((2, 2, 9), np.uint8)), None, "whole groups.*found 18"),
    ("rows: no scale, and the config says FP8", rows(None), FP8_CHANNEL, "lacks one.*'p.weight_scale'.*8-bit float"),
    ("rows: the config ignores it", rows(f32(1)), {"quantization_config": {"config_groups": {}, "ignore": ["p"]}}, "config says that it is not"),
    ("rows: no group targets it", rows(f32(1)), {"quantization_config": {"config_groups": {"g": {"targets": ["q"], "weights": {"type": "float"}}}}}, "config says that it is not.*'p'"),
    ("rows: both kinds of scales", rows(f32(1), weight_scale_inv=f32(1)), None, "two sets of scales"),
    ("blocks: no config", blocks(), None, "how large the blocks.*config.json"),
    ("blocks: a config without blocks", blocks(), {"quantization_config": {"quant_method": "fp8"}}, "how large the blocks"),
    ("blocks: another block size", blocks(), {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}}, r"\[3, 2\].*found fp32 \[2, 2\]"),
    ("blocks: another weight shape", blocks(weight=f8(np.zeros((300, 200)))), BLOCKS, r"\[3, 2\]"),
    ("blocks: another weight type", blocks(weight=np.zeros((130, 200), np.uint8)), BLOCKS, "unsupported"),
    ("blocks: another scale shape", blocks(weight_scale_inv=f32([[1, 1]])), BLOCKS, r"\[2, 2\].*found fp32 \[1, 2\]"),
    ("blocks: scales in F16", blocks(weight_scale_inv=np.ones((2, 2), np.float16)), BLOCKS, "bf16 or fp32.*found fp16"),
    ("blocks: a vector", blocks(weight=f8(np.zeros(130))), BLOCKS, "no matrix"),
    ("scales without a weight", {"p.weight_scale": f32(1), "q.weight": f8([[1]]), "q.weight_scale": f32(1)}, None, "not there.*'p.weight'"),
    ("scales that no weight of the kind has", rows(f32(1), weight_scale_2=f32(1)), None, "no place.*fp8-per-tensor"),
    ("a weight twice", compressed(weight=f8(np.zeros((2, 16)))), None, "both packed and under its own name"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "settings", "message"), [case[1:] for case in HEADER_FAULTS], ids=[case[0] for case in HEADER_FAULTS])  # fmt: skip
def test_tensors_that_do_not_fit_are_listed_and_fail_on_use(
    tensors: dict[str, Any], settings: Any, message: str
) -> None:
    if message == "unsupported":
        assert isinstance(weight(tensors, settings), UnsupportedWeight)
        return
    checkpoint = Checkpoint(ArraySource({**tensors, "n.bias": f32([1, 2])}), settings or {})
    tensor = checkpoint["p.weight"]
    assert isinstance(tensor, BrokenWeight)
    assert (tensor.format, tensor.convention, tensor.importable) == ("broken", "broken", False)
    assert checkpoint["n.bias"].decode().tolist() == [1, 2]
    for use in (tensor.check, tensor.words, tensor.decode, tensor.check):
        with pytest.raises(FileError, match=message) as caught:
            use()
        caught.value.at("a place")  # which the next error must not show
        assert str(caught.value).startswith("a place, <arrays>, tensor 'p.weight")


NVFP4_ALL = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
FP8_ALL = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
BANK8 = np.zeros((2, 4, 8), np.uint8)
MISSING: list[tuple[str, str, dict[str, Any], Any, str]] = [
    ("no scales but a second one", "p.weight", modelopt(weight_scale=None), NVFP4_ALL, "lacks one.*'p.weight_scale'.*4-bit float"),
    ("no scales but a second one, and no config", "p.weight", modelopt(weight_scale=None), None, "lacks one.*'p.weight_scale'"),
    ("codes alone", "p.weight", {"p.weight": U8}, NVFP4_ALL, "lacks one.*'p.weight_scale'.*4-bit float"),
    ("integers alone", "p.weight", {"p.weight": np.zeros((2, 8), np.int8)}, INT8, "lacks one.*'p.weight_scale'.*8-bit int"),
    ("fused experts without scales", "x.up", {"x.up": BANK8, "x.up_weight_scale_2": f32(1)}, NVFP4_ALL, "lacks one.*'x.up_weight_scale'"),
    ("fused experts without a second scale", "x.up", {"x.up": BANK8, "x.up_weight_scale": f8(np.zeros((2, 4, 1)))}, NVFP4_ALL, "lacks one.*'x.up_weight_scale_2'"),
    ("fused experts in FP8 alone", "x.up", {"x.up": f8(BANK8)}, FP8_ALL, "lacks one.*'x.up_scale'"),
    ("fused experts with an input scale alone", "x.up", {"x.up": U8, "x.up_input_scale": f32(1)}, NVFP4_ALL, "lacks one.*'x.up_scale'"),
    ("fused experts of bytes alone", "x.up", {"x.up": BANK8}, NVFP4_ALL, "lacks one.*'x.up_scale'"),
    ("an input scale without a config", "p.weight", {"p.weight": f8(U8), "p.input_scale": f32(1)}, None, "lacks one.*'p.weight_scale'"),
    ("a global scale without a config", "p.weight", {"p.weight": f8(U8), "p.weight_global_scale": f32(1)}, None, "lacks one.*'p.weight_scale'"),
    ("a second scale where the config ignores the weight", "p.weight", modelopt(weight_scale=None), {"quantization_config": {"quant_algo": "NVFP4", "exclude_modules": ["p"]}}, "config says that it is not"),
    ("a scale that fused experts have no use for", "x.up", {"x.up": f8(U8), "x.up_weight_scale": f32(1), "x.up_weight_scale_2": f32(1)}, FP8_ALL, "no place.*fp8-per-tensor"),
    ("codes in two ways", "p.weight", {"p.qweight": np.zeros((4, 4), np.int32), "p.scales": f32([[1]]), "p.weight": f32([[1]])}, None, "both quantized and as a tensor"),
    ("two sets of codes", "p.weight", {"p.qweight": np.zeros((4, 4), np.int32), "p.scales": f32([[1]]), **rows(f32(1))}, None, "two sets of tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensors", "settings", "message"), [case[1:] for case in MISSING], ids=[case[0] for case in MISSING])  # fmt: skip
def test_codes_never_become_plain_values(name: str, tensors: dict[str, Any], settings: Any, message: str) -> None:
    checkpoint = Checkpoint(ArraySource(tensors), settings or {})
    assert list(checkpoint) == [name]
    tensor = checkpoint[name]
    assert isinstance(tensor, BrokenWeight)
    assert {*tensor.companions, *(one.name for one in checkpoint.dropped)} == set(tensors)
    for use in (tensor.check, tensor.words, tensor.decode):
        with pytest.raises(FileError, match=message):
            use()


def test_integers_that_no_config_calls_codes_stay_plain() -> None:
    tensors: dict[str, Any] = {"p.mask": U8, "p.ids": np.zeros((2, 2), np.int32), "p.bias": np.zeros(4, np.int8)}
    checkpoint = Checkpoint(ArraySource(tensors), NVFP4_ALL)
    assert set(checkpoint) == set(tensors)
    assert not checkpoint.weights


def test_scales_of_fused_experts_are_found_by_their_names() -> None:
    codes = {"x.up": f8([[0x38, 0x40]]), "x.up_weight_scale": f32(2), "x.up_input_scale": f32(1)}
    checkpoint = Checkpoint(ArraySource({**codes, "x.gate_weight_scale": f32(1), "x.gate": f32([[1]])}), FP8_ALL)
    assert list(checkpoint) == ["x.up", "x.gate"]
    same(checkpoint["x.up"].decode(), [[2, 4]])
    reasons = {one.name: one.reason for one in checkpoint.dropped}
    assert set(reasons) == {"x.up_input_scale", "x.gate_weight_scale"}
    assert "activations" in reasons["x.up_input_scale"]
