"""What the commands share: JSON, errors, tables, progress bars, ranges of rows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from quantform._progress import Progress, silent
from quantform._report import Report
from quantform._sizes import human_bytes
from quantform._text import visible
from quantform.errors import ArgumentError, FileError, QuantformError

__all__ = [
    "discard",
    "echo",
    "plain",
    "print_error",
    "print_json",
    "print_report",
    "print_table",
    "progress_bar",
    "row_slice",
]


def plain(text: str) -> str:
    """`text` from a file made safe for a terminal: control, reordering and half characters are escaped.

    So is what the terminal's encoding lacks.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return visible(text).encode(encoding, "backslashreplace").decode(encoding)


def print_json(document: Any) -> None:  # noqa: ANN401 - whatever JSON can say
    """One JSON document on standard output and nothing else."""
    echo(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def print_error(error: QuantformError, *, json: bool) -> None:
    """An error as one line on standard error and, where JSON is wanted, as the one document on standard output."""
    if json:
        parts = {name: getattr(error, name) for name in ("problem", "where", "expected", "found", "hint")}
        shown = {name: part if part is None or isinstance(part, int) else str(part) for name, part in parts.items()}
        with contextlib.suppress(FileError):
            print_json({"error": {"kind": type(error).__name__, **shown}})
    try:
        if sys.stderr is not None:
            print(f"quantform: error: {plain(str(error))}", file=sys.stderr, flush=True)  # noqa: T201
    except OSError:
        discard(sys.stderr)


def echo(text: str = "") -> None:
    """Lines on standard output, which is nothing where it is closed.

    Raises:
        SystemExit: The reader has left, and so do we, with the exit status of a program that SIGPIPE ends.
        FileError: They cannot be written.
    """
    try:
        print(text, flush=True)  # noqa: T201 - the command line's own channel
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        discard(sys.stdout)
        raise FileError("cannot be written", where="standard output", found=error.strerror) from None


def discard(stream: TextIO | None) -> None:
    """Give up a channel that cannot be written to, so that Python does not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_report(report: Report, *, json: bool) -> None:
    """What a command that writes files did: as one JSON document, or as lines."""
    if json:
        print_json(report.as_dict())
        return
    for line in report.lines():
        echo(plain(line))
    for path, size in report.files:
        echo(f"{plain(str(path))}: {human_bytes(size)}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Columns under headings, as wide as their content, the same in a terminal and in a pipe.

    Args:
        header: One heading a column.
        rows: One text a column.
        right: Columns aligned to the right.
    """
    cells = [tuple(header), *(tuple(plain(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    echo("\n".join(lines))


@contextlib.contextmanager
def progress_bar(title: str, *, steps: bool = False) -> Iterator[Progress]:
    """A bar on standard error while the block runs, if that is a terminal; else nothing.

    Args:
        title: What is being done.
        steps: Steps are counted, and not bytes.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn(title),
        BarColumn(),
        *((MofNCompleteColumn(),) if steps else (DownloadColumn(), TransferSpeedColumn())),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, what="")

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, what=plain(what))

        yield show


def row_slice(text: str | None, count: int) -> slice | None:
    """`A:B`, `A:` or `:B` as a slice of `count` rows.

    Raises:
        ArgumentError: The text is none of them, or names rows that do not exist.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{0,20}):(\d{0,20})", text, re.ASCII)
    if match is None or text == ":":
        raise ArgumentError("--rows is not a range of rows", expected="A:B, A: or :B", found=repr(text))
    first, end = (
        int(number) if number else default for number, default in zip(match.groups(), (0, count), strict=True)
    )
    if not first <= end <= count:
        raise ArgumentError("--rows leaves the tensor", expected=f"0 <= A <= B <= {count}", found=text)
    return slice(first, end)
