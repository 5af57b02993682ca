"""The `.ninfer` container, version 3: an entry file, numbered parts beside it, one closed directory."""

from __future__ import annotations

from quantform.container.directory import (
    ACTIVATION_POLICIES,
    AUXILIARY_ROLES,
    Binding,
    Component,
    Directory,
    FileRecord,
    FullProposal,
    IndexedProposal,
    ObjectRecord,
    Part,
    ResourceRecord,
    TensorRecord,
    Use,
)
from quantform.container.reader import Artifact
from quantform.container.writer import ArtifactWriter, PlannedResource, PlannedTensor

__all__ = [
    "ACTIVATION_POLICIES",
    "AUXILIARY_ROLES",
    "Artifact",
    "ArtifactWriter",
    "Binding",
    "Component",
    "Directory",
    "FileRecord",
    "FullProposal",
    "IndexedProposal",
    "ObjectRecord",
    "Part",
    "PlannedResource",
    "PlannedTensor",
    "ResourceRecord",
    "TensorRecord",
    "Use",
]
