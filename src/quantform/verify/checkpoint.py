"""Plain tensors and packed blocks of any file, and the tensors that make up a checkpoint's quantized weights."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from quantform._sizes import counted
from quantform.convert.carried import file_resource
from quantform.convert.checkpoint_carried import checkpoint_carried, kept_files
from quantform.convert.recorded import MAIN
from quantform.errors import FileError, UnsupportedError
from quantform.layouts.faults import read_through
from quantform.sources import Checkpoint, SafetensorsSource, Source, Tensor
from quantform.sources._scalar_tensor import ScalarTensor
from quantform.sources.conventions import BrokenWeight, QuantizedWeight, ScaledWeight, UnsupportedWeight
from quantform.verify.parts import PartReport
from quantform.verify.reading import Meter, ValueCounter, unit_of, watched
from quantform.verify.report import Finding, Report
from quantform.verify.scaled import read_scaled
from quantform.verify.zeros import ZeroPages

__all__ = ["check_beside", "check_tensor", "read_tensor", "read_tensors"]


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


def check_beside(report: Report, source: SafetensorsSource | Checkpoint) -> None:
    """Let conversion look at what goes along with the tensors: the first thing that it refuses is a finding."""

    def check() -> None:
        checkpoint_carried(source if isinstance(source, Checkpoint) else Checkpoint(source), MAIN)

    report.attempt("metadata", str(source.path), check)


def read_tensors(report: Report, source: Source[Any], known: set[str], meter: Meter) -> None:
    """Every byte of every tensor, those of quantized weights by the rules of their parts, and of what goes along."""
    plain: Source[Any] = source.source if isinstance(source, Checkpoint) else source
    parts = _parts(source) if isinstance(source, Checkpoint) else {}
    together: set[str] = set()  # weights whose codes and scales were read
    beside = _kept_files(plain)
    total = sum(tensor.nbytes for tensor in plain.values()) + sum(size for _, size in beside)
    meter.expect(total, (len(plain), "tensor"))
    for name, tensor in plain.items():
        meter.begin(name)
        if name in known:
            continue
        weight, part = parts.get(name, (None, ""))
        if weight is None:
            read = functools.partial(read_tensor, report, tensor, meter)
        elif not isinstance(weight, ScaledWeight) or part not in {"codes", "scales"}:
            read = functools.partial(_read_part, report, weight, part, meter)
        elif weight.name not in together:
            together.add(weight.name)
            read = functools.partial(read_scaled, report, weight, meter)
        else:
            continue
        report.attempt("structure", name, read)
    for path, size in beside:
        report.attempt("metadata", str(path), functools.partial(_read_file, path, size, meter))
    if isinstance(source, Checkpoint):
        _remark_dropped(report, source)


def _kept_files(source: Source[Any]) -> list[tuple[Path, int]]:
    """The files that go along with a checkpoint; none where conversion refuses one, which is known by now."""
    try:
        return list(kept_files(source).values()) if isinstance(source, SafetensorsSource) else []
    except FileError:
        return []


def _read_file(path: Path, size: int, meter: Meter) -> None:
    """Bytes of any kind: that they are there to be read."""
    meter.begin(path.name)
    for data in file_resource(path, size).read():
        meter.add(data.nbytes)


def _read_part(report: Report, weight: QuantizedWeight, part: str, meter: Meter) -> None:
    """A tensor of a quantized weight whose words are judged by themselves."""
    one = PartReport(report, weight, part)
    one.read(meter)
    one.conclude()


def read_tensor(report: Report, tensor: Tensor, meter: Meter) -> None:
    """Every byte of a tensor of plain numbers or packed blocks; words that are not finite are counted."""
    unit = unit_of(tensor.format)
    counter = None if unit is None else ValueCounter(unit)
    observers = [] if counter is None else [counter]  # which count no zeros
    zeros = ZeroPages(tensor.locate)
    read = watched(tensor.read_into, meter, observers, tensor.stored_spans, zeros)
    for _ in read_through(read, 0, tensor.nbytes, 1 if counter is None else counter.unit_bytes):
        pass
    if counter is not None:
        counter.report_to(report, tensor.name)
    zeros.report_to(report, tensor.name)


def _parts(source: Checkpoint) -> dict[str, tuple[QuantizedWeight, str]]:
    """The weight and the role of each tensor of a quantized weight."""
    return {tensor.name: (weight, part) for weight in source.weights.values() for part, tensor in weight.parts.items()}


def _remark_dropped(report: Report, source: Checkpoint) -> None:
    """One remark for each reason for which tensors are left out."""
    reasons: dict[str, list[str]] = {}
    for one in source.dropped:
        reasons.setdefault(one.reason, []).append(one.name)
    for reason, names in reasons.items():
        others = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
        report.add(Finding("left-over", names[0], f"not needed{others}: {reason}", count=len(names)))
