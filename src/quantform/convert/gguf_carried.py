"""What a GGUF model brings beside tensors: every other byte of its files, so that it can be put together again.

The bytes of a GGUF file that belong to no tensor are its *frame*: header, padding, and whatever trails. One resource
holds each file's frame; see `gguf_restore`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from quantform._sizes import counted, pieces
from quantform._strict_json import json_values
from quantform.container import Component
from quantform.convert.carried import Carried, Resource, literal_resource
from quantform.errors import QuantformError
from quantform.sources import GGUFSource
from quantform.sources.gguf import GGUFMetadata, GGUFShard

__all__ = ["CHAT_TEMPLATE", "FRAME", "frame_bytes", "frame_role", "gguf_carried"]

FRAME = "gguf_frame"
CHAT_TEMPLATE = "chat_template"
_CHAT_TEMPLATE_KEY = "tokenizer.chat_template"
# What makes a configuration; the frame has the rest. A hostile header could fill the directory with either.
_LONGEST_TEXT = 1 << 16
_LONGEST_TEMPLATE = 1 << 24
_MOST_KEYS = 10_000


def frame_role(index: int) -> str:
    """The role of the resource that holds the frame of source file `index`."""
    return FRAME if index == 0 else f"{FRAME}_{index + 1:05d}"


def frame_bytes(shard: GGUFShard) -> int:
    """Bytes of a file that belong to no tensor."""
    return sum(segment.nbytes for segment in shard.segments() if segment.tensor is None)


def gguf_carried(source: GGUFSource, component: str) -> Carried:
    """Frames, the chat template, and the scalar metadata as configuration."""
    resources = {
        frame_role(index): Resource(frame_bytes(shard), partial(_frame, shard))
        for index, shard in enumerate(source.shards)
    }
    template = _text(source, _CHAT_TEMPLATE_KEY, _LONGEST_TEMPLATE)
    if template:
        resources[CHAT_TEMPLATE] = literal_resource(template.encode("utf-8"))
    name = _text(source, "general.name", _LONGEST_TEXT)
    config, left = _config(source.metadata)
    return Carried(
        components={component: Component(config=config, resources={role: role for role in resources})},
        resources={(component, role): resource for role, resource in resources.items()},
        metadata={"name": name} if name else {},
        origin={"kind": "gguf", "version": source.version},
        files=source.files,
        notes=[f"{counted(left, 'metadata key')} too long or too many for the configuration: kept in the frame"]
        if left
        else [],
    )


def _frame(shard: GGUFShard) -> Iterator[Any]:
    for segment in shard.segments():
        if segment.tensor is None:
            for offset, count in pieces(segment.nbytes, 1):
                data = np.empty(count, np.uint8)
                shard.file.read_into(segment.offset + offset, data)
                yield data


def _text(source: GGUFSource, key: str, longest: int) -> str:
    """A text of the metadata; nothing where there is none, it is too long, or it is not UTF-8."""
    if key not in source.metadata or source.metadata.field(key).nbytes > longest:
        return ""
    try:
        value = source.metadata[key]
    except QuantformError:
        return ""
    return value if isinstance(value, str) else ""


def _config(metadata: GGUFMetadata) -> tuple[dict[str, Any], int]:
    """The scalar metadata, and how many scalars stay in the frame alone because there is too much of them.

    Numbers that JSON lacks are texts; texts that are no UTF-8 stay in the frame too.
    """
    config: dict[str, Any] = {}
    left = 0
    for key in metadata:
        field = metadata.field(key)
        if key == _CHAT_TEMPLATE_KEY or field.element is not None:
            continue
        if len(config) == _MOST_KEYS or field.nbytes > _LONGEST_TEXT:
            left += 1
            continue
        try:
            config[key] = json_values(metadata[key])
        except QuantformError:
            continue
    return config, left
