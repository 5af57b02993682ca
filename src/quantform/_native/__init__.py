"""Picks the compiled kernels where they were built, else leaves the NumPy path alone.

The environment decides when this module is first imported:

* `QUANTFORM_NATIVE=0` leaves the kernels out; `QUANTFORM_NATIVE=1` makes their absence an error.
* `QUANTFORM_ISA` names the instruction set whose kernels run, instead of the best that the processor has; another name
  is an error.

Both errors wait for the first use of a kernel. At every call the environment says:

* `QUANTFORM_THREADS` is how many threads a call may use that does not say it itself. Change it through `os.environ`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NoReturn

from quantform.errors import ArgumentError, MissingExtraError, QuantformError

__all__ = ["cpu_features", "kernels", "summary", "thread_limit"]

_MOST_THREADS = 1024


class _Refused(ModuleType):
    """Stands for kernels that the environment asks for and that are not here: to use one is the error.

    Not to import them, since the command line could not answer an error before its own first line.
    """

    def __init__(self, error: Callable[[], QuantformError]) -> None:
        super().__init__("_kernels")
        self.error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()

    def plain_decoder(self, *_: object) -> Callable[..., NoReturn]:
        """What `dequantize_packed` takes when it is imported."""

        def refuse(*_: object) -> NoReturn:
            raise self.error()

        return refuse


def _load() -> ModuleType | None:
    wish = os.environ.get("QUANTFORM_NATIVE", "")
    if wish == "0":
        return None
    try:
        from quantform._native import _kernels  # noqa: PLC0415 - may be absent
    except ImportError as error:
        if wish == "1":
            return _Refused(partial(_missing, str(error)))
        return None
    if name := os.environ.get("QUANTFORM_ISA"):
        try:
            _kernels.use_instruction_set(name)
        except ValueError:
            return _Refused(partial(_unknown, name, _kernels.instruction_sets()))
    return _kernels


def _missing(found: str) -> MissingExtraError:
    return MissingExtraError(
        "QUANTFORM_NATIVE=1, but this installation has no compiled kernels",
        found=found,
        hint="Install a C++20 compiler and reinstall quantform, or unset QUANTFORM_NATIVE",
    )


def _unknown(name: str, sets: list[str]) -> ArgumentError:
    return ArgumentError(
        "QUANTFORM_ISA names no instruction set that is compiled in and that this processor has",
        expected=", ".join(sets),
        found=repr(name),
    )


kernels: ModuleType | None = _load()
"""The compiled module, or None where the NumPy path does all the work."""


def cpu_features() -> tuple[str, ...]:
    """Instruction sets of this processor that kernels are chosen by; empty without kernels."""
    return tuple(kernels.cpu_features()) if kernels is not None else ()


def summary() -> str:
    """One phrase for `quantform --version`."""
    if kernels is not None:
        return f"compiled kernels ({kernels.instruction_set()})"
    if os.environ.get("QUANTFORM_NATIVE") == "0":
        return "NumPy path (QUANTFORM_NATIVE=0)"
    return "NumPy path (no compiled kernels in this installation)"


def thread_limit(threads: int | None) -> int:
    """How many threads a call may use: `threads`, else `QUANTFORM_THREADS`, else 0 for every CPU of the process.

    Raises:
        ArgumentError: The number is no integer from 1 to 1024.
    """
    if threads is None:
        text = os.environ.get("QUANTFORM_THREADS")
        if not text:
            return 0
        if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= _MOST_THREADS:
            return int(text)
        raise ArgumentError(
            "QUANTFORM_THREADS is not a number of threads", expected=f"1 to {_MOST_THREADS}", found=repr(text)
        )
    try:
        count = operator.index(threads)
    except TypeError:
        count = 0
    if isinstance(threads, bool) or not 1 <= count <= _MOST_THREADS:
        raise ArgumentError("threads is not a number of threads", expected=f"1 to {_MOST_THREADS}", found=repr(threads))
    return count
