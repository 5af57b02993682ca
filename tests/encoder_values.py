"""Groups and rows of binary32 values that encoders find hard: ties, subnormals, extremes, zeros of both signs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

F32 = npt.NDArray[np.float32]

_SPECIAL = [
    0.0,
    -0.0,
    2.0**-149,
    -(2.0**-149),
    2.0**-126,
    2.0**-24,
    -(2.0**-25),
    2.0**-14,
    1.0,
    -1.0,
    0.5,
    448.0,
    65504.0,
]


def _made(style: str, rng: np.random.Generator, count: int, limit: float) -> F32:
    if style == "normal":
        values = rng.standard_normal(count) * 2.0 ** rng.integers(-30, 12)
    elif style == "ties":
        values = rng.integers(-16, 17, count) / 2 * 2.0 ** rng.integers(-26, 10)
    elif style == "tiny":
        values = rng.standard_normal(count) * 2.0 ** rng.integers(-150, -20)
    elif style == "one":
        values = np.zeros(count)
        values[rng.integers(0, count)] = rng.standard_normal()
    elif style == "steps":  # equal magnitudes, both signs: the first extreme decides
        values = rng.choice([-1.0, 1.0, 0.5, -0.0, 0.013], count) * 2.0 ** rng.integers(-20, 10)
    else:
        bits = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
        values = np.where(np.isfinite(bits), bits, np.float32(0)).astype(np.float64)
    return np.clip(values, -limit, limit).astype(np.float32)


def values(count: int, limit: float) -> st.SearchStrategy[F32]:
    """`count` finite values of magnitude up to `limit`, many of them awkward together."""
    styled = st.builds(
        lambda style, seed: _made(style, np.random.default_rng(seed), count, limit),
        st.sampled_from(["normal", "ties", "tiny", "one", "steps", "bits"]),
        st.integers(0, 2**32 - 1),
    )
    number = st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.sampled_from(_SPECIAL),
        st.integers(-64, 64).map(lambda integer: integer / 4),
    )
    drawn = st.lists(number, min_size=1, max_size=min(count, 8)).map(
        lambda some: np.clip(np.resize(np.array(some), count), -limit, limit).astype(np.float32)
    )
    return st.one_of(styled, drawn)
