"""Some rows of a parameter on their way into an object."""

from __future__ import annotations

from dataclasses import dataclass

from quantform._sizes import product
from quantform.convert.own_words import source_form
from quantform.convert.planned import Fragment
from quantform.recipes import Parameter, Selection
from quantform.sources import Tensor

__all__ = ["Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a parameter, all made alike.

    Attributes:
        parameter: The parameter.
        selection: Which rows of it, and what was chosen for them.
        tensor: Where they come from.
    """

    parameter: Parameter
    selection: Selection
    tensor: Tensor

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.parameter.name

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        shape = self.parameter.shape
        return not shape or (self.selection.first, self.selection.end) == (0, shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """What is held of the parameter."""
        if self.whole:
            return self.parameter.shape
        return (self.selection.end - self.selection.first, *self.parameter.shape[1:])

    @property
    def span(self) -> tuple[int, int]:
        """First row and end among the tensor's rows."""
        rows = self.tensor.matrix[0]
        if self.whole:
            return 0, rows
        each = rows // self.parameter.shape[0]
        return self.selection.first * each, self.selection.end * each

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        first, end = self.span
        return end - first, self.tensor.matrix[1]

    @property
    def place(self) -> str:
        """What errors call it."""
        rows = "" if self.whole else f"[{self.selection.first}:{self.selection.end}]"
        return f"parameter {self.name!r}{rows}"

    def fragment(self, first_element: int) -> Fragment:
        """The rows as an object holds them from one of its elements on."""
        rows = None if self.whole else (self.selection.first, self.selection.end)
        end = first_element + product(self.shape)
        return Fragment(self.name, self.shape, rows, source_form(self.tensor), (first_element, end))
