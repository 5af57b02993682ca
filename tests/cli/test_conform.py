"""`quantform conform`: tables, JSON, exit codes, exports."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from quantform.cli import main
from quantform.testing import encoder_vectors, vectors

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
    assert ["gguf:q4_0", "9", "-", "-", "-"] in rows
    assert ["gguf:q4_1", "-", "-", "-", "12"] in rows
    assert ["gguf:q8_0", "9", "-", "-", "-"] in rows


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
    assert {result["first"]["failure"] for result in broken} == {"wrong values"}
    assert document["subjects"] == [
        {"kind": "decode", "subject": "gguf:q4_0", "pass": 7, "fail": 2, "failed_to_run": 0, "not_implemented": 0}
    ]
    assert {result["kind"] for result in document["results"]} == {"decode"}


def test_a_program_that_cannot_be_started_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, words in (("--run", "{payload} {output}"), ("--encode", "{values} {output}")):
        code, out, err = run(monkeypatch, capsys, option, f"{tmp_path}/none {words}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{tmp_path}/none: the program cannot be started; found No such file or directory. " in err


def test_failures_alike_are_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.exit('no luck' if 'q4_0' in sys.argv[1] else None)"
    command = shlex.join([sys.executable, "-c", program, "{format}", "{payload}", "{output}"])
    code, out, _ = run(monkeypatch, capsys, "--run", command, "--formats", "gguf:q[45]_0")
    assert code == 1
    assert out.splitlines()[:5] == [
        "failed to run: the program failed; found exit code 1",
        "  rules     gguf:q4_0: packed.q4_0.d, gguf:q4_0: packed.q4_0.q, gguf:q4_0: packed.q4_0.q-order, and 6 more",
        "  first     gguf:q4_0/d as float32",
        "  It wrote to standard error: no luck",
        "",
    ]
    assert out.splitlines()[5] == "failed to run: the program wrote no output file"
    assert ["gguf:q4_0", "-", "-", "9", "-"] in [line.split() for line in out.splitlines()]
    code, out, _ = run(monkeypatch, capsys, "--run", command, "--formats", "gguf:q4_0", "--json")
    results = json.loads(out)["results"]
    assert {result["status"] for result in results} == {result["first"]["failure"] for result in results}
    assert {result["first"]["failure"] for result in results} == {"failed to run"}
    assert all(result["failed"] == result["failed_to_run"] > 0 for result in results)
    assert results[0]["first"]["found"] == "exit code 1"
    assert results[0]["first"]["detail"] == "It wrote to standard error: no luck"


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
    assert status["encode.cast_direct.nearest"] == "failed to run"


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "kit")
    code, out, _ = run(monkeypatch, capsys, "--export", target, "--formats", "q8_g32_fp16")
    count = sum(1 for made in (vectors, encoder_vectors) for _ in made("q8_g32_fp16"))
    assert (code, out) == (0, f"{target}: {count} vectors\n")
    code, _, err = run(monkeypatch, capsys, "--export", target)
    assert code == 2
    assert "is not empty" in err
    code, out, _ = run(monkeypatch, capsys, "--export", str(tmp_path / "other"), "--formats", "bf16", "--json")
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    exported = {"directory": str(tmp_path / "other"), "vectors": len(manifest["vectors"])}
    assert json.loads(out) == {"ok": True, "exported": exported, "subjects": [], "results": []}


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ((), "there is nothing to do"),
        (("--run", "x {payload}"), "lacks {output}"),
        (("--run", "x {payload} {output} {y}"), "unknown placeholder"),
        (("--run", COMMAND, "--formats", "q9"), "called 'q9'"),
        (("--run", COMMAND, "--dtype", "float32", "--dtype", "float16"), "lacks {dtype}"),
        (("--run", COMMAND, "--dtype", "int8"), "not an output type"),
        (("--run", COMMAND, "--timeout", "-1"), "no number of seconds"),
        (("--run", COMMAND, "--timeout", "0"), "no number of seconds"),
        (("--run", COMMAND, "--timeout", "nan"), "no number of seconds"),
        (("--export", "{}", "--timeout", "inf"), "no number of seconds"),
        (("--export", "{}", "--dtype", "float32"), "Add --run"),
        (("--export", "{}", "--run", "x {payload}"), "lacks {output}"),
        (("--export", "{}", "--run", COMMAND, "--dtype", "int8"), "not an output type"),
    ],
)
def test_command_lines_that_are_wrong(
    words: tuple[str, ...],
    fragment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is written then."""
    code, out, err = run(monkeypatch, capsys, *(str(tmp_path / "kit") if word == "{}" else word for word in words))
    assert (code, out) == (2, "")
    assert not list(tmp_path.iterdir())
    assert err.startswith("quantform: error: ")
    assert fragment in err
