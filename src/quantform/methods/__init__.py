"""How words are made: one record per conversion method, and the protocol that Python callables share."""

from __future__ import annotations

from quantform.formats.assemble import join, row_range
from quantform.methods.method import Job, Method, Options, Parameter
from quantform.methods.registry import METHODS, as_method, default_method
from quantform.methods.request import Input, Request, Span

__all__ = [
    "METHODS",
    "Input",
    "Job",
    "Method",
    "Options",
    "Parameter",
    "Request",
    "Span",
    "as_method",
    "default_method",
    "join",
    "row_range",
]
