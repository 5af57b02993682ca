"""A single changed bit anywhere in an artifact is found, or it makes another legal artifact: decided by an oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_builder as nb
import quantform as qf
from ninfer_legality import why_broken
from quantform.formats import Format, GgufFormat
from quantform.layouts import Layout
from words_maker import PAIR_IDS, PAIRS, make_words

FLIPS = {"header": 6, "directory": 24, "gap": 4, "payload": 40, "part": 6, "part gap": 4, "tail": 4}


def shape_of(record: Format) -> tuple[int, int]:
    if record.name == "nvfp4":
        return 256, 64
    if isinstance(record, GgufFormat):
        return 2, record.profile.values
    return 3, 150


def build(layout: Layout, record: Format) -> nb.Artifact:
    """A resource, the tensor, a second one, and auxiliaries, with gaps between them and a tail, in two files."""
    shape, divisors = shape_of(record), 2 if record.name == "nvfp4" else 1
    rng = np.random.default_rng(1)
    payload = bytearray(b"hello".ljust(256, b"\0"))
    objects: list[dict[str, Any]] = [nb.resource("r", 0, 5)]

    def put(id: str, dimensions: tuple[int, ...], format: str, placed: str, data: bytes, **more: int) -> None:
        objects.append(nb.tensor(id, dimensions, format, placed, len(payload), len(data), **more))
        payload.extend(data.ljust(-(-len(data) // 256) * 256, b"\0"))

    for id in ("w", "v"):
        data = layout.pack(make_words(record, shape, rng, divisors)).tobytes()
        put(id, shape, record.name, layout.name, data, **({"divisors": 2} if divisors == 2 else {}))
    auxiliaries: dict[str, Any] = {"activation_input_divisor": {"object": "d"}}
    put("d", (), "fp32", "contiguous_le_v1", np.float32(0.5).tobytes())
    if isinstance(record, GgufFormat):
        order = rng.permutation(shape[1]).astype("<i4")
        put("o", (shape[1] + 3,), "int32", "contiguous_le_v1", bytes(8) + order.tobytes() + bytes(4))
        half = 2 + shape[1] // 2
        auxiliaries["input_columns"] = {
            "parts": [{"object": "o", "range": [half, 2 + shape[1]]}, {"object": "o", "range": [2, half]}]
        }
    put("s", (1024,), "bf16", "contiguous_le_v1", rng.choice([0x3F80, 0xBF80], 1024).astype("<u2").tobytes())
    put("m", (2, 1024), "bf16", "contiguous_le_v1", rng.bytes(4096))
    payload.extend(bytes(512))
    first = 256 + objects[1]["bytes"] // 2
    return nb.Artifact(
        directory={
            "components": {
                "text": {"config": {"layers": 1}, "resources": {"template": "r"}},
                "mtp": {"config": {}, "target": "text"},
            },
            "objects": objects,
            "bindings": {
                "a": {"object": "w"},
                "b": {"parts": [{"object": "v", "range": [0, shape[1]]}, {"object": "w", "range": [0, shape[1]]}]},
                "c": {"object": "m"},
            },
            "uses": [
                {"parameter": "a", "input": "x", "activation_policy": "AllowA8", "auxiliaries": auxiliaries},
                {"parameter": "c", "input": "x", "auxiliaries": {"hadamard_signs": {"object": "s"}}},
            ],
            "metadata": {"name": "small"},
            "provenance": {"by": "hand"},
            "files": [
                {"path": None, "payload_bytes": first},
                {"path": "m.part", "payload_bytes": len(payload) - first},
            ],
        },
        payload=bytes(payload),
    )


def regions(entry: bytes, part: bytes) -> dict[str, tuple[str, int, int]]:
    """File, first byte and end of each."""
    directory = 32 + int.from_bytes(entry[8:16], "little")
    start = -(-directory // 4096) * 4096
    return {
        "header": ("m.ninfer", 0, 32),
        "directory": ("m.ninfer", 32, directory),
        "gap": ("m.ninfer", directory, start),
        "payload": ("m.ninfer", start, len(entry)),
        "part": ("m.part", 0, 32),
        "part gap": ("m.part", 32, 4096),
        "rest": ("m.part", 4096, len(part)),
        "tail": ("m.part", len(part) - 512, len(part)),
    }


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_each_changed_bit_is_found_or_legal(tmp_path: Path, layout: Layout, record: Format) -> None:
    path = build(layout, record).write(tmp_path / "m.ninfer")
    files = {name: (tmp_path / name).read_bytes() for name in ("m.ninfer", "m.part")}
    assert why_broken(files, "m.ninfer") is None
    report = qf.verify(path, deep=True)
    assert report.ok, report.findings
    places = regions(*files.values())
    rng = np.random.default_rng(list(record.name.encode()))
    legal = 0
    for region, count in {**FLIPS, "rest": 40}.items():
        name, first, end = places[region]
        for at, bit in zip(rng.integers(first, end, count).tolist(), rng.integers(0, 8, count).tolist(), strict=True):
            changed = bytearray(files[name])
            changed[at] ^= 1 << bit
            expected = why_broken({**files, name: bytes(changed)}, "m.ninfer")
            with (tmp_path / name).open("r+b") as file:
                file.seek(at)
                file.write(changed[at : at + 1])
                file.flush()
                report = qf.verify(path, deep=True)
                file.seek(at)
                file.write(files[name][at : at + 1])
            what = f"{name}, byte {at} ({region}), bit {bit}: {expected}; {report.findings[:2]}"
            assert report.ok == (expected is None), what
            legal += report.ok
    assert legal > 5


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_findings_say_which_byte(tmp_path: Path, layout: Layout, record: Format) -> None:
    """Bits of zeros that belong to nobody, in either file: the byte's place is the finding's."""
    path = build(layout, record).write(tmp_path / "m.ninfer")
    for name, at in (("m.ninfer", (tmp_path / "m.ninfer").read_bytes().index(b"hello") + 7), ("m.part", -100)):
        data = bytearray((tmp_path / name).read_bytes())
        data[at] ^= 0x10
        (tmp_path / name).write_bytes(data)
        (finding,) = qf.verify(path, deep=True).findings
        assert (finding.rule, finding.file, finding.offset) == ("gap", str(tmp_path / name), at % len(data))
        assert (finding.expected, finding.found) == ("0x00", "0x10")
        data[at] ^= 0x10
        (tmp_path / name).write_bytes(data)
