"""What an artifact brings beside tensors when it becomes another: components, resources, metadata, provenance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from quantform._registry import near_matches
from quantform._sizes import pieces
from quantform.container import ResourceRecord
from quantform.convert.auxiliaries import stored_auxiliary
from quantform.convert.carried import Carried, Resource
from quantform.errors import ArtifactError
from quantform.recipes import Recipe, UseChoice
from quantform.sources import NinferSource

__all__ = ["ninfer_carried", "take_uses"]


def ninfer_carried(source: NinferSource) -> Carried:
    """Everything but tensors, bindings and uses."""
    resources = {}
    for component, record in source.components.items():
        for role, id in record.resources.items():
            stored = source.artifact.record(id)
            if not isinstance(stored, ResourceRecord):
                raise ArtifactError(
                    "a resource is a tensor", where=f"{source.path}, {id!r}", hint=near_matches(id, source.resources)
                )
            resources[component, role] = Resource(stored.nbytes, partial(_read, source, id, stored.nbytes))
    origin: dict[str, Any] = {"kind": "ninfer", "artifact_id": source.artifact_id}
    if source.directory.provenance is not None:
        origin["provenance"] = source.directory.provenance
    return Carried(
        components=dict(source.components),
        resources=resources,
        metadata=dict(source.metadata),
        origin=origin,
        files=source.files,
    )


def take_uses(recipe: Recipe, source: NinferSource) -> None:
    """Let the recipe begin with the uses that the artifact has."""
    for use in source.uses:
        auxiliaries = {role: stored_auxiliary(source, binding) for role, binding in use.auxiliaries.items()}
        recipe.uses[use.parameter, use.input] = UseChoice(use.activation_policy, dict(auxiliaries))


def _read(source: NinferSource, id: str, nbytes: int) -> Iterator[Any]:
    read = source.artifact.object_reader(id)
    for offset, count in pieces(nbytes, 1):
        data = np.empty(count, np.uint8)
        read(offset, data)
        yield data
