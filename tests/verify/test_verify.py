"""Verification of artifacts: illegal words, padding and gaps of each format are found and named."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform.cli import app
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import FORMATS, Format, GroupedFormat, Nvfp4Format, Nvfp4Words, RowScaledFormat, Words
from quantform.layouts import LAYOUTS, Layout, RowPlaneLayout
from quantform.sources import NinferSource
from quantform.verify import MethodError
from words_maker import PAIR_IDS, PAIRS, make_words

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
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
    assert finding.rule == ("divisor" if isinstance(record, Nvfp4Format) else "scale")
    assert (finding.file, finding.offset) == (str(path), start + at)
    assert finding.object == "w"
    assert said in finding.problem.lower(), finding.problem


def test_row_numbers_in_findings_count_from_the_tensors_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("quantform.layouts.layout"), "CHECKED_BYTES", 1024
    )  # a few rows at a time
    path = tmp_path / "m.ninfer"
    record = FORMATS["q4_g64_fp16"]
    start = store(path, make_words(record, SHAPE, np.random.default_rng(3)))
    layout = LAYOUTS[record.default_layout]
    assert isinstance(layout, RowPlaneLayout)
    plane = layout.planes(record, SHAPE)[-1]
    change(path, start + plane.offset + 77 * plane.row_bytes + 2, 0x00, 0x80)
    (finding,) = qf.verify(path, deep=True).findings
    assert "row 77, group 1" in finding.problem
    assert (finding.row, finding.group) == (77, 1)


def test_padding_that_is_not_canonical_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    record = FORMATS["q5_g64_fp16"]
    start = store(path, make_words(record, (2, 130), np.random.default_rng(4)))
    # K 130 is padded to 256: base bytes 0..255, high 256..319, a gap, scales from 512
    change(path, start + 400, 1)
    (finding,) = qf.verify(path, deep=True).findings
    assert (finding.rule, finding.object) == ("padding", "w")
    assert (finding.offset, finding.expected, finding.found) == (start + 400, "0x00", "0x01")
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
    assert qf.verify(one, against=tmp_path / "one.ninfer").ok
    assert [finding.object for finding in qf.verify(one, against=two).findings] == ["e"]


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
    monkeypatch.setattr(importlib.import_module("quantform.verify.against"), "_PIECE", 8)  # two scales at a time
    model = fp8_checkpoint(tmp_path / "m", [1, 2, 0.0625, 1 + 2**-9, 1])
    qf.convert(model, tmp_path / "m.ninfer")
    report = qf.verify(tmp_path / "m.ninfer", against=model)
    assert report.ok
    assert report.notes[-3:-1] == [
        "2 of 2 tensors have equal words",
        "1 tensor with equal words: F32 scales were rounded to BF16, by at most 0.00195 of a scale, in a.weight",
    ]


def test_scales_that_bf16_holds_are_not_noted(tmp_path: Path) -> None:
    model = fp8_checkpoint(tmp_path / "m", [1, 2, 0.0625])
    qf.convert(model, tmp_path / "m.ninfer")
    assert qf.verify(tmp_path / "m.ninfer", against=model).notes[-2] == "2 of 2 tensors have equal words"


def test_one_scale_for_all_rows_is_compared_with_each(tmp_path: Path) -> None:
    codes = np.full((4, 32), 0x7E, np.uint8)
    model = sb.model(
        tmp_path,
        {"a.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "a.weight_scale": np.array([1 + 2**-9], np.float32)},
    )
    qf.convert(model, tmp_path / "m.ninfer")
    assert "by at most 0.00195 of a scale, in a.weight" in qf.verify(tmp_path / "m.ninfer", against=model).notes[-2]


def errors_of(tmp_path: Path, values: dict[str, np.ndarray], format: str = "q8_g32_fp16") -> list[MethodError]:
    """The errors of tensors against GGUF files of other values than they were made from, in F32."""
    made = {name: np.zeros_like(array) for name, array in values.items()}
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(sb.build(values))
    qf.convert(made, tmp_path / "m.ninfer", format=format, force=True)
    report = qf.verify(tmp_path / "m.ninfer", against=tmp_path / "model.safetensors")
    assert report.ok, report.findings
    json.dumps(report.as_dict(), allow_nan=False)
    return report.errors


def test_errors_of_methods_are_reported_worst_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = importlib.import_module("quantform.compare.measure")
    monkeypatch.setattr(measuring, "_PIECE_VALUES", 100)  # three rows at a time
    rng = np.random.default_rng(7)
    values = {name: rng.standard_normal((2, 5, 32)).astype(np.float32) for name in ("a", "b", "c")}
    values["b"][1, 2, 7] = 100  # the group's other values become coarse
    values["c"][:] = np.arange(-16, 16) / 16
    values["c"][..., 0] = -127 / 128
    model = tmp_path / "model"
    model.mkdir()
    sb.model(model, values)
    qf.convert(model, tmp_path / "m.ninfer", format="q8_g32_fp16")
    report = qf.verify(tmp_path / "m.ninfer", against=model)
    assert report.ok
    assert "3 of 3 tensors hold fp32 values as q8_g32_fp16, made by a method" in report.notes
    assert [error.name for error in report.errors] == ["b", "a", "c"]
    with NinferSource(tmp_path / "m.ninfer") as source:
        for error in report.errors:
            exact = values[error.name].astype(np.float64)
            difference = source[error.name].decode(np.float64) - exact
            assert error.relative_rms is not None
            assert np.isclose(error.relative_rms, np.linalg.norm(difference) / np.linalg.norm(exact), rtol=1e-12)
            assert error.max_abs == np.abs(difference).max()
            if error.max_abs:
                assert error.row is not None
                assert np.abs(difference).reshape(10, 32)[error.row, error.column] == error.max_abs
                assert error.snr_db is not None
                assert np.isclose(error.snr_db, -20 * np.log10(error.relative_rms))
    assert (report.errors[0].source_format, report.errors[0].format) == ("fp32", "q8_g32_fp16")
    assert report.errors[2].max_abs == 0
    assert report.errors[2].row is report.errors[2].snr_db is None
    assert report.as_dict()["errors"][0]["name"] == "b"


def test_errors_of_values_that_are_not_finite(tmp_path: Path) -> None:
    values = np.full((3, 32), 2, np.float32)
    values[1, 3], values[2, 30], values[2, 31] = np.inf, np.nan, 4
    (error,) = errors_of(tmp_path, {"w": values})
    assert (error.incomparable, error.max_abs, error.row, error.column) == (2, None, 1, 3)
    assert error.relative_rms is error.snr_db is None


def test_the_same_infinity_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    """What a method of today refuses, a file of another program may hold."""
    tensors = []
    for name, last in (("found", 1.0), ("expected", 1.5)):
        (tmp_path / name).mkdir()
        tensors.append(
            qf.open(sb.model(tmp_path / name, {"w": np.array([[np.inf, -np.inf, np.nan, last]], np.float32)}))["w"]
        )
    error = importlib.import_module("quantform.verify.against")._method_error(*tensors)
    assert (error.incomparable, error.max_abs, error.row, error.column) == (0, 0.5, 0, 3)


def test_the_command_shows_the_worst_errors_and_lists_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    values = {f"w{number:02}": rng.standard_normal((2, 32)).astype(np.float32) for number in range(23)}
    values["w07"][1, 5] = 40
    model = sb.model(tmp_path, values)
    path = tmp_path / "m.ninfer"
    qf.convert(model, path, format="q8_g32_fp16")
    ran = CliRunner().invoke(app, ["verify", str(path), "--against", str(model)])
    assert ran.exit_code == 0
    lines = ran.output.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("tensor "))
    assert lines[first].split("  ")[-1].strip() == "column"
    assert lines[first + 2].split()[:3] == ["w07", "fp32", "q8_g32_fp16"]
    assert lines[first + 22 :] == ["and 3 tensors with smaller errors; --json lists them", f"{path}: all right"]
    ran = CliRunner().invoke(app, ["verify", str(path), "--against", str(model), "--json"])
    errors = json.loads(ran.output)["errors"]
    assert len(errors) == 23
    assert errors[0].keys() >= {"name", "source_format", "format", "relative_rms", "snr_db", "max_abs", "row", "column"}
    values["w03"][0, 9] = np.nan
    ran = CliRunner().invoke(app, ["verify", str(path), "--against", str(sb.model(tmp_path, values))])
    assert "w03: 1 element not finite on one side" in ran.output


def test_errors_that_have_no_ratio(tmp_path: Path) -> None:
    (tmp_path / "zero").mkdir()
    (nothing,) = errors_of(tmp_path / "zero", {"w": np.zeros((2, 32), np.float32)})
    assert (nothing.relative_rms, nothing.snr_db, nothing.max_abs, nothing.row) == (0, None, 0, None)
    model = sb.model(tmp_path, {"w": np.zeros((2, 32), np.float32)})
    qf.convert({"w": np.ones((2, 32), np.float32)}, tmp_path / "m.ninfer", format="q8_g32_fp16")
    (error,) = qf.verify(tmp_path / "m.ninfer", against=model).errors
    assert (error.relative_rms, error.snr_db, error.row, error.column) == (None, None, 0, 0)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_errors_of_numbers_whose_squares_leave_binary64(tmp_path: Path, size: float) -> None:
    (error,) = errors_of(tmp_path, {"w": np.full((2, 32), size)})
    assert (error.relative_rms, error.max_abs) == (1, size)
