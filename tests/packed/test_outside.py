"""The ternary block types outside ggml."""

from __future__ import annotations

import numpy as np
import pytest

from quantform.packed import PROFILES
from quantform.packed.outside import OUTSIDE_PROFILES
from ternary_blocks import pq2_0, ptq1_0


def test_numbers_and_sizes() -> None:
    facts = {profile.name: (profile.ggml_type, profile.values, profile.bytes) for profile in OUTSIDE_PROFILES.values()}
    assert facts == {"PQ2_0": (142, 128, 34), "PTQ1_0": (143, 128, 28)}
    assert not set(OUTSIDE_PROFILES) & set(PROFILES)


@pytest.mark.parametrize(("identifier", "make"), [("gguf:pq2_0", pq2_0), ("gguf:ptq1_0", ptq1_0)])
def test_decode(identifier: str, make: object) -> None:
    profile = OUTSIDE_PROFILES[identifier]
    digits = np.random.default_rng(1).integers(0, 3, 128).tolist()
    blocks = np.frombuffer(make(digits, 0xB800), np.uint8).view(profile.block)  # type: ignore[operator]
    assert profile.decode(blocks).tolist() == [[-0.5 * (digit - 1) for digit in digits]]
