"""Blocks as codes and scales: what they are worth by plain arithmetic, and nothing lost on the way back."""

from __future__ import annotations

import numpy as np
import pytest

import quantform as qf
from quantform.packed.linear import LINEAR


def test_which_profiles_come_apart() -> None:
    assert {name: (record.type, record.zero_point, record.affine) for name, record in LINEAR.items()} == {
        "gguf:q4_0": ("INT4", 0, False),
        "gguf:q4_1": ("UINT4", 0, True),
        "gguf:q8_0": ("INT8", 0, False),
        "gguf:tq2_0": ("UINT2", 1, False),
        "gguf:q2_0": ("UINT2", 1, False),
    }


def test_codes_of_four_bits_by_hand() -> None:
    """Byte j of Q4_0 has the codes of values j and j + 16, with an offset of 8; INT4 has values 2i and 2i + 1."""
    block = np.array([0, 0x3C, *(0x80 + j for j in range(16))], np.uint8)  # d = 1, v = 0..15, then 8 sixteen times
    codes = LINEAR["gguf:q4_0"].codes(block)
    assert codes.tolist() == [0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76] + [0] * 8


@pytest.mark.parametrize("name", LINEAR)
def test_there_and_back(name: str, packed_vectors: dict[str, np.ndarray]) -> None:
    linear = LINEAR[name]
    payload = packed_vectors[f"{name.removeprefix('gguf:')}/payload"].reshape(-1)
    minima = linear.field(payload, "m") if linear.affine else None
    codes, scales = linear.codes(payload), linear.field(payload, "d")
    assert codes.size == payload.size // linear.profile.bytes * linear.code_bytes
    assert linear.blocks(codes, scales, minima).tobytes() == payload.tobytes()
    assert linear.blocks(codes[:0], scales[:0], None if minima is None else minima[:0]).size == 0


@pytest.mark.parametrize("name", LINEAR)
def test_values_are_codes_times_scales(name: str, packed_vectors: dict[str, np.ndarray]) -> None:
    linear = LINEAR[name]
    payload = packed_vectors[f"{name.removeprefix('gguf:')}/payload"].reshape(-1)
    count = payload.size // linear.profile.bytes
    codes = linear.codes(payload)
    if linear.width == 8:
        values = codes.view(np.int8).astype(np.float32)
    else:
        bits = np.unpackbits(codes, bitorder="little").reshape(-1, linear.width)
        values = np.packbits(bits, axis=1, bitorder="little").reshape(-1).astype(np.float32)
        if linear.type == "INT4":
            values[values >= 8] -= 16
    scales = linear.field(payload, "d").view("<f2").astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        expected = (values.reshape(count, -1) - np.float32(linear.zero_point)) * scales
        if linear.affine:
            expected += linear.field(payload, "m").view("<f2").astype(np.float32)[:, None]
    found = qf.dequantize_packed(payload, name, (count, linear.profile.values))
    finite = ~np.isnan(expected)
    assert np.array_equal(found[finite].view(np.uint32), expected[finite].view(np.uint32))
    assert np.isnan(found[~finite]).all()
