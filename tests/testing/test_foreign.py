"""Programs as decoders: a small one in C, right and with one mistake at a time; and programs that misbehave."""

from __future__ import annotations

import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from quantform.errors import ArgumentError
from quantform.testing import ForeignDecoder, ForeignEncoder, Report, check_decoder, check_encoder, vectors
from quantform.testing.foreign import ForeignError, NotStartedError, RefusedError

SOURCE = Path(__file__).parent / "decoder.c"
FORMATS = ("gguf:q4_0", "gguf:q5_1", "gguf:q8_0", "gguf:q4_k", "gguf:mxfp4")
# All parts at once fail with any one of them.
TOGETHER = "packed.together"

# What the program's source says of each planted mistake, and the rules that must be named for it.
MISTAKES = {
    1: ("gguf:q4_0", {"packed.q4_0.q-order"}),
    2: ("gguf:q4_0", {"packed.zero-sign"}),
    3: ("gguf:q5_1", {"packed.q5_1.high-order"}),
    4: ("gguf:q5_1", {"output.float16.nearest", "output.float16.ties-to-even", "output.float16.overflow"}),
    5: ("gguf:q4_k", {"packed.q4_k.scales", "packed.q4_k.scales-order"}),
    6: ("gguf:mxfp4", {"packed.mxfp4.exponent"}),
    7: ("gguf:q8_0", {"packed.q8_0.q", "packed.q8_0.q-order", "packed.zero-sign"}),
    8: ("gguf:q5_1", {"output.float16.ties-to-even"}),
    9: ("gguf:q4_k", {"packed.q4_k.minima", "packed.q4_k.minima-order"}),
    10: ("gguf:q8_0", {"output.float16.overflow"}),
}


