"""Plain tensors and packed blocks of any file, and the tensors that make up a checkpoint's quantized weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quantform._progress import Progress
from quantform._scalars import SCALARS
from quantform._sizes import counted
from quantform.errors import QuantformError, UnsupportedError
from quantform.formats.checks import hex_word
from quantform.layouts.faults import read_through
from quantform.sources import Checkpoint, GGUFTensor, SafetensorsTensor, Source, Tensor
from quantform.sources._scalar_tensor import ScalarTensor
from quantform.sources.conventions import BrokenWeight, PartRule, UnsupportedWeight
from quantform.verify.reading import Meter, ValueCounter, unit_of, watched
from quantform.verify.report import Finding, Place, Report, of_error
from quantform.verify.zeros import ZeroPages

__all__ = ["check_tensor", "read_tensor", "read_tensors"]


def check_tensor(report: Report, tensor: Tensor) -> None:
    """What headers say of a tensor; plain numbers and weights that are legal and not decoded here make a remark.

    Raises:
        QuantformError: Something is wrong.
    """
    try:
        tensor.check()
    except UnsupportedError:  # which comes after whatever else is wrong
        if isinstance(tensor, UnsupportedWeight) and not isinstance(tensor, BrokenWeight):
            report.add(Finding("undecoded", tensor.name, tensor.reason))
        elif isinstance(tensor, ScalarTensor) and not tensor.decodable:
            name = tensor.dtype_name
            report.add(Finding("undecoded", tensor.name, f"values of type {name} are not decoded", found=name))
        else:
            raise


def read_tensors(report: Report, source: Source[Any], known: set[str], progress: Progress) -> Meter:
    """Every byte of every tensor, those of quantized weights by the rules of their parts."""
    plain: Source[Any] = source.source if isinstance(source, Checkpoint) else source
    rules = dict(_rules(source, known)) if isinstance(source, Checkpoint) else {}
    meter = Meter(progress, sum(tensor.nbytes for tensor in plain.values()), (len(plain), "tensor"))
    for name, tensor in plain.items():
        meter.begin(name)
        if name in known:
            continue
        try:
            if name in rules:
                _read_part(report, tensor, *rules[name], meter)
            else:
                read_tensor(report, tensor, meter)
        except QuantformError as error:
            report.add(of_error("structure", name, error))
    if isinstance(source, Checkpoint):
        _remark_dropped(report, source)
    return meter


def read_tensor(report: Report, tensor: Tensor, meter: Meter) -> None:
    """Every byte of a tensor of plain numbers or packed blocks; words that are not finite are counted."""
    unit = unit_of(tensor.format)
    counter = None if unit is None else ValueCounter(unit)
    observers = [] if counter is None else [counter]  # which count no zeros
    zeros = ZeroPages()
    read = watched(tensor.read_into, meter, observers, tensor.stored_spans, zeros)
    for _ in read_through(read, 0, tensor.nbytes, 1 if counter is None else counter.unit_bytes):
        pass
    if counter is not None:
        counter.report_to(report, tensor.name)
    zeros.report_to(report, tensor.name, _place_in(tensor))


def _place_in(tensor: Tensor) -> Place | None:
    """Where the bytes of a tensor are in its file; None where only the tensor itself knows."""
    if isinstance(tensor, SafetensorsTensor):
        path, begin = tensor.path, tensor.offset
    elif isinstance(tensor, GGUFTensor):
        path, begin = tensor.file.path, tensor.offset
    else:
        return None
    return lambda offset: (path, begin + offset)


def _rules(source: Checkpoint, known: set[str]) -> Iterator[tuple[str, tuple[str, PartRule | None]]]:
    """The weight and the rule of each tensor of a quantized weight that is not broken as a whole."""
    for name, weight in source.weights.items():
        rules = {} if name in known else weight.part_rules()
        for part, tensor in weight.parts.items():
            yield tensor.name, (name, rules.get(part))


def _read_part(report: Report, tensor: Tensor, weight: str, rule: PartRule | None, meter: Meter) -> None:
    """A tensor of a quantized weight; where there is no rule, every word is legal, and none is a value by itself."""
    zeros = ZeroPages()
    read = watched(tensor.read_into, meter, (), tensor.stored_spans, zeros)
    scalar = SCALARS.get(tensor.format)
    if rule is None or scalar is None:
        for _ in read_through(read, 0, tensor.nbytes):
            pass
        zeros.report_to(report, tensor.name, _place_in(tensor))
        return
    last = tensor.shape[-1] if tensor.shape else 1
    path, begin = (tensor.path, tensor.offset) if isinstance(tensor, SafetensorsTensor) else (Path(), 0)
    for offset, data in read_through(read, 0, tensor.nbytes, scalar.nbytes):
        words = data.view(scalar.stored_dtype)
        wrong = rule.breaks(words)
        if not wrong.any():
            continue
        places = np.flatnonzero(wrong)
        for at in places[: report.max_findings].tolist():
            byte = offset + at * scalar.nbytes
            row, column = divmod(byte // scalar.nbytes, last)
            found = hex_word(int(words[at]), scalar)
            problem = (
                f"{rule.problem}, in {tensor.name}, row {row}, column {column}, byte {begin + byte} of {path.name}; "
                f"expected {rule.expected}, found {found}"
            )
            group = column if rule.rule == "scale" else None
            place = (row, group, None if rule.rule == "scale" else column)
            report.add(Finding(rule.rule, weight, problem, str(path), begin + byte, *place, rule.expected, found))
        report.broken[rule.rule] += max(0, places.size - report.max_findings)
    zeros.report_to(report, tensor.name, _place_in(tensor))


def _remark_dropped(report: Report, source: Checkpoint) -> None:
    """One remark for each reason for which tensors are left out."""
    reasons: dict[str, list[str]] = {}
    for one in source.dropped:
        reasons.setdefault(one.reason, []).append(one.name)
    for reason, names in reasons.items():
        others = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
        report.add(Finding("left-over", names[0], f"not needed{others}: {reason}", count=len(names)))
