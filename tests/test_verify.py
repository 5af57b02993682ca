"""Verification of artifacts: illegal words, padding and gaps of each format are found and named."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import quantform as qf
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import FORMATS, Format, GroupedFormat, Nvfp4Format, Nvfp4Words, RowScaledFormat, Words
from quantform.layouts import LAYOUTS, Layout, RowPlaneLayout
from quantform.sources import NinferSource
from words_maker import PAIR_IDS, PAIRS, make_words

SHAPE = (128, 256)


def store(path: Path, words: Words) -> int:
    """Write an artifact that holds one tensor; where its payload begins in the file."""
    divisors = words.divisors.size if isinstance(words, Nvfp4Words) else 1
    layout = LAYOUTS[words.format.default_layout]
    planned = PlannedTensor(id="w", shape=words.shape, format=words.format.name, layout=layout.name, divisors=divisors)
    with ArtifactWriter(
        path,
        components={"text": Component(config={})},
        objects=[planned],
        bindings={"w": Binding(object="w")},
    ) as writer:
        writer.write("w", 0, layout.pack(words))
    with NinferSource(path) as source:
        return path.stat().st_size - source.artifact.payload_bytes


def change(path: Path, offset: int, *values: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(values)] = bytes(values)
    path.write_bytes(data)


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_sound_artifacts_of_every_format(tmp_path: Path, layout: Layout, record: Format) -> None:
    assert layout.name == record.default_layout
    path = tmp_path / "m.ninfer"
    store(path, make_words(record, SHAPE, np.random.default_rng(1)))
    report = qf.verify(path, deep=True)
    assert report.ok, report.findings
    assert report.checked["tensors"] == report.checked["objects"] == 1


# For each kind of format: an illegal word as bytes, which plane holds it from the end, and what the finding says.
ILLEGAL = {
    **{
        name: ((0x00, 0x7C), -1, "(inf)")
        for name, record in FORMATS.items()
        if isinstance(record, GroupedFormat | RowScaledFormat) and name != "fp8_e4m3fn_row_bf16"
    },
    "fp8_e4m3fn_row_bf16": ((0x80, 0x7F), -1, "(inf)"),
    "nvfp4": ((0x00, 0x00, 0x00, 0x80), None, "divisor 0"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_words_are_found_only_by_looking_deep(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.ninfer"
    record = FORMATS[name]
    start = store(path, make_words(record, SHAPE, np.random.default_rng(2)))
    word, _, said = ILLEGAL[name]
    layout = LAYOUTS[record.default_layout]
    if isinstance(record, Nvfp4Format):
        at = layout.encoded_size(record, SHAPE) - 4
    elif isinstance(layout, RowPlaneLayout):
        plane = layout.planes(record, SHAPE)[-1]
        at = plane.offset + plane.row_bytes - 2
    change(path, start + at, *word)
    assert qf.verify(path).ok
    (finding,) = qf.verify(path, deep=True).findings
    assert finding.rule == "words"
    assert finding.object == "w"
    assert said in finding.problem.lower(), finding.problem


def test_row_numbers_in_findings_count_from_the_tensors_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("quantform.verify"), "_PIECE", 1024)  # a few rows at a time
    path = tmp_path / "m.ninfer"
    record = FORMATS["q4_g64_fp16"]
    start = store(path, make_words(record, SHAPE, np.random.default_rng(3)))
    layout = LAYOUTS[record.default_layout]
    assert isinstance(layout, RowPlaneLayout)
    plane = layout.planes(record, SHAPE)[-1]
    change(path, start + plane.offset + 77 * plane.row_bytes + 2, 0x00, 0x80)
    (finding,) = qf.verify(path, deep=True).findings
    assert "row 77, group 1" in finding.problem


def test_padding_that_is_not_canonical_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    record = FORMATS["q5_g64_fp16"]
    start = store(path, make_words(record, (2, 130), np.random.default_rng(4)))
    # K 130 is padded to 256: base bytes 0..255, high 256..319, a gap, scales from 512
    change(path, start + 400, 1)
    (finding,) = qf.verify(path, deep=True).findings
    assert (finding.rule, finding.object) == ("padding", "w")
    assert "byte 400 of the payload" in finding.problem
    assert qf.verify(path).ok


def test_gguf_files_are_verified_too(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "mixed.gguf"
    report = qf.verify(example, deep=True, against=example)
    assert report.ok
    assert report.kind == "gguf"
    copy = tmp_path / "copy.gguf"
    data = bytearray(example.read_bytes())
    data[-40] ^= 255
    copy.write_bytes(data)
    assert [finding.rule for finding in qf.verify(copy, against=example).findings] == ["against"]


def test_missing_and_extra_tensors_are_findings(tmp_path: Path) -> None:
    one, two = tmp_path / "one.ninfer", tmp_path / "two.ninfer"
    example = Path(__file__).parents[1] / "examples" / "mixed.gguf"
    qf.convert(example, one)
    store(two, make_words(FORMATS["bf16"], (2, 2), np.random.default_rng(5)))
    problems = {finding.object: finding.problem for finding in qf.verify(two, against=one).findings}
    assert "not in" in problems["w"]
    assert "missing" in problems["blk.0.attn_q.weight"]
