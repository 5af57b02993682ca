"""A small writer of artifact bytes that shares nothing with quantform, so that it can also write broken ones."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENTRY_MAGIC = b"NINFER\x00\x03"
PART_MAGIC = b"NINPRT\x00\x03"
ARTIFACT_ID = bytes(range(16))


def tensor(
    id: str, shape: Sequence[int], format: str, layout: str, offset: int, nbytes: int, **more: Any
) -> dict[str, Any]:
    return {
        "id": id,
        "kind": "tensor",
        "shape": list(shape),
        "format": format,
        "layout": layout,
        "offset": offset,
        "bytes": nbytes,
        **more,
    }


def resource(id: str, offset: int, nbytes: int, **more: Any) -> dict[str, Any]:
    return {"id": id, "kind": "resource", "encoding": "raw_bytes_v1", "offset": offset, "bytes": nbytes, **more}


def small_directory() -> dict[str, Any]:
    """A fresh, valid directory: two tensors and a resource in 1024 bytes of payload, one file."""
    return copy.deepcopy(
        {
            "components": {
                "text": {"config": {"layers": 1}, "resources": {"template": "chat"}, "proposal": {"domain": "full"}},
                "mtp": {"config": {}, "target": "text"},
            },
            "objects": [
                tensor("a", [4, 32], "bf16", "contiguous_le_v1", 0, 256),
                tensor("b", [32], "fp32", "contiguous_le_v1", 256, 128),
                resource("chat", 384, 5),
            ],
            "bindings": {
                "w": {"object": "a"},
                "w.top": {"parts": [{"object": "a", "range": [0, 64]}]},
                "blk.0.norm": {"object": "b"},
            },
            "uses": [
                {"parameter": "w", "input": "x", "activation_policy": "AllowA8"},
                {
                    "parameter": "w",
                    "input": "y",
                    "auxiliaries": {"activation_input_divisor": {"parts": [{"object": "b", "range": [0, 1]}]}},
                },
            ],
            "metadata": {"name": "small"},
            "provenance": {"by": "hand"},
            "files": [{"path": None, "payload_bytes": 1024}],
        }
    )


def small_payload(nbytes: int = 1024) -> bytes:
    return bytes(index * 7 % 251 for index in range(nbytes))


def page(count: int) -> int:
    return -(-count // 4096) * 4096


@dataclass
class Artifact:
    """The files of an artifact, each piece of which can be replaced before `write`.

    `json` overrides `directory`; `json_bytes` overrides its length; `tail` follows the entry's payload.
    """

    directory: Any = field(default_factory=small_directory)
    payload: bytes = field(default_factory=small_payload)
    json: bytes | None = None
    magic: bytes = ENTRY_MAGIC
    json_bytes: int | None = None
    gap: bytes | None = None
    tail: bytes = b""
    part_magic: bytes = PART_MAGIC
    part_index: int | None = None
    part_id: bytes = ARTIFACT_ID
    part_gap: bytes = bytes(4096 - 32)
    part_tail: bytes = b""

    def entry(self) -> bytes:
        text = self.json if self.json is not None else json.dumps(self.directory).encode()
        size = len(text) if self.json_bytes is None else self.json_bytes
        gap = bytes(page(32 + len(text)) - 32 - len(text)) if self.gap is None else self.gap
        head = self.magic + struct.pack("<Q", size) + ARTIFACT_ID
        return head + text + gap + self.payload[: sum(self._sizes()[:1])] + self.tail

    def write(self, path: Path) -> Path:
        """Write the entry and those parts that have the name of a file beside it; returns the entry's path."""
        path.write_bytes(self.entry())
        sizes = self._sizes()
        at = sizes[0] if sizes else 0
        for index, size in enumerate(sizes[1:], 1):
            number = index if self.part_index is None else self.part_index
            head = self.part_magic + struct.pack("<Q", number) + self.part_id
            data = head + self.part_gap + self.payload[at : at + size] + self.part_tail
            name = self.directory["files"][index]["path"]
            if name and name != path.name and not set(name) & set("/\\\0") and name.strip("."):
                (path.parent / name).write_bytes(data)
            at += size
        return path

    def _sizes(self) -> list[int]:
        try:
            return [int(file["payload_bytes"]) for file in self.directory["files"]]
        except (KeyError, TypeError, ValueError):
            return [len(self.payload)]


def in_two_files() -> dict[str, Any]:
    """The small directory with its payload cut in the middle of tensor `a`."""
    directory = small_directory()
    directory["files"] = [{"path": None, "payload_bytes": 100}, {"path": "second", "payload_bytes": 924}]
    return directory
