"""The JSON documents around safetensors: headers, indexes, `config.json`. All of them may be hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantform._files import MappedFile
from quantform.container.strict_json import parse_json as parse_strictly
from quantform.errors import ArtifactError, FileError

__all__ = ["parse_json", "read_json"]


def parse_json(raw: bytes, where: str, *, what: str) -> dict[str, Any]:
    """The object that `raw` spells, under the rules that hold for a `.ninfer` directory.

    Args:
        raw: UTF-8.
        where: The file, for errors.
        what: What the document is: `"header"`, `"index"`.

    Raises:
        FileError: It is not JSON, not an object, has a member twice, or a constant such as NaN.
    """
    try:
        document = parse_strictly(raw, where)
    except ArtifactError as error:
        raise FileError(
            error.problem.replace("the directory", f"the {what}"),
            where=error.where,
            expected=error.expected,
            found=error.found,
        ) from None
    if not isinstance(document, dict):
        raise FileError(f"the {what} is no JSON object", where=where, found=type(document).__name__)
    return document


def read_json(path: Path, limit: int, *, what: str) -> dict[str, Any]:
    """The object in a file of at most `limit` bytes; see `parse_json`."""
    with MappedFile(path) as file:
        if file.size > limit:
            raise FileError(
                f"the {what} is too long", where=str(path), expected=f"at most {limit} bytes", found=file.size
            )
        raw = file.read(0, file.size)
    return parse_json(raw, str(path), what=what)
