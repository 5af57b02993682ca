"""Recipes from files: Python that runs, TOML with a closed schema, and errors that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantform.errors import FileError, QuantformError, RecipeError
from quantform.recipes import LoadedRecipe, Model, Recipe, load_recipe
from quantform.sources import ArraySource, Source


def run(loaded: LoadedRecipe, sources: dict[str, Source[Any]] | None = None) -> Recipe:
    arrays = {"a.weight": np.zeros((8, 64)), "b.weight": np.zeros((8, 64)), "norm": np.zeros(64)}
    model = Model({"text": ArraySource(arrays)})
    recipe = Recipe(model)
    loaded.configure(model, recipe, sources or {})
    return recipe


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


PYTHON = """\
FORMAT = "q4_g64_fp16"

def configure(model, recipe, sources):
    for name, parameter in model.parameters.items():
        if parameter.is_matrix:
            recipe.assign(name, format=FORMAT)

def other(model, recipe, sources):
    recipe.assign("*", format="bf16")
"""


def test_python_files(tmp_path: Path) -> None:
    path = write(tmp_path, "r.py", PYTHON)
    recipe = run(load_recipe(path))
    assert [one.choice.format for (one,) in recipe.selections.values()] == ["q4_g64_fp16", "q4_g64_fp16", None]
    loaded = load_recipe(f"{path}:other")
    assert loaded.name == "r.py:other"
    assert loaded.sha256 is not None
    assert {one.choice.format for (one,) in run(loaded).selections.values()} == {"bf16"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.py"]  # no byte code beside it


def test_callables() -> None:
    def mine(model: Model, recipe: Recipe, sources: object) -> None:  # noqa: ARG001
        raise ZeroDivisionError

    loaded = load_recipe(mine)
    assert loaded.sha256 is None
    assert loaded.name.endswith("mine")
    with pytest.raises(ZeroDivisionError):  # the caller's own code, the caller's own error
        run(loaded)
    with pytest.raises(RecipeError):
        load_recipe(3)  # type: ignore[arg-type]


WRONG_PYTHON = {
    "syntax": ("def configure(:\n", "r.py, line 1: SyntaxError"),
    "import": ("import nothing_of_this_name\n", "r.py, line 1: ModuleNotFoundError"),
    "no function": ("def configur(a, b, c): ...\n", "no function 'configure'.*Did you mean 'configur'"),
    "inside": ("def configure(m, r, s):\n    x = 1\n    m.nothing\n", "r.py, line 3, in configure: AttributeError"),
    "below": (
        "def f(r):\n    r.assign('x', format='bf16')\ndef configure(m, r, s):\n    f(r)\n",
        "line 2, in f: no para",
    ),
    "arguments": ("def configure(m):\n    pass\n", "r.py: TypeError"),
    "not text": ("\0", "r.py"),
    "exit": ("import sys\nsys.exit(0)\n", "r.py, line 2: SystemExit: 0"),
    "exit inside": ("def configure(m, r, s):\n    raise SystemExit\n", "r.py, line 2, in configure: SystemExit"),
}


@pytest.mark.parametrize("name", WRONG_PYTHON)
def test_wrong_python(tmp_path: Path, name: str) -> None:
    text, expected = WRONG_PYTHON[name]
    path = write(tmp_path, "r.py", text)
    with pytest.raises(RecipeError, match=expected):
        run(load_recipe(path))


TOML = """\
[[assign]]
select = "*.weight"
format = "q4_g64_fp16"
method = "grouped_search"
parameters = { negative_scales = true, imatrix = "i.safetensors" }

[[assign]]
select = ["b.weight"]
format = "bf16"
layout = "auto"
rows = [2, 4]
source = "other"
activation_policy = "AllowA8"

[[assign]]
select = "norm"
source = { name = "other", tensor = "x" }

[[use]]
parameter = "a.weight"
input = "hidden"
activation_policy = "AllowA4"
auxiliaries = { activation_input_divisor = 1.5 }

[[share]]
parameter = "b.weight"
target = "a.weight"

