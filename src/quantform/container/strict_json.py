"""JSON without surprises: what a hostile file may hold is refused here, before anybody looks at what it says.

Refused: bytes that are not UTF-8, member names that occur twice in an object, `NaN` and `Infinity`, numbers that no
binary64 holds, lone surrogates, and nesting beyond `MAX_DEPTH`. Every error carries the path of the fault, `$.a.b[3]`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from quantform.errors import ArtifactError

__all__ = ["MAX_DEPTH", "member_path", "parse_json", "shorten"]

MAX_DEPTH = 128
"""Objects and arrays inside one another; deeper documents are refused before any recursion can fail."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_Link = tuple[Any, Any] | None  # (link of the parent, member name or index)


class _Flaw:
    """Stands in the parsed document where something is wrong, until the walk gives it a path."""

    __slots__ = ("found", "problem")

    def __init__(self, problem: str, found: str) -> None:
        self.problem = problem
        self.found = found


def parse_json(raw: bytes, where: str) -> Any:  # noqa: ANN401 - whatever the document is
    """The document in `raw` as Python objects; integers keep every digit.

    Args:
        raw: UTF-8, white space around the document allowed.
        where: The file, for the error.

    Raises:
        ArtifactError: It is not JSON, or it is one of the things that this module refuses.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            "the directory is not UTF-8", where=f"{where}, JSON byte {error.start}", found=error.reason
        ) from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_real)
    except json.JSONDecodeError as error:
        raise ArtifactError(
            "the directory is not JSON", where=f"{where}, JSON character {error.pos}", found=error.msg
        ) from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise ArtifactError("the directory holds an integer of thousands of digits", where=where) from None
    _walk(value, where, check_text="\\ud" in text or "\\uD" in text)
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


def _walk(document: object, where: str, *, check_text: bool) -> None:
    """Visit every value without recursion; a path is spelled out only for an error."""
    pending: list[tuple[Any, _Link, int]] = [(document, None, 1)]
    while pending:
        value, link, depth = pending.pop()
        if isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise _too_deep(where)
            children = value.items() if isinstance(value, dict) else enumerate(value)
            for key, child in children:
                if check_text or isinstance(child, (dict, list, _Flaw)):
                    pending.append((child, (link, key), depth + 1))
            if check_text and isinstance(value, dict):
                for name in value:
                    _check_text(name, where, link)
        elif isinstance(value, _Flaw):
            raise ArtifactError(value.problem, where=f"{where}, {_path(link)}", found=value.found)
        elif isinstance(value, str):
            _check_text(value, where, link)


def _check_text(text: str, where: str, link: _Link) -> None:
    found = _SURROGATE.search(text)
    if found:
        raise ArtifactError(
            "a string holds half a surrogate pair", where=f"{where}, {_path(link)}", found=f"U+{ord(found[0]):04X}"
        )


def _path(link: _Link) -> str:
    keys = []
    while link is not None:
        link, key = link
        keys.append(key)
    path = "$"
    for key in reversed(keys):
        path = f"{path}[{key}]" if isinstance(key, int) else member_path(path, key)
    return path


def _too_deep(where: str) -> ArtifactError:
    return ArtifactError("the directory nests too deeply", where=where, expected=f"at most {MAX_DEPTH} levels")
