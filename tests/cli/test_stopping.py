"""Signals and channels of the command: one line, no traceback, nothing left, an exit status that shells understand."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quantform as qf
from quantform._interrupts import STOPPING, held
from quantform._publish import NewFiles
from quantform.errors import OutputExistsError

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
COMMAND = "from quantform_command import main; main()"
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
SIGNALS = pytest.mark.parametrize("number", WORDS, ids=lambda one: one.name)

# A signal in the midst of a function that is named by module and attribute, before what it does or after it.
AT = """
import importlib, os, sys
module, name, number, after = sys.argv[1:5]
del sys.argv[1:5]
import quantform
owner = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    owner = getattr(owner, part)
plain = getattr(owner, last)
def signalled(*arguments, **named):
    setattr(owner, last, plain)
    if after == "before":
        os.kill(os.getpid(), int(number))
    result = plain(*arguments, **named)
    if after == "after":
        os.kill(os.getpid(), int(number))
    return result
setattr(owner, last, signalled)
from quantform_command import main
main()
"""


def ran(script: str, *words: object, **named: object) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, check=False, env=env, **named
    )


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "after", "complete"),
    [
        ("quantform._publish _pwrite", "before", False),
        ("quantform._publish _pwrite", "after", False),
        ("quantform._publish NewFiles._create", "after", False),
        ("quantform._publish _link_open", "after", False),  # the trial, and so before anything
        ("quantform._publish NewFiles._name", "before", True),
        ("quantform._publish NewFiles._name", "after", True),
        ("quantform._publish remove", "before", False),
        ("quantform.cli.convert print_report", "before", True),
        ("quantform.cli finish", "before", True),
        ("quantform.cli finish", "after", True),
        ("quantform_command _flushed", "before", True),
    ],
)
def test_an_interrupt_while_writing(tmp_path: Path, place: str, after: str, complete: bool) -> None:
    module, name = place.split()
    output = tmp_path / "m.ninfer"
    done = ran(AT, module, name, int(signal.SIGINT), after, "convert", EXAMPLE, output)
    what = f"{output} is complete" if complete else "nothing was written"
    assert done.stderr.decode() == f"quantform: interrupted; {what}\n"
    assert done.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == ([output] if complete else [])
    if complete:
        assert qf.verify(output, against=EXAMPLE).ok


@SIGNALS
def test_every_signal_undoes_what_was_begun(tmp_path: Path, number: signal.Signals) -> None:
    words = ("convert", EXAMPLE, tmp_path / "m.ninfer")
    done = ran(AT, "quantform._publish", "_pwrite", int(number), "before", *words)
    assert (done.returncode, done.stdout) == (-number, b"")
    assert done.stderr.decode() == f"quantform: {WORDS[number]}; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["_create", "_name", "_begin_journal", "_publish", "_end_journal"])
@pytest.mark.parametrize("after", ["before", "after"])
def test_a_signal_while_an_artifact_in_parts_is_replaced(tmp_path: Path, step: str, after: str) -> None:
    output = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, output, max_file_bytes=20_000)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words = ("convert", EXAMPLE, output, "--force", "--max-file-bytes", "30000")
    named = AT.replace("owner = ", "quantform._publish._has_unnamed = lambda _: False\nowner = ", 1)
    done = ran(named, "quantform._publish", f"NewFiles.{step}", int(signal.SIGINT), after, *words)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.startswith(b"quantform: interrupted; ")
    now = {path: path.read_bytes() for path in tmp_path.iterdir()}
    if done.stderr.endswith(b"nothing was written\n"):
        assert now == before
    else:
        assert b" are complete\n" in done.stderr
        assert not [path for path in now if path.name.startswith(".")]
        assert len(now) < len(before)
        assert qf.verify(output, against=EXAMPLE).ok


@SIGNALS
def test_a_signal_while_modules_are_imported(number: signal.Signals) -> None:
    script = f"""
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
from quantform_command import main
main()
"""
    done = ran(script, "inspect", EXAMPLE)
    assert (done.returncode, done.stdout) == (-number, b"")
    assert done.stderr.decode() == f"quantform: {WORDS[number]}; nothing was written\n"


@pytest.mark.parametrize("module", ["onnx", "onnx.helper"])
def test_a_signal_while_a_command_imports_its_extra(tmp_path: Path, module: str) -> None:
    script = f"""
