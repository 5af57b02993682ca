"""What two files of one kind say beside their tensors, compared: a remark for each thing that differs."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from quantform._files import MappedFile, exists
from quantform._sizes import counted, pieces
from quantform._strict_json import json_values, shorten
from quantform.convert.checkpoint_carried import RESOURCES, kept_files
from quantform.errors import ChangedFileError, FileError, QuantformError
from quantform.sources import Checkpoint, GGUFSource, SafetensorsSource, Source
from quantform.verify.carried import differences
from quantform.verify.differing import Differing, differs
from quantform.verify.metadata_gguf import compare_gguf
from quantform.verify.report import Finding, Report

if TYPE_CHECKING:
    from quantform.sources.onnx_model import OnnxSource

__all__ = ["compare_metadata"]

_RULE = "other-metadata"
_DOCUMENTS = ("config.json", "hf_quant_config.json", "chat_template.json")
_NOT_COMPARED = {"graph", "metadata_props", "initializer"}  # by themselves, or as tensors
_LONG = 1 << 16


def compare_metadata(report: Report, source: Source[Any], origin: Source[Any]) -> None:
    """Compare metadata of two GGUF files, checkpoints, or ONNX models; of other pairs there is nothing alike.

    Of GGUF files: version, byte order, and the type and value of each key. Of checkpoints: `__metadata__`, and the
    files beside them that conversion reads or carries along. Of ONNX models: everything but initializers.

    Raises:
        ChangedFileError: A file is not what it was any more.
    """
    before, count = report.broken[_RULE], ""
    if isinstance(source, GGUFSource) and isinstance(origin, GGUFSource):
        count = compare_gguf(report, source, origin)
    elif source.kind == origin.kind == "safetensors":
        count = _compare_checkpoints(report, source, origin)
    elif source.kind == origin.kind == "onnx":
        count = _compare_onnx(report, cast("OnnxSource", source), cast("OnnxSource", origin))
    if count and report.ok and report.broken[_RULE] == before:
        report.notes.append(f"metadata equal: {count}")


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _compare_checkpoints(report: Report, source: Source[Any], origin: Source[Any]) -> str:
    """`__metadata__`, and the files beside the tensors; says what was compared."""
    sides = [one.source if isinstance(one, Checkpoint) else one for one in (origin, source)]
    for path, want, have in differences("__metadata__", *(json_values(one.metadata) for one in sides)):
        report.add(differs(_RULE, path, want, have))
    plain = [one for one in sides if isinstance(one, SafetensorsSource)]
    files = sum(_compare_documents(report, name, plain) for name in _DOCUMENTS)
    try:
        kept = {role for one in plain for role in kept_files(one)}
    except FileError as error:  # one is too long to go along
        report.add(Finding(_RULE, str(origin.path), str(error)))
        kept = set()
    for name, role in RESOURCES.items():
        if role in kept:
            files += 1
            _compare_files(report, *(one.files[0].parent / name for one in plain))
    return f"{counted(len(source.metadata), 'key')} and {counted(files, 'file')} beside the tensors"


def _compare_documents(report: Report, name: str, sides: list[SafetensorsSource]) -> bool:
    """Files of JSON, member by member; whether there is one."""
    try:
        documents = [one.document(name) for one in sides]
    except ChangedFileError:
        raise
    except QuantformError:  # of which its own verification says more; they may be equal all the same
        _compare_files(report, *(one.files[0].parent / name for one in sides))
        return True
    if documents == [None, None]:
        return False
    if None in documents:
        report.add(differs(_RULE, name, *("nothing" if one is None else "a file" for one in documents)))
    else:
        for path, want, have in differences("$", *(json_values(one) for one in documents)):
            report.add(differs(_RULE, f"{name}, {path}", want, have))
    return True


def _compare_files(report: Report, expected: Path, found: Path) -> None:
    """The first byte of a file that differs, or its length."""
    present = [exists(path) for path in (expected, found)]
    if present != [True, True]:
        report.add(differs(_RULE, found.name, *("a file" if one else "nothing" for one in present)))
        return
    differing = Differing()
    with MappedFile(expected) as two, MappedFile(found) as one:
        for at, count in pieces(min(one.size, two.size), 1):
            differing.add(at, two.view(at, count), one.view(at, count))
        if differing.count:
            report.add(differing.finding(_RULE, found.name, (found, differing.at)))
        elif one.size != two.size:
            report.add(differs(_RULE, found.name, f"{two.size} bytes", f"{one.size} bytes"))


# --- ONNX -----------------------------------------------------------------------------------------------------------


def _compare_onnx(report: Report, source: OnnxSource, origin: OnnxSource) -> str:
    """Keys of `metadata_props`, and every other field of model and graph but the initializers; says so."""
    for path, want, have in differences("metadata_props", dict(origin.metadata), dict(source.metadata)):
        report.add(differs(_RULE, path, want, have))
    two, one = origin.model, source.model
    for name, expected, found in (("model", two, one), ("graph", two.graph, one.graph)):
        for field in expected.DESCRIPTOR.fields:
            if field.name not in _NOT_COMPARED:
                sides = getattr(expected, field.name), getattr(found, field.name)
                _compare_field(report, f"{name}.{field.name}", *sides)
    return f"{counted(len(source.metadata), 'key')}, and the graph"


def _compare_field(report: Report, name: str, expected: Any, found: Any) -> None:  # noqa: ANN401 - any field's
    """A number, a text, or the first of several messages that differs."""
    if isinstance(expected, (str, bytes, int)):
        if expected != found:
            report.add(differs(_RULE, name, *(shorten(repr(one), 80) for one in (expected, found))))
        return
    for index, (want, have) in enumerate(zip_longest(expected, found)):
        one, two = (None if side is None else side.SerializeToString(deterministic=True) for side in (want, have))
        if one != two:
            report.add(differs(_RULE, f"{name}[{index}]", _message_text(want), _message_text(have)))
            return


def _message_text(message: Any) -> str:  # noqa: ANN401 - of any type
    if message is None:
        return "nothing"
    size = message.ByteSize()
    return f"{size} bytes" if size > _LONG else shorten(" ".join(str(message).split()), 80)
