"""The closed list of conversion methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quantform._registry import Registry
from quantform.errors import ArgumentError
from quantform.formats import Format
from quantform.methods.cast_direct import CAST_DIRECT
from quantform.methods.fp8_row_maxabs import FP8_ROW_MAXABS
from quantform.methods.from_callable import callable_method
from quantform.methods.grouped_absmax import GROUPED_ABSMAX
from quantform.methods.grouped_search import GROUPED_SEARCH
from quantform.methods.import_encoded import IMPORT_ENCODED
from quantform.methods.method import Method
from quantform.methods.nvfp4_maxabs import NVFP4_MAXABS
from quantform.methods.request import Request

__all__ = ["METHODS", "as_method", "default_method"]

METHODS: Registry[Method] = Registry(
    "conversion method",
    [CAST_DIRECT, GROUPED_ABSMAX, GROUPED_SEARCH, FP8_ROW_MAXABS, NVFP4_MAXABS, IMPORT_ENCODED],
    key=lambda method: method.name,
)
"""Every built-in method. The first that makes a format is the one that is used where none is named."""


def as_method(method: str | Method | Callable[[Request], Any]) -> Method:
    """The method that is meant: a built-in one by name, or a Python callable (see `from_callable`).

    Raises:
        UnknownNameError: No built-in method has the name.
        ArgumentError: Neither a name nor callable.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return METHODS[method]
    if callable(method):
        return callable_method(method)
    raise ArgumentError("method is neither a name nor callable", found=type(method).__name__)


def default_method(format: Format) -> Method:
    """The method for values where none is named; `import_encoded` for formats that no values are encoded to."""
    return next(method for method in METHODS.values() if format.name in method.targets)
