"""The records: the specification's table, digests of the grids, and the golden blocks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from bits import bits_of
from conftest import DATA
from quantform.packed import PROFILES, Profile, dequantize_packed
from quantform.packed.codebooks import codebooks

# ggml type, values (B) and bytes (S) of every identifier, copied out of the two specifications' tables.
TABLE = {
    "gguf:q4_0": (2, 32, 18),
    "gguf:q4_1": (3, 32, 20),
    "gguf:q5_0": (6, 32, 22),
    "gguf:q5_1": (7, 32, 24),
    "gguf:q8_0": (8, 32, 34),
    "gguf:q8_1": (9, 32, 36),
    "gguf:q2_k": (10, 256, 84),
    "gguf:q3_k": (11, 256, 110),
    "gguf:q4_k": (12, 256, 144),
    "gguf:q5_k": (13, 256, 176),
    "gguf:q6_k": (14, 256, 210),
    "gguf:q8_k": (15, 256, 292),
    "gguf:iq2_xxs": (16, 256, 66),
    "gguf:iq2_xs": (17, 256, 74),
    "gguf:iq3_xxs": (18, 256, 98),
    "gguf:iq1_s": (19, 256, 50),
    "gguf:iq4_nl": (20, 32, 18),
    "gguf:iq3_s": (21, 256, 110),
    "gguf:iq2_s": (22, 256, 82),
    "gguf:iq4_xs": (23, 256, 136),
    "gguf:iq1_m": (29, 256, 56),
    "gguf:tq1_0": (34, 256, 54),
    "gguf:tq2_0": (35, 256, 66),
    "gguf:mxfp4": (39, 32, 17),
    "gguf:nvfp4": (40, 64, 36),
    "gguf:q1_0": (41, 128, 18),
    "gguf:q2_0": (42, 64, 18),
}

# SHA-256 over every entry as int8, rows in index order, and the grids' row counts and widths.
GRIDS = {
    "iq2xxs_grid": (256, 8, "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"),
    "iq2xs_grid": (512, 8, "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"),
    "iq2s_grid": (1024, 8, "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"),
    "iq3xxs_grid": (256, 4, "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"),
    "iq3s_grid": (512, 4, "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"),
    "iq1s_grid": (2048, 8, "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"),
}


def test_the_table_is_the_specifications() -> None:
    assert {p.identifier: (p.ggml_type, p.values, p.bytes) for p in PROFILES.values()} == TABLE


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_names_and_fields_are_consistent(profile: Profile) -> None:
    assert profile.identifier == f"gguf:{profile.name.lower()}"
    assert profile.bits_per_weight == profile.bytes * 8 / profile.values
    assert sum(profile.block[name].itemsize for name in profile.block.names or ()) == profile.bytes
    assert profile.block == profile.block.newbyteorder("<")


@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_entry(name: str) -> None:
    rows, width, digest = GRIDS[name]
    grid = codebooks()[name]
    assert grid.shape == (rows, width)
    assert hashlib.sha256(grid.astype(np.int8).tobytes()).hexdigest() == digest
    assert not grid.flags.writeable


def test_grids_are_all_tested() -> None:
    assert set(codebooks()) == set(GRIDS)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_golden_blocks(profile: Profile, packed_vectors: dict[str, np.ndarray]) -> None:
    kind = profile.name.lower()
    payload, expected = packed_vectors[f"{kind}/payload"], packed_vectors[f"{kind}/bits"]
    values = dequantize_packed(payload.reshape(-1), profile.identifier, [len(payload), profile.values])
    assert np.array_equal(bits_of(values), expected.reshape(len(payload), profile.values))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_golden_digests(profile: Profile, packed_vectors: dict[str, np.ndarray]) -> None:
    kind = profile.name.lower()
    entry: dict[str, Any] = json.loads((DATA / "packed_digests.json").read_text())["formats"][kind]
    payload, bits = packed_vectors[f"{kind}/payload"], packed_vectors[f"{kind}/bits"]
    assert (entry["values"], entry["bytes"], entry["blocks"]) == (profile.values, profile.bytes, len(payload))
    assert hashlib.sha256(payload.tobytes()).hexdigest() == entry["payload_sha256"]
    assert hashlib.sha256(bits.astype("<u4").tobytes()).hexdigest() == entry["fp32_bits_sha256"]
