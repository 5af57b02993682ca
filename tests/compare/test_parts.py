"""Codes and scales of quantized tensors, counted."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from quantform.compare.parts import Parts, block_parts, parts
from quantform.packed import PROFILES, Profile
from quantform.sources.arrays import ArrayTensor

# Bits of the codes of blocks whose codes are evenly spaced integers; other blocks have codebooks.
INTEGERS = {"q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5, "q8_0": 8, "q8_1": 8, "q2_k": 2, "q3_k": 3, "q4_k": 4}
INTEGERS |= {"q5_k": 5, "q6_k": 6, "q8_k": 8, "q2_0": 2, "tq2_0": 2}
CODEBOOKS = {"iq4_nl": 16, "iq4_xs": 16, "q1_0": 2, "tq1_0": 3, "mxfp4": 15, "nvfp4": 15, "iq1_s": 6, "iq1_m": 6}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_scales_times_codes_are_the_values(profile: Profile, packed_vectors: dict[str, np.ndarray]) -> None:
    name = profile.name.lower()
    payload = packed_vectors[f"{name}/payload"].reshape(-1)
    codes, scales = block_parts(profile, payload)
    blocks = payload.view(profile.block).reshape(-1).copy()
    for minimum in {"m", "dmin"} & set(profile.block.names or ()):
        blocks[minimum] = 0
    with np.errstate(all="ignore"):
        values = profile.decode(blocks)
        product = np.repeat(scales, profile.values // scales.shape[1], axis=1).astype(np.float64) * codes
    known = np.isfinite(product) & (np.abs(values) > 1e-30)
    assert known.any()
    assert np.allclose(product[known], values[known], rtol=1e-6, atol=0)
    distinct = np.unique(codes)
    if name in INTEGERS:
        assert np.array_equal(distinct, np.round(distinct))
        assert np.ptp(distinct) < 1 << INTEGERS[name]
        assert np.diff(distinct).min() == 1
    elif name in CODEBOOKS:
        assert distinct.size <= CODEBOOKS[name]
    else:
        assert distinct.size <= 32


def test_a_block_counted_by_hand(tmp_path: Path) -> None:
    """Sixteen bytes 0x8F: codes 15 - 8 = 7 and 8 - 8 = 0; then 0x08: 0 and -8. Scales 0.5 and -3."""
    payload = np.float16(0.5).tobytes() + b"\x8f" * 16 + np.float16(-3).tobytes() + b"\x08" * 16
    silent = np.float16(1).tobytes() + b"\x88" * 16
    path = tmp_path / "a.gguf"
    path.write_bytes(gb.build([gb.tensor("w", (3, 32), gb.Q4_0, payload + silent)]))
    with qf.open(path) as file:
        found = parts(file["w"])
    assert found == Parts({-8.0: 16, 0.0: 64, 7.0: 16}, {0.5: 1, 3.0: 1}, zero=0, negative=1, unknown=1)


def test_grouped_codes_and_scales(tmp_path: Path) -> None:
    values = np.zeros((2, 128), np.float32)
    values[0, :3] = 7, -7, 1
    values[1, 64:] = 0.875
    qf.convert({"w": values}, tmp_path / "m.ninfer", format="q4_g64_fp16", method="grouped_absmax")
    with qf.open(tmp_path / "m.ninfer") as file:
        found = parts(file["w"])
    assert found == Parts({-7.0: 1, 0.0: 189, 1.0: 1, 7.0: 65}, {0.125: 1, 1.0: 1}, zero=2)


def test_rows_of_fp8_and_nvfp4(tmp_path: Path) -> None:
    values = np.full((128, 16), 448, np.float32)
    values[1] = -224
    qf.convert({"w": values}, tmp_path / "f.ninfer", format="fp8_e4m3fn_row_bf16")
    with qf.open(tmp_path / "f.ninfer") as file:
        assert parts(file["w"]) == Parts({-448.0: 16, 448.0: 127 * 16}, {0.5: 1, 1.0: 127})
    values = np.full((128, 128), 6 * 448, np.float32)
    qf.convert({"w": values}, tmp_path / "n.ninfer", format="nvfp4")
    with qf.open(tmp_path / "n.ninfer") as file:
        assert parts(file["w"]) == Parts({6.0: 128 * 128}, {448.0: 128 * 8})


@pytest.mark.parametrize("values", [np.ones((2, 3), np.float32), np.ones((2, 3), ml_dtypes.bfloat16), np.zeros((0, 4))])
def test_plain_numbers_have_no_codes(values: np.ndarray) -> None:
    assert parts(ArrayTensor("w", values)) is None
