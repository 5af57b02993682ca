"""The closed list of the 27 packed profiles."""

from __future__ import annotations

from quantform._registry import Registry
from quantform.packed import fp4, iquants, kquants, legacy, ternary
from quantform.packed.profiles import Profile

__all__ = ["PROFILES"]

PROFILES: Registry[Profile] = Registry(
    "packed profile",
    sorted(
        (*legacy.PROFILES, *kquants.PROFILES, *iquants.PROFILES, *ternary.PROFILES, *fp4.PROFILES),
        key=lambda profile: profile.ggml_type,
    ),
    key=lambda profile: profile.identifier,
)
"""Every profile by its identifier, in the order of ggml's type numbers."""
