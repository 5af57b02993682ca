"""Quantized weights by hand: the conventions' check values, and every way in which their tensors can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantform.errors import ArgumentError, FileError, UnsupportedError, WordsError
from quantform.formats import Nvfp4Words, RowScaledWords
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import Checkpoint, QuantizedWeight
from quantform.sources.safetensors import SafetensorsSource
from quantized_weights import (
    BF16,
    BLOCKS,
    CODES,
    E8M0,
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_GROUP_3,
    FP8_TENSOR,
    GRID,
    MXFP4,
    blocks,
    compressed,
    f8,
    f32,
    modelopt,
    rows,
    same,
    weight,
)
from safetensors_builder import model

# --- check values ---


def test_the_global_scale_of_compressed_tensors_is_the_divisor() -> None:
    tensor = weight(compressed())
    words = tensor.words()
    assert isinstance(words, Nvfp4Words)
    assert (tensor.convention, tensor.format, tensor.importable) == ("compressed-tensors-nvfp4", "nvfp4", True)
    assert words.codes.tolist() == [CODES, CODES]
    assert words.scales.tolist() == [[0x38], [0x40]]
    assert words.divisors.view(np.float32).tolist() == [2.0]
    same(tensor.decode(), [GRID / 2, GRID])
    assert tensor.activation_divisor() == f32(1.5).view(np.uint32)
    assert tensor.nbytes == 2 * 8 + 2 + 4 + 4


def test_the_second_scale_of_modelopt_multiplies() -> None:
    tensor = weight(modelopt())
    words = tensor.words()
    assert isinstance(words, Nvfp4Words)
    assert tensor.convention == "modelopt-nvfp4"
    assert words.divisors.view(np.float32).tolist() == [4.0]
    same(tensor.decode(), [GRID / 4, GRID / 2])
    assert tensor.activation_divisor() == f32(8.0).view(np.uint32)


def test_the_reciprocal_is_rounded_once_and_values_multiply_before_they_divide() -> None:
    tensor = weight(modelopt(weight_scale_2=f32(0.1), weight_scale=f8([[0x3B], [0x7E]])))
    words = tensor.words()
    assert isinstance(words, Nvfp4Words)
    assert words.divisors.tolist() == [np.float32(1.0 / float(np.float32(0.1))).view(np.uint32)]
    divisor = words.divisors.view(np.float32)[0]
    same(tensor.decode(), [GRID * np.float32(1.375) / divisor, GRID * np.float32(448) / divisor])


def test_an_absent_input_scale_gives_no_activation_divisor() -> None:
    assert weight(compressed(input_global_scale=None)).activation_divisor() is None
    assert weight(modelopt(input_scale=None)).activation_divisor() is None
    assert weight(rows(f32(2))).activation_divisor() is None


PER_TENSOR = [[2, -2, 4], [1, -1, -0.0]]
PER_ROW = [[2, -2, 4], [0.25, -0.25, -0.0]]


@pytest.mark.parametrize(
    "scale", [f32(2.0), f32([2.0]), f32([[2.0]]), np.array(2.0, BF16), np.array([2.0], BF16)], ids=str
)
def test_one_scale_is_repeated_for_each_row(scale: np.ndarray) -> None:
    for settings in (None, FP8_TENSOR):
        tensor = weight(rows(scale), settings)
        words = tensor.words()
        assert isinstance(words, RowScaledWords)
        assert tensor.convention == "fp8-per-tensor"
        assert words.scales.tolist() == [0x4000, 0x4000]
        assert words.codes.tolist() == [[0x38, 0xB8, 0x40], [0x30, 0xB0, 0x80]]
        same(tensor.decode(), PER_TENSOR)
        same(words.decode(), PER_TENSOR)


@pytest.mark.parametrize("kind", [np.float32, BF16])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_one_scale_a_row(kind: Any, shape: tuple[int, ...]) -> None:
    for settings in (None, FP8_CHANNEL, FP8_GROUP_3):
        tensor = weight(rows(np.array([2.0, 0.5], kind).reshape(shape)), settings)
        words = tensor.words()
        assert isinstance(words, RowScaledWords)
        assert tensor.convention == "fp8-per-row"
        assert words.scales.tolist() == [0x4000, 0x3F00]
        same(tensor.decode(), PER_ROW)


def test_binary32_scales_are_rounded_to_bf16_in_words_and_kept_in_values() -> None:
    tie_up, tie_down = (np.array(word, np.uint32).view(np.float32) for word in (0x3F818000, 0x3F808000))
    tensor = weight(rows(f32([tie_up, tie_down])))
    words = tensor.words()
    assert isinstance(words, RowScaledWords)
    assert words.scales.tolist() == [0x3F82, 0x3F80]
    same(tensor.decode()[:, 0], [tie_up, tie_down * 0.5])
    assert tensor.rounds_scales  # type: ignore[attr-defined]


def test_the_strategy_decides_what_a_column_of_scales_means() -> None:
    codes = f8(np.full((2, 2), 0x38))
    scales = f32([[2.0], [4.0]])
    by_row = weight({"p.weight": codes, "p.weight_scale": scales}, FP8_CHANNEL)
    by_block = weight({"p.weight": codes, "p.weight_scale": scales}, FP8_BLOCK)
    assert (by_row.convention, by_row.importable) == ("fp8-per-row", True)
    assert (by_block.convention, by_block.importable) == ("fp8-block", False)
    with pytest.raises(FileError, match=r"one element.*found fp32"):
        weight({"p.weight": codes, "p.weight_scale": scales}, FP8_TENSOR)
    with pytest.raises(FileError, match=r"\[2, 1\].*found fp32 \[1, 2\]"):
        weight({"p.weight": codes, "p.weight_scale": scales.T}, FP8_CHANNEL)
    with pytest.raises(FileError, match=r"nothing says what"):
        weight({"p.weight": codes, "p.weight_scale": scales.T})


def test_blocks_cover_edges_and_partial_reads_are_exact_to_the_bit() -> None:
    tensors = blocks()
    tensor = weight(tensors, BLOCKS)
    scale = np.repeat(np.repeat(tensors["p.weight_scale_inv"], 128, axis=0)[:130], 128, axis=1)[:, :200]
    want = tensors["p.weight"].astype(np.float32) * scale
    assert (tensor.convention, tensor.format, tensor.importable) == ("fp8-block", "fp8-block", False)
    same(tensor.decode(), want)
    for some in ([129, 0, 127, 128, 128], slice(120, 130), []):
        same(tensor.decode(rows=some), want[some] if some != [] else want[:0])
    with pytest.raises(UnsupportedError, match=r"not words of a registered format.*Decode the values"):
        tensor.words()


def test_blocks_of_stacked_experts() -> None:
    codes = f8(np.full((2, 3, 4), 0x38))
    scales = f32([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    settings = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}}
    tensors = {"experts.up": codes, "experts.up_scale_inv": scales}
    tensor = weight(tensors, settings, "experts.up")
    want = np.repeat(np.repeat(scales, 2, axis=1)[:, :3], 2, axis=2)
    same(tensor.decode(), want)
    same(tensor.decode(rows=[5, 2, 3]), want.reshape(6, 4)[[5, 2, 3]])


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 3)])
@pytest.mark.parametrize("settings", [None, FP8_CHANNEL])
def test_one_scale_a_row_of_stacked_experts(shape: tuple[int, ...], settings: Any) -> None:
    scales = f32([1, 2, 3, 4, 5, 0.1])
    tensor = weight(
        {"e.weight": f8(np.full((2, 3, 4), 0x3C)), "e.weight_scale": scales.reshape(shape)}, settings, "e.weight"
    )
    want = np.repeat(scales[:, None] * np.float32(1.5), 4, axis=1)
    assert (tensor.convention, tensor.importable, tensor.shape) == ("fp8-per-row", True, (2, 3, 4))
    same(tensor.decode(), want.reshape(2, 3, 4))
    same(tensor.decode(rows=[5, 0, 3]), want[[5, 0, 3]])
    words = tensor.words()  # one matrix, its scales rounded to BF16
    assert isinstance(words, RowScaledWords)
    assert (words.format.name, words.shape) == ("fp8_e4m3fn_row_bf16", (6, 4))
    assert words.scales.tolist() == [0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x3DCD]
    assert (words.codes == 0x3C).all()


@pytest.mark.parametrize("scales", [f32([2, 3]), f32([[[2]], [[3]]]), f32([[2], [3]]), f32(2), f32([2])], ids=str)
@pytest.mark.parametrize("settings", [None, FP8_TENSOR])
def test_one_scale_an_expert_or_one_for_all(scales: np.ndarray, settings: Any) -> None:
    tensor = weight({"e.weight": f8(np.full((2, 3, 4), 0x38)), "e.weight_scale": scales}, settings, "e.weight")
    want = np.broadcast_to(f32([[[2]], [[3 if scales.size == 2 else 2]]]), (2, 3, 4))
    assert (tensor.convention, tensor.importable) == ("fp8-per-tensor", True)
    same(tensor.decode(), want)
    words = tensor.words([0, 5, 2])
    assert isinstance(words, RowScaledWords)
    assert words.scales.tolist() == [0x4000, 0x4040 if scales.size == 2 else 0x4000, 0x4000]
    same(tensor.decode(rows=[5, 2, 3]), want.reshape(6, 4)[[5, 2, 3]])


@pytest.mark.parametrize("divisors", [f32([0.25, 0.5]), f32([[0.25], [0.5]]), f32(0.25)], ids=str)
def test_nvfp4_of_stacked_experts(divisors: np.ndarray) -> None:
    tensors = {
        "x.up": np.array([[CODES] * 3] * 2, np.uint8),
        "x.up_weight_scale": f8([[[0x38], [0x40], [0x48]]] * 2),
        "x.up_weight_scale_2": divisors,
        "x.up_input_scale": f32(1),
    }
    checkpoint = Checkpoint(ArraySource(tensors), {"quantization_config": {"quant_algo": "NVFP4"}})
    assert list(checkpoint) == ["x.up"]
    tensor = checkpoint["x.up"]
    assert isinstance(tensor, QuantizedWeight)
    assert (tensor.convention, tensor.importable, tensor.shape) == ("modelopt-nvfp4-bank", True, (2, 3, 16))
    second = 0.5 if divisors.size == 2 else 0.25
    want = np.stack([GRID * f32(one) for first in (0.25, second) for one in (first, first * 2, first * 4)])
    same(tensor.decode(), want.reshape(2, 3, 16))
    same(tensor.decode(rows=[4, 0, 4]), want[[4, 0, 4]])
    words = tensor.words()  # one matrix, a divisor for each expert where they differ
    assert isinstance(words, Nvfp4Words)
    assert (words.format.name, words.shape) == ("nvfp4", (6, 16))
    assert words.divisors.view(np.float32).tolist() == ([4.0, 2.0] if divisors.size == 2 else [4.0])
    assert words.scales.reshape(-1).tolist() == [0x38, 0x40, 0x48] * 2
    same(words.decode(), want)
    mixed = tensor.words([1, 5, 4])
    assert isinstance(mixed, Nvfp4Words)
    assert mixed.divisors.view(np.float32).tolist() == ([4.0, 2.0, 2.0] if divisors.size == 2 else [4.0])
    runs = tensor.divisor_runs()
    assert runs is not None
    assert runs.rows.tolist() == ([3, 3] if divisors.size == 2 else [6])
    assert "x.up_input_scale" in tensor.companions


@pytest.mark.parametrize("bank", [(), (3,)])
def test_nvfp4_without_rows_has_no_runs_of_divisors(bank: tuple[int, ...]) -> None:
    parts = {
        "weight": np.zeros((*bank, 0, 32), np.uint8),
        "weight_scale": f8(np.zeros((*bank, 0, 4))),
        "weight_scale_2": np.full(bank, 0.5, np.float32),
    }
    tensor = weight(modelopt(**parts))
    runs = tensor.divisor_runs()
    assert runs is not None
    assert runs.rows.size == runs.shares().size == 0
    assert tensor.decode().shape == (*bank, 0, 64)


@pytest.mark.parametrize(
    ("scales", "smallest"), [(f32([0.125, 0.5]), 2.0), (f32([[0.5], [0.25]]), 2.0), (f32(0.25), 4.0)], ids=str
)
def test_the_smallest_input_divisor_holds_for_a_bank(scales: np.ndarray, smallest: float) -> None:
    bank = {"weight": np.zeros((2, 3, 8), np.uint8), "weight_scale": f8(np.zeros((2, 3, 1)))}
    word = weight(modelopt(**bank, input_scale=scales)).activation_divisor()
    assert word is not None
    assert float(np.array(word).view(np.float32)) == smallest


def test_illegal_words_of_stacked_experts_are_named() -> None:
    bank = {"weight": np.array([[CODES] * 3] * 2, np.uint8), "weight_scale": f8([[[0x38]] * 3, [[0x38], [0xB8], [0]]])}
    with pytest.raises(WordsError, match=r"'p.weight_scale', row 4, group 0.*0xB8"):
        weight(modelopt(**bank)).decode()
    with pytest.raises(WordsError, match=r"'p.weight_scale_2', element 1.*-1.0"):
        weight(modelopt(**bank, weight_scale_2=f32([1, -1]))).decode(rows=[3])


def test_modelopt_writes_blocks_with_axes_of_one() -> None:
    settings = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}}
    scales = f32([[1, 2], [3, 4]]).reshape(2, 1, 2, 1)
    tensor = weight({"p.weight": f8(np.full((130, 130), 0x38)), "p.weight_scale": scales}, settings)
    assert tensor.decode(rows=[0, 129])[:, [0, 129]].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", [np.uint8, E8M0])
def test_exponents_are_powers_of_two(kind: Any) -> None:
    exponents = np.array([[127, 0], [128, 254]], np.uint8).view(kind)
    settings = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 2]}}
    tensor = weight({"p.weight": f8([[0x38] * 4, [0x30] * 4]), "p.weight_scale_inv": exponents}, settings)
    same(tensor.decode(), [[1, 1, 2.0**-127, 2.0**-127], [1, 1, 2.0**126, 2.0**126]])


@pytest.mark.parametrize("settings", [None, MXFP4])
def test_mxfp4_decodes_as_values(settings: Any) -> None:
    codes = np.array([[*CODES, *CODES]], np.uint8)
    tensor = weight({"p.weight_packed": codes, "p.weight_scale": np.array([[129]], np.uint8)}, settings)
    assert tensor.convention == "mxfp4"
    same(tensor.decode(), [np.concatenate([GRID, GRID]) * 4])
    with pytest.raises(UnsupportedError):
        tensor.words()


def test_zero_points_that_are_zero_change_nothing_and_others_are_refused() -> None:
    tensor = weight(rows(f32(2), weight_zero_point=f8([0, 0])))
    assert "p.weight_zero_point" in tensor.companions
    same(tensor.decode(), PER_TENSOR)
    for use in (
        weight(rows(f32(2), weight_zero_point=f8([0, 1]))).decode,
        weight(rows(f32(2), weight_zero_point=f8([1]))).words,
    ):
        with pytest.raises(WordsError, match=r"'p.weight_zero_point'.*zero point"):
            use()


def test_one_output_type_each() -> None:
    tensor = weight(compressed())
    for name in ("float32", "float16", "bfloat16", "float64"):
        assert tensor.decode(name).astype(np.float32).tolist() == tensor.decode().tolist()
    with pytest.raises(ArgumentError, match=r"'p.weight'.*dtype"):
        tensor.decode("int8")
    with pytest.raises(ArgumentError, match=r"'p.weight'.*row is outside"):
        tensor.decode(rows=[2])


def test_a_logical_weight_has_no_bytes_of_its_own() -> None:
    tensor = weight(compressed())
    for use in (tensor.payload, lambda: tensor.read_into(0, np.empty(1, np.uint8))):
        with pytest.raises(UnsupportedError, match=r"p.weight_packed, p.weight_scale"):
            use()


# --- reads ---


def test_a_read_touches_only_its_rows_and_the_scales_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = np.full((300, 256), 0x38, np.uint8)
    scales = np.ones((3, 2), np.float32)
    model(tmp_path, {"p.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "p.weight_scale_inv": scales}, BLOCKS)
    read: list[int] = []
    with Checkpoint(SafetensorsSource(tmp_path)) as checkpoint:
        for name in ("p.weight", "p.weight_scale_inv"):
            tensor = checkpoint.source[name]

            def counted(at: int, out: np.ndarray, into: Any = tensor.read_into) -> None:
                read.append(out.nbytes)
                into(at, out)

            monkeypatch.setattr(tensor, "read_into", counted)
        blocks = checkpoint["p.weight"]
        for some, count in (([], 0), ([5], 256 + 8), (slice(100, 140), 40 * 256 + 16), ([299, 0], 2 * 256 + 16)):
            read.clear()
            blocks.decode(rows=some)
            assert sum(read) == count
        read.clear()
        assert blocks.shape == (300, 256)
        assert not read


def test_opening_reads_no_data(tmp_path: Path) -> None:
    tensors = {name: ("F8_E4M3", array.shape, array.tobytes()) for name, array in rows(f8([0x7F])).items()}
    tensors["p.weight_scale"] = ("F32", (1,), b"\xff" * 4)
    model(tmp_path, tensors)
    with Checkpoint(SafetensorsSource(tmp_path)) as checkpoint:
        assert list(checkpoint) == ["p.weight"]
        with pytest.raises(WordsError, match=r"model|'p.weight_scale'"):
            checkpoint["p.weight"].decode()
