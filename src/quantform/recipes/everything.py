"""The recipe of people who want none: one format for every matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantform.errors import QuantformError
from quantform.formats import FORMATS, GroupedFormat, Nvfp4Format
from quantform.layouts import LAYOUTS
from quantform.methods import Method, Request
from quantform.recipes.model import Parameter
from quantform.recipes.recipe import Recipe

__all__ = ["assign_matrices"]


def assign_matrices(
    recipe: Recipe,
    format: str,
    *,
    method: str | Method | Callable[[Request], Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Assign a format to every matrix that it can hold; everything else keeps its words.

    A matrix has two dimensions or more, whose leading ones together are its rows, and numbers with a fraction.

    Args:
        recipe: The recipe to record it in.
        format: A registered format's name.
        method: As in `Recipe.assign`; None takes each matrix's best: its own words where the format holds them.
        parameters: The method's parameters.

    Returns:
        The parameters that were left as they are, and why.

    Raises:
        UnknownNameError: No format or method is called so.
    """
    record = FORMATS[format]
    taken, left = [], {}
    for name, parameter in recipe.model.parameters.items():
        reason = _obstacle(parameter, record.name)
        if reason is None:
            taken.append(name)
        else:
            left[name] = reason
    if taken:
        recipe.assign(taken, format=format, method=method, parameters=parameters)
    return left


def _obstacle(parameter: Parameter, format: str) -> str | None:
    """Why a format is not for a parameter; None where it is."""
    record = FORMATS[format]
    if not parameter.is_matrix:
        return "no matrix of numbers with a fraction"
    rows, columns = parameter.source.matrix
    group = record.group if isinstance(record, (GroupedFormat, Nvfp4Format)) else 1
    if columns < group:
        return f"rows of {columns} are shorter than a group of {group}"
    if record.category == "direct":
        return None
    try:
        LAYOUTS[record.default_layout].check(record, (rows, columns))
    except QuantformError as error:
        return str(error)
    return None
