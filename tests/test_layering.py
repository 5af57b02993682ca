"""Rule 1 of the architecture: a stage imports only what stands below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quantform

ROOT = Path(quantform.__file__).parent

# Every module or package directly below quantform, and the ones it may import. docs/architecture.md draws the same.
BASICS = {
    "errors",
    "_registry",
    "_sizes",
    "_rows",
    "_scalars",
    "_spans",
    "_files",
    "_interrupts",
    "_journal",
    "_native",
    "_progress",
    "_outputs",
    "_publish",
    "_report",
    "_strict_json",
    "_text",
    "_toml",
    "_version",
}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_registry": {"errors"},
    "_sizes": {"errors"},
    "_rows": {"errors", "_sizes"},
    "_scalars": {"errors", "_registry"},
    "_spans": {"_sizes"},
    "_files": {"errors", "_spans"},
    "_interrupts": set(),
    "_journal": {"errors", "_files"},
    "_native": {"errors"},
    "_progress": set(),
    "_outputs": {"errors", "_native", "_scalars", "_sizes"},
    "_publish": {"errors", "_sizes", "_interrupts", "_journal"},
    "_report": {"_sizes"},
    "_strict_json": {"errors"},
    "_text": set(),
    "_toml": {"errors", "_files"},
    "_version": set(),
    "packed": BASICS,
    "formats": BASICS | {"packed"},
    "layouts": BASICS | {"packed", "formats"},
    "container": BASICS | {"packed", "formats", "layouts"},
    "sources": BASICS | {"packed", "formats", "layouts", "container"},
    "methods": BASICS | {"packed", "formats"},
    "recipes": BASICS | {"packed", "formats", "layouts", "container", "sources", "methods"},
    "encode": BASICS | {"packed", "formats", "methods"},
    "_catalog": {"packed", "formats", "layouts"},
    "onnx": BASICS | {"packed", "formats", "layouts", "container", "sources"},
    "npy": BASICS | {"sources"},
    "testing": BASICS | {"packed", "formats", "layouts", "methods", "encode"},
    "convert": BASICS | {"packed", "formats", "layouts", "container", "sources", "methods", "recipes", "onnx"},
    "compare": BASICS | {"packed", "formats", "sources", "convert"},
    "verify": BASICS
    | {"packed", "formats", "layouts", "container", "sources", "methods", "convert", "onnx", "compare"},
}


def units() -> list[str]:
    return sorted(path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [node.module or ""]
            if node.module == "quantform":
                names = [f"quantform.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found.update(name.split(".")[1] for name in names if name.startswith("quantform."))
    return found


@pytest.mark.parametrize("unit", units())
def test_imports_point_downwards(unit: str) -> None:
    if unit in {"__init__", "__main__", "cli"}:
        return  # the public face and the command line may see everything, and nothing may see them
    single = ROOT / f"{unit}.py"
    paths = [single] if single.exists() else sorted((ROOT / unit).rglob("*.py"))
    for path in paths:
        beyond = imports(path) - ALLOWED[unit] - {unit}
        assert not beyond, f"{path.relative_to(ROOT)} imports {sorted(beyond)}"
