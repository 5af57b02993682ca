"""What goes along with the tensors of a source: configuration, resources, metadata, and where all of it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._files import MappedFile
from quantform._sizes import pieces
from quantform.container import Component

__all__ = ["Carried", "Resource", "file_resource", "literal_resource"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Resource:
    """A byte string to be kept.

    Attributes:
        nbytes: Its length, at least one.
        read: Gives its bytes in order.
    """

    nbytes: int
    read: Callable[[], Iterable[Any]]


@dataclass(slots=True, kw_only=True)
class Carried:
    """What one source brings beside tensors.

    Attributes:
        components: Component id to its record, whose resources are still roles: `{role: role}`.
        resources: `(component, role)` to resource.
        metadata: Open content of the artifact; only the main source's is kept.
        origin: What provenance says of the source, without its files.
        files: Its files, whose digests provenance records.
        notes: Lines for people.
    """

    components: dict[str, Component]
    resources: dict[tuple[str, str], Resource] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    notes: list[str] = field(default_factory=list)


def literal_resource(data: bytes) -> Resource:
    """A resource that is in memory."""
    return Resource(len(data), lambda: [data])


def file_resource(path: Path, nbytes: int) -> Resource:
    """A whole file, read in pieces."""

    def read() -> Iterable[Bytes]:
        with MappedFile(path) as file:
            for offset, count in pieces(nbytes, 1):
                data = np.empty(count, np.uint8)
                file.read_into(offset, data)
                yield data

    return Resource(nbytes, read)
