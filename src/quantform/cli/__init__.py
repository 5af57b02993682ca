"""The command line: one file a command.

Exit codes: 0 done, 1 the file or a check is wrong, 2 the command line is wrong. Bad input never shows a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from quantform._native import kernels, summary
from quantform._version import __version__
from quantform.cli import compare, conform, convert, decode, formats, imatrix, inspect, onnx, verify
from quantform.cli._output import plain
from quantform.errors import ArgumentError, OutputExistsError, QuantformError, UnknownNameError

__all__ = ["app", "main"]

app = typer.Typer(
    name="quantform",
    help="Inspect, decode, convert and verify quantized weights, bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LOST_PAGES = (
    "a file became shorter while it was read, or its disk failed; nothing was written under the name of an output. "
    "Run the command again when nothing else changes the file"
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantform {__version__}, {summary()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Say which version this is and whether it has compiled kernels.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Inspect, decode, convert and verify quantized weights, bit for bit."""


for _module in (inspect, decode, convert, verify, compare, onnx, imatrix, conform, formats):
    _module.register(app)


def main() -> None:
    """Run the command line, turning every error of ours into one line on standard error and an exit code."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _terminated)
    try:
        if kernels is not None:
            kernels.exit_on_lost_pages(f"quantform: error: {_LOST_PAGES}\n")
    except QuantformError as error:  # the environment asks for kernels that are not here
        _fail(str(error), 2)
    try:
        app(prog_name="quantform")
    except (ArgumentError, UnknownNameError, OutputExistsError) as error:
        _fail(str(error), 2)
    except QuantformError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        # The reader of our output has left; so do we, without Python's complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", 1)
    except MemoryError:
        _fail("not enough memory; `decode` takes fewer rows (--rows) or a smaller type (--dtype)", 1)


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    """Leave as by an error, so that what was begun is removed."""
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> NoReturn:
    if sys.stderr is not None:
        print(f"quantform: error: {plain(message)}", file=sys.stderr)  # noqa: T201 - the command line's own channel
    raise SystemExit(code) from None
