"""The first moment of the command `quantform`, and its last: how signals end it.

This is a package of its own because importing any part of `quantform` imports all of it, which takes a while, and
signals are answered meanwhile. Nothing is begun then, so that there is nothing to undo.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # `typing` would take a while as well
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

__all__ = ["end_at_once", "end_by", "handle", "main"]

_WORDS = {
    getattr(signal, name): word
    for name, word in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}

_NOTHING = "nothing was written"


def main() -> NoReturn:
    """Run the command line with this process's arguments."""
    _occupy_closed_channels()
    end_at_once(_NOTHING)
    from quantform.cli import command  # noqa: PLC0415 - what this package is for

    try:
        command()
    except SystemExit as end:
        raise SystemExit(_flushed(end.code)) from None


def handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Set what signals that ask for an end do; those that whoever started the command ignores stay ignored."""
    for number in _WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def end_at_once(outcome: str) -> None:
    """From now on end by such a signal wherever it arrives, and say `outcome`."""
    handle(lambda number, _: end_by(number, outcome))


def end_by(number: int, outcome: str) -> NoReturn:
    """Say what a signal ended, and end by it: the exit status is 128 + `number`, and a shell's loops end too."""
    handle(signal.SIG_IGN)
    text = f"{_fresh_line()}quantform: {_WORDS[signal.Signals(number)]}; {outcome}\n"
    try:  # noqa: SIM105 - contextlib is one import more
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody listens
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _flushed(code: object) -> object:
    """Write out what is waiting, and let signals have their plain effect while Python takes itself apart."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            code = code or 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # so that Python does not try again
    handle(signal.SIG_DFL)
    return code


def _fresh_line() -> str:
    """What clears a terminal's line of a progress bar or `^C`, and shows the cursor that a bar hides."""
    if not os.isatty(2):
        return ""
    return "\n" if os.environ.get("TERM", "dumb") in {"dumb", "unknown"} else "\r\x1b[K\x1b[?25h"


def _occupy_closed_channels() -> None:
    """Open what is closed of the three channels, so that no output gets a number to which messages are written."""
    while True:
        number = os.open(os.devnull, os.O_RDWR)
        if number > 2:
            os.close(number)
            return
