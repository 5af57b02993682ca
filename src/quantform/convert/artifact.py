"""Carrying a plan out: one artifact, with what goes along with the tensors and where all of it came from."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quantform._progress import Progress
from quantform._report import Report
from quantform._version import __version__
from quantform.container import ArtifactWriter, Component, PlannedResource, PlannedTensor
from quantform.convert.carried import Carried, Resource
from quantform.convert.digests import PLACEHOLDER, Digests
from quantform.convert.planned import Plan
from quantform.convert.work import Workers
from quantform.errors import QuantformError

__all__ = ["Origin", "check_artifact", "write_artifact"]

Origin = tuple[str, Mapping[str, Any], tuple[Path, ...]]
"""A further source: its name, what provenance says of it, and its files."""


def write_artifact(
    plan: Plan,
    output: Path,
    carried: Sequence[Carried],
    *,
    others: Sequence[Origin] = (),
    recipe: Mapping[str, Any] | None = None,
    threads: int | None = None,
    max_file_bytes: int | None = None,
    force: bool = False,
    progress: Progress,
) -> Report:
    """Write the artifact; see `quantform.convert.convert`.

    Args:
        plan: What to write.
        output: The entry file.
        carried: What each component's source brings, the main one first.
        others: Further sources that tensors or importance came from.
        recipe: What provenance says of the recipe.
        threads: How many threads encode.
        max_file_bytes: The longest that a file may be.
        force: Replace an existing output.
        progress: Called as bytes are written.
    """
    files = _files(carried, others)
    writer = _writer(plan, output, carried, others, recipe, max_file_bytes=max_file_bytes, force=force)
    ids = _ids(carried)
    resources = {ids[key]: resource for one in carried for key, resource in one.resources.items()}
    with Digests(files) as digests, writer:
        _write_resources(writer, resources)
        with Workers(threads) as workers:
            _write_tensors(writer, plan, workers, progress)
        progress(writer.payload_bytes, writer.payload_bytes, "publishing")
        writer.finish(provenance=_provenance(plan, carried, others, recipe, digests.result()))
    return Report([(path, path.stat().st_size) for path in writer.paths], plan.ways(), [*plan.notes])


def check_artifact(
    plan: Plan,
    output: Path,
    carried: Sequence[Carried],
    *,
    others: Sequence[Origin] = (),
    recipe: Mapping[str, Any] | None = None,
    max_file_bytes: int | None = None,
    force: bool = False,
) -> None:
    """Refuse what `write_artifact` would refuse before it writes: a limit, an output that is there, a path.

    Args:
        plan: What would be written.
        output: The entry file.
        carried: What each component's source brings, the main one first.
        others: Further sources that tensors or importance come from.
        recipe: What provenance says of the recipe.
        max_file_bytes: The longest that a file may be.
        force: Replace an existing output.
    """
    _writer(plan, output, carried, others, recipe, max_file_bytes=max_file_bytes, force=force)


def _writer(
    plan: Plan,
    output: Path,
    carried: Sequence[Carried],
    others: Sequence[Origin],
    recipe: Mapping[str, Any] | None,
    *,
    max_file_bytes: int | None,
    force: bool,
) -> ArtifactWriter:
    """A writer that has checked everything and touched nothing; its provenance is as long as the one to come."""
    ids = _ids(carried)
    files = _files(carried, others)
    return ArtifactWriter(
        output,
        components={name: _component(name, record, ids) for one in carried for name, record in one.components.items()},
        objects=[
            *(
                PlannedResource(id=ids[key], nbytes=resource.nbytes)
                for one in carried
                for key, resource in one.resources.items()
            ),
            *(
                PlannedTensor(id=one.id, shape=one.shape, format=one.format, layout=one.layout, divisors=one.divisors)
                for one in plan.objects
            ),
        ],
        bindings=plan.bindings,
        uses=plan.uses,
        metadata=_metadata(carried[0], plan),
        provenance=_provenance(plan, carried, others, recipe, [PLACEHOLDER] * len(files)),
        max_file_bytes=max_file_bytes,
        force=force,
        sources=files,
    )


def _files(carried: Sequence[Carried], others: Sequence[Origin]) -> list[Path]:
    """Every file that is read, in the order of the digests."""
    return [path for one in carried for path in one.files] + [path for _, _, paths in others for path in paths]


def _provenance(
    plan: Plan,
    carried: Sequence[Carried],
    others: Sequence[Origin],
    recipe: Mapping[str, Any] | None,
    digests: Sequence[str],
) -> dict[str, Any]:
    rest = iter(digests)
    described = [_described(one.origin, one.files, rest) for one in carried]
    document: dict[str, Any] = {
        "converter": {"name": "quantform", "version": __version__},
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "source": described[0],
    }
    if len(carried) > 1:
        names = (next(iter(one.components)) for one in carried[1:])
        document["components"] = dict(zip(names, described[1:], strict=True))
    if others:
        document["sources"] = {name: _described(origin, paths, rest) for name, origin, paths in others}
    if recipe is not None:
        document["recipe"] = dict(recipe)
    document["methods"] = _methods(plan)
    return document


def _ids(carried: Sequence[Carried]) -> dict[tuple[str, str], str]:
    keys = [key for one in carried for key in one.resources]
    return _resource_ids(keys, next(iter(carried[0].components)))


def _write_resources(writer: ArtifactWriter, resources: Mapping[str, Resource]) -> None:
    for id, resource in resources.items():
        at = 0
        for data in resource.read():
            writer.write(id, at, data)
            at += len(data)


def _write_tensors(writer: ArtifactWriter, plan: Plan, workers: Workers, progress: Progress) -> None:
    done, now = sum(record.nbytes for record in writer.objects.values()) - plan.tensor_bytes, ""

    def tasks() -> Iterator[Callable[[], int]]:
        nonlocal now
        for planned in plan.objects:
            now = planned.id
            yield from planned.work.tasks(partial(writer.write, planned.id))

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done, writer.payload_bytes, now)

    progress(done, writer.payload_bytes, now)
    try:
        workers.run(tasks(), more)
    except QuantformError as error:
        named = any(name in (error.where or "") for name in (plan.source, str(writer.path)))
        raise error if named else error.at(plan.source) from None


def _resource_ids(keys: Sequence[tuple[str, str]], main: str) -> dict[tuple[str, str], str]:
    """Ids that no tensor's id can be."""
    return {
        (component, role): f"resource/{role}" if component == main else f"resource/{component}/{role}"
        for component, role in keys
    }