import importlib.abc, os, signal, sys
import quantform
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from quantform_command import main
main()
"""
    done = ran(script, "convert", EXAMPLE, tmp_path / "m.onnx")
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b"quantform: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


SWALLOWED = {
    "in a destructor": """
class Doomed:
    def __del__(self):
        os.kill(os.getpid(), 2)
def call(*_):
    Doomed()
    time.sleep(5)
""",
    "as another exception": """
def call(*_):
    try:
        os.kill(os.getpid(), 2)
    except BaseException:
        raise RuntimeError("another") from None
""",
    "as an error of ours": """
def call(*_):
    try:
        os.kill(os.getpid(), 2)
    except BaseException:
        raise quantform.errors.FileError("another") from None
""",
}


@pytest.mark.parametrize("how", SWALLOWED)
def test_a_signal_that_is_swallowed_is_answered_all_the_same(how: str) -> None:
    script = f"import os, time\nimport quantform, quantform.cli.inspect as inspect\n{SWALLOWED[how]}"
    done = ran(f"{script}inspect.open_source = call\n{COMMAND}", "inspect", EXAMPLE)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")
    assert done.stderr == b"quantform: interrupted; nothing was written\n"


def test_signals_that_were_ignored_stay_ignored(tmp_path: Path) -> None:
    """As under nohup, and in a script's background."""
    words = ("quantform._publish", "_pwrite", int(signal.SIGHUP), "before", "convert", EXAMPLE, tmp_path / "m.ninfer")
    done = ran(AT, *words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_second_signal_does_not_cut_short_what_the_first_one_undoes(tmp_path: Path) -> None:
    script = AT.replace("result = plain", "os.kill(os.getpid(), int(number))\n    result = plain", 1)
    script = f"""
import os, signal
from quantform._publish import NewFiles
undo = NewFiles.abort
def abort(self):
    os.kill(os.getpid(), signal.SIGTERM)
    undo(self)
NewFiles.abort = abort
{script}"""
    words = ("convert", EXAMPLE, tmp_path / "m.ninfer")
    done = ran(script, "quantform._publish", "_pwrite", int(signal.SIGINT), "before", *words)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b"quantform: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_signals_at_many_moments(tmp_path: Path) -> None:
    """Whenever it arrives: the work is undone or done, and no traceback is seen."""
    began = time.monotonic()
    assert ran(COMMAND, "convert", EXAMPLE, tmp_path / "m.ninfer").returncode == 0
    takes = time.monotonic() - began
    for moment in range(12):
        directory = tmp_path / str(moment)
        directory.mkdir()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A pipe tells when Python has come to the command; before, it answers for itself.
        script = f"import os, quantform_command as c; c.end_at_once('early'); os.write(1, b'.'); {COMMAND}"
        with subprocess.Popen(
            [sys.executable, "-c", script, "convert", str(EXAMPLE), str(directory / "m.ninfer")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1) == b"."
            time.sleep(takes * moment / 12)
            process.send_signal(signal.SIGINT)
            said = process.stderr.read().decode()
        left = [path.name for path in directory.iterdir()]
        if not said:  # the work was done, and at most Python's own end was cut short
            assert left == ["m.ninfer"]
            assert process.returncode in {0, -signal.SIGINT}
        else:
            assert process.returncode == -signal.SIGINT
            assert said in {
                "quantform: interrupted; nothing was written\n",
                "quantform: interrupted; early\n",
                f"quantform: interrupted; {directory / 'm.ninfer'} is complete\n",
            }
            assert left == (["m.ninfer"] if "complete" in said else [])


def test_the_line_stands_alone_on_a_terminal(tmp_path: Path) -> None:
    """A progress bar is cleared away, and the cursor that it hides is back."""
    script = AT.replace("result = plain", "import time; time.sleep(0.3)\n    result = plain", 1)
    words = ("quantform._publish", "_pwrite", int(signal.SIGINT), "after", "convert", EXAMPLE, tmp_path / "m.ninfer")
    parent, child = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words)],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as process:
            os.close(child)
            seen = b""
            while True:
                try:
                    piece = os.read(parent, 4096)
                except OSError:  # how Linux says that nobody has the other end any more
                    break
                if not piece:
                    break
                seen += piece
    finally:
        os.close(parent)
    assert process.returncode == -signal.SIGINT
    assert b"converting" in seen
    assert b"Traceback" not in seen
    assert seen.endswith(b"\r\x1b[K\x1b[?25hquantform: interrupted; nothing was written\r\n")


