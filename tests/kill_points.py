"""Kills `quantform` commands at every step of writing, in forks of one process, and says what each left behind.

    python tests/kill_points.py WORKING_DIRECTORY

Prints one JSON document: for each scenario, for each step, what was wrong afterwards (nothing, it is hoped).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gguf_builder as gb
import quantform as qf
from faulty_os import faulty, kill
from quantform import _publish
from quantform._journal import Journal
from quantform.cli import main
from quantform.errors import QuantformError

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixed.gguf"


@dataclass(frozen=True)
class Scenario:
    """A command that writes; its name is part of its directory's.

    Attributes:
        command: Its arguments, with `{}` for the directory and `{top}` for the one with what is only read.
        output: The file that is published last.
        before: A command that has written the same output before; None is none.
        named: Whether files need hidden names, as on file systems without unnamed ones.
        leaves_nothing: Whether not even hidden files are left.
    """

    command: tuple[str, ...]
    output: str
    before: tuple[str, ...] | None = None
    named: bool = False
    leaves_nothing: bool = False


SPLIT = ("--max-file-bytes", "24576")
CONVERT = ("convert", str(EXAMPLE), "{}/m.ninfer")
IMATRIX = ("imatrix", "{top}/a.gguf", "-o", "{}/i.safetensors")
COMPARE = ("compare", "{top}/a.gguf", "{top}/b.gguf", "--html", "{}/r.html")
SCENARIOS = {
    "new": Scenario(CONVERT, "m.ninfer", leaves_nothing=True),
    "new, hidden names": Scenario(CONVERT, "m.ninfer", named=True),
    "parts": Scenario((*CONVERT, *SPLIT), "m.ninfer"),
    "parts, hidden names": Scenario((*CONVERT, *SPLIT), "m.ninfer", named=True),
    "replaced": Scenario((*CONVERT, *SPLIT, "--force"), "m.ninfer", before=(*CONVERT, "--max-file-bytes", "20480")),
    "replaced, hidden names": Scenario(
        (*CONVERT, *SPLIT, "--force"), "m.ninfer", before=(*CONVERT, "--max-file-bytes", "20480"), named=True
    ),
    "npy, replaced": Scenario(
        ("decode", str(EXAMPLE), "{tensor}", "-o", "{}/x.npy", "--force"),
        "x.npy",
        before=("decode", str(EXAMPLE), "{tensor}", "-o", "{}/x.npy", "--rows", "0:1"),
    ),
    "imatrix": Scenario(IMATRIX, "i.safetensors", leaves_nothing=True),
    "imatrix, hidden names": Scenario(IMATRIX, "i.safetensors", named=True),
    "imatrix, replaced": Scenario(
        (*IMATRIX, "--force"), "i.safetensors", before=("imatrix", "{top}/b.gguf", "-o", "{}/i.safetensors")
    ),
    "report": Scenario(COMPARE, "r.html", leaves_nothing=True),
    "report, hidden names": Scenario(COMPARE, "r.html", named=True),
    "report, replaced": Scenario(
        (*COMPARE, "--force"), "r.html", before=("compare", "{top}/a.gguf", "{top}/a.gguf", "--html", "{}/r.html")
    ),
}


def command(words: tuple[str, ...], directory: Path) -> list[str]:
    """The arguments of `quantform`."""
    with qf.open(EXAMPLE) as source:
        tensor = max(source.values(), key=lambda one: one.nbytes).name
    top = directory.parents[1]
    return [word.replace("{tensor}", tensor).replace("{top}", str(top)).replace("{}", str(directory)) for word in words]


def run(words: list[str]) -> int:
    """Run a command in this process and give its exit code."""
    sys.argv = ["quantform", *words]
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    return 0


def forked(call: Callable[[], int]) -> int:
    """Run a call in a fork of this process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        code = 70
        try:
            for channel in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), channel)
            code = call()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tree(directory: Path) -> dict[str, bytes]:
    """What is in a directory, hidden files included."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def same_file(source: str, target: str) -> None:
    """A second name of a file, so that it stays the file that it is; journals are changed in place, and copied."""
    if source.endswith(".journal"):
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def sound(path: Path) -> bool:
    """Whether the output is whole: an artifact verifies, a page has its end, another file is one that opens."""
    if path.suffix == ".npy":
        return path.stat().st_size > 0
    if path.suffix == ".html":
        return path.read_bytes().endswith(b"</html>\n")
    try:
        return qf.verify(path, deep=path.suffix == ".ninfer").ok
    except QuantformError:
        return False


def steps_of(words: list[str], note: Path) -> list[int]:
    """The steps to be killed at: all but writes, of which the first, one in the middle and the last will do."""

    def call() -> int:
        with faulty(-1, kill) as steps:
            code = run(words)
        note.write_text(" ".join(steps.taken))
        return code

    assert forked(call) == 0, words
    taken = note.read_text().split()
    note.unlink()
    writes = [index for index, step in enumerate(taken) if step == "pwrite"]
    return [
        i
        for i, step in enumerate(taken)
        if step != "pwrite" or i in {*writes[:1], writes[len(writes) // 2], *writes[-1:]}
    ]


def points(name: str, scenario: Scenario, top: Path) -> list[str]:
    """Everything that is wrong after a kill before one of the steps."""
    wrong: list[str] = []
    first = top / "first"
    first.mkdir()
    (first / "mine").write_bytes(b"keep")
    if scenario.before is not None:
        assert forked(lambda: run(command(scenario.before or (), first))) == 0, "the command that comes before"
    before = tree(first)
    shutil.copytree(first, top / "count")
    for step in steps_of(command(scenario.command, top / "count"), top / "steps"):
        directory = top / str(step)
        shutil.copytree(first, directory)
        words = command(scenario.command, directory)

        def call(step: int = step, words: list[str] = words) -> int:
            with faulty(step, kill):
                return run(words)

        problems = []
        ended = forked(call)
        if ended != -signal.SIGKILL:
            problems.append(f"ended with {ended}")
        now = tree(directory)
        if (
            scenario.before is None
            and (directory / scenario.output).exists()
            and not sound(directory / scenario.output)
        ):
            problems.append("an output that is not whole")
        hidden = {one for one in now if one.startswith(".quantform-")} - {_publish._PROBE}
        if scenario.leaves_nothing and hidden:
            problems.append(f"hidden files {sorted(hidden)}")
        again = top / f"{step} again"
        shutil.copytree(directory, again, copy_function=same_file)
        problems += second_run(scenario, again, command(scenario.command, again))
        problems += recovered(scenario, directory, before)
        wrong += [f"{name}, before step {step}: {problem}" for problem in problems]
    return wrong


def second_run(scenario: Scenario, directory: Path, words: list[str]) -> list[str]:
    """What is wrong with the same command run once more after the kill."""
    output = directory / scenario.output
    done = scenario.before is None and output.exists()
    code = forked(lambda: run(words))
    if code != (2 if done else 0):
        return [f"the second run ended with {code}"]
    names = sorted(tree(directory))
    left = [name for name in names if name.startswith(".")]
    problems = [f"the second run left {left}"] if left and not done else []
    if not sound(output):
        problems.append("the second run's output is not whole")
    if (directory / "mine").read_bytes() != b"keep":
        problems.append("a file of the user's has changed")
    return problems


def recovered(scenario: Scenario, directory: Path, before: dict[str, bytes]) -> list[str]:
    """What is wrong once what the killed run wrote down is done: all is as before, or all is new."""
    Journal.recover(directory / scenario.output)
    now = {name: data for name, data in tree(directory).items() if name != _publish._PROBE}
    if now == before:
        return []
    output = directory / scenario.output
    if any(name.startswith(".") for name in now):
        return [f"hidden files stay: {sorted(now)}"]
    if now.get(scenario.output) == before.get(scenario.output):
        return [f"neither old nor new: {sorted(now)}"]
    return [] if sound(output) else ["the output is not whole"]


def everything(top: Path) -> dict[str, list[str]]:
    """All scenarios."""
    os.fsync = lambda fd: None  # noqa: ARG005 - a step as any other, and the slowest: no power fails here
    os.environ["QUANTFORM_THREADS"] = "1"  # a fork has none of its parent's threads
    assert run(["convert", str(EXAMPLE), str(top / "a.ninfer")]) == 0  # in this process, so that forks are warm
    assert qf.verify(top / "a.ninfer", deep=True).ok
    for name, value in (("a", 1.0), ("b", 1.5)):
        data = np.full(300, value, "<f4").tobytes()
        sums = gb.tensor("w.in_sum2", (1, 300), gb.F32, data)
        (top / f"{name}.gguf").write_bytes(gb.build([sums, gb.tensor("w.counts", (1, 1), gb.F32, data[:4])]))
    assert run(["compare", *map(str, (top / "a.gguf", top / "b.gguf", "--html", top / "r.html"))]) == 0
    found: dict[str, list[str]] = {}
    plain = _publish._has_unnamed
    for name, scenario in SCENARIOS.items():
        directory = top / name.replace(", ", "-").replace(" ", "-")
        directory.mkdir()
        no: Any = lambda _: False  # noqa: E731
        _publish._has_unnamed = no if scenario.named else plain
        found[name] = points(name, scenario, directory)
    return found


if __name__ == "__main__":
    print(json.dumps(everything(Path(sys.argv[1])), indent=1))  # noqa: T201
