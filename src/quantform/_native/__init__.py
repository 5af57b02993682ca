"""Picks the compiled kernels where they were built, else leaves the NumPy path alone.

`QUANTFORM_NATIVE=0` in the environment leaves the kernels out; `QUANTFORM_NATIVE=1` makes their absence an error.
"""

from __future__ import annotations

import os
from types import ModuleType

from quantform.errors import MissingExtraError

__all__ = ["cpu_features", "kernels", "summary"]


def _load() -> ModuleType | None:
    wish = os.environ.get("QUANTFORM_NATIVE", "")
    if wish == "0":
        return None
    try:
        from quantform._native import _kernels  # noqa: PLC0415 - may be absent
    except ImportError as error:
        if wish == "1":
            raise MissingExtraError(
                "QUANTFORM_NATIVE=1, but this installation has no compiled kernels",
                found=str(error),
                hint="Install a C++20 compiler and reinstall quantform, or unset QUANTFORM_NATIVE",
            ) from error
        return None
    return _kernels


kernels: ModuleType | None = _load()
"""The compiled module, or None where the NumPy path does all the work."""


def cpu_features() -> tuple[str, ...]:
    """Instruction sets of this processor that kernels are chosen by; empty without kernels."""
    return tuple(kernels.cpu_features()) if kernels is not None else ()


def summary() -> str:
    """One phrase for `quantform --version`."""
    if kernels is not None:
        return f"compiled kernels ({', '.join(cpu_features()) or 'portable'})"
    if os.environ.get("QUANTFORM_NATIVE") == "0":
        return "NumPy path (QUANTFORM_NATIVE=0)"
    return "NumPy path (no compiled kernels in this installation)"
