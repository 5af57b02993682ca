"""The files of a safetensors model: found from a path, checked against an index, and few of them open at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantform._files import MappedFile, exists, is_directory
from quantform.errors import FileError
from quantform.sources.safetensors_json import read_json

__all__ = ["INDEX_SUFFIX", "Index", "check_shard", "find_model", "looks_like_safetensors", "read_index"]

INDEX_SUFFIX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_INDEX_MAX = 100_000_000
_NAMED = 4  # names that an error message lists


@dataclass(frozen=True, slots=True)
class Index:
    """An index of shards.

    Attributes:
        path: The index file.
        shards: Each shard's path and the names of its tensors, in the order in which the index first names them.
        shard_of: The path of each tensor's shard.
        metadata: The index's own `metadata`.
    """

    path: Path
    shards: Mapping[Path, frozenset[str]]
    shard_of: Mapping[str, Path]
    metadata: Mapping[str, Any]


def looks_like_safetensors(path: Path) -> bool:
    """Whether `path` is to be opened as safetensors: a directory, an index, or a file whose header begins with `{`.

    The format has no magic; its ninth byte is what tells it from others.
    """
    if is_directory(path) or path.name.endswith((_SUFFIX, INDEX_SUFFIX)):
        return True
    with MappedFile(path) as file:
        return file.size > 8 and file.read(8, 1) == b"{" and int.from_bytes(file.read(0, 8), "little") <= file.size - 8


def find_model(path: Path) -> Path:
    """The safetensors file or the index that `path` means.

    Raises:
        FileError: A directory holds none, or several and nothing that says which.
    """
    if not is_directory(path):
        return path
    for name in (f"model{INDEX_SUFFIX}", f"model{_SUFFIX}"):
        if exists(path / name):
            return path / name
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise FileError("cannot be read", where=str(path), found=error.strerror) from error
    models = [name for name in names if name.endswith(INDEX_SUFFIX)] or [
        name for name in names if name.endswith(_SUFFIX)
    ]
    if len(models) != 1:
        raise FileError(
            "the directory holds several safetensors files and no model index"
            if models
            else "the directory holds no safetensors file",
            where=str(path),
            expected=f"model{INDEX_SUFFIX}, model{_SUFFIX}, or a single *{_SUFFIX}",
            found=_listed(models) if models else None,
            hint="Name the file to open" if models else None,
        )
    return path / models[0]


def read_index(path: Path) -> Index:
    """Read an index; the shards themselves are not touched.

    Raises:
        FileError: It is no index, or names a shard that is not a plain file name.
    """
    where = str(path)
    document = read_json(path, _INDEX_MAX, what="index")
    weight_map, metadata = document.get("weight_map"), document.get("metadata", {})
    if not isinstance(weight_map, dict):
        raise FileError(
            "the index has no weight_map", where=where, expected="an object", found=type(weight_map).__name__
        )
    if not isinstance(metadata, dict):
        raise FileError("the index's metadata is no object", where=where, found=type(metadata).__name__)
    shard_of = {}
    shards: dict[str, Path] = {}
    tensors: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if name not in shards if isinstance(name, str) else True:
            if not isinstance(name, str) or name in {"", ".", ".."} or any(c in name for c in "/\\\0"):
                raise FileError(
                    f"the shard of tensor {tensor!r} is no plain file name",
                    where=where,
                    expected="a file beside the index",
                    found=repr(name)[:120],
                )
            shards[name] = path.parent / name
        shard_of[tensor] = shards[name]
        tensors.setdefault(name, []).append(tensor)
    missing = [name for name, shard in shards.items() if not exists(shard)]
    if missing:
        raise FileError(
            "shards that the index names are missing",
            where=where,
            expected=f"{_listed(missing)} beside it",
            found=f"{len(shards) - len(missing)} of {len(shards)} shards",
        )
    return Index(path, {shards[name]: frozenset(held) for name, held in tensors.items()}, shard_of, metadata)


def check_shard(index: Index, shard: Path, names: list[str]) -> None:
    """Check that a shard holds exactly the tensors that the index says.

    Raises:
        FileError: One is missing, is not in the index, or belongs to another shard.
    """
    where = f"{index.path}, shard {shard.name}"
    promised = index.shards[shard]
    missing = sorted(promised.difference(names))
    if missing:
        raise FileError("the shard lacks tensors that the index says it has", where=where, expected=_listed(missing))
    others = [name for name in names if name not in promised]
    extra = [name for name in others if name not in index.shard_of]
    if extra:
        raise FileError("the shard holds tensors that the index does not name", where=where, found=_listed(extra))
    for name in others:
        owner = index.shard_of[name].name
        raise FileError(f"tensor {name!r} is in two shards", where=where, expected=f"it in {owner} alone")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
