"""Writes the fuzzers' first inputs: small sound files with something of everything, and files that were once defects.

    python fuzz/make_corpus.py

A second run writes the same bytes. Inputs that a fuzzer found are added by hand under names that begin with `found-`,
minimized (`python fuzz/fuzz_gguf.py -minimize_crash=1 -runs=100000 crash-...`); this script leaves them alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from onnx import TensorProto, helper

import gguf_builder as gb
import ninfer_builder as nb
import onnx_builder as ob
import safetensors_builder as sb
from fuzz_harness import CORPUS, SEPARATOR
from quantform.errors import QuantformError
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"


def pattern(count: int) -> bytes:
    """Bytes of every kind."""
    return bytes(index * 7 % 251 for index in range(count))


def gguf() -> dict[str, list[bytes]]:
    """Both byte orders, every type of metadata, every type of tensor, a split model."""
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "numbers": gb.typed("int64", [1, -2]),
        "bytes": gb.typed("uint8", [1, 2, 3]),
        "texts": ["a", "bc"],
        "nested": [["x"], ["y", "z"]],
        "flag": True,
        "half": 0.5,
        "comfy.gguf.orig_shape.flat": gb.typed("int32", [2, 16]),
    }
    scalars = [gb.tensor(f"s{number}", (2, 3), number, pattern(48)) for number in (0, 1, 24, 25, 26, 27, 28, 30)]
    blocks = [
        gb.tensor(f"b{number}", (1, profile.values), number, pattern(profile.bytes))
        for number, profile in sorted((profile.ggml_type, profile) for profile in PROFILES.values())
    ]
    plain = [
        gb.tensor("flat", (32,), gb.F32, pattern(128)),
        gb.tensor("none", (0, 4), gb.F32),
        gb.tensor("odd", (3,), 142, b"?" * 8),
    ]
    parts = [
        gb.build([gb.tensor(name, (4,), gb.F32, pattern(16))], gb.split_metadata(number, 2, 2))
        for number, name in enumerate(["first", "second"])
    ]
    return {
        "scalars": [gb.build([*scalars, *plain], metadata)],
        "blocks": [gb.build(blocks, {"k": 1})],
        "swapped": [gb.build(blocks[:8], metadata, big_endian=True)],
        "version-2": [gb.build(plain, {"k": "v"}, version=2)],
        "split": parts,
        "empty": [gb.build()],
    }


def ninfer() -> dict[str, list[bytes]]:
    """The small artifact in one file and in two, and one with every format in each of its layouts."""
    objects: list[dict[str, Any]] = []
    at = 0
    for format in FORMATS.values():
        for layout in LAYOUTS.values():
            shape = (128, 64) if format.name == "nvfp4" else (2, 256)
            try:
                size = layout.encoded_size(format.name, shape)
            except QuantformError:
                continue
            at = -(-at // layout.alignment) * layout.alignment
            objects.append(nb.tensor(f"{format.name}.{layout.name}", shape, format.name, layout.name, at, size))
            at += size
    every = nb.small_directory() | {
        "objects": [*objects, nb.resource("chat", at, 5)],
        "bindings": {record["id"]: {"object": record["id"]} for record in objects},
        "uses": [],
        "files": [{"path": None, "payload_bytes": at + 5}],
    }
    two = nb.Artifact(nb.in_two_files())
    two.directory["files"][1]["path"] = "a.ninfer.part-0001"
    part = nb.PART_MAGIC + (1).to_bytes(8, "little") + nb.ARTIFACT_ID + two.part_gap + two.payload[100:1024]
    return {
        "small": [nb.Artifact().entry()],
        "two": [two.entry(), part],
        "every": [nb.Artifact(every, bytes(at) + b"chat!").entry()],
    }


def safetensors() -> dict[str, list[bytes]]:
    """Every type of the format."""
    bits = {
        "BOOL": 8,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
    }
    bits |= {
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "I64": 64,
        "U64": 64,
        "F64": 64,
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "C64": 64,
    }
    tensors = {name.lower(): (name, (2, 4), pattern(size)) for name, size in bits.items()}
    return {
        "types": [sb.build(tensors, {"format": "pt"}, pad=3)],
        "shapes": [
            sb.build({"scalar": ("F32", (), pattern(4)), "none": ("F32", (0, 7), b""), "deep": ("U8", (1,) * 9, b"x")})
        ],
        "empty": [sb.build({})],
    }


def checkpoint() -> dict[str, list[bytes]]:
    """Checkpoints of real programs, and an index."""
    made = {
        name: [
            (CHECKPOINTS / name / "config.json").read_bytes(),
            b"",
            (CHECKPOINTS / name / "model.safetensors").read_bytes(),
        ]
        for name in ("fp8_tensor", "int4", "mxfp4", "nvfp4")
    }
    shards: dict[str, dict[str, Any]] = {
        "model.safetensors": {"p.weight": sb.f8([[0x38, 0xB8], [0x30, 0x80]])},
        "second.safetensors": {"p.weight_scale": np.array([[1.0], [2.0]], np.float32)},
    }
    index = {
        "metadata": {"total_size": 12},
        "weight_map": {name: shard for shard, held in shards.items() for name in held},
    }
    made["sharded"] = [b"{}", json.dumps(index).encode(), *(sb.build(held) for held in shards.values())]
    blocks = {
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [2, 2],
            "modules_to_not_convert": ["q", "re:.*x"],
        }
    }
    block: dict[str, Any] = {"p.weight": sb.f8([[0x38] * 4] * 4), "p.weight_scale_inv": np.ones((2, 2), np.float32)}
    made["blocks"] = [json.dumps(blocks).encode(), b"", sb.build(block)]
    codes = np.full((2, 8), 0x21, np.uint8)
    opt: dict[str, Any] = {
        "p.weight": codes,
        "p.weight_scale": sb.f8([[0x38], [0x40]]),
        "p.weight_scale_2": np.array(0.25, np.float32),
    }
    made["modelopt"] = [b'{"quantization_config": {"quant_algo": "NVFP4"}}', b"", sb.build(opt)]
    return made


def onnx() -> dict[str, list[bytes]]:
    """Packed weights, plain ones, standard nodes, external data."""
    q4, kind = pattern(36), TensorProto.UINT8
    packed = ob.model(
        [ob.packed_node("x", "w", "gguf:q4_0", (2, 32)), ob.packed_node("y", "v", "gguf:q6_k", (1, 256))],
        [
            ob.raw("x", kind, (36,), q4),
            ob.raw("y", kind, (210,), pattern(210)),
            ob.raw("f", TensorProto.FLOAT, (2, 3), pattern(24)),
        ],
        properties={"k": "v"},
    )
    outside = ob.model(
        [ob.packed_node("x", "w", "gguf:q4_0", (2, 32))],
        [ob.external("x", kind, (36,), location="m.onnx.data", offset=4, length=36)],
    )
    linear = ob.model(
        [helper.make_node("DequantizeLinear", ["c", "s"], ["w"], axis=1, block_size=32)],
        [
            ob.raw("c", TensorProto.INT8, (2, 64), pattern(128)),
            ob.raw("s", TensorProto.FLOAT16, (2, 2), np.ones(4, np.float16).tobytes()),
        ],
    )
    lists = helper.make_tensor("t", TensorProto.FLOAT, (2,), [1.0, 2.0])
    texts = TensorProto(name="u", data_type=TensorProto.STRING, dims=(2,), string_data=[b"a", b"b"])
    shape = helper.make_tensor("shape", TensorProto.INT64, (2,), [4, 16])
    reshaped = ob.model(
        [ob.packed_node("x", "w0", "gguf:q4_0", (2, 32)), helper.make_node("Reshape", ["w0", "shape"], ["w"])],
        [ob.raw("x", kind, (36,), q4), shape, lists, texts],
    )
    return {
        "packed": [packed.SerializeToString()],
        "external": [outside.SerializeToString(), bytes(4) + q4],
        "linear": [linear.SerializeToString()],
        "reshaped": [reshaped.SerializeToString()],
    }


def main() -> None:
    """Write them all."""
    for make in (gguf, ninfer, safetensors, checkpoint, onnx):
        directory = CORPUS / make.__name__
        directory.mkdir(parents=True, exist_ok=True)
        for name, parts in make().items():
            while parts and not parts[-1]:
                parts.pop()
            (directory / name).write_bytes(SEPARATOR.join(parts))


if __name__ == "__main__":
    main()
