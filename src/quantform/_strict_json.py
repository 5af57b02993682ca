"""JSON without surprises: what a hostile file may hold is refused here, before anybody looks at what it says.

Refused: bytes that are not UTF-8, member names that occur twice in an object, `NaN` and `Infinity`, numbers that no
binary64 holds, lone surrogates, and nesting beyond `MAX_DEPTH`. Every error carries the path of the fault, `$.a.b[3]`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantform.errors import FileError

__all__ = ["MAX_DEPTH", "MAX_NODES", "json_values", "member_path", "parse_json", "shorten"]

MAX_DEPTH = 128
"""Objects and arrays inside one another; deeper documents are refused before any recursion can fail."""

MAX_NODES = 4_000_000
"""Commas and opening brackets: what bounds the memory that a document takes, some hundred times a short one's text."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_Link = tuple[Any, Any] | None  # (link of the parent, member name or index)
_Found = tuple[str, _Link, str | None, str | None]  # what is wrong, where, what is there, what would be right
_ROOT: _Link = (None, None)


class _Flaw:
    """Stands in the parsed document where something is wrong, until the walk gives it a path."""

    __slots__ = ("found", "problem")

    def __init__(self, problem: str, found: str) -> None:
        self.problem = problem
        self.found = found


def parse_json(
    raw: bytes, where: str, *, what: str, error: type[FileError] = FileError, constants: bool = False
) -> Any:  # noqa: ANN401 - whatever the document is
    """The document in `raw` as Python objects; integers keep every digit.

    Args:
        raw: UTF-8, white space around the document allowed.
        where: The file, for the error.
        what: What the document is: `"directory"`, `"header"`.
        error: The kind of error to raise.
        constants: Admit `NaN` and `Infinity`, as programs write them into documents of their own.

    Raises:
        FileError: It is not JSON, or it is one of the things that this module refuses.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error(f"the {what} is not UTF-8", where=f"{where}, JSON byte {fault.start}", found=fault.reason) from None
    nodes = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if nodes > MAX_NODES:
        raise error(f"the {what} has too many members", where=where, expected=f"at most {MAX_NODES}", found=nodes)
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=float if constants else _constant, parse_float=_real
        )
    except json.JSONDecodeError as fault:
        raise error(f"the {what} is not JSON", where=f"{where}, JSON character {fault.pos}", found=fault.msg) from None
    except RecursionError:
        raise error(f"the {what} nests too deeply", where=where, expected=f"at most {MAX_DEPTH} levels") from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise error(f"the {what} holds an integer of thousands of digits", where=where) from None
    flaw = _first_flaw(value, check_text="\\ud" in text or "\\uD" in text)
    if flaw is not None:
        problem, link, found, expected = flaw
        place = where if link is _ROOT else f"{where}, {_path(link)}"
        raise error(problem.format(what=what), where=place, expected=expected, found=found)
    return value


def member_path(path: str, name: str) -> str:
    """The path of a member of the object at `path`."""
    return f"{path}.{name}" if _PLAIN_NAME.match(name) else f"{path}[{shorten(json.dumps(name))}]"


def shorten(text: str, limit: int = 120) -> str:
    """`text`, or its two ends where it is longer than an error message wants."""
    return text if len(text) <= limit else f"{text[: limit - 21]}...{text[-18:]}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Flaw:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return _Flaw("a member occurs twice in one object", shorten(json.dumps(name)))
        seen.add(name)
    raise AssertionError(members)


def _constant(text: str) -> _Flaw:
    return _Flaw("not a number of JSON", text)


def _real(text: str) -> float | _Flaw:
    value = float(text)
    return _Flaw("the number is out of range", shorten(text)) if math.isinf(value) else value


def _first_flaw(document: object, *, check_text: bool) -> _Found | None:
    """The first thing that is refused, found without recursion and in memory that grows with the depth alone."""
    open_nodes: list[tuple[Iterator[tuple[Any, Any]], _Link]] = [(iter([(None, document)]), _ROOT)]
    while open_nodes:
        children, parent = open_nodes[-1]
        entry = next(children, None)
        if entry is None:
            open_nodes.pop()
            continue
        key, value = entry
        if isinstance(value, (dict, list)):
            if len(open_nodes) > MAX_DEPTH:
                return "the {what} nests too deeply", _ROOT, None, f"at most {MAX_DEPTH} levels"
            link = None if parent is _ROOT else (parent, key)
            open_nodes.append((_entries(value, every=check_text), link))
        elif isinstance(value, _Flaw):
            return value.problem, None if parent is _ROOT else (parent, key), value.found, None
        if check_text:
            for text in (key, value):
                half = _SURROGATE.search(text) if isinstance(text, str) else None
                if half:
                    link = parent if text is key or parent is _ROOT else (parent, key)
                    return "a string holds half a surrogate pair", link, f"U+{ord(half[0]):04X}", None
    return None


def _entries(value: dict[str, Any] | list[Any], *, every: bool) -> Iterator[tuple[Any, Any]]:
    """The members of an object or array; where texts need no look, only those in which something can be wrong."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    if every:
        return iter(entries)
    return ((key, child) for key, child in entries if isinstance(child, (dict, list, _Flaw)))


def _path(link: _Link) -> str:
    keys = []
    while link is not None:
        link, key = link
        keys.append(key)
    path = "$"
    for key in reversed(keys):
        path = f"{path}[{key}]" if isinstance(key, int) else member_path(path, key)
    return path


def json_values(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can say, and more
    """`value` with the numbers that JSON lacks as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(member) for member in value]
    return value
