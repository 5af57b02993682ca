"""`quantform conform`: tables, JSON, exit codes, exports."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from quantform.cli import main

DECODER = Path(__file__).parents[2] / "examples" / "decoder.py"
COMMAND = shlex.join([sys.executable, str(DECODER), "{format}", "{payload}", "{shape}", "{output}"])


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["quantform", "conform", *words])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_a_right_decoder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(monkeypatch, capsys, "--run", COMMAND, "--formats", "gguf:q[48]_[01]")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["gguf:q4_0", "8", "-", "-"] in rows
    assert ["gguf:q4_1", "-", "-", "10"] in rows
    assert ["gguf:q8_0", "8", "-", "-"] in rows


def test_a_decoder_with_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--run", f"{COMMAND} --mistake", "--formats", "gguf:q4_0")
    assert code == 1
    assert "gguf:q4_0: packed.q4_0.q-order\n" in out
    assert "  where     element [0, 1]: row 0, block 0, value 1 of it\n" in out
    code, out, _ = run(monkeypatch, capsys, "--run", f"{COMMAND} --mistake", "--formats", "gguf:q4_0", "--json")
    assert code == 1
    document = json.loads(out)
    assert not document["ok"]
    broken = [result for result in document["results"] if result["status"] == "fail"]
    assert [result["rule"] for result in broken] == ["packed.q4_0.q-order", "packed.together"]
    assert broken[0]["first"]["expected"] == "-4.0 (0xC0800000)"


def test_nothing_checked_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--run", COMMAND, "--formats", "bf16")
    assert code == 1
    assert "nothing was checked" in out


def test_an_encoder_that_always_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refuse = shlex.join([sys.executable, "-c", "import sys; sys.exit('no')", "{values}", "{output}"])
    code, out, _ = run(monkeypatch, capsys, "--encode", refuse, "--formats", "bf16", "--json")
    assert code == 1
    status = {result["rule"]: result["status"] for result in json.loads(out)["results"]}
    assert status["encode.cast_direct.refused-range"] == "pass"
    assert status["encode.cast_direct.nearest"] == "fail"


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "kit")
    code, out, _ = run(monkeypatch, capsys, "--export", target, "--formats", "q8_g32_fp16")
    assert (code, out) == (0, f"{target}: 27 vectors\n")
    code, _, err = run(monkeypatch, capsys, "--export", target)
    assert code == 2
    assert "is not empty" in err
    code, out, _ = run(monkeypatch, capsys, "--export", str(tmp_path / "other"), "--formats", "bf16", "--json")
    assert json.loads(out) == {"ok": True, "exported": str(tmp_path / "other"), "results": []}


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ((), "there is nothing to do"),
        (("--run", "x {payload}"), "lacks {output}"),
        (("--run", "x {payload} {output} {y}"), "unknown placeholder"),
        (("--run", COMMAND, "--formats", "q9"), "called 'q9'"),
        (("--run", COMMAND, "--dtype", "float32", "--dtype", "float16"), "lacks {dtype}"),
        (("--run", COMMAND, "--dtype", "int8"), "not an output type"),
        (("--run", COMMAND, "--timeout", "-1"), "not positive"),
    ],
)
def test_command_lines_that_are_wrong(
    words: tuple[str, ...], fragment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("quantform: error: ")
    assert fragment in err
