"""Provenance that names methods, objects or formats that cannot be is remarked upon, and is no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantform as qf
from quantform.methods import METHODS
from quantform.verify import Finding

CONVERTER = {"name": "quantform", "version": "1"}


def remarks(path: Path, methods: Any, **more: Any) -> list[Finding]:
    """The remarks on a small artifact whose provenance says this of its methods."""
    qf.convert({"w": np.ones((2, 64), np.float32)}, path, format="q4_g64_fp16")
    data = path.read_bytes()
    end = 32 + int.from_bytes(data[8:16], "little")
    document = json.loads(data[32:end])
    assert document["provenance"]["methods"][0]["method"] == "grouped_absmax"
    document["provenance"] = {"converter": CONVERTER, "methods": methods, **more}
    changed = json.dumps(document).encode().ljust(end - 32)
    path.write_bytes(data[:32] + changed + data[end:])
    report = qf.verify(path)
    assert report.ok
    assert {one.rule for one in report.remarks} <= {"method"}
    return report.remarks


def made(method: str = "grouped_absmax", format: str = "q4_g64_fp16", *objects: str) -> dict[str, Any]:
    return {"method": method, "format": format, "objects": list(objects or ["weight/w"]), "parameters": {}}


WRONG = {
    "a method": (
        made("grouped_absmaks"),
        "$.provenance.methods[0]",
        "no such method, of weight/w",
        "grouped_absmaks",
    ),
    "a format that it does not make": (
        made("cast_direct"),
        "$.provenance.methods[0]",
        "cast_direct, of weight/w, does not make this format",
        "q4_g64_fp16",
    ),
    "an object": (
        made("grouped_absmax", "q4_g64_fp16", "weight/v"),
        "weight/v",
        "grouped_absmax is said to have made it",
        "no such object",
    ),
    "another format": (
        made("grouped_absmax", "q5_g64_fp16"),
        "weight/w",
        "grouped_absmax is said to have made it",
        "q4_g64_fp16",
    ),
    "no format": ({"method": "cast_direct", "objects": []}, "$.provenance.methods[0]", "no record", "missing"),
    "a number": (made("x:y") | {"objects": [1]}, "$.provenance.methods[0]", "no record", "int"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be(tmp_path: Path, what: str) -> None:
    record, place, problem, found = WRONG[what]
    (remark,) = remarks(tmp_path / "m.ninfer", [record])
    assert remark.object == place
    assert problem in remark.problem
    assert remark.expected is not None
    assert remark.found is not None
    assert found in remark.found


@pytest.mark.parametrize("methods", [[made()], [made("recipe:negated")], []])
def test_what_can_be(tmp_path: Path, methods: Any) -> None:
    assert remarks(tmp_path / "m.ninfer", methods) == []


@pytest.mark.parametrize("methods", [5, {}, "all"])
def test_no_list(tmp_path: Path, methods: Any) -> None:
    (remark,) = remarks(tmp_path / "m.ninfer", methods)
    assert remark.object == "$.provenance.methods"


def test_other_programs_may_mean_something_else(tmp_path: Path) -> None:
    assert remarks(tmp_path / "m.ninfer", 5, converter={"name": "another"}) == []
    assert remarks(tmp_path / "n.ninfer", 5, converter="quantform") == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_its_formats(tmp_path: Path, method: str) -> None:
    for format in METHODS[method].targets:
        found = remarks(tmp_path / f"{format}.ninfer", [made(method, format)])
        assert [one.object for one in found] == ["weight/w"] * (format != "q4_g64_fp16")