def compiled(directory: Path, mistake: int) -> str:
    """The command of the C decoder with one mistake, or none (0)."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    program = directory / f"decoder{mistake}"
    options = ["-std=c11", "-O1", "-ffp-contract=off", f"-DMISTAKE={mistake}"]
    subprocess.run([compiler, *options, "-o", str(program), str(SOURCE)], check=True)
    return f"{shlex.quote(str(program))} {{format}} {{payload}} {{shape}} {{output}} {{dtype}}"


def broken_rules(report: Report) -> set[str]:
    return {result.rule for result in report.failures} - {TOGETHER}


def test_a_right_program_keeps_every_rule(tmp_path: Path) -> None:
    with ForeignDecoder(compiled(tmp_path, 0)) as decoder:
        report = check_decoder(decoder, [*FORMATS, "gguf:q2_0"], ["float32", "float16", "bfloat16"])
    assert report.ok, str(report)
    missing = {result.subject for result in report.results if result.status == "not implemented"}
    assert missing == {"gguf:q2_0"}
    assert all(result.missing for result in report.results if not result.rule.startswith("output."))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found_where_it_is(mistake: int, tmp_path: Path) -> None:
    format, rules = MISTAKES[mistake]
    with ForeignDecoder(compiled(tmp_path, mistake)) as decoder:
        report = check_decoder(decoder, format, ["float32", "float16"])
    assert broken_rules(report) == rules
    for result in report.failures:
        assert result.first is not None
        assert result.first.where.startswith("element [")
        assert "(0x" in result.first.expected
        assert result.first.expected != result.first.found


# --- programs that misbehave ----------------------------------------------------------------------------------------

ZERO = np.zeros(18, np.uint8)


def python(program: str, *placeholders: str) -> str:
    return shlex.join([sys.executable, "-c", program, *(placeholders or ("{payload}", "{output}"))])


def failure(template: str, timeout: float = 60.0) -> str:
    with ForeignDecoder(template, timeout) as decoder, pytest.raises(ForeignError) as caught:
        decoder(ZERO, "gguf:q4_0", (32,), "float32")
    return str(caught.value)


def test_its_standard_error_is_shown_and_bounded() -> None:
    text = failure(python("import sys; sys.stderr.write('no such luck ' + 'x' * 10_000_000); sys.exit(3)"))
    assert "exit code 3" in text
    assert "no such luck" in text
    assert len(text) < 3000


@pytest.mark.parametrize(
    ("program", "fragment"),
    [
        ("import os; os.abort()", "was killed; found SIGABRT"),
        ("pass", "wrote no output file"),
        ("import sys; open(sys.argv[2], 'wb').write(bytes(127))", "wrong length; expected 128 bytes, found 127"),
        ("import os, sys; os.mkfifo(sys.argv[2])", "no ordinary file"),
        ("import os, sys; os.mkdir(sys.argv[2])", "no ordinary file"),
        ("import os, shutil, sys; shutil.rmtree(os.path.dirname(sys.argv[2]))", "removed the directory of its files"),
        ("import os, sys; os.symlink('/dev/zero', sys.argv[2])", "no ordinary file"),
        ("import sys; open(sys.argv[2], 'wb').truncate(1 << 40)", "wrote too much"),
    ],
)
def test_what_a_program_may_not_do(program: str, fragment: str) -> None:
    assert fragment in failure(python(program))


def test_a_program_that_hangs_or_fills_the_disk_is_ended() -> None:
    begun = time.monotonic()
    assert "took too long; expected 0.3 s" in failure(python("import time; time.sleep(600)"), 0.3)
    endless = "import sys\nwith open(sys.argv[2], 'wb') as f:\n    while True: f.write(bytes(1 << 16)), f.flush()"
    assert "wrote too much" in failure(python(endless))
    assert time.monotonic() - begun < 300  # it ended at all


def test_what_it_has_started_is_ended_with_it(tmp_path: Path) -> None:
    child = "import time; time.sleep(2); open(r'%s', 'w')" % (tmp_path / "alive")
    failure(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"), 0.5)
    time.sleep(2.5)
    assert not (tmp_path / "alive").exists()


def pipe(directory: Path) -> tuple[Path, int]:
    """A named pipe and its end to read from: it is at its end once every process that writes to it is gone."""
    os.mkfifo(directory / "pipe")
    return directory / "pipe", os.open(directory / "pipe", os.O_RDONLY | os.O_NONBLOCK)


def gone(reading: int) -> bool:
    """Whether all writers of a pipe are gone, or go soon."""
    with open(reading, "rb", buffering=0) as stream:
        return bool(select.select([stream], [], [], 60)[0]) and stream.read() == b""


@pytest.mark.parametrize("last", ["", "; exit 3", "; kill -9 $$"])
def test_what_it_leaves_is_ended_after_it_too(tmp_path: Path, last: str) -> None:
    path, reading = pipe(tmp_path)
    script = f'exec 9>"$3"; sleep 600 & head -c 128 /dev/zero >"$2"{last}'
    command = shlex.join(["sh", "-c", script, "sh", "{payload}", "{output}", str(path)])
    with ForeignDecoder(command) as decoder:
        if last:
            with pytest.raises(ForeignError):
                decoder(ZERO, "gguf:q4_0", (32,), "float32")
        else:
            assert not decoder(ZERO, "gguf:q4_0", (32,), "float32").any()
    assert gone(reading)


def test_an_interrupt_ends_what_it_has_started(tmp_path: Path) -> None:
    path, reading = pipe(tmp_path)
    script = 'exec 9>"$3"; echo begun >&9; sleep 600 & wait'
    command = shlex.join(["sh", "-c", script, "sh", "{payload}", "{output}", str(path)])
    ours = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from quantform.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", ours, "conform", "--run", command, "--formats", "gguf:q4_0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert select.select([reading], [], [], 60)[0]
    assert os.read(reading, 6) == b"begun\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() not in {0, 2}
    assert gone(reading)


def test_no_shell_sees_the_command(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    program = "import sys; print(sys.argv[3:], file=sys.stderr); sys.exit(1)"
    text = failure(python(program, "{payload}", "{output}", f"; touch {trap}", "$(id)", "{format}-{shape}"))
    assert f"['; touch {trap}', '$(id)', 'gguf:q4_0-32']" in text
    assert not trap.exists()


@pytest.mark.parametrize(
    ("template", "fragment"),
    [
        ("decode {payload}", "the command lacks {output}"),
        ("decode {output}", "the command lacks {payload}"),
        ("decode {payload} {output} {colour}", "unknown placeholder"),
        ("decode '{payload} {output}", "cannot be split"),
    ],
)
def test_commands_that_cannot_be(template: str, fragment: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        ForeignDecoder(template)
    assert fragment in str(caught.value)
    for seconds in (0, -1, math.nan, math.inf, -math.inf):
        with pytest.raises(ArgumentError, match="time limit"):
            ForeignDecoder("decode {payload} {output}", seconds)


def test_programs_that_cannot_be_started_stop_the_check(tmp_path: Path) -> None:
    files = {"torn": b"#!/nonexistent/python3 -I\n", "text": b"decode", "plain": b"#!/bin/sh\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644 if name == "plain" else 0o755)
    for program, fragment in (
        ("/nonexistent/decoder", "begins with the program"),
        (tmp_path / "torn", "not the interpreter that its first line names: '/nonexistent/python3 -I'"),
        (tmp_path / "text", "names no interpreter"),
        (tmp_path / "plain", "make it executable"),
        (tmp_path, "make it executable"),
    ):
        for kind, template, check in (
            (ForeignDecoder, "{payload} {output}", check_decoder),
            (ForeignEncoder, "{values} {output}", check_encoder),
        ):
            with kind(f"{shlex.quote(str(program))} {template}") as foreign, pytest.raises(NotStartedError) as caught:
                check(foreign, "bf16")
            assert str(caught.value).startswith(f"{program}: the program cannot be started; found ")
            assert fragment in str(caught.value)


def test_a_program_beside_us_is_not_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decode-it").touch(0o755)
    with ForeignDecoder("decode-it {payload} {output}") as decoder, pytest.raises(NotStartedError) as caught:
        check_decoder(decoder, "bf16")
    assert caught.value.hint == "Say where it is: ./decode-it"


# What a program may leave where its files were; the next run has a place of its own.
DAMAGE = {
    "directory": "os.mkdir(sys.argv[2])",
    "tree": "os.makedirs(sys.argv[2] + '/a/b'); os.chmod(sys.argv[2], 0)",
    "gone": "shutil.rmtree(here)",
    "all gone": "shutil.rmtree(os.path.dirname(here))",
    "locked": "os.chmod(os.path.dirname(here), 0)",
    "a file": "shutil.rmtree(here); open(here, 'wb').close()",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_one_vector_pays_for_what_a_program_does_to_its_directory(damage: str, tmp_path: Path) -> None:
    mark = tmp_path / "done"
    program = (
        "import os, shutil, sys; here = os.path.dirname(sys.argv[2])\n"
        f"if not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w').close(); {damage}\n"
        "else: open(sys.argv[2], 'wb').write(bytes(128))"
    )
    with ForeignDecoder(python(program)) as decoder:
        with pytest.raises(ForeignError, match=r"no ordinary file|removed the directory|no output file"):
            decoder(ZERO, "gguf:q4_0", (32,), "float32")
        for _ in range(2):
            assert not decoder(ZERO, "gguf:q4_0", (32,), "float32").any()


def test_its_files_are_removed(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[2], 'wb').write(bytes(128)); open(sys.argv[3], 'a').write(sys.argv[1] + '\\n')"
    with ForeignDecoder(python(program, "{payload}", "{output}", str(tmp_path / "places"))) as decoder:
        for _ in range(2):
            assert not decoder(ZERO, "gguf:q4_0", (32,), "float32").any()
        places = [Path(line).parent for line in (tmp_path / "places").read_text().splitlines()]
        assert len(set(places)) == 2
        assert places[0].parent.exists()
        assert not any(place.exists() for place in places)
    assert not places[0].parent.exists()


def test_placeholders_of_every_kind_of_vector() -> None:
    program = (
        "import sys, pathlib; format, shape, dtype, layout, divisors, output = sys.argv[1:]; "
        "print(format, shape, dtype, layout, divisors, file=sys.stderr); sys.exit(1)"
    )
    names = ("{format}", "{shape}", "{dtype}", "{layout}", "{divisors}", "{output}", "{payload}")
    template = python(program.replace("output =", "output, _ ="), *names)
    seen = set()
    with ForeignDecoder(template) as decoder:
        for vector in [*vectors("bf16"), *vectors("nvfp4")]:
            more = {"divisors": vector.divisors}
            with pytest.raises(RefusedError) as caught:
                decoder(vector.payload, vector.format, vector.shape, "bfloat16", **more)
            seen.add(str(caught.value).partition("standard error: ")[2])
    assert "bf16  bfloat16 contiguous_le_v1 1" in seen
    assert "nvfp4 256,64 bfloat16 block_scale_k16_m128x4_v1 2" in seen


# --- encoders -------------------------------------------------------------------------------------------------------

CAST = """
import struct, sys
format, method, values, shape, output = sys.argv[1:]
if method != "cast_direct" or format != "bf16":
    sys.exit(77)
