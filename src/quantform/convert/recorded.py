"""What the provenance of an artifact says of the files that it was made from; open content, which may be anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quantform._sizes import U64_MAX

__all__ = ["MAIN", "RecordedFile", "recorded_files", "recorded_sources"]

MAIN = "text"
"""The component that the main source becomes."""


class RecordedFile(NamedTuple):
    """One file of a source."""

    nbytes: int
    sha256: str


def recorded_sources(provenance: Mapping[str, Any] | None, component: str) -> Iterator[Mapping[str, Any]]:
    """The source that a component was made from, then, where that was an artifact, the one that this was made from."""
    while isinstance(provenance, dict):
        others, source = provenance.get("components"), provenance.get("source")
        if isinstance(others, dict) and component in others:
            source = others[component]
            component = MAIN
        if not isinstance(source, dict):
            return
        made = source.get("kind") == "ninfer"
        if made or component == MAIN:
            yield source
        provenance = source.get("provenance") if made else None


def recorded_files(source: Mapping[str, Any]) -> tuple[RecordedFile, ...]:
    """The files of a recorded source, in order; none where they are not recorded as they are today."""
    files = source.get("files")
    found = []
    for file in files if isinstance(files, list) else ():
        nbytes, sha256 = (file.get("bytes"), file.get("sha256")) if isinstance(file, dict) else (None, None)
        if type(nbytes) is not int or not 0 <= nbytes <= U64_MAX or not isinstance(sha256, str):
            return ()
        found.append(RecordedFile(nbytes, sha256))
    return tuple(found)
