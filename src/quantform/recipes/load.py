"""Recipes from files: Python that is run, and TOML that is only read."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from quantform._files import MappedFile
from quantform._registry import near_matches
from quantform.errors import QuantformError, RecipeError
from quantform.recipes.model import Model
from quantform.recipes.recipe import Recipe
from quantform.recipes.toml_form import parse_recipe
from quantform.sources import Source

__all__ = ["Configure", "LoadedRecipe", "as_recipe_error", "load_recipe"]

Configure = Callable[[Model, Recipe, Mapping[str, Source[Any]]], object]
"""A recipe: `configure(model, recipe, sources)`, which calls `recipe`'s methods."""

FUNCTION = "configure"
"""What a recipe's function is called where no other is named."""

_LONGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe and what provenance says of it.

    Attributes:
        name: The file's name with the function's, or the callable's module and name.
        sha256: The file's digest; None for a callable.
        configure: Does it; errors of a file's code name its lines.
    """

    name: str
    sha256: str | None
    configure: Configure


def load_recipe(recipe: Configure | str | PathLike[str]) -> LoadedRecipe:
    """Get a recipe ready.

    Args:
        recipe: A callable; a Python file, `"recipe.py"` or `"recipe.py:function"`, which is run; or a TOML file.

    Raises:
        FileError: The file cannot be read.
        RecipeError: It is no Python, fails while it is run, has no such function, or is no TOML of the right form.
    """
    if not isinstance(recipe, (str, PathLike)):
        if not callable(recipe):
            raise RecipeError("a recipe is a callable or a file", found=type(recipe).__name__)
        module = getattr(recipe, "__module__", None) or type(recipe).__module__
        return LoadedRecipe(f"{module}:{getattr(recipe, '__qualname__', type(recipe).__qualname__)}", None, recipe)
    path, function = _split(recipe)
    with MappedFile(path) as file:
        if file.size > _LONGEST:
            raise RecipeError("the recipe is too long", where=str(path), expected=f"at most {_LONGEST} bytes")
        raw = file.read(0, file.size)
    digest = hashlib.sha256(raw).hexdigest()
    if path.suffix == ".toml":
        if function is not None:
            raise RecipeError("a TOML recipe has no functions", where=str(path), found=repr(function))
        return LoadedRecipe(path.name, digest, parse_recipe(raw, path))
    if path.suffix != ".py":
        raise RecipeError("the recipe's suffix names no form", where=str(path), expected=".py or .toml")
    name = function or FUNCTION
    return LoadedRecipe(f"{path.name}:{name}", digest, _guarded(_function(raw, path, name), path))


def _split(recipe: str | PathLike[str]) -> tuple[Path, str | None]:
    """`FILE[:function]`; only a colon before a bare identifier separates."""
    match = re.fullmatch(r"(.+):([A-Za-z_]\w*)", recipe) if isinstance(recipe, str) else None
    return (Path(match[1]), match[2]) if match else (Path(recipe), None)


def _function(raw: bytes, path: Path, name: str) -> Configure:
    """Run the file as a module of its own, without leaving byte code beside it."""
    module = ModuleType(f"quantform_recipe_{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(raw, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what a recipe is
    except (Exception, SystemExit) as error:
        raise _blamed(error, path) from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise RecipeError(
            f"the recipe has no function {name!r}",
            where=str(path),
            expected=f"def {name}(model, recipe, sources)",
            hint=near_matches(name, known) if known else None,
        )
    configure: Configure = found
    return configure


def _guarded(configure: Configure, path: Path) -> Configure:
    def guarded(model: Model, recipe: Recipe, sources: Mapping[str, Source[Any]]) -> object:
        try:
            return configure(model, recipe, sources)
        except (Exception, SystemExit) as error:
            raise _blamed(error, path) from error

    return guarded


def as_recipe_error(error: QuantformError, where: str | None = None) -> RecipeError:
    """The same error as one of a recipe, at an outer place."""
    place = ", ".join(one for one in (where, error.where) if one)
    return RecipeError(error.problem, where=place or None, expected=error.expected, found=error.found, hint=error.hint)


def _blamed(error: BaseException, path: Path) -> RecipeError:
    """One error that names the file's line and function, for whatever its code raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = str(path)
    if frames:
        function = f", in {frames[-1].name}" if frames[-1].name != "<module>" else ""
        where = f"{path}, line {frames[-1].lineno}{function}"
    elif isinstance(error, SyntaxError):
        where = f"{path}, line {error.lineno}"
    if isinstance(error, QuantformError):
        return as_recipe_error(error, where)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return RecipeError(f"{type(error).__name__}: {text}" if text else type(error).__name__, where=where)
