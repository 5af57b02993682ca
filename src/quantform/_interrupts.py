"""What signals must not cut in two, and what they leave.

Python runs the handler of a signal between any two steps of the main thread, so that what it raises can come up between
a file's creation and the line that remembers it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

__all__ = ["PUBLISHED", "STOPPING", "held", "note_published"]

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a process to end."""

PUBLISHED: ContextVar[list[Path] | None] = ContextVar("PUBLISHED", default=None)
"""Where outputs are noted once they are complete, for whoever has to say what an interruption left."""


def note_published(paths: Sequence[Path]) -> None:
    """Note outputs that are complete from now on."""
    noted = PUBLISHED.get()
    if noted is not None:
        noted.extend(paths)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Put off what the handlers of `STOPPING` do until the block has ended.

    The block should be short. What has no handler in Python (a signal that ends the process, or is ignored) stays so.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers never run here
        yield
        return
    handlers = {}
    waiting: list[int] = []
    try:
        for number in STOPPING:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda one, _: waiting.append(one))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)
