"""Verification of artifacts: illegal words, padding and gaps of each format are found and named."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import FORMATS, Format, GroupedFormat, Nvfp4Format, Nvfp4Words, RowScaledFormat, Words
from quantform.layouts import LAYOUTS, Layout, RowPlaneLayout
from quantform.sources import NinferSource
from words_maker import PAIR_IDS, PAIRS, make_words

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixed.gguf"
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
    report = qf.verify(EXAMPLE, deep=True, against=EXAMPLE)
    assert report.ok
    assert report.kind == "gguf"
    copy = tmp_path / "copy.gguf"
    data = bytearray(EXAMPLE.read_bytes())
    data[-40] ^= 255
    copy.write_bytes(data)
    assert [finding.rule for finding in qf.verify(copy, against=EXAMPLE).findings] == ["against"]


def test_missing_and_extra_tensors_are_findings(tmp_path: Path) -> None:
    one, two = tmp_path / "one.ninfer", tmp_path / "two.ninfer"
    qf.convert(EXAMPLE, one)
    store(two, make_words(FORMATS["bf16"], (2, 2), np.random.default_rng(5)))
    problems = {finding.object: finding.problem for finding in qf.verify(two, against=one).findings}
    assert "not in" in problems["w"]
    assert "missing" in problems["blk.0.attn_q.weight"]


@pytest.mark.parametrize("bits", [(2, 3), (3, 2), (6,), (1, 6)], ids=str)
def test_shapes_must_agree(tmp_path: Path, bits: tuple[int, ...]) -> None:
    one, two, made = tmp_path / "one.gguf", tmp_path / "two.gguf", tmp_path / "one.ninfer"
    one.write_bytes(gb.build([gb.tensor("a", (2, 3), gb.F32, bytes(24))]))
    two.write_bytes(gb.build([gb.tensor("a", bits, gb.F32, bytes(24))]))
    qf.convert(one, made)
    for path in (one, made):
        report = qf.verify(path, against=two)
        assert report.ok == (bits == (2, 3))
        assert report.ok or "shapes differ" in report.findings[0].problem


def test_a_missing_part_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, max_file_bytes=20_000)
    (tmp_path / "m.ninfer.part-0001").unlink()
    for deep in (False, True):
        (finding,) = qf.verify(path, deep=deep).findings
        assert finding.rule == "files"
        assert "part 1 of the artifact is missing" in finding.problem


def test_a_fault_is_found_once(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    store(path, make_words(FORMATS["bf16"], (2, 2), np.random.default_rng(6)))
    data = path.read_bytes().replace(b'"format":"bf16"', b'"format":"bf61"')
    path.write_bytes(data)
    report = qf.verify(path, deep=True)
    (finding,) = report.findings
    assert finding.rule == "structure"
    assert not any("structure checked" in note for note in report.notes)


def test_empty_tensors_may_be_missing_from_artifacts_only(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(gb.build([gb.tensor("a", (1,), gb.F32, bytes(4)), gb.tensor("e", (0, 4), gb.F32)]))
    two.write_bytes(gb.build([gb.tensor("a", (1,), gb.F32, bytes(4))]))
    assert [finding.object for finding in qf.verify(two, against=one).findings] == ["e"]
    qf.convert(one, tmp_path / "one.ninfer")
    assert qf.verify(tmp_path / "one.ninfer", against=one).ok


# --- scales that were rounded, and errors of methods ---------------------------------------------------------------


def fp8_checkpoint(directory: Path, scales: list[float], columns: int = 32) -> Path:
    """Two FP8 weights of as many rows as scales: one with these scales in F32, one with scales that BF16 holds."""
    codes = np.full((len(scales), columns), 0x7E, np.uint8)  # 448
    directory.mkdir()
    return sb.model(
        directory,
        {
            "a.weight": ("F8_E4M3", codes.shape, codes.tobytes()),
            "a.weight_scale": np.array(scales, np.float32)[:, None],
            "b.weight": ("F8_E4M3", codes.shape, codes.tobytes()),
            "b.weight_scale": np.ones((len(scales), 1), np.float32),
        },
    )


def test_scales_rounded_to_bf16_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 2^-9 becomes 1, so that 448.875 becomes 448."""
    monkeypatch.setattr(importlib.import_module("quantform.verify"), "_PIECE", 8)  # two scales at a time
    model = fp8_checkpoint(tmp_path / "m", [1, 2, 0.0625, 1 + 2**-9, 1])
    qf.convert(model, tmp_path / "m.ninfer")
    report = qf.verify(tmp_path / "m.ninfer", against=model)
    assert report.ok
    assert report.notes[-2:] == [
        "2 of 2 tensors have equal words",
        "1 tensor with equal words: F32 scales were rounded to BF16, by at most 0.00195 of a scale, in a.weight",
    ]


def test_scales_that_bf16_holds_are_not_noted(tmp_path: Path) -> None:
    model = fp8_checkpoint(tmp_path / "m", [1, 2, 0.0625])
    qf.convert(model, tmp_path / "m.ninfer")
    assert qf.verify(tmp_path / "m.ninfer", against=model).notes[-1] == "2 of 2 tensors have equal words"


def test_one_scale_for_all_rows_is_compared_with_each(tmp_path: Path) -> None:
    codes = np.full((4, 32), 0x7E, np.uint8)
    model = sb.model(
        tmp_path,
        {"a.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "a.weight_scale": np.array([1 + 2**-9], np.float32)},
    )
    qf.convert(model, tmp_path / "m.ninfer")
    assert "by at most 0.00195 of a scale, in a.weight" in qf.verify(tmp_path / "m.ninfer", against=model).notes[-1]
