"""TOML files that users write: maps of names, and the text of recipes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from quantform._files import MappedFile
from quantform.errors import FileError, QuantformError

__all__ = ["parse_toml", "read_map"]

_LONGEST_MAP = 16 << 20
_MOST_PARTS = 32
# A key of many parts. The parser's memory grows with the square of their number.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MOST_PARTS}}}")


def parse_toml(raw: bytes, where: str, what: str, error: type[QuantformError] = FileError) -> dict[str, Any]:
    """The document in the bytes of a file.

    Args:
        raw: The bytes.
        where: The file, for the error.
        what: What it is, for the error: `"the map"`.
        error: The kind of error.

    Raises:
        QuantformError: It is no TOML, or a key has more than 32 parts; of the kind `error`.
    """
    try:
        text = raw.decode("utf-8")
        if key := _LONG_KEY.search(text):
            line = text.count("\n", 0, key.start()) + 1
            raise error(f"{what} has a key of more than {_MOST_PARTS} parts", where=f"{where}, line {line}")
        return tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{what} is no TOML", where=where, found=str(problem)) from None


def read_map(path: Path) -> dict[str, Any]:
    """A file that maps names of one thing to names of another, as its document; whoever asks knows what it may say.

    Raises:
        FileError: It cannot be read, is too long, or is no TOML.
    """
    with MappedFile(path) as file:
        if file.size > _LONGEST_MAP:
            found = f"{file.size} bytes"
            raise FileError(
                "the map is too long", where=str(path), expected=f"at most {_LONGEST_MAP} bytes", found=found
            )
        raw = file.read(0, file.size)
    return parse_toml(raw, str(path), "the map")
