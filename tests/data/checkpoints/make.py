# mypy: ignore-errors
"""Makes the small checkpoints in this directory, with the real `compressed-tensors` package.

Run by hand, never by a test, in an environment of its own:

    python -m venv made && made/bin/pip install torch==2.13.0 compressed-tensors==0.20.1 safetensors numpy
    made/bin/python tests/data/checkpoints/make.py

Each directory gets what a saved model has (`model.safetensors`, `config.json`) and `expected.safetensors`: for each weight
the values that the package decompresses it to, and for NVFP4 the codes that the package unpacks. The weights come from a
formula, so that a second run writes the same bytes.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationStatus,
    QuantizationStrategy,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

HERE = Path(__file__).parent
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
FP8_INPUT = {**FP8, "strategy": "token", "dynamic": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
NVFP4_INPUT = {**NVFP4, "dynamic": "local"}
MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}


class Attention(torch.nn.Module):
    def __init__(self, *, tiles: bool) -> None:
        super().__init__()
        # Whole tiles of 128 rows and 64 columns can be stored as they are; the odd sizes are for everything else.
        self.q_proj = torch.nn.Linear(64, 128 if tiles else 40, bias=False)
        self.o_proj = torch.nn.Linear(128 if tiles else 96, 128 if tiles else 24, bias=True)


class Layer(torch.nn.Module):
    def __init__(self, *, tiles: bool) -> None:
        super().__init__()
        self.self_attn = Attention(tiles=tiles)
        self.norm = torch.nn.LayerNorm(24)


class Model(torch.nn.Module):
    def __init__(self, *, tiles: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 64)
        self.layers = torch.nn.ModuleList([Layer(tiles=tiles)])
        self.lm_head = torch.nn.Linear(64, 10, bias=False)


def weights(model: Model, dtype: torch.dtype) -> Model:
    """A fixed spread of magnitudes and signs, with a row of zeros and a row of one outlier."""
    for at, parameter in enumerate(model.parameters()):
        index = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        values = torch.sin(index * 1.7 + at) * torch.exp(torch.cos(index * 0.37) * 2) * 0.03
        if values.ndim == 2:
            values[3] = 0
            values[5] = 0
            values[5, 7] = -0.71
        parameter.data = values.to(dtype)
    return model


def calibrate(module: torch.nn.Module, *, round_global: bool) -> None:
    args = module.quantization_scheme.weights
    weight = module.weight.data
    rows, columns = weight.shape
    if args.strategy == QuantizationStrategy.BLOCK:
        height, width = args.block_structure
        down, across = -(-rows // height), -(-columns // width)
        padded = torch.nn.functional.pad(weight, (0, across * width - columns, 0, down * height - rows))
        grouped = padded.reshape(down, height, across, width)
        low, high = grouped.amin(dim=(1, 3)), grouped.amax(dim=(1, 3))
    elif args.strategy == QuantizationStrategy.TENSOR:
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    elif args.strategy == QuantizationStrategy.CHANNEL:
        low, high = weight.amin(dim=1, keepdim=True), weight.amax(dim=1, keepdim=True)
    else:
        grouped = weight.reshape(rows, columns // args.group_size, args.group_size)
        low, high = grouped.amin(dim=-1), grouped.amax(dim=-1)
    global_scale = None
    if args.strategy == QuantizationStrategy.TENSOR_GROUP:
        global_scale = generate_gparam(weight.min().float(), weight.max().float())
        if round_global:
            global_scale = 2 ** torch.floor(torch.log2(global_scale))
        module.weight_global_scale.data = global_scale
        if hasattr(module, "input_global_scale"):
            module.input_global_scale.data = torch.tensor([1.5])
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.125)
    scale, _ = calculate_qparams(low, high, args, global_scale=global_scale)
    module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)


def make(
    name: str, config: dict, dtype: torch.dtype = torch.bfloat16, *, round_global: bool = False, tiles: bool = False
) -> None:
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    model = weights(Model(tiles=tiles), dtype)
    apply_quantization_config(model, QuantizationConfig(quantization_status="frozen", **config))
    quantized = [module for module in model.modules() if getattr(module, "quantization_scheme", None) is not None]
    for module in quantized:
        calibrate(module, round_global=round_global)
        module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps({"model_type": "made-for-tests"}))
    compressor.update_config(str(directory))
    plain = copy.deepcopy(model)
    compressor.decompress_model(plain)
    expected = {}
    for name, module in plain.named_modules():
        if getattr(module, "quantization_scheme", None) is not None:
            expected[f"{name}.weight"] = module.weight.data.contiguous()
            packed = state.get(f"{name}.weight_packed")
            if packed is not None and packed.dtype == torch.uint8:
                codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2)
                expected[f"{name}.codes"] = codes.contiguous()
    save_file(expected, directory / "expected.safetensors")


def groups(*entries: dict, ignore: tuple[str, ...] = ("lm_head",)) -> dict:
    return {"config_groups": {f"group_{at}": entry for at, entry in enumerate(entries)}, "ignore": list(ignore)}


if __name__ == "__main__":
    linear = ["Linear"]
    make("nvfp4", groups({"targets": linear, "weights": NVFP4, "input_activations": NVFP4_INPUT}))
    make("nvfp4_power_of_two", groups({"targets": linear, "weights": NVFP4}), round_global=True)
    make("nvfp4_tiles", groups({"targets": linear, "weights": NVFP4, "input_activations": NVFP4_INPUT}), tiles=True)
    channel = {"weights": {**FP8, "strategy": "channel"}, "input_activations": FP8_INPUT}
    make("fp8_channel", groups({"targets": linear, **channel}))
    make("fp8_channel_fp32", groups({"targets": linear, **channel}), torch.float32)
    tensor = {"weights": {**FP8, "strategy": "tensor"}, "input_activations": {**FP8, "strategy": "tensor"}}
    make("fp8_tensor", groups({"targets": linear, **tensor}))
    block = {"weights": {**FP8, "strategy": "block", "block_structure": [16, 32]}}
    block["input_activations"] = {**FP8, "strategy": "group", "group_size": 32, "dynamic": True}
    make("fp8_block", groups({"targets": linear, **block}), torch.float32)
    make("mxfp4", groups({"targets": linear, "weights": {**MX, "num_bits": 4}}))
    make("mxfp8", groups({"targets": linear, "weights": {**MX, "num_bits": 8}, "input_activations": {**MX, "num_bits": 8, "dynamic": True}}))
    make(
        "mixed",
        groups(
            {"targets": ["re:.*q_proj$"], "weights": NVFP4, "input_activations": NVFP4_INPUT},
            {"targets": ["layers.0.self_attn.o_proj"], **channel},
        ),
    )
    make("int4", groups({"targets": linear, "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}))
