"""What provenance says of how objects were made: known methods, formats that they make, objects that have these.

Only where this package says it: `provenance` is open content, and others may have `methods` of another form.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

import msgspec

from quantform._strict_json import shorten
from quantform.container import TensorRecord
from quantform.formats import FORMATS
from quantform.methods import METHODS
from quantform.sources import NinferSource
from quantform.verify.report import Finding, Report

__all__ = ["remark_methods"]

_LISTED = 4


class _Made(msgspec.Struct, frozen=True):
    """One record: which objects a method made."""

    method: str
    format: str
    objects: list[str]


def remark_methods(report: Report, source: NinferSource) -> None:
    """A remark for each record, and each object of one, that cannot be."""
    provenance = source.directory.provenance or {}
    converter, records = provenance.get("converter"), provenance.get("methods", [])
    if not isinstance(converter, dict) or converter.get("name") != "quantform":
        return
    if not isinstance(records, list):
        _remark(report, "$.provenance.methods", "no list of methods", "an array", type(records).__name__)
        return
    for index, record in enumerate(records):
        place = f"$.provenance.methods[{index}]"
        try:
            made = msgspec.convert(record, _Made)
        except msgspec.ValidationError as error:
            _remark(report, place, "no record of a method", "'method', 'format' and 'objects'", str(error))
        else:
            _remark_record(report, place, made)
            for id in made.objects:
                _remark_object(report, source, id, made)


def _remark_record(report: Report, place: str, made: _Made) -> None:
    method, of = METHODS.get(made.method), f"of {_listed(made.objects)}"
    if method is None and ":" not in made.method:  # callables have the name MODULE:NAME
        _remark(report, place, f"no such method, {of}", f"MODULE:NAME, {', '.join(METHODS)}", made.method)
    elif made.format not in (FORMATS if method is None else method.targets):
        makes = list(FORMATS if method is None else method.targets)
        _remark(report, place, f"{made.method}, {of}, does not make this format", _listed(makes), made.format)


def _remark_object(report: Report, source: NinferSource, id: str, made: _Made) -> None:
    record = source.artifact.objects.get(id)
    found = "no such object" if record is None else "a resource"
    found = record.format if isinstance(record, TensorRecord) else found
    if found != made.format:
        _remark(report, id, f"{made.method} is said to have made it", made.format, found)


def _remark(report: Report, place: str, problem: str, expected: str, found: str) -> None:
    found = shorten(found, 80)
    report.add(
        Finding("method", place, f"{problem}; expected {expected}, found {found}", expected=expected, found=found)
    )


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(islice(names, _LISTED))}{more}" if names else "nothing"
