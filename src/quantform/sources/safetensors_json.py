"""The JSON documents around safetensors: headers, indexes, `config.json`. All of them may be hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantform import _strict_json
from quantform._files import MappedFile
from quantform.errors import FileError

__all__ = ["parse_json", "read_json"]


def parse_json(raw: bytes, where: str, *, what: str, constants: bool = False) -> dict[str, Any]:
    """The object that `raw` spells; see `quantform._strict_json.parse_json`.

    Args:
        raw: UTF-8.
        where: The file, for errors.
        what: What the document is: `"header"`, `"index"`.
        constants: Admit `NaN` and `Infinity`.

    Raises:
        FileError: It is not JSON, not an object, or has a member twice.
    """
    document = _strict_json.parse_json(raw, where, what=what, constants=constants)
    if not isinstance(document, dict):
        raise FileError(f"the {what} is no JSON object", where=where, found=type(document).__name__)
    return document


def read_json(path: Path, limit: int, *, what: str, constants: bool = False) -> dict[str, Any]:
    """The object in a file of at most `limit` bytes; see `parse_json`."""
    with MappedFile(path) as file:
        if file.size > limit:
            raise FileError(
                f"the {what} is too long", where=str(path), expected=f"at most {limit} bytes", found=file.size
            )
        raw = file.read(0, file.size)
    return parse_json(raw, str(path), what=what, constants=constants)
