"""ONNX models: their initializers, and what `onnx` itself says of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from quantform import onnx
from quantform.verify.checkpoint import check_tensor
from quantform.verify.report import Finding, Report

if TYPE_CHECKING:
    from quantform.sources.onnx_model import OnnxSource

__all__ = ["check_model"]


def check_model(report: Report, source: OnnxSource) -> set[str]:
    """Look at every initializer, and let `onnx` look at the model if none is wrong; gives the names of wrong ones.

    Types that this package does not decode, and sparse initializers, are as legal as any, and remarked upon.
    """
    wrong = {
        tensor.name
        for tensor in source.values()
        if not report.attempt("structure", tensor.name, functools.partial(check_tensor, report, tensor))
    }
    for name in source.sparse:
        report.add(Finding("undecoded", name, "a sparse initializer is neither listed nor decoded"))
    if report.ok:
        report.attempt("onnx", str(source.path), functools.partial(onnx.check_model, source.path))
    return wrong
