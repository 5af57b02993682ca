"""Whether `onnx` itself accepts a model file."""

from __future__ import annotations

import os

import onnx
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

from quantform.errors import FileError
from quantform.onnx.schema import register

__all__ = ["check_model"]


def check_model(path: str | os.PathLike[str]) -> None:
    """Check a model by `onnx.checker`, its external data included, and infer every type and shape strictly.

    Weights are not read. The operator is registered first, see `register`.

    Raises:
        FileError: `onnx` refuses the model; says why.
    """
    register()
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (ValidationError, InferenceError, ValueError) as error:  # the last where its own words would be no text
        raise FileError("onnx refuses the model", where=os.fspath(path), found=" ".join(str(error).split())) from error
