"""A single changed bit anywhere in an artifact is found, or it makes another legal artifact: decided by an oracle.

Of artifacts that were made from a file, that file is the second oracle: nothing that it says may have changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ninfer_builder as nb
import quantform as qf
from ninfer_legality import why_broken
from quantform.errors import QuantformError
from quantform.formats import Format, GgufFormat
from quantform.layouts import Layout
from quantform.sources import NinferSource
from words_maker import PAIR_IDS, PAIRS, make_words

DIGEST = "the artifact does not give the original file back"
NO_FRAME = "the artifact was not made from a GGUF file by quantform"  # its role has another name
EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
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


def regions(entry: bytes, part: bytes, name: str = "m.part") -> dict[str, tuple[str, int, int]]:
    """File, first byte and end of each."""
    directory = 32 + int.from_bytes(entry[8:16], "little")
    start = -(-directory // 4096) * 4096
    return {
        "header": ("m.ninfer", 0, 32),
        "directory": ("m.ninfer", 32, directory),
        "gap": ("m.ninfer", directory, start),
        "payload": ("m.ninfer", start, len(entry)),
        "part": (name, 0, 32),
        "part gap": (name, 32, 4096),
        "rest": (name, 4096, len(part)),
        "tail": (name, len(part) - 512, len(part)),
    }


class Flip(NamedTuple):
    region: str
    name: str
    at: int
    bit: int
    files: dict[str, bytes]


def flips(
    directory: Path, places: dict[str, tuple[str, int, int]], counts: dict[str, int], seed: str
) -> Iterator[Flip]:
    """Random bits of each region, one after the other changed in its file while the caller looks."""
    files = {name: (directory / name).read_bytes() for name in {name for name, _, _ in places.values()}}
    rng = np.random.default_rng(list(seed.encode()))
    for region, count in counts.items():
        name, first, end = places[region]
        for at, bit in zip(rng.integers(first, end, count).tolist(), rng.integers(0, 8, count).tolist(), strict=True):
            changed = bytearray(files[name])
            changed[at] ^= 1 << bit
            with (directory / name).open("r+b") as file:
                file.seek(at)
                file.write(changed[at : at + 1])
                file.flush()
                yield Flip(region, name, at, bit, {**files, name: bytes(changed)})
                file.seek(at)
                file.write(files[name][at : at + 1])


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_each_changed_bit_is_found_or_legal(tmp_path: Path, layout: Layout, record: Format) -> None:
    path = build(layout, record).write(tmp_path / "m.ninfer")
    files = {name: (tmp_path / name).read_bytes() for name in ("m.ninfer", "m.part")}
    assert why_broken(files, "m.ninfer") is None
    report = qf.verify(path, deep=True)
    assert report.ok, report.findings
    legal = 0
    for flip in flips(tmp_path, regions(files["m.ninfer"], files["m.part"]), {**FLIPS, "rest": 40}, record.name):
        expected = why_broken(flip.files, "m.ninfer")
        report = qf.verify(path, deep=True)
        assert report.ok == (expected is None), f"{flip[:4]}: {expected}; {report.findings[:2]}"
        legal += report.ok
    assert legal > 5


def test_each_changed_bit_is_found_by_the_source(tmp_path: Path) -> None:
    """Beside the GGUF file that it was made from, nothing passes but a bit of what that file does not say.

    Without that file, what passes deeply is refused on the way back for its digest alone.
    """
    source, path, back = tmp_path / "o.gguf", tmp_path / "m.ninfer", tmp_path / "back.gguf"
    source.write_bytes(EXAMPLE.read_bytes())
    qf.convert(source, path, max_file_bytes=28_672)
    part = tmp_path / "m.ninfer.part-0001"
    assert [one.name for one in sorted(tmp_path.glob("m.*"))] == [path.name, part.name]
    report = qf.verify(path, deep=True, against=source)
    assert report.ok, report.findings
    assert not report.total_remarks
    places = regions(path.read_bytes(), part.read_bytes(), part.name)
    with NinferSource(path) as opened:
        sound = directory_of(path.read_bytes())
        for id in ("resource/gguf_frame", "resource/chat_template"):
            record = opened.artifact.record(id)
            _, first = opened.artifact.locate(record.offset)
            places[id] = path.name, first, first + record.nbytes
    counts = {"header": 8, "directory": 60, "payload": 25, "part": 6, "part gap": 3, "rest": 25}
    passed, digests = Counter[str](), 0
    for flip in flips(tmp_path, places, {**counts, "resource/gguf_frame": 80, "resource/chat_template": 4}, "source"):
        report = qf.verify(path, deep=True, against=source)
        what = f"{flip[:4]}: {report.findings[:2]}"
        found = not report.ok or (flip.region == "directory" and report.total_remarks)
        if not found:
            assert says_nothing_of_the_source(flip, sound), what
            passed[flip.region] += 1
        elif flip.region not in {"header", "directory", "part", "part gap"}:
            place = str(tmp_path / flip.name), flip.at
            assert place in [(one.file, one.offset) for one in report.findings], what
        if qf.verify(path, deep=True).ok:
            why = why_no_way_back(path, back)
            assert why in {None, DIGEST, NO_FRAME}, what
            digests += why is not None
    assert passed.keys() <= {"header", "directory"}
    assert digests > 50


def why_no_way_back(path: Path, back: Path) -> str | None:
    try:
        qf.convert(path, back, force=True)
    except QuantformError as error:
        return error.problem
    return None


def directory_of(entry: bytes) -> Any:
    return json.loads(entry[32 : 32 + int.from_bytes(entry[8:16], "little")])


def says_nothing_of_the_source(flip: Flip, sound: Any) -> bool:
    """Whether what changed is the artifact's own id, or texts in provenance that are neither lengths nor digests."""
    if flip.region == "header":
        return flip.name == "m.ninfer" and 16 <= flip.at < 32
    changed = directory_of(flip.files["m.ninfer"])
    kept = [
        {**one, "provenance": None, "files of source": one["provenance"]["source"]["files"][0] | {"path": None}}
        for one in (sound, changed)
    ]
    return flip.region == "directory" and kept[0] == kept[1]


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
