"""The command line: one file a command.

Exit codes: 0 done, 1 the file or a check is wrong, 2 the command line is wrong. A signal ends the process.
`docs/command-line.md` describes all that commands have in common.
"""

from __future__ import annotations

import itertools
import sys
from typing import Annotated, Any, NoReturn

import typer

from quantform._native import kernels, summary
from quantform._version import __version__
from quantform.cli import compare, conform, convert, decode, formats, imatrix, inspect, onnx, verify
from quantform.cli._output import echo, print_error
from quantform.cli._stop import arrived, finish, watch
from quantform.errors import (
    ArgumentError,
    FileError,
    OutputExistsError,
    QuantformError,
    UnknownNameError,
    UnsupportedError,
)

__all__ = ["app", "command", "main"]

app = typer.Typer(
    name="quantform",
    help="Inspect, decode, convert and verify quantized weights, bit for bit.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_UsageError: Any = typer.BadParameter.__base__  # typer gives it no name of its own

_OF_THE_COMMAND_LINE = (ArgumentError, UnknownNameError, OutputExistsError)

_LOST_PAGES = (
    "a file became shorter while it was read, or its disk failed; nothing was written under the name of an output. "
    "Run the command again when nothing else changes the file"
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"quantform {__version__}, {summary()}")
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


def command() -> NoReturn:
    """`main` as a process of its own: signals undo what was begun, and then end it."""
    watch()
    try:
        main()
    finally:
        finish()


def main() -> NoReturn:
    """Run the command line, turning every error into one line on standard error and an exit code."""
    try:
        if kernels is not None:
            kernels.exit_on_lost_pages(f"quantform: error: {_LOST_PAGES}\n")
    except QuantformError as error:  # the environment asks for kernels that are not here
        _fail(error, 2)
    try:
        if "" in sys.argv[1:]:  # which a path would take for the working directory
            raise ArgumentError("an argument is empty", hint="Is a variable of the shell not set?")
        # Not `app()`, which changes how Python shows exceptions.
        code = typer.main.get_command(app)(prog_name="quantform", standalone_mode=False)
    except QuantformError as error:
        _fail(error, 2 if isinstance(error, _OF_THE_COMMAND_LINE) else 1)
    except _UsageError as error:
        _fail(_usage(error), 2)
    except OSError as error:
        place = None if error.filename is None else str(error.filename)
        _fail(FileError(error.strerror or str(error), where=place), 1)
    except MemoryError:
        hint = "`decode` takes fewer rows (--rows) or a smaller type (--dtype)"
        _fail(UnsupportedError("not enough memory", hint=hint), 1)
    raise SystemExit(code or 0)


def _usage(error: Any) -> ArgumentError:  # noqa: ANN401 - typer has it from where it likes
    """What typer says of a command line, in our words."""
    text = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "quantform"
    return ArgumentError(text[:1].lower() + text[1:], hint=f"See {path} --help")


def _fail(error: QuantformError, code: int) -> NoReturn:
    stop = arrived()
    if stop is not None:
        raise stop from None
    print_error(error, json="--json" in itertools.takewhile(lambda word: word != "--", sys.argv[1:]))
    raise SystemExit(code) from None
