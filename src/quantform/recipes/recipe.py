"""The calls of a recipe. They only record choices; nothing is read and nothing is made."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._registry import near_matches
from quantform.container import ACTIVATION_POLICIES, AUXILIARY_ROLES
from quantform.errors import ArgumentError, UnknownNameError
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.methods import Method, Request, as_method
from quantform.recipes.model import INPUT, Model, Parameter, same_shape
from quantform.sources import Tensor
from quantform.sources.arrays import ArrayTensor

__all__ = ["AUTO", "Choice", "Recipe", "Selection", "UseChoice"]

AUTO = "auto"
"""Takes back what was assigned: the format's default layout, or the source's own words."""

Names = str | Iterable[str]
SourceChoice = Tensor | npt.NDArray[Any] | Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What was assigned to some rows of a parameter; None where nothing was.

    Attributes:
        format: The target format's name.
        layout: The target layout's name.
        method: How its words are made.
        source: Where they come from, of the parameter's shape.
        parameters: The method's parameters.
    """

    format: str | None = None
    layout: str | None = None
    method: Method | None = None
    source: Tensor | None = None
    parameters: Mapping[str, Any] | None = None

    @property
    def is_default(self) -> bool:
        """Whether nothing was assigned."""
        return all(choice is None for choice in (self.format, self.layout, self.method, self.source, self.parameters))

    def same(self, other: Choice) -> bool:
        """Whether two parameters with these choices can be stacked."""
        return (
            (self.format, self.layout) == (other.format, other.layout)
            and (self.method and self.method.name) == (other.method and other.method.name)
            and _same_parameters(self.parameters, other.parameters)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Rows `first` to `end` of a parameter along its first axis, and what was assigned to them."""

    first: int
    end: int
    choice: Choice


@dataclass(slots=True)
class UseChoice:
    """What a recipe says of one use.

    Attributes:
        policy: An activation policy, or None.
        auxiliaries: Role to whatever was given.
    """

    policy: str | None = None
    auxiliaries: dict[str, Any] = field(default_factory=dict)


class Recipe:
    """Which method, format and layout each parameter gets.

    Args:
        model: The model that it is for.

    Attributes:
        selections: Parameter name to its rows' choices, in order; together they cover it.
        uses: `(parameter, input)` to what was said of that use.
        groups: Parameters that are stacked into one object each.
        shared: Parameter name to the one whose objects it takes.
        apart: Parameters that were taken out of what they are stacked in, also in the source.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.selections = {
            name: [Selection(0, parameter.shape[0] if parameter.shape else 1, Choice())]
            for name, parameter in model.parameters.items()
        }
        self.uses: dict[tuple[str, str], UseChoice] = {}
        self.groups: list[tuple[str, ...]] = []
        self.shared: dict[str, str] = {}
        self.apart: set[str] = set()

    def assign(
        self,
        selectors: Names,
        *,
        format: str | None = None,
        layout: str | None = None,
        method: str | Method | Callable[[Request], Any] | None = None,
        source: SourceChoice | None = None,
        parameters: Mapping[str, Any] | None = None,
        rows: tuple[int, int] | None = None,
        activation_policy: str | None = None,
    ) -> None:
        """Choose how the words of some parameters are made; what is not given stays as it was.

        Args:
            selectors: A name, a shell pattern (`*`, `?`, `[ab]`, case-sensitive, `*` also crosses dots and slashes), or
                several of them. A parameter of exactly that name wins over the pattern's meaning.
            format: A registered format. `"auto"` goes back to the source's own words and the default method.
            layout: A registered layout. `"auto"` goes back to the format's default.
            method: A conversion method's name, or a Python callable (see `quantform.methods.from_callable`).
            source: Where the words or values come from instead: a tensor of another source, a NumPy array, or a whole
                source, whose tensor of the parameter's name is taken. Of the whole parameter's shape, also with `rows`.
            parameters: The method's parameters; they replace all earlier ones.
            rows: `(begin, end)` along the first axis: the parameter is split into parts, and only these rows change.
            activation_policy: `A16Only`, `AllowA8` or `AllowA4`, for every input of the parameters.

        Raises:
            UnknownNameError: A selector matches nothing, or a format, layout or method does not exist.
            ArgumentError: Rows, policy or source do not fit.
        """
        names = self._names(selectors)
        changes = _changes(format, layout, method, parameters)
        _check_policy(activation_policy)
        ranges = {name: _row_range(self.model.parameters[name], rows) for name in names}
        sources = {name: _source(self.model.parameters[name], source) for name in names if source is not None}
        for name in names:
            own = changes | ({"source": sources[name]} if name in sources else {})
            if own:
                self._own(name)
                self._change(name, *ranges[name], own)
            if activation_policy is not None:
                for key in self._uses_of(name):
                    self.uses.setdefault(key, UseChoice()).policy = activation_policy

    def use(
        self,
        parameter: str,
        input: str,
        *,
        activation_policy: str | None = None,
        auxiliaries: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how a parameter meets one of its inputs; what is not given stays as it was.

        Args:
            parameter: Its name.
            input: The input's name. The source need not know it: inputs are the model program's business.
            activation_policy: `A16Only`, `AllowA8` or `AllowA4`.
            auxiliaries: Role to value: `activation_input_divisor` a positive number (or the four bytes of one in
                binary32), `hadamard_signs` K numbers of +1 and -1, `input_columns` a permutation of K column numbers.

        Raises:
            UnknownNameError: No such parameter, or no such role.
            ArgumentError: The input's name or the policy is not legal.
        """
        (name,) = self._names([parameter], patterns=False)
        if not isinstance(input, str) or not input or "\0" in input:
            raise ArgumentError("an input's name is a nonempty text without U+0000", found=repr(input))
        _check_policy(activation_policy)
        for role in auxiliaries or {}:
            if role not in AUXILIARY_ROLES:
                raise UnknownNameError(
                    f"no auxiliary role is called {role!r}", hint=near_matches(str(role), AUXILIARY_ROLES)
                )
        choice = self.uses.setdefault((name, input), UseChoice())
        if activation_policy is not None:
            choice.policy = activation_policy
        choice.auxiliaries |= dict(auxiliaries or {})

    def group(self, names: Names) -> None:
        """Stack matrices of equal row length into one object, in the order given; see `assign` for patterns.

        Raises:
            UnknownNameError: A name matches nothing.
            ArgumentError: Fewer than two, one that is in a group already, or none of two dimensions and one K.
        """
        members = tuple(self._names(names))
        if len(members) < 2:
            raise ArgumentError("a group has at least two parameters", found=", ".join(members))
        first = self.model.parameters[members[0]]
        for name in members:
            shape = self.model.parameters[name].shape
            if any(name in group for group in self.groups):
                raise ArgumentError(f"parameter {name!r} is in a group already", hint="separate() takes it out")
            if len(shape) != 2 or shape[1] != first.shape[-1]:
                raise ArgumentError(
                    "only matrices of equal row length are stacked",
                    where=f"parameter {name!r}",
                    expected=f"[N, {first.shape[-1] if first.shape else 'K'}]",
                    found=list(shape),
                )
        self.groups.append(members)

    def separate(self, names: Names) -> None:
        """Take parameters out of their groups; a group of one is none.

        A parameter of an artifact gets objects of its own as well, with the words that it has.

        Raises:
            UnknownNameError: A name matches nothing.
        """
        leaving = set(self._names(names))
        self.apart |= leaving
        remaining = (tuple(name for name in group if name not in leaving) for group in self.groups)
        self.groups = [group for group in remaining if len(group) > 1]

    def share(self, parameter: str, target: str) -> None:
        """Let a parameter take the objects of another, of the same shape; its own source is not read.

        A later `assign` to it ends that; a later one to the target holds for both.

        Raises:
            UnknownNameError: No such parameter.
            ArgumentError: The shapes differ, or the sharing would go round in a circle.
        """
        (name,) = self._names([parameter], patterns=False)
        (other,) = self._names([target], patterns=False)
        shapes = [self.model.parameters[one].shape for one in (name, other)]
        if shapes[0] != shapes[1]:
            raise ArgumentError(
                f"{name!r} and {other!r} have different shapes", expected=list(shapes[1]), found=list(shapes[0])
            )
        if name == self.target(other):
            raise ArgumentError(f"{name!r} would share with itself", found=f"{other!r} shares with {name!r}")
        self.shared[name] = other

    def target(self, name: str) -> str:
        """The parameter whose objects a parameter takes: its own name, unless it shares."""
        while name in self.shared:
            name = self.shared[name]
        return name

    def _own(self, name: str) -> None:
        """Let a shared parameter go its own way again, from where its target is now."""
        if name in self.shared:
            target = self.target(name)
            del self.shared[name]
            self.selections[name] = [
                replace(
                    one, choice=replace(one.choice, source=one.choice.source or self.model.parameters[target].source)
                )
                for one in self.selections[target]
            ]

    def _change(self, name: str, first: int, end: int, changes: Mapping[str, Any]) -> None:
        """Change the choices of some rows, cutting selections where they begin and end."""
        cut: list[Selection] = []
        for one in self.selections[name]:
            low, high = max(first, one.first), min(end, one.end)
            if low >= high:
                cut.append(one)
                continue
            if one.first < low:
                cut.append(replace(one, end=low))
            cut.append(Selection(low, high, replace(one.choice, **changes)))
            if high < one.end:
                cut.append(replace(one, first=high))
        self.selections[name] = cut

    def _uses_of(self, name: str) -> Sequence[tuple[str, str]]:
        named = [key for key in self.uses if key[0] == name]
        known = [(name, input) for input in self.model.parameters[name].inputs]
        keys = dict.fromkeys(key for key in (*known, *named) if not (named and key[1] == INPUT and key not in named))
        return tuple(keys) or ((name, INPUT),)

    def _names(self, selectors: Names, *, patterns: bool = True) -> list[str]:
        """The parameters meant, each once, in the order in which selectors and model name them."""
        given = [selectors] if isinstance(selectors, str) else list(selectors)
        if not given or not all(isinstance(one, str) for one in given):
            raise ArgumentError("nothing is selected", expected="names or patterns", found=repr(given))
        found: dict[str, None] = {}
        for selector in given:
            if selector in self.model.parameters:
                found[selector] = None
                continue
            is_pattern = patterns and any(character in selector for character in "*?[")
            matches = [name for name in self.model.parameters if is_pattern and fnmatch.fnmatchcase(name, selector)]
            if not matches:
                what = "no parameter matches" if is_pattern else "no parameter is called"
                raise UnknownNameError(f"{what} {selector!r}", hint=near_matches(selector, self.model.parameters))
            found |= dict.fromkeys(matches)
        return list(found)


def _changes(
    format: str | None,
    layout: str | None,
    method: str | Method | Callable[[Request], Any] | None,
    parameters: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The members of a choice that change."""
    changes: dict[str, Any] = {}
    if format is not None:
        changes["format"] = None if format == AUTO else FORMATS[format].name
        if format == AUTO:
            changes |= {"method": None, "parameters": None}
    if layout is not None:
        changes["layout"] = None if layout == AUTO else LAYOUTS[layout].name
    if method is not None:
        changes["method"] = as_method(method)
    if parameters is not None:
        if not isinstance(parameters, Mapping) or not all(isinstance(key, str) for key in parameters):
            raise ArgumentError("parameters is not a mapping of names", found=repr(parameters))
        changes["parameters"] = dict(parameters)
    return changes


def _check_policy(policy: str | None) -> None:
    if policy is not None and policy not in ACTIVATION_POLICIES:
        raise ArgumentError("not an activation policy", expected=" or ".join(ACTIVATION_POLICIES), found=repr(policy))


def _row_range(parameter: Parameter, rows: tuple[int, int] | None) -> tuple[int, int]:
    count = parameter.shape[0] if parameter.shape else 1
    if rows is None:
        return 0, count
    try:
        first, end = (-1 if isinstance(row, bool) else operator.index(row) for row in rows)
    except (TypeError, ValueError):
        first = end = -1
    if len(parameter.shape) < 2 or not 0 <= first < end <= count:
        raise ArgumentError(
            "rows is no range of the parameter's rows",
            where=f"parameter {parameter.name!r}",
            expected=f"(begin, end) with 0 <= begin < end <= {count}" if len(parameter.shape) > 1 else "a matrix",
            found=repr(rows),
        )
    return first, end


def _source(parameter: Parameter, source: SourceChoice) -> Tensor:
    where = f"parameter {parameter.name!r}"
    if isinstance(source, Tensor):
        return same_shape(parameter, source, where)
    if isinstance(source, Mapping):
        return same_shape(parameter, source[parameter.name], where)
    if isinstance(source, np.ndarray):
        return same_shape(parameter, ArrayTensor(parameter.name, source), where)
    raise ArgumentError(
        "source is nothing that rows are read from",
        where=where,
        expected="a tensor, a NumPy array, or an opened source",
        found=type(source).__name__,
    )


def _same_parameters(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    one, other = one or {}, other or {}
    return one.keys() == other.keys() and all(
        one[key] is other[key] or np.array_equal(one[key], other[key]) for key in one
    )
