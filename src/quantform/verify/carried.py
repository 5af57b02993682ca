"""What goes along with the tensors of an artifact, beside what its source has: resources, configuration, name."""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from quantform._strict_json import json_values, member_path, shorten
from quantform.convert.carried import Carried, Resource
from quantform.convert.recorded import MAIN
from quantform.errors import ChangedFileError, FileError
from quantform.sources import NinferSource
from quantform.verify.differing import Differing, differs
from quantform.verify.report import Finding, Report, of_error

__all__ = ["compare_carried", "differences"]

_MISSING = object()


def compare_carried(
    report: Report,
    source: NinferSource,
    carried: Carried,
    rule: str,
    *,
    without: Container[str] = (),
    broken: AbstractSet[str] = frozenset(),
) -> int:
    """Compare everything that a source brings with what the artifact has of it.

    Args:
        report: Takes a finding for whatever differs.
        source: The artifact.
        carried: What conversion would bring along.
        rule: The rule of the findings.
        without: Roles of resources that are not compared.
        broken: Paths of files that are known to be missing or wrong; resources that need one are no further findings.

    Returns:
        How many resources were compared.
    """
    for name, component in carried.components.items():
        found = source.components[name].config if name in source.components else _MISSING
        _compare_json(report, rule, member_path("$.components", name) + ".config", json_values(component.config), found)
    main = MAIN in carried.components or MAIN not in source.components
    for key, value in carried.metadata.items():
        if main and key != "quantform":  # only the main source's is kept, and conversion adds to that
            path = member_path("$.metadata", key)
            _compare_json(report, rule, path, json_values(value), source.metadata.get(key, _MISSING))
    compared = 0
    for (name, role), resource in carried.resources.items():
        if role not in without:
            id = source.components[name].resources.get(role) if name in source.components else None
            if id is None:
                path = member_path(member_path("$.components", name) + ".resources", role)
                report.add(Finding(rule, path, f"missing; expected a resource of {resource.nbytes} bytes"))
                continue
            try:
                _compare_bytes(report, source, rule, id, resource)
            except ChangedFileError:
                raise
            except FileError as error:
                if not broken:
                    report.add(of_error(rule, id, error))
                continue
            compared += 1
    return compared


def _compare_json(report: Report, rule: str, path: str, expected: object, found: object) -> None:
    for place, want, have in differences(path, expected, found):
        report.add(differs(rule, place, want, have))


def differences(path: str, expected: object, found: object) -> Iterator[tuple[str, str, str]]:
    """Where two documents differ, and what each has there, shortened."""
    for place, right, wrong in _unequal(path, expected, found):
        yield place, _shown(right), _shown(wrong)


def _unequal(path: str, expected: object, found: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            yield from _unequal(member_path(path, name), expected.get(name, _MISSING), found.get(name, _MISSING))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, two) in enumerate(zip(expected, found, strict=True)):
            yield from _unequal(f"{path}[{index}]", one, two)
    elif type(expected) is not type(found) or isinstance(expected, list) or repr(expected) != repr(found):
        yield path, expected, found  # numbers are told apart by their text: 1, 1.0, -0.0


def _shown(value: object) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return "an object" if isinstance(value, dict) else shorten(repr(value), 80)


def _compare_bytes(report: Report, source: NinferSource, rule: str, id: str, resource: Resource) -> None:
    """The first byte of a resource that differs, and how many do, or its length."""
    record, at, differing = source.artifact.record(id), 0, Differing()
    read = source.artifact.object_reader(id)
    for data in resource.read():
        expected: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(data, np.uint8)
        found = np.empty(min(expected.size, record.nbytes - at), np.uint8)
        read(at, found)
        differing.add(at, expected[: found.size], found)
        at += found.size
    if differing.count:
        report.add(differing.finding(rule, id, source.artifact.locate(record.offset + differing.at)))
    elif record.nbytes != resource.nbytes:
        expected_size, found_size = f"{resource.nbytes} bytes", f"{record.nbytes} bytes"
        problem = f"another length; expected {expected_size}, found {found_size}"
        report.add(Finding(rule, id, problem, expected=expected_size, found=found_size))
