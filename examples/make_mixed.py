"""Makes `mixed.gguf`: a toy model of 12 tensors in nine formats, 41 kB, the same bytes on every machine.

    python examples/make_mixed.py [DIRECTORY]

The blocks are random codes under tame scales; nobody trained them. Everything else (metadata, a vocabulary, a chat
template, a bank of experts, padding) is as real files have it.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

ALIGNMENT = 32
STRING, ARRAY = 8, 9
F32, F16, BF16, I32 = 0, 1, 30, 26


def string(text: str) -> bytes:
    """A length and that many bytes of UTF-8."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def metadata() -> list[bytes]:
    """Key, type and value of every pair."""
    u32, f32, boolean = 4, 6, 7
    words = [f"<word-{number}>" for number in range(64)]
    return [
        string("general.architecture") + struct.pack("<I", STRING) + string("toy"),
        string("general.name") + struct.pack("<I", STRING) + string("Toy mixed"),
        string("toy.block_count") + struct.pack("<II", u32, 1),
        string("toy.embedding_length") + struct.pack("<II", u32, 256),
        string("toy.attention.layer_norm_rms_epsilon") + struct.pack("<If", f32, 1e-6),
        string("toy.tied") + struct.pack("<I?", boolean, True),
        string("tokenizer.chat_template")
        + struct.pack("<I", STRING)
        + string("{% for message in messages %}{{ message.content }}{% endfor %}"),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, len(words)) + b"".join(map(string, words)),
        string("tokenizer.ggml.scores")
        + struct.pack("<IIQ", ARRAY, f32, len(words))
        + struct.pack("<64f", *(-float(number) for number in range(64))),
    ]


def half(rng: random.Random) -> bytes:
    """A small binary16 scale; one in four is negative."""
    return struct.pack("<e", rng.uniform(0.001, 0.02) * rng.choice((1, 1, 1, -1)))


def codes(rng: random.Random, count: int) -> bytes:
    """Bytes that may be anything."""
    return rng.randbytes(count)


# One block of each packed type: where its binary16 scales stand among bytes that may be anything.
BLOCKS = {
    "Q4_0": (2, 32, lambda r: half(r) + codes(r, 16)),
    "Q5_0": (6, 32, lambda r: half(r) + codes(r, 20)),
    "Q8_0": (8, 32, lambda r: half(r) + codes(r, 32)),
    "Q4_K": (12, 256, lambda r: half(r) + half(r) + codes(r, 140)),
    "Q6_K": (14, 256, lambda r: codes(r, 208) + half(r)),
    "IQ4_NL": (20, 32, lambda r: half(r) + codes(r, 16)),
    "IQ2_XS": (17, 256, lambda r: half(r) + codes(r, 72)),
}


def tensors(rng: random.Random) -> list[tuple[str, tuple[int, ...], int, bytes]]:
    """Name, shape in C order, ggml type and data."""

    def packed(name: str, kind: str, *shape: int) -> tuple[str, tuple[int, ...], int, bytes]:
        number, values, block = BLOCKS[kind]
        count = 1
        for dimension in shape:
            count *= dimension
        return name, shape, number, b"".join(block(rng) for _ in range(count // values))

    norm = [1 + rng.uniform(-0.1, 0.1) for _ in range(256)]
    return [
        packed("token_embd.weight", "Q8_0", 64, 256),
        ("blk.0.attn_norm.weight", (256,), F32, struct.pack("<256f", *norm)),
        packed("blk.0.attn_q.weight", "Q4_K", 32, 256),
        packed("blk.0.attn_k.weight", "Q5_0", 16, 256),
        packed("blk.0.attn_v.weight", "Q6_K", 16, 256),
        packed("blk.0.attn_output.weight", "IQ4_NL", 32, 256),
        ("blk.0.attn_sinks", (8,), F16, struct.pack("<8e", *(rng.gauss(0, 1) for _ in range(8)))),
        packed("blk.0.ffn_gate_exps.weight", "Q4_0", 4, 16, 64),
        packed("blk.0.ffn_up.weight", "IQ2_XS", 32, 256),
        ("blk.0.ffn_map", (16,), I32, struct.pack("<16i", *rng.sample(range(16), 16))),
        ("blk.0.ffn_bias", (16,), BF16, struct.pack("<16H", *(rng.randrange(0x3C00, 0x3D00) for _ in range(16)))),
        ("blk.0.ffn_unused", (0, 32), F32, b""),
    ]


def build() -> bytes:
    """The whole file."""
    pairs, entries = metadata(), tensors(random.Random(20240601))  # noqa: S311 - the same on every machine
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), len(pairs)) + b"".join(pairs)
    offset, data = 0, b""
    for name, shape, kind, payload in entries:
        dimensions = shape[::-1]
        header += string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
        data += payload + bytes(-len(payload) % ALIGNMENT)
        offset = len(data)
    return header + bytes(-len(header) % ALIGNMENT) + data


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "mixed.gguf"
    target.write_bytes(build())
    print(f"{target}: {target.stat().st_size} bytes")