def _component(name: str, record: Component, ids: Mapping[tuple[str, str], str]) -> Component:
    return msgspec.structs.replace(record, resources={role: ids[name, role] for role in record.resources})


def _described(origin: Mapping[str, Any], files: Sequence[Path], digests: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        **origin,
        "files": [{"path": _name(path), "bytes": path.stat().st_size, "sha256": next(digests)} for path in files],
    }


def _name(path: Path) -> str:
    """A file's name as text, whatever bytes it has."""
    return path.name.encode("utf-8", "backslashreplace").decode("utf-8")


def _methods(plan: Plan) -> list[dict[str, Any]]:
    """Which objects were made how, objects that were made alike together."""
    records: dict[str, dict[str, Any]] = {}
    for planned in plan.objects:
        if planned.method is None:
            continue
        key = f"{planned.method} {planned.format} {sorted(planned.parameters.items())}"
        record = records.setdefault(key, {"method": planned.method, "format": planned.format})
        if planned.parameters:
            record["parameters"] = dict(planned.parameters)
        record.setdefault("objects", []).append(planned.id)
    return list(records.values())


def _metadata(main: Carried, plan: Plan) -> dict[str, Any]:
    metadata = dict(main.metadata)
    shapes = dict(plan.shapes)
    own = metadata.get("quantform")
    own = dict(own) if isinstance(own, dict) else {}
    # A binding by parts says how many elements a parameter has, but not its shape.
    own.pop("shapes", None)
    if shapes:
        own["shapes"] = shapes
    metadata.pop("quantform", None)
    if own:
        metadata["quantform"] = own
    return metadata
