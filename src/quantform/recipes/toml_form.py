"""The calls of a recipe as TOML, for people who need no code.

Steps of one kind are done in the order in which they stand, and the kinds in this order: `assign`, `use`, `share`,
`group`, `separate`. The schema is closed: whatever it does not know is an error with its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from quantform._toml import parse_toml
from quantform.errors import QuantformError, RecipeError
from quantform.recipes.model import Model
from quantform.recipes.recipe import Recipe
from quantform.sources import Source

__all__ = ["parse_recipe"]

Sources = Mapping[str, Source[Any]]
Names = str | list[str]


class SourceStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of another source, in full."""

    name: str
    tensor: str


class AssignStep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Recipe.assign`; a source is named by the word that `--source` gives it."""

    select: Names
    format: str | None = None
    layout: str | None = None
    method: str | None = None
    source: str | SourceStep | None = None
    parameters: dict[str, Any] | None = None
    rows: tuple[int, int] | None = None
    activation_policy: str | None = None

    def apply(self, recipe: Recipe, sources: Sources, directory: Path) -> None:
        """Do it."""
        source: Any = None
        if isinstance(self.source, SourceStep):
            source = sources[self.source.name][self.source.tensor]
        elif self.source is not None:
            source = sources[self.source]
        parameters = self.parameters
        if parameters is not None and isinstance(parameters.get("imatrix"), str):
            parameters = parameters | {"imatrix": directory / parameters["imatrix"]}
        recipe.assign(
            self.select,
            format=self.format,
            layout=self.layout,
            method=self.method,
            source=source,
            parameters=parameters,
            rows=self.rows,
            activation_policy=self.activation_policy,
        )


class UseStep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Recipe.use`."""

    parameter: str
    input: str
    activation_policy: str | None = None
    auxiliaries: dict[str, float | list[int]] = {}

    def apply(self, recipe: Recipe, sources: Sources, directory: Path) -> None:
        """Do it."""
        del sources, directory
        recipe.use(self.parameter, self.input, activation_policy=self.activation_policy, auxiliaries=self.auxiliaries)


class ShareStep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Recipe.share`."""

    parameter: str
    target: str

    def apply(self, recipe: Recipe, sources: Sources, directory: Path) -> None:
        """Do it."""
        del sources, directory
        recipe.share(self.parameter, self.target)


class GroupStep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Recipe.group`."""

    names: Names

    def apply(self, recipe: Recipe, sources: Sources, directory: Path) -> None:
        """Do it."""
        del sources, directory
        recipe.group(self.names)


class SeparateStep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Recipe.separate`."""

    names: Names

    def apply(self, recipe: Recipe, sources: Sources, directory: Path) -> None:
        """Do it."""
        del sources, directory
        recipe.separate(self.names)


class Document(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole file; the order of the members is the order in which they are done."""

    assign: tuple[AssignStep, ...] = ()
    use: tuple[UseStep, ...] = ()
    share: tuple[ShareStep, ...] = ()
    group: tuple[GroupStep, ...] = ()
    separate: tuple[SeparateStep, ...] = ()


def parse_recipe(raw: bytes, path: Path) -> Callable[[Model, Recipe, Sources], None]:
    """The recipe in a TOML file.

    Args:
        raw: The file's bytes.
        path: The file, for errors; paths of importance matrices count from its directory.

    Raises:
        RecipeError: It is no TOML, or not of this form; names the line or the path.
    """
    try:
        text = parse_toml(raw, str(path), "the recipe", RecipeError)
        document = msgspec.convert(text, Document, strict=True)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `")
        place = place.removesuffix("`") or "$"
        raise RecipeError(problem, where=f"{path}, {place}") from None

    def configure(model: Model, recipe: Recipe, sources: Sources) -> None:
        del model
        for kind in document.__struct_fields__:
            for number, step in enumerate(getattr(document, kind)):
                try:
                    step.apply(recipe, sources, path.parent)
                except QuantformError as error:
                    inner = f", {error.where}" if error.where else ""
                    raise RecipeError(
                        error.problem,
                        where=f"{path}, {kind}[{number}]{inner}",
                        expected=error.expected,
                        found=error.found,
                        hint=error.hint,
                    ) from error

    return configure
