"""The calls of a recipe: what they select, what they change, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantform.errors import ArgumentError, FileError, UnknownNameError
from quantform.recipes import Model, Recipe
from quantform.sources import ArraySource

NAMES = ["embed.weight", "blk.0.q.weight", "blk.0.k.weight", "blk.1.q.weight", "blk.1.norm", "experts", "a*b"]


def a_model() -> Model:
    shapes = {"blk.1.norm": (64,), "experts": (4, 3, 64), "embed.weight": (10, 64), "blk.0.k.weight": (4, 64)}
    return Model({"text": ArraySource({name: np.zeros(shapes.get(name, (8, 64)), np.float32) for name in NAMES})})


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(a_model())


def formats(recipe: Recipe) -> dict[str, list[tuple[int, int, str | None]]]:
    return {
        name: [(one.first, one.end, one.choice.format) for one in selections]
        for name, selections in recipe.selections.items()
    }


def assigned(recipe: Recipe, format: str) -> list[str]:
    return [name for name, ranges in formats(recipe).items() if any(one[2] == format for one in ranges)]


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ("embed.weight", ["embed.weight"]),
        ("blk.*", ["blk.0.q.weight", "blk.0.k.weight", "blk.1.q.weight", "blk.1.norm"]),
        ("*.[qk].*", ["blk.0.q.weight", "blk.0.k.weight", "blk.1.q.weight"]),
        (["blk.?.q.weight", "embed*"], ["embed.weight", "blk.0.q.weight", "blk.1.q.weight"]),
        ("a*b", ["a*b"]),  # a parameter of that very name
        ("*", NAMES),
    ],
)
def test_names_and_patterns(recipe: Recipe, selectors: Any, expected: list[str]) -> None:
    recipe.assign(selectors, format="bf16")
    assert assigned(recipe, "bf16") == expected


@pytest.mark.parametrize("selectors", ["blk.2.*", "Embed.weight", "BLK*", "embed.weigh", ["embed.weight", "x"]])
def test_what_matches_nothing_is_an_error(recipe: Recipe, selectors: Any) -> None:
    with pytest.raises(UnknownNameError, match="no parameter"):
        recipe.assign(selectors, format="bf16")
    assert assigned(recipe, "bf16") == []


@pytest.mark.parametrize("selectors", [[], [3], ()])
def test_selecting_nothing_is_an_error(recipe: Recipe, selectors: Any) -> None:
    with pytest.raises(ArgumentError, match="nothing is selected"):
        recipe.assign(selectors, format="bf16")


def test_later_assignments_replace_only_what_they_name(recipe: Recipe) -> None:
    recipe.assign("blk.0.*", format="q4_g64_fp16", method="grouped_search", parameters={"negative_scales": True})
    recipe.assign("blk.0.q.weight", format="q8_g32_fp16")
    recipe.assign("blk.0.q.weight", layout="row_split_k128_v1")
    (one,) = recipe.selections["blk.0.q.weight"]
    assert (one.choice.format, one.choice.layout) == ("q8_g32_fp16", "row_split_k128_v1")
    assert one.choice.method is not None
    assert one.choice.method.name == "grouped_search"
    assert one.choice.parameters == {"negative_scales": True}
    recipe.assign("blk.0.q.weight", parameters={})
    recipe.assign("blk.0.q.weight", layout="auto")
    (one,) = recipe.selections["blk.0.q.weight"]
    assert (one.choice.layout, one.choice.parameters) == (None, {})
    recipe.assign("blk.0.q.weight", format="auto")
    (one,) = recipe.selections["blk.0.q.weight"]
    assert one.choice.is_default


def test_rows_split_a_parameter(recipe: Recipe) -> None:
    name = "embed.weight"
    recipe.assign(name, format="bf16", rows=(2, 6))
    recipe.assign(name, format="fp32", rows=(5, 8))
    assert formats(recipe)[name] == [(0, 2, None), (2, 5, "bf16"), (5, 6, "fp32"), (6, 8, "fp32"), (8, 10, None)]
    recipe.assign(name, format="q4_g64_fp16")
    assert {one[2] for one in formats(recipe)[name]} == {"q4_g64_fp16"}
    recipe.assign("experts", format="bf16", rows=(3, 4))
    assert formats(recipe)["experts"] == [(0, 3, None), (3, 4, "bf16")]


@pytest.mark.parametrize("rows", [(0, 0), (3, 2), (0, 11), (-1, 2), (True, 2), (0,), "ab", (0.0, 2)])
def test_wrong_rows(recipe: Recipe, rows: Any) -> None:
    with pytest.raises(ArgumentError, match="rows is no range"):
        recipe.assign("embed.weight", format="bf16", rows=rows)
    with pytest.raises(ArgumentError, match="rows is no range"):
        recipe.assign("blk.1.norm", format="bf16", rows=(0, 1))


@pytest.mark.parametrize(
    "choice",
    [{"format": "q9"}, {"layout": "rows"}, {"method": "best"}],
)
def test_unknown_names(recipe: Recipe, choice: dict[str, Any]) -> None:
    with pytest.raises(UnknownNameError):
        recipe.assign("*", **choice)


@pytest.mark.parametrize(
    "choice",
    [{"method": 3}, {"parameters": [1]}, {"parameters": {1: 2}}, {"activation_policy": "A8"}, {"source": 3}],
)
def test_wrong_choices(recipe: Recipe, choice: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        recipe.assign("*", **choice)


def test_sources(recipe: Recipe) -> None:
    other = ArraySource({"blk.0.q.weight": np.ones((8, 64)), "x": np.ones((3, 3))})
    recipe.assign("blk.0.q.weight", source=other)
    recipe.assign("blk.1.q.weight", source=other["blk.0.q.weight"])
    recipe.assign("blk.0.k.weight", source=np.ones((4, 64), np.float16))
    assert [recipe.selections[name][0].choice.source is not None for name in NAMES] == [
        name in {"blk.0.q.weight", "blk.1.q.weight", "blk.0.k.weight"} for name in NAMES
    ]
    with pytest.raises(FileError, match="another shape") as caught:
        recipe.assign("blk.0.q.weight", source=other["x"])
    assert "'blk.0.q.weight'" in str(caught.value)
    with pytest.raises(UnknownNameError):
        recipe.assign("embed.weight", source=other)


def test_sharing_and_ending_it(recipe: Recipe) -> None:
    q0, q1 = "blk.0.q.weight", "blk.1.q.weight"
    recipe.share(q1, q0)
    recipe.assign(q0, format="bf16")
    assert recipe.target(q1) == q0
    recipe.assign(q1, activation_policy="AllowA8")  # no matter of the words
    assert recipe.target(q1) == q0
    recipe.assign(q1, format="fp32", rows=(0, 4))
    assert recipe.target(q1) == q1
    assert formats(recipe)[q1] == [(0, 4, "fp32"), (4, 8, "bf16")]  # from where the target was
    assert recipe.selections[q1][0].choice.source is recipe.model.parameters[q0].source


def test_what_cannot_be_shared(recipe: Recipe) -> None:
    q0, q1 = "blk.0.q.weight", "blk.1.q.weight"
    with pytest.raises(ArgumentError, match="different shapes"):
        recipe.share(q0, "embed.weight")
    with pytest.raises(ArgumentError, match="itself"):
        recipe.share(q0, q0)
    recipe.share(q0, q1)
    with pytest.raises(ArgumentError, match="itself"):
        recipe.share(q1, q0)
    with pytest.raises(UnknownNameError):
        recipe.share("nothing", q0)


def test_groups(recipe: Recipe) -> None:
    recipe.group("blk.0.[qk].weight")
    assert recipe.groups == [("blk.0.q.weight", "blk.0.k.weight")]
    with pytest.raises(ArgumentError, match="in a group already"):
        recipe.group(["blk.1.q.weight", "blk.0.k.weight"])
    recipe.separate("blk.0.q.weight")
    assert recipe.groups == []
    recipe.group(["blk.1.q.weight", "blk.0.k.weight", "embed.weight"])
    recipe.separate("embed.weight")
    assert recipe.groups == [("blk.1.q.weight", "blk.0.k.weight")]
    for wrong in (["embed.weight"], ["embed.weight", "experts"], ["embed.weight", "blk.1.norm"]):
        with pytest.raises(ArgumentError):
            recipe.group(wrong)


def test_uses(recipe: Recipe) -> None:
    q = "blk.0.q.weight"
    recipe.assign("blk.0.*", activation_policy="AllowA8")
    assert {key: use.policy for key, use in recipe.uses.items()} == {
        (q, "input"): "AllowA8",
        ("blk.0.k.weight", "input"): "AllowA8",
    }
    recipe.use(q, "hidden", activation_policy="AllowA4", auxiliaries={"activation_input_divisor": 2.0})
    recipe.use(q, "hidden", auxiliaries={"hadamard_signs": [1]})
    assert recipe.uses[q, "hidden"].policy == "AllowA4"
    assert recipe.uses[q, "hidden"].auxiliaries == {"activation_input_divisor": 2.0, "hadamard_signs": [1]}
    for input, policy in (("", None), ("a\0", None), ("x", "?")):
        with pytest.raises(ArgumentError):
            recipe.use(q, input, activation_policy=policy)
    with pytest.raises(UnknownNameError, match="auxiliary role"):
        recipe.use(q, "x", auxiliaries={"signs": 1})
    with pytest.raises(UnknownNameError):
        recipe.use("blk.*", "x")


def test_a_model_names_components_and_leaves_empty_tensors_out() -> None:
    first = ArraySource({"w": np.zeros((2, 2)), "none": np.zeros((0, 4))})
    model = Model({"text": first, "mtp": ArraySource({"w": np.zeros(3, np.int32)})})
    assert list(model.parameters) == ["w", "mtp/w"]
    assert model.empty == ("none",)
    assert model.parameters["mtp/w"].component == "mtp"
    assert model.parameters["w"].inputs == ("input",)
    assert model.parameters["mtp/w"].inputs == ()
    assert model.config == {}
