"""Two sides of a comparison: where their tensors come from, and which belong together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from quantform._registry import near_matches
from quantform._rows import matrix_shape
from quantform._sizes import counted
from quantform._text import shortened
from quantform._toml import read_map
from quantform.errors import ArgumentError, UnknownNameError
from quantform.formats import FORMATS, GgufFormat
from quantform.sources import ArraySource, NinferSource, NinferTensor, Source, Tensor, open_source

__all__ = ["Names", "Side", "Tensors", "alike", "encoding", "form", "pairs", "read_names", "side"]

Tensors = str | os.PathLike[str] | Source[Any] | Tensor | np.ndarray[Any, Any] | Mapping[str, Any]
"""A file, an open source, one tensor or array, or a mapping of names to tensors and arrays."""

Names = Mapping[str, str] | str | os.PathLike[str]
"""What tensors of the one side are called on the other, or the TOML file that says so."""

_ALONE = "tensor"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        path: What was opened, or what stands for it.
        description: One phrase for people.
        tensors: How many tensors there are.
        weights: Their elements.
        bytes: Their payload bytes; in an artifact each object counts once, however often it is bound.
    """

    path: str
    description: str
    tensors: int
    weights: int
    bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits an element; 0 without elements."""
        return self.bytes * 8 / self.weights if self.weights else 0.0


def side(given: Tensors, stack: ExitStack) -> tuple[Side, Mapping[str, Tensor], tuple[Path, ...]]:
    """Open what was given; files that are opened here are closed by `stack`.

    Returns:
        What it is, its tensors by name, and the files that are being read.

    Raises:
        FileError: A file cannot be opened.
        ArgumentError: It is nothing with tensors.
    """
    if isinstance(given, (str, os.PathLike)):
        given = stack.enter_context(open_source(given))
    if isinstance(given, Source):
        stored: Mapping[str, Tensor] = given.objects if isinstance(given, NinferSource) else given
        return _counted(str(given.path), given.describe(), stored, len(given)), given, given.files
    if isinstance(given, Tensor):
        given = {_ALONE: given}
    elif isinstance(given, (np.ndarray, np.generic)):
        given = {_ALONE: np.asarray(given)}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(
            "there are no tensors here to compare",
            expected="a path, an open source, a tensor, an array, or a mapping of names to tensors and arrays",
            found=type(given).__name__,
        )
    arrays = ArraySource({name: one for name, one in given.items() if not isinstance(one, Tensor)})
    tensors = {name: arrays[name] if name in arrays else given[name] for name in given}
    return _counted("<tensors>", counted(len(tensors), "tensor"), tensors, len(tensors)), tensors, ()


def _counted(path: str, description: str, stored: Mapping[str, Tensor], count: int) -> Side:
    tensors = stored.values()
    return Side(path, description, count, sum(one.size for one in tensors), sum(one.nbytes for one in tensors))


def read_names(names: Names) -> Mapping[str, str]:
    """The map of names: a mapping as it is, or a TOML file's `"name in A" = "name in B"`.

    Keys without quotes mean the name with its dots: `blk.0.attn_q.weight = "..."`.

    Raises:
        FileError: The file cannot be read, or is no TOML.
        ArgumentError: It says something else than names.
    """
    if isinstance(names, Mapping):
        return names
    found: dict[str, str] = {}
    tables: list[tuple[str, Any]] = [("", read_map(Path(names)))]
    while tables:
        prefix, table = tables.pop()
        for key, value in table.items():
            name = prefix + key
            if isinstance(value, dict):
                tables.append((f"{name}.", value))
            elif isinstance(value, str) and name not in found:
                found[name] = value
            else:
                raise ArgumentError(
                    "an entry of the map is no name",
                    where=f"{os.fspath(names)}, {shortened(name, 80)!r}",
                    expected='"NAME IN A" = "NAME IN B", each name in A once',
                )
    return found


def pairs(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor], names: Mapping[str, str]
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """The names that belong together, in the order of the first side, and those on one side only.

    Two tensors that are alone on their sides belong together whatever they are called.

    Raises:
        UnknownNameError: The map names a tensor that does not exist.
    """
    for letter, tensors, mapped in (("A", one, names.keys()), ("B", two, names.values())):
        for name in mapped:
            if name not in tensors:
                hint = near_matches(str(name), tensors)
                raise UnknownNameError(f"the map names {name!r}, and no tensor of {letter} is called so", hint=hint)
    if not names and list(one) == [_ALONE] and len(two) == 1:
        return [(_ALONE, next(iter(two)))], [], []
    if not names and list(two) == [_ALONE] and len(one) == 1:
        return [(next(iter(one)), _ALONE)], [], []
    found = [(name, names.get(name, name)) for name in one if names.get(name, name) in two]
    here, there = {name for name, _ in found}, {name for _, name in found}
    return found, [name for name in one if name not in here], [name for name in two if name not in there]


def alike(reference: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both tensors, if they have one shape.

    A binding of an artifact by parts need not say what shape it is; then the rows of its objects must be those of the
    other tensor, and it is given in the shape of these.
    """
    if reference.shape == other.shape:
        return reference, other
    if _unshaped(other) and matrix_shape(other.stored_shape) == reference.matrix:
        return reference, other.as_stored()
    if _unshaped(reference) and matrix_shape(reference.stored_shape) == other.matrix:
        return reference.as_stored(), other
    return None


def _unshaped(tensor: Tensor) -> TypeGuard[NinferTensor]:
    return isinstance(tensor, NinferTensor) and tensor.shape == (tensor.size,) != tensor.stored_shape


def form(tensor: Tensor) -> str:
    """The same for two tensors whose words are of one kind, wherever each of them lies."""
    record = FORMATS.get(tensor.format)
    return record.profile.identifier if isinstance(record, GgufFormat) else tensor.format


def encoding(tensor: Tensor) -> str:
    """The same for two tensors of one shape whose payloads are equal if and only if their words are."""
    record, name = FORMATS.get(tensor.format), form(tensor)
    if isinstance(tensor, NinferTensor) and record is not None and tensor.layout != record.default_layout:
        return f"{name} in {tensor.layout}"
    return name
