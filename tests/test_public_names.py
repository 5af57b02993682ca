"""The public surface, and that importing it stays cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import quantform as qf
from quantform._registry import Registry
from quantform.errors import UnknownNameError
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES

PUBLIC = {
    "QuantformError",
    "__version__",
    "compare",
    "convert",
    "dequantize_packed",
    "encode",
    "errors",
    "format",
    "formats",
    "layout",
    "layouts",
    "open",
    "plan",
    "profile",
    "profiles",
    "verify",
}


def test_the_public_names_are_these() -> None:
    assert set(qf.__all__) == PUBLIC
    for name in PUBLIC - {"__version__", "errors"}:
        member = getattr(qf, name)
        assert callable(member)
        assert not isinstance(member, ModuleType)
        assert member.__doc__


@pytest.mark.parametrize(
    ("one", "every", "registry", "count"),
    [
        (qf.profile, qf.profiles, PROFILES, 27),
        (qf.format, qf.formats, FORMATS, 30),
        (qf.layout, qf.layouts, LAYOUTS, 7),
    ],
    ids=["profiles", "formats", "layouts"],
)
def test_records_by_name(
    one: Callable[[str], Any], every: Callable[[], Any], registry: Registry[Any], count: int
) -> None:
    assert len(every()) == len(registry) == count
    for name, record in registry.items():
        assert one(name) is record
    with pytest.raises(UnknownNameError):
        one("nonsense")


def test_importing_takes_no_command_line_and_no_extras() -> None:
    script = "import sys, quantform; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"typer", "rich", "onnx", "onnxruntime", "torch", "gguf", "matplotlib"}


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "quantform", "--version"], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("quantform ")


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("quantform.sources", "select_rows gather transpose concatenate stack open_source"),
        (
            "quantform.testing",
            "check_decoder check_encoder check_vector decoder_cases encoder_cases vectors encoder_vectors export",
        ),
        ("quantform.testing.strategies", "payloads shapes words"),
        ("quantform.recipes", "head_order interleaved_heads untiled_heads import_importance"),
    ],
)
def test_what_recipes_and_test_suites_call_is_public(package: str, names: str) -> None:
    module = importlib.import_module(package)
    for name in names.split():
        assert name in module.__all__
        assert getattr(module, name).__doc__
