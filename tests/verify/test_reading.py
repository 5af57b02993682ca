"""Deep verification reads every byte of a payload once, in little memory, and counts what it does not list."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform._files import MappedFile
from quantform.cli import app
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import FORMATS, Format
from quantform.layouts import LAYOUTS, Layout
from quantform.packed import PROFILES, nonfinite_scales, nonfinite_values, undefined_scales
from quantform.sources import GGUFSource, NinferSource
from quantform.verify import RULES
from reader_files import FILES, data_of
from words_maker import PAIR_IDS, PAIRS, divisors_of, make_words

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


def artifact(path: Path, record: Format, shape: tuple[int, ...], max_file_bytes: int | None = None) -> Path:
    layout = LAYOUTS[record.default_layout]
    words = make_words(record, shape, np.random.default_rng(1), 2 if record.name == "nvfp4" else 1)
    planned = PlannedTensor(id="w", shape=shape, format=record.name, layout=layout.name, divisors=divisors_of(words))
    with ArtifactWriter(
        path,
        components={"text": Component(config={})},
        objects=[planned],
        bindings={"w": Binding(object="w")},
        max_file_bytes=max_file_bytes,
    ) as writer:
        writer.write("w", 0, layout.pack(words))
    return path


def reads(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> dict[str, np.ndarray]:
    """How often each byte of each file was read while something ran."""
    times: dict[str, np.ndarray] = {}

    def count(file: MappedFile, offset: int, size: int) -> None:
        times.setdefault(file.path.name, np.zeros(file.size, np.int64))[offset : offset + size] += 1

    read, read_into, view = MappedFile.read, MappedFile.read_into, MappedFile.view

    def counted_bytes(self: MappedFile, offset: int, size: int) -> bytes:
        count(self, offset, size)
        return read(self, offset, size)

    def counted_read(self: MappedFile, offset: int, out: np.ndarray) -> None:
        count(self, offset, out.nbytes)
        read_into(self, offset, out)

    def counted_view(self: MappedFile, offset: int, size: int) -> np.ndarray:
        count(self, offset, size)
        return view(self, offset, size)

    monkeypatch.setattr(MappedFile, "read", counted_bytes)
    monkeypatch.setattr(MappedFile, "read_into", counted_read)
    monkeypatch.setattr(MappedFile, "view", counted_view)
    run()
    monkeypatch.undo()
    return times


@pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
def test_artifacts_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, record: Format
) -> None:
    """Headers and directories, and their padding, are read on opening; magic numbers are looked at first."""
    assert layout.name == record.default_layout
    path = artifact(tmp_path / "m.ninfer", record, (256, 256), 4096 * 4)
    times = reads(monkeypatch, lambda: qf.verify(path, deep=True))
    assert len(times) > 1
    for name, counts in times.items():
        head = 4096
        assert counts[head:].min() == counts[head:].max() == 1, name
        assert counts[:head].min() >= 1


@pytest.mark.parametrize("kind", FILES)
def test_tensors_are_read_once_by_every_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A model's message is read by `onnx` as well; its external data is read once, as all tensors are."""
    path = FILES[kind](tmp_path / "m")
    with qf.open(path) as source:
        nbytes = source["w"].nbytes
    counts = reads(monkeypatch, lambda: qf.verify(path, deep=True))[data_of(path).name]
    assert counts[-nbytes:].min() == counts[-nbytes:].max() == 1


@pytest.mark.parametrize("qdq", [False, True], ids=["packed", "codes and scales"])
def test_external_data_of_every_form_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qdq: bool) -> None:
    """Packed blocks, codes with scales, and plain numbers."""
    path = tmp_path / "m.onnx"
    qf.convert(EXAMPLE, path, data="copy", qdq=qdq)
    counts = reads(monkeypatch, lambda: qf.verify(path, deep=True))["m.onnx.data"]
    protos = [one for one in onnx.load(path, load_external_data=False).graph.initializer if one.external_data]
    assert len(protos) > 5
    for proto in protos:
        entries = {entry.key: int(entry.value) for entry in proto.external_data if entry.key != "location"}
        some = counts[entries["offset"] : entries["offset"] + entries["length"]]
        assert some.min() == some.max() == 1, proto.name


