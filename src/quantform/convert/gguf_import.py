"""GGUF to `.ninfer`: every tensor keeps its words, and every other byte of the file is kept in resources.

The bytes of a GGUF file that belong to no tensor are its *frame*: header, padding, and whatever trails. One resource
holds each file's frame, so that `gguf_restore` can put the file together again.
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantform._progress import Progress
from quantform._sizes import counted, product
from quantform._version import __version__
from quantform.container import ArtifactWriter, Binding, Component, Part, PlannedResource, PlannedTensor
from quantform.convert.digests import PLACEHOLDER, Digests
from quantform.convert.plan import TensorPlan, plan_tensors
from quantform.convert.report import Report
from quantform.convert.streams import pieces
from quantform.errors import QuantformError
from quantform.sources import GGUFSource
from quantform.sources.gguf import GGUFShard

__all__ = ["CHAT_TEMPLATE", "FRAME", "frame_role", "import_gguf"]

FRAME = "gguf_frame"
CHAT_TEMPLATE = "chat_template"
_CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


def frame_role(index: int) -> str:
    """The role of the resource that holds the frame of source file `index`."""
    return FRAME if index == 0 else f"{FRAME}_{index + 1:05d}"


def import_gguf(
    source: GGUFSource,
    output: Path,
    *,
    format: str | None,
    fallback: str | None,
    max_file_bytes: int | None,
    force: bool,
    progress: Progress,
) -> Report:
    """Write the artifact; see `quantform.convert.convert`."""
    try:
        plans = plan_tensors(_in_file_order(source), format=format, fallback=fallback)
    except QuantformError as error:
        raise error.at(str(source.path)) from None
    template = _chat_template(source)
    resources = {frame_role(index): _frame_bytes(shard) for index, shard in enumerate(source.shards)}
    if template:
        resources[CHAT_TEMPLATE] = len(template)
    writer = ArtifactWriter(
        output,
        components={
            "text": Component(
                config=_config(source.metadata), resources={role: _resource_id(role) for role in resources}
            )
        },
        objects=[
            *(PlannedResource(id=_resource_id(role), nbytes=size) for role, size in resources.items()),
            *(
                PlannedTensor(id=_id(plan), shape=plan.shape, format=plan.format.name, layout=plan.layout.name)
                for plan in plans
            ),
        ],
        bindings={plan.name: _binding(plan) for plan in plans},
        metadata=_metadata(source, plans),
        provenance=_provenance(source, plans, [PLACEHOLDER] * len(source.files)),
        max_file_bytes=max_file_bytes,
        force=force,
    )
    with Digests(source.files) as digests, writer:
        total, done = writer.payload_bytes, 0
        for index, shard in enumerate(source.shards):
            at = 0
            for data in _frame(shard):
                writer.write(_resource_id(frame_role(index)), at, data)
                at += data.size
        if template:
            writer.write(_resource_id(CHAT_TEMPLATE), 0, template)
        for plan in plans:
            at = 0
            progress(done, total, plan.name)
            try:
                for data in plan.stream:
                    writer.write(_id(plan), at, data)
                    at += data.size
                    progress(done + at, total, plan.name)
            except QuantformError as error:
                raise error if error.where and str(source.path) in error.where else error.at(str(source.path)) from None
            done += at
        progress(total, total, "publishing")
        writer.finish(provenance=_provenance(source, plans, digests.result()))
    return _report(source, plans, writer)


def _in_file_order(source: GGUFSource) -> Iterator[Any]:
    """Tensors as they lie in their files, so that reading is sequential."""
    for shard in source.shards:
        yield from sorted(shard.tensors, key=lambda tensor: tensor.offset)


def _frame(shard: GGUFShard) -> Iterator[Any]:
    for segment in shard.segments():
        if segment.tensor is None:
            for offset, count in pieces(segment.nbytes, 1):
                data = np.empty(count, np.uint8)
                shard.file.read_into(segment.offset + offset, data)
                yield data


def _frame_bytes(shard: GGUFShard) -> int:
    return sum(segment.nbytes for segment in shard.segments() if segment.tensor is None)


def _chat_template(source: GGUFSource) -> bytes:
    try:
        value = source.metadata.get(_CHAT_TEMPLATE_KEY)
    except QuantformError:  # not UTF-8: the frame keeps it
        return b""
    return value.encode("utf-8") if isinstance(value, str) else b""


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The scalar metadata. Numbers that JSON lacks are texts; texts that are no UTF-8 stay in the frame alone."""
    config: dict[str, Any] = {}
    for key in metadata:
        if key == _CHAT_TEMPLATE_KEY:
            continue
        try:
            value = metadata[key]
        except QuantformError:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            config[key] = str(value)
        elif isinstance(value, (bool, int, float, str)):
            config[key] = value
    return config


def _metadata(source: GGUFSource, plans: list[TensorPlan]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    try:
        name = source.metadata.get("general.name")
    except QuantformError:
        name = None
    if isinstance(name, str) and name:
        metadata["name"] = name
    # A binding by parts says how many elements a parameter has, but not its shape.
    shapes = {plan.name: list(plan.tensor.shape) for plan in plans if plan.shape != plan.tensor.shape}
    if shapes:
        metadata["quantform"] = {"shapes": shapes}
    return metadata


def _provenance(source: GGUFSource, plans: list[TensorPlan], digests: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "converter": {"name": "quantform", "version": __version__},
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "source": {
            "kind": "gguf",
            "version": source.version,
            "files": [
                {"path": shard.path.name, "bytes": shard.size, "sha256": digest}
                for shard, digest in zip(source.shards, digests, strict=True)
            ],
        },
        "methods": _ways(plans),
    }


def _ways(plans: list[TensorPlan]) -> Counter[str]:
    return Counter(f"{plan.method} to {plan.format.name}" for plan in plans)


def _binding(plan: TensorPlan) -> Binding:
    if plan.shape == plan.tensor.shape:
        return Binding(object=_id(plan))
    return Binding(parts=(Part(object=_id(plan), range=(0, product(plan.shape))),))


def _id(plan: TensorPlan) -> str:
    return f"weight/{plan.name}"


def _resource_id(role: str) -> str:
    return f"resource/{role}"


def _report(source: GGUFSource, plans: list[TensorPlan], writer: ArtifactWriter) -> Report:
    report = Report([(path, path.stat().st_size) for path in writer.paths], _ways(plans))
    empty = len(source) - len(plans)
    if empty:
        report.notes.append(f"{counted(empty, 'tensor')} without elements: kept in the frame alone")
    return report
