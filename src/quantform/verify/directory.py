"""What a directory may say and hardly means: objects that nothing refers to, shapes and digests that cannot be."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from quantform._sizes import product
from quantform.container import TensorRecord
from quantform.sources import NinferSource
from quantform.verify.report import Finding, Report

__all__ = ["remark_directory"]

_DIGEST = re.compile(r"(?!0{64})[0-9a-f]{64}", re.ASCII)


def remark_directory(report: Report, source: NinferSource) -> None:
    """Remarks on what is bound, on recorded shapes, and on the digests of provenance."""
    _remark_coverage(report, source)
    shapes = source.metadata.get("quantform")
    shapes = shapes.get("shapes") if isinstance(shapes, dict) else None
    for name, shape in shapes.items() if isinstance(shapes, dict) else ():
        if name not in source:
            report.add(Finding("shape", name, "a shape is recorded for a parameter that is not there"))
        elif list(source[name].shape) != shape:
            report.add(
                Finding(
                    "shape",
                    name,
                    f"the recorded shape is not the parameter's; expected {source[name].size} elements, found {shape}",
                    expected=f"{source[name].size} elements",
                    found=str(shape),
                )
            )
    for place, value in _digests(source.directory.provenance or {}):
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            found = repr(value)[:80]
            report.add(
                Finding(
                    "provenance",
                    place,
                    f"no SHA-256 digest; expected 64 lower-case hexadecimal digits, not all zeros, found {found}",
                    found=found,
                )
            )


def _remark_coverage(report: Report, source: NinferSource) -> None:
    directory = source.directory
    ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    bindings = [*directory.bindings.values(), *(one for use in directory.uses for one in use.auxiliaries.values())]
    for binding in bindings:
        if binding.object is not None:
            ranges[binding.object].append((0, product(getattr(source.artifact.objects[binding.object], "shape", ()))))
        for part in binding.parts or ():
            ranges[part.object].append(part.range)
    resources = {id for component in directory.components.values() for id in component.resources.values()}
    for id, record in source.artifact.objects.items():
        if isinstance(record, TensorRecord):
            free = list(_free(sorted(ranges[id]), record.elements))
            if free:
                count = sum(end - begin for begin, end in free)
                begin, end = free[0]
                problem = f"{count} of {record.elements} elements belong to no parameter, the first [{begin}, {end})"
                report.add(Finding("unused", id, problem, count=count))
        elif id not in resources:
            report.add(Finding("unused", id, "the resource belongs to no component"))


def _free(ranges: list[tuple[int, int]], elements: int) -> Iterator[tuple[int, int]]:
    """What sorted ranges leave of an object."""
    at = 0
    for begin, end in ranges:
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < elements:
        yield at, elements


def _digests(provenance: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every member called `sha256`, with its path, however deep."""
    rest: list[tuple[str, Any]] = [("$.provenance", provenance)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, dict):
            for name, member in value.items():
                if name == "sha256":
                    yield path, member
                else:
                    rest.append((f"{path}.{name}", member))
        elif isinstance(value, list):
            rest.extend((f"{path}[{index}]", member) for index, member in enumerate(value))
