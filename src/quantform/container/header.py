"""The fixed first bytes of entry and part files: eight of magic, an unsigned 64-bit integer, the artifact's id."""

from __future__ import annotations

import struct

from quantform._sizes import align_up

__all__ = ["ENTRY_MAGIC", "HEADER_BYTES", "PAGE", "PART_MAGIC", "entry_payload_start", "pack_header", "unpack_header"]

ENTRY_MAGIC = b"NINFER\x00\x03"
PART_MAGIC = b"NINPRT\x00\x03"
PAGE = 4096
"""What the payload of every file begins at a multiple of."""

_HEADER = struct.Struct("<8sQ16s")
HEADER_BYTES = _HEADER.size


def entry_payload_start(json_bytes: int) -> int:
    """Where the payload of an entry file begins."""
    return align_up(HEADER_BYTES + json_bytes, PAGE)


def pack_header(magic: bytes, number: int, artifact_id: bytes) -> bytes:
    """The 32 bytes; `number` is the length of the JSON in an entry, the index in `files` in a part."""
    return _HEADER.pack(magic, number, artifact_id)


def unpack_header(raw: bytes) -> tuple[bytes, int, bytes]:
    """Magic, number and artifact id of 32 bytes."""
    magic, number, artifact_id = _HEADER.unpack(raw)
    return magic, number, artifact_id