[[group]]
names = ["a.weight", "b.weight"]

[[separate]]
names = "b.weight"
"""


def test_toml_has_the_same_calls(tmp_path: Path) -> None:
    other = ArraySource({"b.weight": np.ones((8, 64)), "x": np.ones(64)})
    recipe = run(load_recipe(write(tmp_path, "r.toml", TOML)), {"other": other})
    (a,) = recipe.selections["a.weight"]
    assert a.choice.method is not None
    assert (a.choice.format, a.choice.method.name) == ("q4_g64_fp16", "grouped_search")
    assert a.choice.parameters == {"negative_scales": True, "imatrix": tmp_path / "i.safetensors"}
    b = recipe.selections["b.weight"]
    assert [(one.first, one.end, one.choice.format) for one in b] == [
        (0, 2, "q4_g64_fp16"),
        (2, 4, "bf16"),
        (4, 8, "q4_g64_fp16"),
    ]
    assert b[1].choice.source is other["b.weight"]
    assert recipe.selections["norm"][0].choice.source is other["x"]
    assert recipe.uses["b.weight", "input"].policy == "AllowA8"
    assert recipe.uses["a.weight", "hidden"].auxiliaries == {"activation_input_divisor": 1.5}
    assert recipe.shared == {"b.weight": "a.weight"}
    assert recipe.groups == []


WRONG_TOML = {
    "no TOML": ("[[assign]\n", "no TOML.*line 1"),
    "unknown step": ("[[asign]]\nselect='*'\n", r"r.toml, \$: .*`asign`"),
    "unknown member": ("[[assign]]\nselect='*'\nfromat='bf16'\n", r"r.toml, \$.assign\[0\]: .*fromat"),
    "missing member": ("[[assign]]\nformat='bf16'\n", r"\$.assign\[0\]: .*select"),
    "wrong type": ("[[assign]]\nselect='*'\nformat=4\n", r"\$.assign\[0\].format: Expected `str"),
    "wrong rows": ("[[assign]]\nselect='*'\nrows=[1,2,3]\n", r"\$.assign\[0\].rows"),
    "boolean row": ("[[assign]]\nselect='*'\nrows=[true,2]\n", r"\$.assign\[0\].rows\[0\]"),
    "no list": ("assign = 3\n", r"\$.assign"),
    "no such name": (
        "[[assign]]\nselect='norm'\n[[assign]]\nselect='x'\nformat='bf16'\n",
        r"assign\[1\]: no parameter",
    ),
    "no such format": ("[[assign]]\nselect='*'\nformat='q4_k'\n", r"assign\[0\]: no format.*gguf_q4_k"),
    "a group of one": ("[[group]]\nnames=['norm']\n", r"group\[0\]: a group has at least two"),
    "auxiliary": ("[[use]]\nparameter='norm'\ninput='x'\nauxiliaries={signs=1.0}\n", r"use\[0\]: no auxiliary role"),
}


@pytest.mark.parametrize("name", WRONG_TOML)
def test_wrong_toml(tmp_path: Path, name: str) -> None:
    text, expected = WRONG_TOML[name]
    with pytest.raises(RecipeError, match=expected):
        run(load_recipe(write(tmp_path, "r.toml", text)))


@pytest.mark.parametrize(("name", "error"), [("r.yaml", RecipeError), ("r", RecipeError), ("missing.py", FileError)])
def test_wrong_files(tmp_path: Path, name: str, error: type[QuantformError]) -> None:
    if not name.startswith("missing"):
        write(tmp_path, name, "")
    with pytest.raises(error):
        load_recipe(tmp_path / name)
    with pytest.raises(RecipeError, match="no functions"):
        load_recipe(f"{write(tmp_path, 't.toml', '')}:f")


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(RecipeError, match="no TOML"):
        load_recipe(path)


def test_the_page_shows_the_example() -> None:
    root = Path(__file__).parents[2]
    assert (root / "examples" / "recipe.toml").read_text() in (root / "docs" / "recipes.md").read_text()
