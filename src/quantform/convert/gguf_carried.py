"""What a GGUF model brings beside tensors: every other byte of its files, so that it can be put together again.

The bytes of a GGUF file that belong to no tensor are its *frame*: header, padding, and whatever trails. One resource
holds each file's frame; see `gguf_restore`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from quantform.container import Component
from quantform.convert.carried import Carried, Resource, json_values, literal_resource
from quantform.convert.streams import pieces
from quantform.errors import QuantformError
from quantform.sources import GGUFSource
from quantform.sources.gguf import GGUFShard

__all__ = ["CHAT_TEMPLATE", "FRAME", "frame_role", "gguf_carried"]

FRAME = "gguf_frame"
CHAT_TEMPLATE = "chat_template"
_CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


def frame_role(index: int) -> str:
    """The role of the resource that holds the frame of source file `index`."""
    return FRAME if index == 0 else f"{FRAME}_{index + 1:05d}"


def gguf_carried(source: GGUFSource, component: str) -> Carried:
    """Frames, the chat template, and the scalar metadata as configuration."""
    resources = {
        frame_role(index): Resource(_frame_bytes(shard), partial(_frame, shard))
        for index, shard in enumerate(source.shards)
    }
    template = _text(source, _CHAT_TEMPLATE_KEY)
    if template:
        resources[CHAT_TEMPLATE] = literal_resource(template.encode("utf-8"))
    name = _text(source, "general.name")
    return Carried(
        components={
            component: Component(config=_config(source.metadata), resources={role: role for role in resources})
        },
        resources={(component, role): resource for role, resource in resources.items()},
        metadata={"name": name} if name else {},
        origin={"kind": "gguf", "version": source.version},
        files=source.files,
    )


def _frame(shard: GGUFShard) -> Iterator[Any]:
    for segment in shard.segments():
        if segment.tensor is None:
            for offset, count in pieces(segment.nbytes, 1):
                data = np.empty(count, np.uint8)
                shard.file.read_into(segment.offset + offset, data)
                yield data


def _frame_bytes(shard: GGUFShard) -> int:
    return sum(segment.nbytes for segment in shard.segments() if segment.tensor is None)


def _text(source: GGUFSource, key: str) -> str:
    try:
        value = source.metadata.get(key)
    except QuantformError:  # not UTF-8: the frame keeps it
        return ""
    return value if isinstance(value, str) else ""


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
        if isinstance(value, (bool, int, float, str)):
            config[key] = json_values(value)
    return config