def test_gguf_and_checkpoints_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFSource(EXAMPLE) as source:
        start = source.shards[0].header_end
    (counts,) = reads(monkeypatch, lambda: qf.verify(EXAMPLE, deep=True)).values()
    assert counts[start:].min() == counts[start:].max() == 1
    sb.model(
        tmp_path,
        {
            "a.weight": sb.f8([[1, 2], [3, 4]]),
            "a.weight_scale": np.ones((2, 1), np.float32),
            "a.input_scale": np.ones(1, np.float32),
            "b.weight_packed": np.zeros((4, 32), np.uint8),
            "b.weight_scale": sb.f8(np.ones((4, 4), np.uint8).tolist()),
            "b.weight_global_scale": np.array([2], np.float32),
            "c": np.ones((3, 5), np.float64),
        },
    )
    counts = reads(monkeypatch, lambda: qf.verify(tmp_path, deep=True))["model.safetensors"]
    header = 8 + int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert counts[header:].min() == counts[header:].max() == 1


SHAPES = {
    **dict.fromkeys(("bf16", "q4_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"), (2, (3 << 20) + 70)),
    **dict.fromkeys(("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"), (2, (3 << 20) + 70)),
    "gguf_q4_k": (2, 6 << 20),
    "nvfp4": (256, 1 << 15),
}


