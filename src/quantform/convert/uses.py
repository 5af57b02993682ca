"""The uses of a plan: policies and auxiliaries, checked, and the objects that hold the auxiliaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from quantform.container import Binding, Use
from quantform.convert.auxiliaries import COLUMNS, DIVISOR, Auxiliary, auxiliary, divisor_of
from quantform.convert.planned import Fragment, ObjectPlan
from quantform.convert.work import Literal as LiteralWork
from quantform.errors import ArgumentError, QuantformError
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.recipes import Recipe, UseChoice

__all__ = ["plan_uses"]

Policy = Literal["A16Only", "AllowA8", "AllowA4"]


def plan_uses(
    recipe: Recipe, objects: Sequence[ObjectPlan], bindings: dict[str, Binding], ids: set[str]
) -> tuple[list[Use], list[ObjectPlan]]:
    """The uses that a recipe or the source speaks of.

    Args:
        recipe: The recipe.
        objects: The planned tensors.
        bindings: What each parameter is made of.
        ids: The ids that are taken; those of auxiliaries are added.

    Returns:
        The uses, and the auxiliaries' objects; equal auxiliaries share one, but activation divisors.

    Raises:
        ArgumentError: An auxiliary is not what its role takes, or an NVFP4 parameter that admits 4-bit activations has
            no activation divisor; names the parameter and the input.
    """
    by_id = {planned.id: planned for planned in objects}
    made: list[ObjectPlan] = []
    known: dict[Auxiliary, str] = {}

    def stored(role: str, value: Auxiliary) -> Binding:
        id = known.get(value) if role != DIVISOR else None
        if id is None:
            id = f"auxiliary/{len(made):06}"
            while id in ids:
                id += "~"
            ids.add(id)
            made.append(_object(id, value))
            known.setdefault(value, id)
        return Binding(object=id)

    uses = []
    for (parameter, input), choice in recipe.uses.items():
        held = [by_id[id] for id in _ids(bindings[parameter])]
        try:
            values = _values(recipe, parameter, choice, held)
        except QuantformError as error:
            raise error.at(f"parameter {parameter!r}, input {input!r}") from None
        uses.append(
            Use(
                parameter=parameter,
                input=input,
                activation_policy=cast("Policy | None", choice.policy),
                auxiliaries={role: stored(role, value) for role, value in values.items()},
            )
        )
    return uses, made


def _values(recipe: Recipe, name: str, choice: UseChoice, held: Sequence[ObjectPlan]) -> dict[str, Auxiliary]:
    shape = recipe.model.parameters[name].shape
    columns = shape[-1] if shape else 1
    values: dict[str, Auxiliary] = {}
    for role, given in choice.auxiliaries.items():
        if role == COLUMNS and not all(planned.format.startswith("gguf_") for planned in held):
            formats = " and ".join(sorted({planned.format for planned in held}))
            raise ArgumentError(f"{COLUMNS} is for matrices in gguf_* formats", found=formats)
        values[role] = auxiliary(role, given, columns)
    if choice.policy == "AllowA4" and DIVISOR not in values and any(planned.format == "nvfp4" for planned in held):
        values[DIVISOR] = _from_source(recipe, name, held)
    return values


def _from_source(recipe: Recipe, name: str, held: Sequence[ObjectPlan]) -> Auxiliary:
    """The smallest divisor that the checkpoint has for the weights of the objects: they meet one quantized input."""
    hint = f"Give one: recipe.use({name!r}, ..., auxiliaries={{{DIVISOR!r}: ...}})"
    if recipe.target(name) != name:
        raise ArgumentError(f"a shared NVFP4 parameter needs an {DIVISOR} of its own", hint=hint)
    words = []
    for fragment in (fragment for planned in held for fragment in planned.fragments):
        word = _divisor(recipe, fragment) if all(one.method == "import_encoded" for one in held) else None
        if word is None:
            raise ArgumentError(
                f"the source has no {DIVISOR} for {fragment.parameter!r}, which admits 4-bit activations", hint=hint
            )
        words.append(word)
    return divisor_of(min(words))  # positive binary32 words are ordered as their values


def _divisor(recipe: Recipe, fragment: Fragment) -> np.uint32 | None:
    selections = recipe.selections[fragment.parameter]
    first = fragment.rows[0] if fragment.rows is not None else 0
    choice = next(one.choice for one in selections if one.first <= first < one.end)
    tensor = choice.source or recipe.model.parameters[fragment.parameter].source
    return tensor.activation_divisor()


def _object(id: str, value: Auxiliary) -> ObjectPlan:
    layout = LAYOUTS[FORMATS[value.format].default_layout]
    return ObjectPlan(
        id=id,
        shape=value.shape,
        format=value.format,
        layout=layout.name,
        divisors=1,
        nbytes=layout.encoded_size(value.format, value.shape),
        method=None,
        parameters={},
        fragments=(),
        work=LiteralWork(value.data),
    )


def _ids(binding: Binding) -> list[str]:
    if binding.object is not None:
        return [binding.object]
    return list(dict.fromkeys(part.object for part in binding.parts or ()))
