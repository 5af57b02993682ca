"""The operator for `onnx.reference`, the evaluator that runs models in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from onnx import TensorProto
from onnx.reference.op_run import OpRun

from quantform.packed import dequantize_packed
from quantform.sources.onnx_contract import DOMAIN, missing, output_type

__all__ = ["DequantizePacked"]


class DequantizePacked(OpRun):
    """The operator, to be passed on: `ReferenceEvaluator(model, new_ops=[DequantizePacked])`.

    It decodes with `quantform.dequantize_packed` and raises its errors. BFLOAT16 values are an array of
    `ml_dtypes.bfloat16`.
    """

    op_domain = DOMAIN
    op_schema = None  # the errors are ours, whether or not the schema is registered

    def _run(
        self,
        x: npt.NDArray[Any],
        format: str | None = None,
        shape: Sequence[int] | None = None,
        output_dtype: int | None = None,
    ) -> tuple[npt.NDArray[Any]]:
        if format is None:
            raise missing("format")
        if shape is None:
            raise missing("shape")
        number = TensorProto.FLOAT if output_dtype is None else output_dtype
        return (dequantize_packed(x, format, shape, output_type(number)),)
