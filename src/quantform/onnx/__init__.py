"""The operator `DequantizePacked` in ONNX: schema, evaluation, lowering, and packed weights in ONNX files.

Nothing here is imported before it is used, so that each name asks only for the extra that it needs: `onnx` for models,
`ort` for running them in onnxruntime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantform.errors import MissingExtraError

if TYPE_CHECKING:
    from quantform.onnx.attaching import Weight, attach
    from quantform.onnx.check import check_model
    from quantform.onnx.importer import import_gguf
    from quantform.onnx.lowering import lower
    from quantform.onnx.opsets import for_runtime
    from quantform.onnx.reference import DequantizePacked
    from quantform.onnx.runtime import custom_op_library, run, session, session_options
    from quantform.onnx.schema import register

__all__ = [
    "DequantizePacked",
    "Weight",
    "attach",
    "check_model",
    "custom_op_library",
    "for_runtime",
    "import_gguf",
    "lower",
    "register",
    "run",
    "session",
    "session_options",
]

# Each public name, and the module of this package that has it.
_MODULES = {
    "DequantizePacked": "reference",
    "Weight": "attaching",
    "attach": "attaching",
    "check_model": "check",
    "custom_op_library": "runtime",
    "for_runtime": "opsets",
    "import_gguf": "importer",
    "lower": "lowering",
    "register": "schema",
    "run": "runtime",
    "session": "runtime",
    "session_options": "runtime",
}
_EXTRAS = {"onnx": "onnx", "onnxruntime": "ort"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module's own attributes
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtraError(
            f"{__name__}.{name} needs the package {error.name}, which is not installed",
            hint=f"Install the extra: pip install 'quantform[{extra}]'",
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
