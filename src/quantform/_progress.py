"""How long work tells what it has done, without knowing who looks."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Called with the bytes done so far, the bytes in all, and what is being worked on."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


def silent(done: int, total: int, what: str) -> None:
    """Tell nobody."""
