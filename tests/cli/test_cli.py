"""The command line: what it prints, its exit codes, and that bad input never shows a traceback."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES
from quantform.sources import NinferSource

if TYPE_CHECKING:
    from cli.conftest import Run  # the fixture's type

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path)
    return path


# --- inspect --------------------------------------------------------------------------------------------------------


def test_inspect_prints_a_table_for_people(run: Run) -> None:
    ran = run("inspect", EXAMPLE)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{EXAMPLE}: GGUF version 3, 12 tensors, ")
    assert "name: Toy mixed" in lines
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("blk.")}
    assert rows["blk.0.attn_q.weight"] == ["32x256", "gguf:q4_k", "4.5", "4.6", "kB"]
    assert rows["blk.0.ffn_gate_exps.weight"][0] == "4x16x64"
    assert rows["blk.0.ffn_unused"] == ["0x32", "fp32", "0", "0", "B"]
    assert lines[-1].split()[:2] == ["total", "12"]


def test_inspect_lists_metadata_on_request(run: Run) -> None:
    assert "toy.block_count" not in run("inspect", EXAMPLE).out
    ran = run("inspect", EXAMPLE, "--metadata")
    assert "toy.block_count 1" in " ".join(ran.out.split())
    assert "<GGUFArray of 64 string>" in ran.out


def test_inspect_json_is_one_document(run: Run, artifact: Path) -> None:
    document = json.loads(run("inspect", EXAMPLE, "--json").out)
    assert document["kind"] == "gguf"
    assert document["metadata"]["toy.block_count"] == 1
    assert document["metadata"]["tokenizer.ggml.tokens"]["length"] == 64
    names = [tensor["name"] for tensor in document["tensors"]]
    assert names[0] == "token_embd.weight"
    assert len(names) == document["totals"]["total"]["tensors"] == 12
    other = json.loads(run("inspect", artifact, "--json").out)
    assert other["kind"] == "ninfer"
    shapes = {tensor["name"]: tensor["shape"] for tensor in other["tensors"]}
    assert shapes["blk.0.ffn_gate_exps.weight"] == [4, 16, 64]


def test_names_cannot_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "o.gguf"
    path.write_bytes(gb.build([gb.tensor("\x1b]0;owned\x07\u202e", (1,), gb.F32, bytes(4))], {"k\x9b": "\x1b[2J"}))
    ran = run("inspect", path, "--metadata")
    assert ran.code == 0
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(ran.out)
    assert "\\x1b]0;owned\\x07" in ran.out


# --- decode ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("rows", [None, "0:8", "5:", ":3", "4:4"])
def test_decode_writes_npy(run: Run, tmp_path: Path, artifact: Path, dtype: str | None, rows: str | None) -> None:
    options = [*(["--rows", rows] if rows else []), *(["--dtype", dtype] if dtype else [])]
    for source in (EXAMPLE, artifact):
        out = tmp_path / "x.npy"
        ran = run("decode", source, "blk.0.attn_q.weight", "-o", out, "--force", *options)
        assert ran.code == 0, ran.err
        values = np.load(out)
        if dtype == "bfloat16":
            values = values.view(ml_dtypes.bfloat16)
        first, end = (int(part) if part else None for part in (rows or ":").split(":"))
        with qf.open(EXAMPLE) as file:
            expected = file["blk.0.attn_q.weight"].decode(dtype)[first:end]
        assert values.dtype == expected.dtype
        assert np.array_equal(values, expected)


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_exps.weight", "blk.0.attn_norm.weight", "blk.0.ffn_map", "blk.0.ffn_unused"]
)
def test_decode_keeps_shape_and_type(run: Run, tmp_path: Path, name: str) -> None:
    assert run("decode", EXAMPLE, name, "-o", tmp_path / "x.npy").code == 0
    values = np.load(tmp_path / "x.npy")
    with qf.open(EXAMPLE) as file:
        expected = file[name].decode()
    assert values.dtype == expected.dtype
    assert values.shape == expected.shape
    assert np.array_equal(values, expected)


def test_decode_does_not_overwrite(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    out.write_bytes(b"precious")
    ran = run("decode", EXAMPLE, "blk.0.ffn_map", "-o", out)
    assert ran.code == 2
    assert "exists already" in ran.err
    assert out.read_bytes() == b"precious"


# --- convert and verify ---------------------------------------------------------------------------------------------


def test_convert_verify_and_back(run: Run, tmp_path: Path) -> None:
    there, back = tmp_path / "m.ninfer", tmp_path / "back.gguf"
    ran = run("convert", EXAMPLE, there)
    assert ran.code == 0
    assert "import_encoded to gguf_q4_k" in ran.out
    assert run("verify", there).out.endswith("all right\n")
    ran = run("verify", there, "--deep", "--against", EXAMPLE)
    assert ran.code == 0
    assert "10 of 12 tensors have equal bytes" in ran.out
    assert "1 of 12 tensors hold fp16 values as fp32" in ran.out
    assert run("convert", there, back).code == 0
    assert back.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("text", ["20000", "20k", "20KB", "20 k", "16Ki"])
def test_sizes_have_units(run: Run, tmp_path: Path, text: str) -> None:
    assert run("convert", EXAMPLE, tmp_path / "m.ninfer", "--max-file-bytes", text).code == 0
    assert (tmp_path / "m.ninfer.part-0001").exists()


def test_verify_finds_and_counts_differences(run: Run, artifact: Path) -> None:
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1
    artifact.write_bytes(data)
    ran = run("verify", artifact, "--against", EXAMPLE)
    assert ran.code == 1
    assert "wrong: blk.0.ffn_bias: byte 31 differs" in ran.out
    assert ran.out.endswith("1 wrong\n")
    report = json.loads(run("verify", artifact, "--against", EXAMPLE, "--json").out)
    assert report["ok"] is False
    assert report["findings"][0]["object"] == "blk.0.ffn_bias"
    ran = run("verify", artifact)
    assert ran.code == 0


def test_verify_deep_finds_bytes_between_objects(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path)
    with NinferSource(path) as source:
        records = list(source.artifact.objects.values())
        start = path.stat().st_size - source.artifact.payload_bytes
    ends = [(a.offset + a.nbytes, b.offset) for a, b in itertools.pairwise(records)]
    gap = next(end for end, following in ends if end < following)
    data = bytearray(path.read_bytes())
    data[start + gap] = 7
    path.write_bytes(data)
    ran = run("verify", path, "--deep")
    assert ran.code == 1
    assert "a byte that belongs to no object is not zero" in ran.out


def test_verify_reports_a_file_that_cannot_be_opened(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "truncated.gguf"
    path.write_bytes(EXAMPLE.read_bytes()[:-5000])
    ran = run("verify", path)
    assert (ran.code, ran.err) == (1, "")
    assert "the file ends before its tensors do" in ran.out
    assert "[open]" in ran.out
    (finding,) = json.loads(run("verify", path, "--json").out)["findings"]
    assert (finding["rule"], finding["object"]) == ("open", str(path))
    assert run("verify", tmp_path / "nothing.gguf").code == 1


# --- formats --------------------------------------------------------------------------------------------------------


def test_formats_lists_every_record(run: Run) -> None:
    out = run("formats").out
    for name in (*FORMATS, *PROFILES, *LAYOUTS):
        assert name in out
    document = json.loads(run("formats", "--json").out)
    assert [record["name"] for record in document["formats"]] == list(FORMATS)
    assert [record["name"] for record in document["profiles"]] == list(PROFILES)
    assert [record["name"] for record in document["layouts"]] == list(LAYOUTS)


@pytest.mark.parametrize("name", [*FORMATS, *PROFILES, *LAYOUTS])
def test_formats_tells_about_each(run: Run, name: str) -> None:
    ran = run("formats", name)
    assert ran.code == 0
    assert name in ran.out
    assert json.loads(run("formats", name, "--json").out)["name"] == name


# --- errors ---------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[list[str], int, str]] = {
    "no such file": (["inspect", "missing.gguf"], 1, "missing.gguf: no such file"),
    "a directory": (["inspect", "."], 1, "the directory holds no safetensors file"),
    "not a tensor file": (["inspect", "text"], 1, "not a file of tensors"),
    "an empty file": (["inspect", "empty"], 1, "found an empty file"),
    "a part": (["inspect", "part"], 1, "a part of a .ninfer artifact"),
    "truncated": (["inspect", "truncated.gguf"], 1, "truncated.gguf"),
    "truncated convert": (["convert", "truncated.gguf", "x.ninfer"], 1, "truncated.gguf"),
    "no command": (["frobnicate"], 2, "no such command 'frobnicate'. See quantform --help"),
    "no command at all": ([], 2, "missing command. See quantform --help"),
    "no command of a group": (["onnx"], 2, "missing command. See quantform onnx --help"),
    "no such option": (["inspect", "mixed.gguf", "--jso"], 2, "no such option: --jso"),
    "no number": (["verify", "mixed.gguf", "--max-findings", "many"], 2, "invalid value for '--max-findings'"),
    "too many arguments": (["inspect", "mixed.gguf", "mixed.gguf"], 2, "unexpected extra argument"),
    "no arguments": (["inspect"], 2, "missing argument 'FILE'. See quantform inspect --help"),
    "an empty path": (["inspect", ""], 2, "an argument is empty. Is a variable of the shell not set?"),
    "no such tensor": (["decode", "mixed.gguf", "blk.0.attn_x.weight", "-o", "x.npy"], 2, "Did you mean"),
    "no such type": (["decode", "mixed.gguf", "blk.0.ffn_map", "-o", "x.npy", "--dtype", "float31"], 2, "float31"),
    "bad rows": (["decode", "mixed.gguf", "blk.0.ffn_map", "-o", "x.npy", "--rows", "1-2"], 2, "A:B, A: or :B"),
    "bad size": (["convert", "mixed.gguf", "x.ninfer", "--max-file-bytes", "4 parsecs"], 2, "not a size"),
    "no suffix": (["convert", "mixed.gguf", "x"], 2, "expected .ninfer, .gguf or .onnx"),
    "no such format": (["formats", "q4_k"], 2, "Did you mean 'gguf_q4_k'"),
    "no such output directory": (["convert", "mixed.gguf", "no/x.ninfer"], 1, "no/x.ninfer"),
    "no such directory for npy": (["decode", "mixed.gguf", "blk.0.ffn_map", "-o", "no/x.npy"], 1, "no/x.npy"),
    "against nothing": (["verify", "mixed.gguf", "--against", "missing.gguf"], 1, "missing.gguf: no such file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_goes_wrong_is_one_line_and_a_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixed.gguf").write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "truncated.gguf").write_bytes(EXAMPLE.read_bytes()[:-5000])
    (tmp_path / "text").write_text("hello, world")
    (tmp_path / "empty").touch()
    (tmp_path / "part").write_bytes(b"NINPRT\0\3" + bytes(100))
    before = sorted(tmp_path.iterdir())
    arguments, code, fragment = WRONG[case]
    ran = run(*arguments)
    assert ran.code == code
    assert fragment in ran.err
    assert ran.out == ""
    assert ran.err.startswith("quantform: error: ")
    assert ran.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_version_says_whether_there_are_kernels(run: Run) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert "kernels" in ran.out or "NumPy path" in ran.out


def test_nothing_but_output_goes_to_a_pipe(tmp_path: Path) -> None:
    script = "from quantform.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "convert", EXAMPLE, tmp_path / "m.ninfer"], capture_output=True, check=True
    )
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_a_source_is_never_replaced(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(EXAMPLE.read_bytes())
    link = tmp_path / "link.ninfer"
    link.symlink_to(model)
    (tmp_path / "hard.ninfer").hardlink_to(model)
    for arguments in (
        ("decode", model, "blk.0.attn_q.weight", "-o", model),
        ("convert", model, link),
        ("convert", link, tmp_path / "hard.ninfer"),
    ):
        ran = run(*arguments, "--force")
        assert ran.code == 2
        assert "a file that is being read" in ran.err
        assert model.read_bytes() == EXAMPLE.read_bytes()


def test_rows_beyond_the_tensor_are_a_wrong_command_line(run: Run, tmp_path: Path) -> None:
    for rows in ("30:33", "9:3", "40:50", "9" * 5000 + ":"):
        ran = run("decode", EXAMPLE, "blk.0.attn_q.weight", "-o", tmp_path / "x.npy", "--rows", rows)
        assert ran.code == 2, rows
        assert "--rows" in ran.err
    assert not (tmp_path / "x.npy").exists()


def test_inspect_shows_what_is_there_when_a_part_is_missing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, path, max_file_bytes=20_000)
    (tmp_path / "m.ninfer.part-0001").unlink()
    ran = run("inspect", path)
    assert ran.code == 0
    assert f"missing: {path}.part-0001" in ran.out
    assert "blk.0.attn_q.weight" in ran.out
    sizes = [file["bytes"] for file in json.loads(run("inspect", path, "--json").out)["files"]]
    assert None in sizes


def test_metadata_that_cannot_be_read_is_no_obstacle(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "o.gguf"
    metadata = {"general.name": b"\xff\xfe", "flag": gb.Raw(7, b"\x05"), "long": "x" * (2 << 20)}
    path.write_bytes(gb.build([gb.tensor("a", (1,), gb.F32, bytes(4))], metadata))
    ran = run("inspect", path, "--metadata")
    assert ran.code == 0
    assert "not UTF-8" in ran.out
    assert f"<string of {2 << 20} bytes>" in ran.out
    assert len(ran.out) < 2000
    assert json.loads(run("inspect", path, "--json").out)["tensors"][0]["name"] == "a"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "o.gguf"
    path.write_bytes(gb.build([gb.tensor("вес", (1,), gb.F32, bytes(4))]))
    done = subprocess.run(
        [sys.executable, "-c", "from quantform.cli import main; main()", "inspect", path],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    shown = "вес" if encoding == "utf-8" else "\\u0432\\u0435\\u0441"
    assert shown in done.stdout.decode(encoding)
