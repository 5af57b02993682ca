"""An operating system that fails, or kills, at a chosen step of writing files.

Every call that creates, changes, names or removes a file is a step. What happens at one of them is a function that is
called before or after the step: it may raise an `OSError`, or end the process.

    with faulty(7, raising(errno.ENOSPC)) as steps:
        ...
    steps.taken  # the names of the steps, as far as it got
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

__all__ = ["STEPS", "Steps", "faulty", "kill", "raising"]

STEPS = ("open", "ftruncate", "pwrite", "write", "fsync", "link", "replace", "rename", "unlink")
_CREATES = os.O_CREAT | (getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY)


@dataclass
class Steps:
    """What was done.

    Attributes:
        taken: Names of steps, in order.
    """

    taken: list[str] = field(default_factory=list)


def raising(code: int) -> Callable[[], None]:
    """What fails as the operating system does."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def kill() -> None:
    """End this process at once; nothing can clean up after it."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def faulty(
    at: int, happens: Callable[[], None], *, after: bool = False, steps: Sequence[str] = STEPS
) -> Iterator[Steps]:
    """While the block runs, something happens at step `at` (counted from 0) of those named, before it or after it."""
    seen = Steps()

    def wrapped(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not (arguments[1] & _CREATES):
                return plain(*arguments, **named)
            if name in {"write", "pwrite"} and arguments[0] < 3:
                return plain(*arguments, **named)
            seen.taken.append(name)
            now = len(seen.taken) - 1 == at
            if now and not after:
                happens()
            result = plain(*arguments, **named)
            if now and after:
                happens()
            return result

        return call

    patches = [mock.patch.object(os, name, wrapped(name, getattr(os, name))) for name in steps]
    for patch in patches:
        patch.start()
    try:
        yield seen
    finally:
        for patch in patches:
            patch.stop()
