"""What a safetensors checkpoint brings beside tensors: `config.json`, and the small files that programs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantform._sizes import human_bytes
from quantform._strict_json import json_values
from quantform.container import Component
from quantform.convert.carried import Carried, Resource, file_resource, literal_resource
from quantform.errors import FileError
from quantform.sources.conventions import Checkpoint
from quantform.sources.safetensors import SafetensorsSource

__all__ = ["RESOURCES", "checkpoint_carried", "kept_files"]

RESOURCES: Mapping[str, str] = {
    "tokenizer.json": "tokenizer",
    "tokenizer.model": "tokenizer_model",
    "tokenizer_config.json": "tokenizer_config",
    "special_tokens_map.json": "special_tokens_map",
    "added_tokens.json": "added_tokens",
    "vocab.json": "vocab",
    "vocab.txt": "vocab_text",
    "merges.txt": "merges",
    "chat_template.jinja": "chat_template",
    "generation_config.json": "generation_config",
    "preprocessor_config.json": "preprocessor_config",
    "processor_config.json": "processor_config",
    "video_preprocessor_config.json": "video_preprocessor_config",
}
"""The files beside a checkpoint that are kept, and their roles."""

_LONGEST = 256 << 20
_LISTED = 4
_DEFAULT = "default"


def checkpoint_carried(source: Checkpoint, component: str) -> Carried:
    """The configuration, and the files of `RESOURCES` that are there.

    Without `chat_template.jinja`, the template that `chat_template.json` or `tokenizer_config.json` holds is kept in
    its place. Of several with names, this is the one called "default", or else the first; a note names the others.

    Raises:
        FileError: A file is longer than 256 MiB, or cannot be read.
    """
    notes: list[str] = []
    resources: dict[str, Resource] = {}
    files = source.files
    inner = source.source
    if isinstance(inner, SafetensorsSource):
        resources = {role: file_resource(path, size) for role, (path, size) in kept_files(inner).items()}
        if "chat_template" not in resources:
            template = _template(inner, notes)
            if template:
                resources["chat_template"] = literal_resource(template.encode("utf-8"))
    if source.dropped:
        names = _listed([one.name for one in source.dropped])
        notes.append(f"dropped, since no weight depends on them: {names}")
    origin: dict[str, Any] = {"kind": source.kind}
    if source.dropped:
        origin["dropped"] = {one.name: one.reason for one in source.dropped}
    return Carried(
        components={component: Component(config=_config(source.config), resources={role: role for role in resources})},
        resources={(component, role): resource for role, resource in resources.items()},
        origin=origin,
        files=files,
        notes=notes,
    )


def kept_files(source: SafetensorsSource) -> dict[str, tuple[Path, int]]:
    """The files of `RESOURCES` that are there and hold anything, by their roles, and how long they are.

    Raises:
        FileError: One is longer than 256 MiB, or cannot be looked at.
    """
    directory = source.files[0].parent
    sizes = {role: (directory / file, _size(directory / file)) for file, role in RESOURCES.items()}
    return {role: (path, size) for role, (path, size) in sizes.items() if size}


def _size(path: Path) -> int:
    """Bytes of a file that is to be kept, 0 where there is none."""
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError as error:
        raise FileError("cannot be read", where=str(path), found=error.strerror) from error
    if size > _LONGEST:
        raise FileError(
            "too long to go along with a model",
            where=str(path),
            expected=f"at most {human_bytes(_LONGEST)}",
            found=human_bytes(size),
            hint="Move it elsewhere if the model does not need it",
        )
    return size


def _template(source: SafetensorsSource, notes: list[str]) -> str:
    """The first template that a file holds, empty where none does; what is left out is added to the notes."""
    for file in ("chat_template.json", "tokenizer_config.json"):
        value = (source.document(file) or {}).get("chat_template")
        if isinstance(value, str):
            return value
        named = _named_templates(value)
        if named:
            kept = _DEFAULT if _DEFAULT in named else next(iter(named))
            others = [name for name in named if name != kept]
            if others:
                notes.append(f"{file}: the chat template {kept!r} is kept, and left out are {_listed(others)}")
            return named[kept]
        if value is not None:
            notes.append(f"{file}: chat_template is neither a text nor a list of named ones, and is left out")
    return ""


def _named_templates(value: object) -> dict[str, str]:
    """Templates by name, from a list of objects with a name and a template; empty where it is anything else."""
    named: dict[str, str] = {}
    for one in value if isinstance(value, list) else []:
        name, template = (one.get("name"), one.get("template")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            return {}
        named.setdefault(name, template)
    return named


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(map(repr, names[:_LISTED]))}{more}"


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = json_values(config)
    return values
