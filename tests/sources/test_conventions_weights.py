"""Quantized weights by hand: the conventions' check values, and every way in which their tensors can be wrong."""

# ruff: noqa: E501 - tables have one case a line

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantform.errors import ArgumentError, FileError, QuantformError, UnknownNameError, UnsupportedError, WordsError
from quantform.formats import Nvfp4Words, RowScaledWords
from quantform.sources.arrays import ArraySource, ArrayTensor
from quantform.sources.conventions import BrokenWeight, Checkpoint, QuantizedWeight, UnsupportedWeight
from quantform.sources.safetensors import SafetensorsSource
from safetensors_builder import model

E4M3FN, BF16, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
CODES = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def f8(words: Any) -> np.ndarray:
    return np.array(words, np.uint8).view(E4M3FN)


def f32(value: Any) -> np.ndarray:
    return np.array(value, np.float32)


def compressed(**changes: Any) -> dict[str, Any]:
    """NVFP4 of compressed-tensors: two rows of 16 values, scales 1 and 2, divisor 2."""
    tensors = {
        "p.weight_packed": np.array([CODES, CODES], np.uint8),
        "p.weight_scale": f8([[0x38], [0x40]]),
        "p.weight_global_scale": f32(2.0),
        "p.input_global_scale": f32([1.5]),
    }
    return changed(tensors, changes)


def modelopt(**changes: Any) -> dict[str, Any]:
    """NVFP4 of ModelOpt: the same rows, the second scale 1/4."""
    tensors = {
        "p.weight": np.array([CODES, CODES], np.uint8),
        "p.weight_scale": f8([[0x38], [0x40]]),
        "p.weight_scale_2": f32(0.25),
        "p.input_scale": f32(0.125),
    }
    return changed(tensors, changes)


def rows(scale: Any, **changes: Any) -> dict[str, Any]:
    tensors = {"p.weight": f8([[0x38, 0xB8, 0x40], [0x30, 0xB0, 0x80]]), "p.weight_scale": scale}
    return changed(tensors, changes)


def blocks(**changes: Any) -> dict[str, Any]:
    """130 rows and 200 columns in blocks of 128: both edges are partial."""
    codes = np.random.default_rng(6).integers(0, 0x7F, (130, 200)).astype(np.uint8).view(E4M3FN)
    return changed({"p.weight": codes, "p.weight_scale_inv": f32([[1.5, 0.1], [3.0, 1e-3]])}, changes)


