"""Checkpoints that the real compressed-tensors package wrote, against the values that it decompresses them to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantform.errors import UnsupportedError
from quantform.formats import FORMATS, DirectWords, Nvfp4Words, RowScaledWords
from quantform.formats.small_floats import E2M1, E4M3FN
from quantform.sources.conventions import Checkpoint, Nvfp4Weight, QuantizedWeight, UnsupportedWeight
from quantform.sources.safetensors import SafetensorsSource

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
Q = "layers.0.self_attn.q_proj.weight"
O = "layers.0.self_attn.o_proj.weight"  # noqa: E741 - the projection's name
CONVENTIONS = {
    "nvfp4": {Q: "compressed-tensors-nvfp4", O: "compressed-tensors-nvfp4"},
    "nvfp4_power_of_two": {Q: "compressed-tensors-nvfp4", O: "compressed-tensors-nvfp4"},
    "nvfp4_tiles": {Q: "compressed-tensors-nvfp4", O: "compressed-tensors-nvfp4"},
    "fp8_channel": {Q: "fp8-per-row", O: "fp8-per-row"},
    "fp8_channel_fp32": {Q: "fp8-per-row", O: "fp8-per-row"},
    "fp8_tensor": {Q: "fp8-per-tensor", O: "fp8-per-tensor"},
    "fp8_block": {Q: "fp8-block", O: "fp8-block"},
    "mxfp4": {Q: "mxfp4", O: "mxfp4"},
    "mxfp8": {Q: "mxfp8", O: "mxfp8"},
    "mixed": {Q: "compressed-tensors-nvfp4", O: "fp8-per-row"},
}
WEIGHTS = [(name, weight) for name, weights in CONVENTIONS.items() for weight in weights]
SHAPES = {Q: (40, 64), O: (24, 96)}
TILES = {Q: (128, 64), O: (128, 128)}


def opened(name: str) -> Checkpoint:
    return Checkpoint(SafetensorsSource(CHECKPOINTS / name))


def expected(name: str, tensor: str) -> np.ndarray:
    """In the type that the package gave, BF16 or binary32."""
    with SafetensorsSource(CHECKPOINTS / name / "expected.safetensors") as source:
        return source[tensor].decode()


def stored(checkpoint: Checkpoint, name: str) -> np.ndarray:
    words = checkpoint.source[name].words()
    assert isinstance(words, DirectWords)
    return words.words


def test_every_fixture_is_listed() -> None:
    assert {path.name for path in CHECKPOINTS.iterdir() if path.is_dir()} == {*CONVENTIONS, "int4"}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_weights_are_found_and_nothing_is_left_unexplained(name: str) -> None:
    with opened(name) as checkpoint:
        assert {weight.name: weight.convention for weight in checkpoint.weights.values()} == CONVENTIONS[name]
        plain = {"embed.weight", "lm_head.weight", "layers.0.norm.weight", "layers.0.norm.bias"}
        assert set(checkpoint) == {*plain, Q, O, O.replace("weight", "bias")}
        used = {part for weight in checkpoint.weights.values() for part in weight.companions}
        dropped = {tensor.name for tensor in checkpoint.dropped}
        assert used | dropped | (set(checkpoint) & set(checkpoint.source)) == set(checkpoint.source)
        assert not used & dropped
        assert all(tensor.name.endswith("input_scale") and tensor.reason for tensor in checkpoint.dropped)
        assert checkpoint["lm_head.weight"].format in {"bf16", "fp32"}
        assert {weight: checkpoint[weight].shape for weight in (Q, O)} == (TILES if name == "nvfp4_tiles" else SHAPES)


@pytest.mark.parametrize(("name", "weight"), WEIGHTS)
def test_values_equal_those_of_the_package_in_every_bit(name: str, weight: str) -> None:
    """It multiplies in BF16 or binary32 and, for NVFP4, divides the scale first; on these values that is the same."""
    want = expected(name, weight)
    with opened(name) as checkpoint:
        have = checkpoint[weight].decode("float32" if want.dtype == np.float32 else "bfloat16")
    assert have.dtype == want.dtype
    assert have.tobytes() == want.tobytes()


@pytest.mark.parametrize(("name", "weight"), [case for case in WEIGHTS if "nvfp4" in CONVENTIONS[case[0]][case[1]]])
def test_nvfp4_words_are_those_of_the_file(name: str, weight: str) -> None:
    with opened(name) as checkpoint:
        tensor = checkpoint[weight]
        assert isinstance(tensor, Nvfp4Weight)
        words = tensor.words()
        assert isinstance(words, Nvfp4Words)
        assert words.format is FORMATS["nvfp4"]
        words.validate()
        assert (words.codes == stored(checkpoint, f"{weight}_packed")).all()
        assert (words.scales == stored(checkpoint, f"{weight}_scale")).all()
        assert words.divisors.tolist() == stored(checkpoint, f"{weight}_global_scale").tolist()
        assert words.decode().tobytes() == tensor.decode().tobytes()
        codes = np.stack([words.codes & 15, words.codes >> 4], axis=-1).reshape(words.shape)
        unpacked = expected(name, weight.replace("weight", "codes")).astype(np.float32)
        assert E2M1[codes].tobytes() == unpacked.tobytes()
        # The package's own order and precision, from our words.
        divisor = words.divisors.view(np.float32)[0]
        scales = np.repeat(E4M3FN[words.scales] / divisor, 16, axis=1)
        package = (E2M1[codes] * scales).astype(expected(name, weight).dtype)
        assert package.tobytes() == expected(name, weight).tobytes()
        with_input = name != "nvfp4_power_of_two"
        assert tensor.activation_divisor() == (np.float32(1.5).view(np.uint32) if with_input else None)


@pytest.mark.parametrize(("name", "weight"), [case for case in WEIGHTS if "fp8-per" in CONVENTIONS[case[0]][case[1]]])
def test_row_words_are_those_of_the_file(name: str, weight: str) -> None:
    with opened(name) as checkpoint:
        tensor = checkpoint[weight]
        assert isinstance(tensor, QuantizedWeight)
        words = tensor.words()
        assert isinstance(words, RowScaledWords)
        assert tensor.format == words.format.name == "fp8_e4m3fn_row_bf16"
        words.validate()
        assert (words.codes == stored(checkpoint, weight)).all()
        scales = stored(checkpoint, f"{weight}_scale").reshape(-1)
        if scales.dtype == np.uint32:  # rounded to BF16, ties to even
            scales = ((scales + 0x7FFF + (scales >> 16 & 1)) >> 16).astype(np.uint16)
        else:
            assert words.decode().tobytes() == tensor.decode().tobytes()
        assert words.scales.tolist() == np.broadcast_to(scales, (words.shape[0],)).tolist()


@pytest.mark.parametrize(("name", "weight"), WEIGHTS)
def test_rows_equal_the_whole(name: str, weight: str) -> None:
    with opened(name) as checkpoint:
        tensor = checkpoint[weight]
        whole = tensor.decode()
        for rows in (slice(3, 17), [20, 5, 5, -1], slice(None, None, -3), []):
            some = tensor.decode(rows=rows)
            assert some.tobytes() == (whole[rows] if rows != [] else whole[:0]).tobytes()
            assert tensor.decode("float16", rows=rows).dtype == np.float16
            if isinstance(tensor, QuantizedWeight) and tensor.importable and tensor.format == "nvfp4":
                assert tensor.words(rows).decode().tobytes() == some.tobytes()


def test_integers_are_listed_and_refused_by_name() -> None:
    with opened("int4") as checkpoint:
        assert {weight.name for weight in checkpoint.unsupported} == {Q, O}
        weight = checkpoint[Q]
        assert isinstance(weight, UnsupportedWeight)
        assert set(weight.companions) == {f"{Q}_packed", f"{Q}_scale", f"{Q}_shape"}
        assert {name: checkpoint[name].shape for name in (Q, O)} == SHAPES
        for use in (weight.words, weight.decode, weight.check):
            with pytest.raises(UnsupportedError, match=r"4-bit int, strategy group of 32.*dequantize"):
                use()
        assert checkpoint["lm_head.weight"].decode().shape == (10, 64)
