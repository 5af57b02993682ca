"""The records by name, as the public functions list them."""

from __future__ import annotations

from quantform.formats import FORMATS, Format
from quantform.layouts import LAYOUTS, Layout
from quantform.packed import PROFILES, Profile

__all__ = ["format", "formats", "layout", "layouts", "profile", "profiles"]


def profiles() -> tuple[Profile, ...]:
    """The 27 packed profiles of the operator `DequantizePacked`."""
    return tuple(PROFILES.values())


def profile(identifier: str) -> Profile:
    """One packed profile by its case-sensitive identifier, `"gguf:q4_k"`.

    Raises:
        UnknownNameError: There is none; lists near matches.
    """
    return PROFILES[identifier]


def formats() -> tuple[Format, ...]:
    """The 30 registered numeric formats of `.ninfer`."""
    return tuple(FORMATS.values())


def format(name: str) -> Format:
    """One numeric format by its canonical name, `"q4_g64_fp16"`.

    Raises:
        UnknownNameError: There is none; lists near matches.
    """
    return FORMATS[name]


def layouts() -> tuple[Layout, ...]:
    """The seven registered storage layouts."""
    return tuple(LAYOUTS.values())


def layout(name: str) -> Layout:
    """One storage layout by its name, `"row_split_k128_v1"`.

    Raises:
        UnknownNameError: There is none; lists near matches.
    """
    return LAYOUTS[name]