def changed(tensors: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Members `weight_scale=...` of module p; None takes a tensor away."""
    found = tensors | {f"p.{name}": value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


def weight(tensors: dict[str, Any], config: Any = None, name: str = "p.weight") -> QuantizedWeight:
    tensor = Checkpoint(ArraySource(tensors), config or {})[name]
    assert isinstance(tensor, QuantizedWeight)
    if isinstance(tensor, BrokenWeight):
        tensor.check()
    return tensor


def config(weights: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_config": {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}}


FP8_CHANNEL = config({"num_bits": 8, "type": "float", "strategy": "channel"})
FP8_TENSOR = config({"num_bits": 8, "type": "float", "strategy": "tensor"})
FP8_BLOCK = config({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [1, 128]})
FP8_GROUP_3 = config({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 3})
INT8 = config({"num_bits": 8, "type": "int", "strategy": "channel"})
NVFP4 = config({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})
MXFP4 = config({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})


def same(have: np.ndarray, want: Any) -> None:
    assert have.dtype == np.float32
    assert have.tobytes() == np.asarray(want, np.float32).tobytes()


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

U8 = np.zeros((2, 8), np.uint8)
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


# --- forms that are not read ---

I32, I8 = np.zeros((4, 4), np.int32), np.zeros((4, 4), np.int8)
OTHERS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("GPTQ", {"p.qweight": I32, "p.qzeros": I32, "p.scales": f32([[1]]), "p.g_idx": np.zeros(4, np.int32)}, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "GPTQ or AWQ"),
    ("AWQ without a config", {"p.qweight": I32, "p.qzeros": I32, "p.scales": np.ones((1, 4), np.float16)}, None, "GPTQ or AWQ"),
    ("packed integers", {"p.weight_packed": I32, "p.weight_scale": f32([[1]]), "p.weight_shape": np.array([4, 8])}, None, "integers packed in int32"),
    ("packed integers with zero points", {"p.weight_packed": I32, "p.weight_scale": f32([[1]]), "p.weight_zero_point": I32}, config({"num_bits": 4, "type": "int"}), "4-bit int"),
    ("six-bit floats", {"p.weight_packed": np.zeros((1, 24), np.uint8), "p.weight_scale": np.array([[127]], np.uint8)}, config({"num_bits": 6, "type": "float", "group_size": 32}), "6-bit float"),
    ("integers of a row", {"p.weight": I8, "p.weight_scale": f32([[1]] * 4)}, INT8, "int8 codes .8-bit int"),
    ("integers without a config", {"p.weight": I8, "p.weight_scale": f32([[1]] * 4)}, None, "int8 codes"),
    ("integers of ModelOpt", {"p.weight": U8, "p.weight_scale": f32([[1], [1]])}, {"quantization_config": {"quant_algo": "W4A16_AWQ"}}, "4-bit int"),
    ("integers of ModelOpt without a config", {"p.weight": U8, "p.weight_scale": f32([[1], [1]])}, None, "uint8 codes under fp32"),
    ("bitsandbytes in 8 bits", {"p.weight": I8, "p.SCB": f32([1] * 4)}, None, "bitsandbytes"),
    ("bitsandbytes in 4 bits", {"p.weight": U8, "p.weight.absmax": f32([1]), "p.weight.quant_map": f32([1]), "p.weight.quant_state.bitsandbytes__nf4": U8}, None, "bitsandbytes"),
    ("HQQ", {"p.W_q": U8, "p.scale": f32([1]), "p.zero": f32([1])}, None, "HQQ"),
    ("blocks and scales", {"p.weight_blocks": np.zeros((2, 3, 1, 16), np.uint8), "p.weight_scales": np.zeros((2, 3, 1), np.uint8)}, {"quantization_config": {"quant_method": "mxfp4"}}, "MXFP4 in blocks"),
    ("sparse", {"p.weight.compressed": f32([1]), "p.weight.bitmask": U8, "p.weight.shape": np.array([4, 8])}, None, "sparse"),
    ("scaled inputs of ModelOpt", modelopt(pre_quant_scale=f32([1] * 16)), None, "pre_quant_scale"),
    ("scaled inputs of compressed-tensors", compressed(pre_quant_scale=f32([1] * 16)), None, "pre_quant_scale"),
    ("scaled inputs of FP8", rows(f32(1), pre_quant_scale=f32([1] * 3)), None, "pre_quant_scale"),
    ("another FP8", {"p.weight": np.zeros((2, 2), ml_dtypes.float8_e5m2), "p.weight_scale": f32(1)}, None, "e5m2 codes"),
    ("a third FP8", {"p.weight": np.zeros((2, 2), ml_dtypes.float8_e4m3fnuz), "p.weight_scale": f32(1)}, None, "e4m3fnuz codes"),
    ("reordered columns", rows(f32(1), weight_g_idx=np.zeros(3, np.int32)), None, "weight_g_idx"),
    ("shifted NVFP4", compressed(weight_zero_point=U8), None, "weight_zero_point"),
    ("an unknown method", {"p.weight": U8}, {"quantization_config": {"quant_method": "bitnet"}}, "'bitnet'"),
    ("an unknown method with scales", rows(f32(1)), {"quantization_config": {"quant_method": "quark"}}, "'quark'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "settings", "message"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS]
)
def test_other_forms_are_listed_and_refused_by_name(tensors: dict[str, Any], settings: Any, message: str) -> None:
    checkpoint = Checkpoint(ArraySource(tensors), settings or {})
    assert list(checkpoint) == ["p.weight"]
    tensor = checkpoint["p.weight"]
    assert isinstance(tensor, UnsupportedWeight)
    assert checkpoint.unsupported == (tensor,)
    assert {*tensor.companions, *(dropped.name for dropped in checkpoint.dropped)} == set(tensors)
    for use in (tensor.words, tensor.decode, tensor.check):
        with pytest.raises(UnsupportedError, match=message) as caught:
            use()
        assert "'p.weight'" in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        (np.array([4, 30]), (4, 30)),
        (np.array([4, 32], np.int32), (4, 32)),
        (np.array([5, 32]), (4, 4)),
        (np.array([4, -1]), (4, 4)),
        (np.array([4, 0]), (4, 4)),
        (np.array([4, 129]), (4, 4)),
        (np.array([1, 4, 32]), (4, 4)),
        (f32([4, 32]), (4, 4)),
        (None, (4, 4)),
    ],
)
def test_packed_integers_have_the_shape_that_the_checkpoint_says(said: Any, shape: tuple[int, ...]) -> None:
    tensors = changed({"p.weight_packed": I32, "p.weight_scale": f32([[1]] * 4)}, {"weight_shape": said})
    tensor = weight(tensors)
    assert isinstance(tensor, UnsupportedWeight)
    assert tensor.shape == shape
    with pytest.raises(UnsupportedError, match=r"integers packed in int32"):
        tensor.decode()


# --- what is left ---


def test_sidecars_are_dropped_with_a_reason_and_plain_tensors_stay() -> None:
    left = {
        **dict.fromkeys(("p.input_scale", "p.input_zero_point", "p.output_scale"), "activations"),
        **dict.fromkeys(
            ("a.k_scale", "a.v_scale", "a.k_proj.k_scale", "a.q_scale", "a.kv_scale", "a.prob_scale"), "cache"
        ),
        "head.weight_scale": "unquantized",
    }
    plain = {"head.weight": f32([[1]]), "p.bias": f32([1]), "logit_scale": f32(1), "norm.weight": f32([1])}
    checkpoint = Checkpoint(ArraySource(rows(f32(2)) | dict.fromkeys(left, f32(1)) | plain))
    assert set(checkpoint) == {"p.weight", *plain}
    assert checkpoint.describe() == f"arrays checkpoint, 5 tensors, 1 quantized weight, {len(left)} left out"
    assert {dropped.name for dropped in checkpoint.dropped} == set(left)
    assert all(left[dropped.name] in dropped.reason for dropped in checkpoint.dropped)
    assert isinstance(checkpoint["head.weight"], ArrayTensor)


def test_without_quantized_weights_every_tensor_is_itself() -> None:
    tensors = {
        "a.weight_scale": f32(1),
        "b.input_scale": f32(1),
        "c.weight": f8([[1, 2]]),
        "d": np.zeros((2, 2), np.uint8),
        "e_packed": f32([1]),
    }
    checkpoint = Checkpoint(ArraySource(tensors))
    assert set(checkpoint) == set(tensors)
    assert not checkpoint.weights
    assert not checkpoint.dropped
    assert checkpoint["c.weight"].format == "e4m3fn"


def test_a_weight_without_a_module() -> None:
    tensor = weight({"weight": f8([[0x38]]), "weight_scale": f32(2), "input_scale": f32(1)}, FP8_TENSOR, "weight")
    same(tensor.decode(), [[2]])


def test_an_index_of_unquantized_modules_is_no_contradiction() -> None:
    settings = {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    }
    checkpoint = Checkpoint(ArraySource(modelopt() | {"lm_head.weight": np.zeros((2, 2), BF16)}), settings)
    assert checkpoint["lm_head.weight"].format == "bf16"
    assert checkpoint.quantization is not None
    with pytest.raises(UnknownNameError):
        checkpoint["p.weight_scale"]


def test_modelopts_older_config_lies_beside(tmp_path: Path) -> None:
    stored: dict[str, Any] = {
        "p.weight": ("U8", (2, 8), bytes(CODES * 2)),
        "p.weight_scale": ("F8_E4M3", (2, 1), bytes([0x38, 0x40])),
        "p.weight_scale_2": f32(0.25),
    }
    model(tmp_path, stored, {"model_type": "x"})
    (tmp_path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["p"]}}'
    )
    with (
        Checkpoint(SafetensorsSource(tmp_path)) as checkpoint,
        pytest.raises(FileError, match=r"hf_quant_config.json"),
    ):
        checkpoint["p.weight"].check()
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with Checkpoint(SafetensorsSource(tmp_path)) as checkpoint:
        same(checkpoint["p.weight"].decode(), [GRID / 4, GRID / 2])
        assert (checkpoint.kind, checkpoint.config) == ("safetensors", {"model_type": "x"})


@pytest.mark.parametrize("make", [compressed, modelopt, lambda: rows(f32([1, 2])), blocks])
def test_any_companion_of_any_type_and_shape_succeeds_or_fails_by_our_errors(make: Any) -> None:
    others = [f32(1), f32([1, 2]), f32([[1], [2]]), U8, I32, I8, f8([[1]]), f8(np.zeros((2, 2))), np.zeros((0, 4), np.uint8), np.zeros((2, 0), np.uint8), np.zeros((1, 2, 3, 4), BF16)]  # fmt: skip
    for name in make():
        for other in others:
            for settings in (None, BLOCKS, NVFP4, MXFP4, FP8_TENSOR, FP8_CHANNEL, INT8):
                try:
                    checkpoint = Checkpoint(ArraySource(make() | {name: other}), settings or {})
                    for tensor in checkpoint.values():
                        tensor.decode()
                        tensor.words()
                except QuantformError as error:
                    assert "p." in str(error)  # noqa: PT017 - success is as good
