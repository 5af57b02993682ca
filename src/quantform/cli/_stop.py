"""Signals that ask the command to end, while it works: what was begun is undone, then it ends by the signal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from quantform._interrupts import PUBLISHED
from quantform.cli._output import plain
from quantform_command import end_at_once, end_by, handle

__all__ = ["Stopped", "arrived", "finish", "watch"]

_SOON = 1e-3


class Stopped(BaseException):
    """A signal asked the command to end. Nothing handles this but by undoing what was begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


_arrived: list[Stopped] = []


def arrived() -> Stopped | None:
    """What a signal raised, whatever it has become since: code of others may make another error of it."""
    return _arrived[0] if _arrived else None


def watch() -> None:
    """From now on signals raise `Stopped`, which ends the process when it has come up all the way."""
    PUBLISHED.set([])
    handle(_raise)
    sys.excepthook = _uncaught
    sys.unraisablehook = _swallowed


def finish() -> None:
    """Nothing is left to undo."""
    end_at_once(_outcome())


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    handle(signal.SIG_IGN)  # a second one would cut short what the first one undoes
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            # Compiled modules turn an exception into others, or abort; what is imported late is so before work begins.
            end_by(number, _outcome())
        frame = frame.f_back
    _arrived.append(Stopped(number))
    raise _arrived[0]


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    stop = arrived()
    if stop is not None:
        end_by(stop.number, _outcome())
    sys.__excepthook__(kind, error, trace)


def _swallowed(lost: sys.UnraisableHookArgs) -> None:
    """Where nothing can be raised, as in a destructor, the signal is answered a little later."""
    if not isinstance(lost.exc_value, Stopped):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, _again)
    signal.setitimer(signal.ITIMER_REAL, _SOON)


def _again(*_: object) -> NoReturn:
    raise _arrived[0]


def _outcome() -> str:
    written: Sequence[Path] = PUBLISHED.get() or ()
    if not written:
        return "nothing was written"
    names = ", ".join(plain(str(path)) for path in written[:2]) + (", ..." if len(written) > 2 else "")
    return f"{names} {'is' if len(written) == 1 else 'are'} complete"
