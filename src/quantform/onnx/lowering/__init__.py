"""The operator in standard operators: for each format a function, and models rewritten to call it."""

from __future__ import annotations

from quantform.onnx.lowering.model import lower

__all__ = ["lower"]
