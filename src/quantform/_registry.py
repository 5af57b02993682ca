"""The one closed registry: what is not in it at import does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar, overload

from quantform.errors import UnknownNameError

__all__ = ["Registry", "near_matches"]

T = TypeVar("T")
U = TypeVar("U")


def near_matches(name: str, known: Iterable[str]) -> str:
    """A hint that lists the known names closest to `name`, or all of them where none is close and they are few."""
    names = list(known)
    folded = {candidate.lower(): candidate for candidate in names}
    close = [folded[match] for match in difflib.get_close_matches(name.lower(), list(folded), n=4, cutoff=0.6)]
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if len(names) <= 12:
        return f"Known: {', '.join(names)}" if names else "There are none"
    return f"There are {len(names)} known names, among them {', '.join(names[:4])}"


class Registry(Mapping[str, T], Generic[T]):
    """An immutable mapping of names to records, complete when it is made.

    Args:
        kind: What a record is, as an error message calls it ("format", "packed profile").
        records: Every record there is, in the order in which they are listed.
        key: Gives a record's name. Names are case-sensitive and unique.
    """

    def __init__(self, kind: str, records: Iterable[T], key: Callable[[T], str]) -> None:
        self.kind = kind
        self._records: dict[str, T] = {}
        for record in records:
            name = key(record)
            if name in self._records:
                raise AssertionError(f"two records of kind {kind} are called {name!r}")
            self._records[name] = record

    def __getitem__(self, name: str) -> T:
        try:
            return self._records[name]
        except (KeyError, TypeError):
            raise UnknownNameError(
                f"no {self.kind} is called {name!r}", hint=near_matches(str(name), self._records)
            ) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._records

    @overload
    def get(self, key: str, /) -> T | None: ...
    @overload
    def get(self, key: str, /, default: T | U) -> T | U: ...
    def get(self, key: str, /, default: object = None) -> object:
        """The record called `key`, or `default`; the inherited one waits for a KeyError that is never raised."""
        return self._records.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Registry of {len(self)} {self.kind}s>"
