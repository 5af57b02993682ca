"""Patterns over module names, as quantization configs hold them, matched in bounded time.

A config comes with a checkpoint and may be hostile, and Python's own matcher takes exponential time on some patterns.
This one keeps the set of positions that a match may have reached as the bits of one integer, so that no choice is tried
twice. It knows the syntax that such patterns are written in; the rest (back references, look-behind, flags) is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from quantform.errors import UnsupportedError

__all__ = ["Pattern", "compile_glob", "compile_regex"]

_PATTERN_MAX = 4096
_NAME_MAX = 1024
_REPEAT_MAX = 1000
_NESTED_REPEATS = 2
_NESTED_GROUPS = 16

_Test = Callable[[str], bool]


@dataclass(slots=True)
class _Subject:
    """The name being matched; bit i of a set stands for the position before character i."""

    text: str
    full: int = field(init=False)
    chars: dict[str, int] = field(init=False, default_factory=dict)
    _where: dict[_Test, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.full = (1 << len(self.text) + 1) - 1
        for at, char in enumerate(self.text):
            self.chars[char] = self.chars.get(char, 0) | 1 << at

    def where(self, test: _Test) -> int:
        """The positions whose character passes."""
        found = self._where.get(test)
        if found is None:
            found = 0
            for char, positions in self.chars.items():
                if test(char):
                    found |= positions
            self._where[test] = found
        return found


@lru_cache(maxsize=8)
def _subject(name: str) -> _Subject:
    return _Subject(name)


_Node = Callable[[_Subject, int], int]
"""From the positions where it may begin to those where it may have ended."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern.

    Attributes:
        text: As it was written.
    """

    text: str
    _node: _Node
    _whole: bool

    def matches(self, name: str) -> bool:
        """Whether `name` matches: its beginning for a regular expression (as `re.match`), all of it for a glob."""
        if len(name) > _NAME_MAX:
            raise UnsupportedError(
                "the module's name is too long for patterns",
                expected=f"at most {_NAME_MAX} characters",
                found=len(name),
            )
        ends = self._node(_subject(name), 1)
        return bool(ends >> len(name) if self._whole else ends)


def compile_regex(text: str) -> Pattern:
    """A regular expression that is matched at the beginning of a name.

    Raises:
        UnsupportedError: It is malformed, too long, or uses syntax beyond literals, classes, groups, alternatives,
            repetition, anchors and look-ahead.
    """
    return Pattern(text, _Parser(text).parse(), _whole=False)


def compile_glob(text: str) -> Pattern:
    """A shell pattern for whole names: `*`, `?`, `[...]`; `*` crosses dots."""
    nodes: list[_Node] = []
    at = 0
    while at < len(text):
        char = text[at]
        close = text.find("]", at + 2)
        if char == "*":
            nodes.append(_up)
        elif char == "?":
            nodes.append(_one(lambda _: True))
        elif char == "[" and close > 0:
            inverted = text[at + 1] == "!"
            nodes.append(_one(_glob_class(text[at + 1 + inverted : close], inverted=inverted)))
            at = close
        else:
            nodes.append(_literal(char))
        at += 1
    return Pattern(text, _sequence(nodes), _whole=True)


def _glob_class(members: str, *, inverted: bool) -> _Test:
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(members):
        end = at + 2 if members[at + 1 : at + 2] == "-" and at + 2 < len(members) else at
        ranges.append((members[at], members[end]))
        at = end + 1
    return lambda char: any(low <= char <= high for low, high in ranges) != inverted


def _literal(char: str) -> _Node:
    return lambda subject, at: (at & subject.chars.get(char, 0)) << 1


def _one(test: _Test) -> _Node:
    return lambda subject, at: (at & subject.where(test)) << 1


def _up(subject: _Subject, at: int) -> int:
    """Any characters: every position from the first on."""
    return subject.full & -(at & -at) if at else 0


def _sequence(nodes: list[_Node]) -> _Node:
    def node(subject: _Subject, at: int) -> int:
        for part in nodes:
            if not at:
                break
            at = part(subject, at)
        return at

    return node


def _alternatives(nodes: list[_Node]) -> _Node:
    def node(subject: _Subject, at: int) -> int:
        ends = 0
        for part in nodes:
            ends |= part(subject, at)
        return ends

    return node


def _repeat(part: _Node, least: int, most: int | None) -> _Node:
    def node(subject: _Subject, at: int) -> int:
        for _ in range(least):
            before, at = at, part(subject, at)
            if at in {0, before}:
                break
        reached = frontier = at
        count = least
        while frontier and (most is None or count < most):
            frontier = part(subject, frontier) & ~reached
            reached |= frontier
            count += 1
        return reached

    return node


def _ahead(part: _Node, *, wanted: bool) -> _Node:
    def node(subject: _Subject, at: int) -> int:
        kept = 0
        while at:
            lowest = at & -at
            at ^= lowest
            if bool(part(subject, lowest)) == wanted:
                kept |= lowest
        return kept

    return node


def _boundary(*, wanted: bool) -> _Node:
    def node(subject: _Subject, at: int) -> int:
        word = subject.where(_is_word)
        edges = (word ^ word << 1) & subject.full
        return at & (edges if wanted else ~edges)

    return node


def _begin(_: _Subject, at: int) -> int:
    return at & 1


def _end(subject: _Subject, at: int) -> int:
    size = len(subject.text)
    before_newline = 1 << size - 1 if subject.text.endswith("\n") else 0
    return at & (1 << size | before_newline)


def _very_end(subject: _Subject, at: int) -> int:
    return at & 1 << len(subject.text)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _not(test: _Test) -> _Test:
    return lambda char: not test(char)


def _not_newline(char: str) -> bool:
    return char != "\n"


_CLASSES: dict[str, _Test] = {"d": str.isdecimal, "w": _is_word, "s": str.isspace}
_CLASSES |= {name.upper(): _not(test) for name, test in list(_CLASSES.items())}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_SYMBOLS: dict[str, _Node] = {".": _one(_not_newline), "^": _begin, "$": _end}
_ANCHORS: dict[str, _Node] = {
    "b": _boundary(wanted=True),
    "B": _boundary(wanted=False),
    "A": _begin,
    "Z": _very_end,
}


class _Parser:
    """Recursive descent over Python's syntax of regular expressions, as far as names need it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._groups = 0

    def parse(self) -> _Node:
        if len(self._text) > _PATTERN_MAX:
            raise UnsupportedError(
                "the pattern is too long", expected=f"at most {_PATTERN_MAX} characters", found=len(self._text)
            )
        node, _ = self._choice()
        if self._at < len(self._text):
            self._fail("a ')' without its '('")
        return node

    def _fail(self, problem: str) -> NoReturn:
        raise UnsupportedError(
            f"the pattern has {problem}", found=f"{self._text!r} at character {self._at}", hint="Simplify the pattern"
        )

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        taken = self._text.startswith(text, self._at)
        if taken:
            self._at += len(text)
        return taken

    def _choice(self) -> tuple[_Node, int]:
        """The alternatives up to `)` or the end, and how deeply repetition nests in them."""
        nodes, depth = [], 0
        while True:
            parts: list[_Node] = []
            while self._peek() not in {"", "|", ")"}:
                node, inner = self._repeated()
                parts.append(node)
                depth = max(depth, inner)
            nodes.append(_sequence(parts))
            if not self._take("|"):
                return (nodes[0] if len(nodes) == 1 else _alternatives(nodes)), depth

    def _repeated(self) -> tuple[_Node, int]:
        start = self._at
        node, depth = self._atom()
        any_character = self._text[start : self._at] == "."
        bounds = self._bounds()
        if bounds is None:
            return node, depth
        least, most = bounds
        self._take("?")  # lazy: the same names match
        if self._peek() in {"*", "+", "?"} or self._bounds() is not None:
            self._fail("a repetition of a repetition")
        if least > _REPEAT_MAX or (most is not None and (most > _REPEAT_MAX or most < least)):
            self._fail(f"a repetition outside 0 to {_REPEAT_MAX}")
        if depth + 1 > _NESTED_REPEATS:
            self._fail(f"repetitions nested more than {_NESTED_REPEATS} deep")
        if any_character and most is None and least == 0:
            return _dots, depth + 1
        return _repeat(node, least, most), depth + 1

    def _bounds(self) -> tuple[int, int | None] | None:
        for text, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(text):
                return bounds
        close = self._text.find("}", self._at)
        if self._peek() != "{" or close < 0:
            return None
        low, comma, high = self._text[self._at + 1 : close].partition(",")
        numbers = [part for part in (low, high) if part]
        if not (numbers or comma) or any(
            not part.isascii() or not part.isdecimal() or len(part) > 4 for part in numbers
        ):
            return None  # then it is a literal brace
        self._at = close + 1
        least = int(low or 0)
        return least, least if not comma else int(high) if high else None

    def _atom(self) -> tuple[_Node, int]:
        char = self._peek()
        self._at += 1
        match char:
            case "(":
                return self._group()
            case "[":
                node = _one(self._class())
            case "\\" if self._peek() in _ANCHORS:
                node = _ANCHORS[self._next()]
            case "\\":
                node = _one(self._escape())
            case "*" | "+" | "?":
                self._at -= 1
                self._fail("nothing to repeat")
            case _:
                node = _SYMBOLS.get(char) or _literal(char)
        return node, 0

    def _group(self) -> tuple[_Node, int]:
        self._groups += 1
        if self._groups > _NESTED_GROUPS:
            self._fail(f"groups nested more than {_NESTED_GROUPS} deep")
        ahead: bool | None = None
        if self._take("?"):
            if self._take("P<"):
                close = self._text.find(">", self._at)
                if close < 0 or not self._text[self._at : close].isidentifier():
                    self._fail("a group without a name")
                self._at = close + 1
            elif self._take("=") or self._take("!"):
                ahead = self._text[self._at - 1] == "="
            elif not self._take(":"):
                self._fail("a kind of group that names do not need")
        node, depth = self._choice()
        if not self._take(")"):
            self._fail("a '(' without its ')'")
        self._groups -= 1
        if ahead is None:
            return node, depth
        return _ahead(node, wanted=ahead), depth + 1

    def _escape(self) -> _Test:
        letter = self._peek()
        self._at += 1
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return _CONTROLS[letter].__eq__
        if not letter or (letter.isascii() and letter.isalnum()):
            self._fail("an escape that names do not need")
        return letter.__eq__

    def _class(self) -> _Test:
        inverted = self._take("^")
        tests: list[_Test] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._class_member()
            if (
                isinstance(low, str)
                and self._peek() == "-"
                and self._text[self._at + 1 : self._at + 2] not in {"]", ""}
            ):
                self._at += 1
                high = self._class_member()
                if not isinstance(high, str) or high < low:
                    self._fail("a range that is none")
                tests.append(_between(low, high))
            else:
                tests.append(low.__eq__ if isinstance(low, str) else low)
        self._at += 1
        return lambda char: any(test(char) for test in tests) != inverted

    def _class_member(self) -> str | _Test:
        char = self._peek()
        if not char:
            self._fail("a '[' without its ']'")
        self._at += 1
        if char != "\\":
            return char
        letter = self._peek()
        if letter in _CLASSES or (letter.isascii() and letter.isalnum()):
            return self._escape() if letter not in _CONTROLS else _CONTROLS[self._next()]
        return self._next()

    def _next(self) -> str:
        char = self._peek()
        if not char:
            self._fail("an escape of nothing")
        self._at += 1
        return char


def _between(low: str, high: str) -> _Test:
    return lambda char: low <= char <= high


def _dots(subject: _Subject, at: int) -> int:
    """`.*`: every position from the first on, as far as the line goes."""
    if "\n" in subject.text:
        return _repeat(_one(_not_newline), 0, None)(subject, at)
    return _up(subject, at)
