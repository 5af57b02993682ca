"""Every command and every program that the documents show is run, and what they show is what comes out."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from quantform.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.docs


def blocks(path: Path) -> list[tuple[str, str]]:
    return _FENCE.findall(path.read_text())


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a `quantform` command prints on both channels."""
    words = shlex.split(command, comments=True)
    assert words[0] == "quantform", f"only quantform commands are shown in console blocks: {command}"
    out = io.StringIO()
    monkeypatch.setattr(sys, "argv", words)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit):
        main()
    return out.getvalue()


def matches(shown: str, printed: str) -> bool:
    """Whether they are the same; a shown line `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r" *\n" for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_tells_the_truth(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for language, text in blocks(path):
        if language == "python":
            exec(compile(text, str(path), "exec"), namespace)  # noqa: S102 - our own documents
        elif language == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                printed = run(command, monkeypatch)
                assert matches(shown, printed), f"{command}\nshown:\n{shown}\nprinted:\n{printed}"


def test_readme_has_the_two_commands_and_a_true_map() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"<!-- main -->\n```sh\n.+?```", text, re.DOTALL)
    assert re.search(r"<!-- tests -->\n```sh\n.+?```", text, re.DOTALL)
    (code_map,) = re.findall(r"<!-- map -->\n```text\n(.*?)```", text, re.DOTALL)
    package = ROOT / "src" / "quantform"
    present = {
        path.name if path.is_file() else f"{path.name}/"
        for path in package.iterdir()
        if path.name not in {"__pycache__", "py.typed"} and (path.suffix == ".py" or path.is_dir())
    }
    named = set(re.findall(r"^  (\S+)", code_map, re.MULTILINE))
    listed = {name for entry in named for name in entry.split(",")}
    assert {name for name in present if not name.startswith("_")} <= listed
    assert {name for name in listed if "/" in name or name.endswith(".py")} <= present


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_formats_page_is_what_the_records_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_formats.py"))["build"]()
    assert made == (ROOT / "docs" / "formats.md").read_text(), "run python docs/make_formats.py"


def test_the_rules_of_verification_are_what_the_records_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_rules.py"))["build"]()
    assert made == (ROOT / "docs" / "verify.md").read_text(), "run python docs/make_rules.py"


def test_the_example_is_what_its_script_makes() -> None:
    made = runpy.run_path(str(ROOT / "examples" / "make_mixed.py"))["build"]()
    assert made == (ROOT / "examples" / "mixed.gguf").read_bytes(), "run python examples/make_mixed.py"