# --- the library ----------------------------------------------------------------------------------------------------


@contextmanager
def handlers(found: list[int]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda one, _: found.append(one)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_wait_and_are_called_once() -> None:
    found: list[int] = []
    with handlers(found):
        with held():
            signal.raise_signal(signal.SIGINT)
            with held():
                signal.raise_signal(signal.SIGTERM)
            assert found == []
        assert sorted(found) == sorted([signal.SIGINT, signal.SIGTERM])


def test_other_threads_hold_nothing() -> None:
    problems: list[BaseException] = []

    def call() -> None:
        try:
            with held():
                pass
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert problems == []


def test_an_interrupt_while_files_are_created_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses the library gets Python's own exception."""
    plain = os.ftruncate

    def interrupted(fd: int, size: int) -> None:
        signal.raise_signal(signal.SIGINT)
        plain(fd, size)

    monkeypatch.setattr("quantform._publish._has_unnamed", lambda _: False)
    monkeypatch.setattr(os, "ftruncate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        NewFiles([tmp_path / "a", tmp_path / "b"]).create([1, 1])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_names_are_given_leaves_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = NewFiles([tmp_path / "a", tmp_path / "b"])
    files.create([1, 1])
    plain = os.link

    def interrupted(*arguments: object, **named: object) -> None:
        signal.raise_signal(signal.SIGINT)
        plain(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.publish()
    assert files.published
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    with pytest.raises(OutputExistsError):
        NewFiles([tmp_path / "a"])


# --- channels -------------------------------------------------------------------------------------------------------


def shell(line: str, *words: object) -> subprocess.CompletedProcess[bytes]:
    """A line of sh; `q` is the command."""
    script = f'q() {{ "{sys.executable}" -c "{COMMAND}" "$@"; }}; {line}'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        ["sh", "-c", script, "sh", *map(str, words)],  # noqa: S607
        capture_output=True,
        check=False,
        env=env,
    )


@pytest.mark.parametrize("words", ["inspect $1", "verify $1 --deep", "compare $1 $1 --json", "convert $1 $2"])
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, words: str) -> None:
    done = shell(f"{{ q {words}; echo $? >&3; }} 3>&2 | true", EXAMPLE, tmp_path / "m.ninfer")
    assert done.stderr == b"141\n"


@pytest.mark.parametrize("words", ["formats", "inspect $1 --json", "convert $1 $2"])
def test_a_full_disk_under_standard_output_is_an_error(tmp_path: Path, words: str) -> None:
    done = shell(f"q {words} >/dev/full", EXAMPLE, tmp_path / "m.ninfer")
    said = "quantform: error: standard output: cannot be written; found No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (1, said)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_channels_do_not_stop_the_work(tmp_path: Path, closed: str) -> None:
    done = shell(f"q convert $1 $2 {closed}", EXAMPLE, tmp_path / "m.ninfer")
    assert done.returncode == 0
    assert qf.verify(tmp_path / "m.ninfer", against=EXAMPLE).ok


@pytest.mark.parametrize("channel", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("option", ["", "--json"])
def test_an_error_that_cannot_be_told_is_still_a_status(channel: str, option: str) -> None:
    assert shell(f"q inspect missing.gguf {option} {channel}").returncode == 1


def test_a_closed_channel_is_no_number_for_outputs(tmp_path: Path) -> None:
    """Or what is written to standard error would go into the file that has its number."""
    script = "import os\nfrom quantform_command import _occupy_closed_channels as occupy\noccupy()\n"
    script += "fd = os.open('x', os.O_CREAT | os.O_RDWR)\nopen('y', 'w').write(str(fd))\n"
    subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{script}" <&- >&- 2>&-'],  # noqa: S607
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=tmp_path,
        check=True,
    )
    assert int((tmp_path / "y").read_text()) > 2