@pytest.mark.parametrize("name", SHAPES)
def test_long_rows_take_little_memory(tmp_path: Path, name: str) -> None:
    path = artifact(tmp_path / "m.ninfer", FORMATS[name], SHAPES[name])
    assert path.stat().st_size > 3 << 20
    qf.verify(path)
    tracemalloc.start()
    try:
        report = qf.verify(path, deep=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.ok, report.findings
    assert peak < 3 << 20


@pytest.mark.parametrize("name", ["q8_g32_fp16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"])
def test_places_in_long_rows(tmp_path: Path, name: str) -> None:
    """A bad code behind the first window, and a bad scale: each once, where it is."""
    record, columns = FORMATS[name], (2 << 20) + 70
    path = artifact(tmp_path / "m.ninfer", record, (2, columns))
    layout = LAYOUTS[record.default_layout]
    with NinferSource(path) as source:
        start = path.stat().st_size - source.artifact.payload_bytes
    data = bytearray(path.read_bytes())
    code = start + layout.offset_of(record, (2, columns), "codes", 1, columns - 3)  # type: ignore[attr-defined]
    scale = start + layout.offset_of(record, (2, columns), "scales", 0, 0)  # type: ignore[attr-defined]
    data[code], data[scale : scale + 2] = 0x80 if name == "q8_g32_fp16" else 0xFF, b"\xff\xff"
    path.write_bytes(data)
    found = {(one.rule, one.row, one.column, one.offset) for one in qf.verify(path, deep=True).findings}
    assert found >= {("code", 1, columns - 3, code), ("scale", 0, None, scale)}
    assert sum(rule == "scale" for rule, *_ in found) == 1


def test_all_is_counted_and_some_is_listed(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer", FORMATS["q8_g32_fp16"], (64, 128))
    with NinferSource(path) as source:
        start = path.stat().st_size - source.artifact.payload_bytes
    data = bytearray(path.read_bytes())
    data[start + 1 : start + 4096 : 8] = b"\x80" * 512
    path.write_bytes(data)
    report = qf.verify(path, deep=True, max_findings=7)
    assert len(report.findings) == 7
    assert report.broken["code"] == 512
    assert report.total == sum(report.broken.values())
    ran = CliRunner().invoke(app, ["verify", str(path), "--deep", "--max-findings", "3"])
    assert ran.exit_code == 1
    lines = [line for line in ran.output.splitlines() if line.startswith("wrong:")]
    assert len(lines) == 4
    assert lines[3] == f"wrong: {report.total - 3} more, not listed"
    counts = ", ".join(f"{rule} {count}" for rule, count in report.counts(remarks=False).items())
    assert f"{lines[3]}\nwrong in all: {counts}\n" in ran.output
    document = json.loads(CliRunner().invoke(app, ["verify", str(path), "--deep", "--json"]).output)
    assert len(document["findings"]) == 100
    assert document["total"] == report.total
    keys = {"rule", "object", "problem", "file", "offset", "row", "group", "column", "expected", "found", "count"}
    assert set(document["findings"][0]) == keys
    assert {one["rule"] for one in document["findings"]} <= set(RULES)


def test_remarks_fail_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    half = np.array([[1, np.inf]], np.float16)
    path.write_bytes(gb.build([gb.tensor("w", (1, 2), gb.F16, half.tobytes())]))
    ran = CliRunner().invoke(app, ["verify", str(path), "--deep"])
    assert (ran.exit_code, ran.output.splitlines()[0]) == (0, "remark: w: 1 value not finite [nonfinite-value]")
    assert CliRunner().invoke(app, ["verify", str(path), "--deep", "--strict"]).exit_code == 1
    assert CliRunner().invoke(app, ["verify", str(path), "--strict"]).exit_code == 0


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer", FORMATS["q5_g64_fp16"], (64, 100))
    seen: list[tuple[int, int]] = []
    qf.verify(path, deep=True, progress=lambda done, total, _: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_missing_part_leaves_the_rest_to_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, max_file_bytes=20_000)
    parts = sorted(tmp_path.glob("m.ninfer.part-*"))
    data = bytearray(parts[-1].read_bytes())
    data[10] ^= 1
    parts[-1].write_bytes(data)
    report = qf.verify(path, deep=True)
    assert [finding.rule for finding in report.findings] == ["files"]
    assert any(note.endswith("not looked at: a file that they need is missing or wrong") for note in report.notes)
    assert report.checked["bytes"] > 0


def test_what_nothing_refers_to_is_a_remark(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    layout = LAYOUTS["contiguous_le_v1"]
    words = make_words(FORMATS["int32"], (4, 8), np.random.default_rng(1))
    with ArtifactWriter(
        path,
        components={"text": Component(config={})},
        objects=[PlannedTensor(id=id, shape=(4, 8), format="int32", layout=layout.name) for id in ("w", "v")],
        bindings={"w": Binding(object="w")},
        provenance={"source": {"files": [{"sha256": "0" * 64}, {"sha256": "ab" * 32}]}},
        metadata={"quantform": {"shapes": {"w": [8, 5], "x": [1]}}},
    ) as writer:
        for id in ("w", "v"):
            writer.write(id, 0, layout.pack(words))
    report = qf.verify(path)
    assert report.ok
    assert [(one.rule, one.object) for one in report.remarks] == [
        ("unused", "v"),
        ("shape", "w"),
        ("shape", "x"),
        ("provenance", "$.provenance.source.files[0]"),
    ]


def test_huge_finite_scales_overflow() -> None:
    """Q8_K multiplies binary32 scales, MXFP4 doubles its table: what overflows is counted, and nothing else."""
    block = np.zeros(3, PROFILES["gguf:q8_k"].block)
    block["d"], block["q"][:, :2] = [3e38, 2e36, np.nan], (1, 127)
    block["q"][0, 2] = -2
    payload = block.view(np.uint8).reshape(-1)
    assert nonfinite_scales(payload, PROFILES["gguf:q8_k"]) == 1
    assert nonfinite_values(payload, PROFILES["gguf:q8_k"]) == 2 + 0 + 256
    four = np.zeros(256, PROFILES["gguf:mxfp4"].block)
    four["exponent"], four["q"] = np.arange(256), 0x07  # 6 times a power of two, and zeros
    payload = four.view(np.uint8).reshape(-1)
    with np.errstate(over="ignore"):
        exact = np.float32(6) * np.ldexp(1.0, np.arange(256) - 127)
    assert nonfinite_values(payload, PROFILES["gguf:mxfp4"]) == 16 * np.count_nonzero(exact >= 2.0**128)
    assert (nonfinite_scales(payload, PROFILES["gguf:mxfp4"]), undefined_scales(payload, PROFILES["gguf:mxfp4"])) == (
        0,
        1,
    )
    scales = np.zeros(64, PROFILES["gguf:nvfp4"].block)
    scales["scales"] = np.arange(256).reshape(64, 4)
    assert undefined_scales(scales.view(np.uint8).reshape(-1), PROFILES["gguf:nvfp4"]) == 129


def test_small_floats_are_counted(tmp_path: Path) -> None:
    every = np.arange(256, dtype=np.uint8)
    kinds = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    kinds |= {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    path = tmp_path / "model.safetensors"
    path.write_bytes(sb.build({name: (name, (256,), every.tobytes()) for name in kinds}))
    found = {one.object: one.count for one in qf.verify(path, deep=True).remarks}
    for name, kind in kinds.items():
        values = every.view(getattr(ml_dtypes, kind)).astype(np.float64)
        assert found[name] == np.count_nonzero(~np.isfinite(values)), name
