"""The files of a split GGUF model: found from any of them, complete, in order.

Parts are called `NAME-00001-of-00003.gguf` and say in their metadata which one they are: `split.no` counts from zero,
`split.count` is the number of parts, `split.tensors.count` the number of tensors in all of them.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

from quantform._files import MappedFile, exists
from quantform.errors import GGUFError
from quantform.sources.gguf_header import GGUFHeader, read_header

__all__ = ["open_files"]

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NAMED = 4
_PARTS_MAX = 99_999

Opened = tuple[MappedFile, GGUFHeader]


def open_files(path: str | os.PathLike[str]) -> list[Opened]:
    """Open the file at `path` and, where it is a part of a split model, all its siblings.

    Returns:
        Every file with its header, in the order of `split.no`; the caller closes them.

    Raises:
        FileError: A file cannot be opened, or its header is wrong.
        GGUFError: The parts are not complete or contradict each other.
    """
    with ExitStack() as stack:
        opened = _open(stack, Path(path))
        count = _integer(opened, "split.count", 1)
        files = [opened] if count <= 1 else _siblings(stack, opened, count)
        _check_total(files)
        stack.pop_all()
    return files


def _open(stack: ExitStack, path: Path) -> Opened:
    file = stack.enter_context(MappedFile(path))
    return file, read_header(file)


def _integer(opened: Opened, key: str, default: int) -> int:
    value = opened[1].metadata.integer(key)
    return default if value is None else value


def _siblings(stack: ExitStack, opened: Opened, count: int) -> list[Opened]:
    path = opened[0].path
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        raise GGUFError(
            f"the file is one of {count} parts, but its name does not lead to the others",
            where=str(path),
            expected=f"a name like NAME-00001-of-{count:05}.gguf",
            found=repr(path.name),
            hint="Give all parts their original names",
        )
    if count > _PARTS_MAX or int(match["count"]) != count or not 1 <= int(match["number"]) <= count:
        raise GGUFError(
            "name and metadata disagree on the number of parts",
            where=str(path),
            expected=f"split.count {int(match['count'])} of part {int(match['number'])}",
            found=count,
        )
    paths = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [sibling.name for sibling in paths if not exists(sibling)]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise GGUFError(
            f"{len(missing)} of {count} parts of the model are missing",
            where=str(path),
            expected=f"{', '.join(missing[:_NAMED])}{more} beside it",
            hint="Put every part into one directory",
        )
    parts: dict[int, Opened] = {}
    for sibling in paths:
        part = opened if sibling == path else _open(stack, sibling)
        number = _integer(part, "split.no", -1)
        _check_part(part, number, count)
        if number in parts:
            raise GGUFError(
                f"two parts say that they are number {number}",
                where=str(sibling),
                expected="every split.no once",
                found=f"the same in {parts[number][0].path.name}",
            )
        parts[number] = part
    return [parts[number] for number in range(count)]


def _check_part(part: Opened, number: int, count: int) -> None:
    where = str(part[0].path)
    stated = _integer(part, "split.count", 0)
    if stated != count:
        raise GGUFError(
            "the parts disagree on their number", where=where, expected=f"split.count {count}", found=stated
        )
    if not 0 <= number < count:
        raise GGUFError(
            "the part does not say which one it is",
            where=where,
            expected=f"split.no 0 to {count - 1}",
            found=number if number >= 0 else "none",
        )


def _check_total(files: list[Opened]) -> None:
    total = sum(len(header.tensors) for _, header in files)
    for file, header in files:
        stated = _integer((file, header), "split.tensors.count", total)
        if stated != total:
            raise GGUFError(
                "the parts do not hold all tensors of the model"
                if stated > total
                else "the parts hold too many tensors",
                where=str(file.path),
                expected=f"split.tensors.count {stated}",
                found=f"{total} tensors in {len(files)} files",
            )
