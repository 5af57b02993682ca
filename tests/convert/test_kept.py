"""Objects that an artifact keeps: copied byte for byte if deep verification has nothing against them, else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_builder as nb
import quantform as qf
from quantform.errors import ArtifactError
from quantform.formats import FORMATS, Format, GgufFormat
from quantform.layouts import LAYOUTS, Layout
from quantform.sources import NinferSource
from words_maker import PAIR_IDS, PAIRS, make_words

BEFORE = 1024  # bytes of the payload before the object
LONG = 2**19 + 150  # columns, more than are looked at together
FLIPS = 12


def shape_of(record: Format) -> tuple[int, int]:
    if record.name == "nvfp4":
        return 256, 64
    return (2, record.profile.values) if isinstance(record, GgufFormat) else (3, 150)


def payload_of(layout: Layout, record: Format, shape: tuple[int, int], divisors: int) -> bytes:
    return layout.pack(make_words(record, shape, np.random.default_rng(1), divisors)).tobytes()


def write(path: Path, layout: Layout, record: Format, shape: tuple[int, int], data: bytes, divisors: int) -> Path:
    """One tensor, in two files."""
    more = {"divisors": divisors} if divisors > 1 else {}
    first = BEFORE + len(data) // 3
    return nb.Artifact(
        directory={
            "components": {"text": {"config": {}, "resources": {}}},
            "objects": [nb.tensor("w", shape, record.name, layout.name, BEFORE, len(data), **more)],
            "bindings": {"a": {"object": "w"}},
            "uses": [],
            "metadata": {},
            "provenance": {},
            "files": [
                {"path": None, "payload_bytes": first},
                {"path": "m.part", "payload_bytes": BEFORE + len(data) - first},
            ],
        },
        payload=bytes(BEFORE) + data,
    ).write(path)


def kept(path: Path) -> bytes:
    target = path.with_name("kept.ninfer")
    qf.convert(path, target, force=True)
    assert qf.verify(target, deep=True).ok
    with NinferSource(target) as source:
        return bytes(source.objects["w"].payload())


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_what_is_kept_is_what_deep_verification_accepts(layout: Layout, record: Format, tmp_path: Path) -> None:
    shape, divisors = shape_of(record), 2 if record.name == "nvfp4" else 1
    data = payload_of(layout, record, shape, divisors)
    assert kept(write(tmp_path / "m.ninfer", layout, record, shape, data, divisors)) == data
    rng = np.random.default_rng(2)
    for at in (0, len(data) - 1, *rng.integers(len(data), size=FLIPS).tolist()):
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        path = write(tmp_path / "m.ninfer", layout, record, shape, bytes(flipped), divisors)
        report = qf.verify(path, deep=True)
        if report.ok:
            assert kept(path) == flipped
            continue
        finding = report.findings[0]
        before = path.with_name("kept.ninfer").read_bytes()
        with pytest.raises(ArtifactError) as caught:
            kept(path)
        assert str(caught.value).startswith(f"{path}, ")
        assert f"{finding.file}, tensor 'w', " in str(caught.value)
        assert f"byte {finding.offset}: " in str(caught.value)
        assert f"expected {finding.expected}, found {finding.found}" in str(caught.value)
        assert path.with_name("kept.ninfer").read_bytes() == before


@pytest.mark.parametrize("name", ["row_split_k128_v1", "row_scale_v1", "row_interleaved_v1", "contiguous_le_v1"])
def test_long_rows_are_kept(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    for format in (layout.formats[0], layout.formats[-1]):
        record = FORMATS[format]
        data = payload_of(layout, record, (2, LONG), 1)
        assert kept(write(tmp_path / "m.ninfer", layout, record, (2, LONG), data, 1)) == data


def test_many_rows_are_kept_and_wrong_padding_is_named_by_its_byte(tmp_path: Path) -> None:
    layout, record, shape = LAYOUTS["row_split_k128_v1"], FORMATS["q4_g64_fp16"], (20_000, 150)
    data = bytearray(payload_of(layout, record, shape, 1))
    path = tmp_path / "m.ninfer"
    assert kept(write(path, layout, record, shape, bytes(data), 1)) == data
    at = 19_999 * 128 + 100  # 75 bytes of a row's 128 have codes
    data[at] ^= 1
    place = 4096 + at - len(data) // 3
    with pytest.raises(ArtifactError, match=rf"m\.part, tensor 'w', .*byte {place}: .*verify --deep"):
        kept(write(path, layout, record, shape, bytes(data), 1))


def test_words_that_are_taken_from_an_artifact_are_checked_as_well(tmp_path: Path) -> None:
    layout, record, shape = LAYOUTS["row_split_k128_v1"], FORMATS["q4_g64_fp16"], (4, 150)
    data = bytearray(payload_of(layout, record, shape, 1))

    def take(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("a", source=sources["old"]["a"])

    def taken() -> bytes:
        path = write(tmp_path / "m.ninfer", layout, record, shape, bytes(data), 1)
        weights = {"a": np.ones(shape, np.float32)}
        qf.convert(weights, tmp_path / "n.ninfer", recipe=take, sources={"old": path}, force=True)
        with NinferSource(tmp_path / "n.ninfer") as source:
            return bytes(source["a"].payload())

    assert taken() == data
    data[100] ^= 1
    with pytest.raises(ArtifactError, match=r"tensor 'a', .*, and the words were to be kept as they are"):
        taken()
