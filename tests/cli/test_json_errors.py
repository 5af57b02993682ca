"""An error is told alike by every command that can print JSON: as that one document, beside the line for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

import quantform as qf
from quantform.cli import app

if TYPE_CHECKING:
    from cli.conftest import Run  # the fixture's type

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
MEMBERS = {"kind", "problem", "where", "expected", "found", "hint"}

# Of each command, words that lead to an error which is not of the command line's form.
WRONG: dict[str, tuple[str, ...]] = {
    "inspect": ("missing.gguf",),
    "convert": ("missing.gguf", "m.ninfer"),
    "verify": ("mixed.gguf", "--against", "missing.gguf"),
    "compare": ("mixed.gguf", "missing.gguf"),
    "conform": ("--run", "decode {format}"),
    "formats": ("q9",),
    "onnx attach": ("missing.onnx", "mixed.gguf", "-o", "m.onnx"),
}


def commands(group: Any = None, before: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Every command, groups' included, with its options."""
    group = typer.main.get_command(app) if group is None else group
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*before, name))
        else:
            found[" ".join((*before, name))] = {option for one in command.params for option in one.opts}
    return found


WITH_JSON = sorted(name for name, options in commands().items() if "--json" in options)


@pytest.mark.parametrize("name", WITH_JSON)
@pytest.mark.parametrize("kind", ["file", "usage"])
def test_an_error_is_the_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed.gguf").write_bytes(EXAMPLE.read_bytes())
    words = (*name.split(), *(WRONG[name] if kind == "file" else ("--no-such-option",)))
    plain = run(*words)
    code = 1 if kind == "file" and name not in {"conform", "formats"} else 2
    assert (plain.code, plain.out) == (code, "")
    assert plain.err.startswith("quantform: error: ")
    assert plain.err.count("\n") == 1
    ran = run(*words, "--json")
    assert (ran.code, ran.err) == (code, plain.err)
    (error,) = json.loads(ran.out).values()
    assert error.keys() == MEMBERS
    for part in MEMBERS - {"kind"}:
        assert error[part] is None or error[part] in ran.err
    assert issubclass(getattr(qf.errors, error["kind"]), qf.QuantformError)


def test_a_file_whose_name_is_the_option_asks_for_no_json(run: Run) -> None:
    ran = run("inspect", "--", "--json")
    assert (ran.code, ran.out, ran.err) == (1, "", "quantform: error: --json: no such file\n")


def test_an_error_of_the_operating_system_is_a_document_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr("quantform.cli.inspect.open_source", refused)
    ran = run("inspect", "x", "--json")
    assert ran.err == "quantform: error: somewhere: Permission denied\n"
    assert json.loads(ran.out)["error"]["where"] == "somewhere"