data = open(values, "rb").read()
words = []
for (word,) in struct.iter_unpack("<I", data):
    if word & 0x7F800000 == 0x7F800000:
        sys.exit("not finite")
    word = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    if word & 0x7F80 == 0x7F80:
        sys.exit("too large")
    words.append(word)
open(output, "wb").write(struct.pack(f"<{len(words)}H", *words))
"""


def test_an_encoder_as_a_program() -> None:
    names = ("{format}", "{method}", "{values}", "{shape}", "{output}")
    with ForeignEncoder(python(CAST, *names)) as encoder:
        report = check_encoder(encoder, ["bf16", "fp32"])
    assert report.ok, str(report)
    status = {(result.subject, result.rule.rpartition(".")[2]): result.status for result in report.results}
    assert status["cast_direct bf16", "nearest"] == "pass"
    assert status["cast_direct bf16", "refused-range"] == "pass"
    assert status["cast_direct bf16", "same-bits"] == "not implemented"  # the command has no {source}
    assert status["cast_direct fp32", "nearest"] == "not implemented"


def test_an_encoder_with_a_mistake() -> None:
    names = ("{format}", "{method}", "{values}", "{shape}", "{output}")
    truncating = CAST.replace("(word + 0x7FFF + (word >> 16 & 1))", "word").replace('sys.exit("too large")', "pass")
    with ForeignEncoder(python(truncating, *names)) as encoder:
        report = check_encoder(encoder, "bf16")
    first = {result.rule: result.first for result in report.failures}
    assert set(first) == {"encode.cast_direct.nearest", "encode.cast_direct.refused-range"}
    nearest = first["encode.cast_direct.nearest"]
    assert nearest is not None
    assert (nearest.where, nearest.expected, nearest.found) == ("words[0, 1]", "16258 (0x3F82)", "16257 (0x3F81)")
