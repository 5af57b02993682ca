"""Models of `DequantizePacked` with the values that they must give, for every way of running them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnx_builder import model, packed_node, raw
from quantform.packed import PROFILES

__all__ = ["BY_HAND", "TYPES", "ByHand", "assert_equal", "by_hand_model", "evaluate", "every_profile", "untyped"]

TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}
_WORDS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "float64": np.uint64}


@dataclass(frozen=True)
class ByHand:
    """A payload, and its values worked out on paper from the specification's rules."""

    format: str
    shape: tuple[int, ...]
    payload: bytes
    values: list[float]


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _floats(*texts: str) -> list[float]:
    return [float(number) for text in texts for number in text.split()]


BY_HAND = [
    # Byte j is 0x(15-j)(j): low nibbles 0 to 15 come first, then the high ones, 15 down to 0. Value: (v - 8) / 4.
    ByHand(
        "gguf:q4_0",
        (1, 32),
        _half(0.25) + bytes(j | (15 - j) << 4 for j in range(16)),
        _floats(
            "-2 -1.75 -1.5 -1.25 -1 -.75 -.5 -.25 0 .25 .5 .75 1 1.25 1.5 1.75",
            "1.75 1.5 1.25 1 .75 .5 .25 0 -.25 -.5 -.75 -1 -1.25 -1.5 -1.75 -2",
        ),
    ),
    # d = 3, m = -1; every byte 0x21, so low nibbles are 1 and high ones 2. Fifth bits, lowest first: 0x02 sets that of
    # value 1, 0x80 in the second byte that of 15, 0x01 in the third that of 16. 3 * 1 - 1 = 2, 3 * 17 - 1 = 50,
    # 3 * 2 - 1 = 5, 3 * 18 - 1 = 53.
    ByHand(
        "gguf:q5_1",
        (32,),
        _half(3) + _half(-1) + bytes([0x02, 0x80, 0x01, 0x00]) + b"\x21" * 16,
        [2.0, 50.0, *[2.0] * 13, 50.0, 53.0, *[5.0] * 15],
    ),
    # Two blocks: d = 1/2 over the table in order, then reversed; d = -1 over its first and last entries.
    ByHand(
        "gguf:iq4_nl",
        (2, 1, 32),
        _half(0.5) + bytes(j | (15 - j) << 4 for j in range(16)) + _half(-1) + b"\xf0" * 16,
        _floats(
            "-63.5 -52 -41.5 -32.5 -24.5 -17.5 -11 -5 .5 6.5 12.5 19 26.5 34.5 44.5 56.5",
            "56.5 44.5 34.5 26.5 19 12.5 6.5 .5 -5 -11 -17.5 -24.5 -32.5 -41.5 -52 -63.5",
            "127 " * 16,
            "-113 " * 16,
        ),
    ),
    # Exponent 128 is 2^1. Codes 0 to 7 are 0, 1/2, 1, 3/2, 2, 3, 4, 6, codes 8 to 15 their negatives, and 8 is zero.
    ByHand(
        "gguf:mxfp4",
        (32,),
        bytes([128]) + bytes(j | (j ^ 8) << 4 for j in range(16)),
        _floats(
            "0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12",
            "0 -1 -2 -3 -4 -6 -8 -12 0 1 2 3 4 6 8 12",
        ),
    ),
    ByHand("gguf:q4_k", (3, 0, 512), b"", []),
]


def evaluate(
    made: onnx.ModelProto, feeds: Mapping[str, np.ndarray] | None = None, new_ops: Sequence[type[OpRun]] = ()
) -> list[Any]:
    """What onnx's evaluator gives."""
    found = ReferenceEvaluator(made, new_ops=list(new_ops)).run(None, dict(feeds or {}))
    assert isinstance(found, list)
    return found


def untyped(*names: str) -> list[ValueInfoProto]:
    """Outputs of which nothing is declared."""
    return [ValueInfoProto(name=name) for name in names]


def by_hand_model(case: ByHand, **attributes: Any) -> onnx.ModelProto:
    """The case as a model with output `y`."""
    x = raw("x", TensorProto.UINT8, [len(case.payload)], case.payload)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, case.shape)
    return model([packed_node("x", "y", case.format, case.shape, **attributes)], [x], [output])


def rounded(single: np.ndarray, dtype: str) -> np.ndarray:
    """The words of binary32 values rounded once, to nearest with ties to even."""
    if dtype == "bfloat16":
        words = single.view(np.uint32).astype(np.uint64)
        return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    with np.errstate(all="ignore"):
        return single.astype(dtype).view(_WORDS[dtype])


def every_profile(vectors: dict[str, np.ndarray], kind: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model that decodes the golden blocks of all profiles, one output each, and the binary32 values of those."""
    nodes, payloads, outputs, expected = [], [], [], []
    for profile in PROFILES.values():
        name = profile.name.lower()
        payload = vectors[f"{name}/payload"]
        shape = (len(payload), 1, profile.values)
        nodes.append(packed_node(f"{name}.packed", name, profile.identifier, shape, output_dtype=kind))
        payloads.append(raw(f"{name}.packed", TensorProto.UINT8, [payload.size], payload.tobytes()))
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
        expected.append(vectors[f"{name}/bits"].view(np.float32).reshape(shape))
    return model(nodes, payloads, outputs), expected


def assert_equal(made: onnx.ModelProto, found: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    """Every output has the bits of the expected binary32 values in its own type; any NaN is any other."""
    assert len(found) == len(made.graph.output) == len(expected)
    for output, values, single in zip(made.graph.output, found, expected, strict=True):
        dtype = TYPES[output.type.tensor_type.elem_type]
        assert values.shape == single.shape, output.name
        assert values.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), output.name
        number = ~np.isnan(single)
        same = values.view(_WORDS[dtype]) == rounded(single, dtype)
        assert same[number].all(), f"{output.name}: {np.argwhere(~same & number)[:3].tolist()}"
        assert np.isnan(values[~number].astype(np.float32)).all(), output.name
