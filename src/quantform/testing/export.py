"""The vectors as files: one `.npz` for each subject, the same arrays as plain files, and a manifest with digests.

The bytes are the same on every machine. `docs/conformance.md` describes the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._interrupts import held, note_published
from quantform._journal import Journal
from quantform._progress import Progress, silent
from quantform.errors import FileError, OutputExistsError
from quantform.formats import FORMATS, GgufFormat
from quantform.testing.kit import RULES, encoder_vectors, vectors
from quantform.testing.unrounded import unrounded
from quantform.testing.vectors import EncoderVector, Vector

__all__ = ["MANIFEST_VERSION", "export"]

MANIFEST_VERSION = 2
"""Goes up when the manifest's members change their meaning, or vectors change under the same identifier."""

Array = npt.NDArray[Any]

# zip files begin in 1980; the time is part of the bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def export(
    directory: str | os.PathLike[str],
    formats: str | Iterable[str] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the vectors of some profiles and formats, and give the manifest.

    Args:
        directory: Where to; it must not exist, or be empty. It appears complete or not at all.
        formats: Names or shell patterns; None is all.
        progress: Called with the number of vectors done.

    Raises:
        OutputExistsError: There is something.
        FileError: The operating system refuses.
        UnknownNameError: A pattern matches nothing.
    """
    target = Path(directory)
    chosen: list[Vector | EncoderVector] = [*vectors(formats), *encoder_vectors(formats)]
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputExistsError(
            "the directory of the vectors is not empty", where=str(target), hint="Name one that does not exist yet"
        )
    if not target.absolute().parent.is_dir():
        raise FileError("there is no directory to write to", where=str(target.absolute().parent))
    journal = None
    staged = target.absolute().parent / f".quantform-{uuid.uuid4().hex}"
    try:
        with held():
            journal = Journal.open(target.absolute())  # nothing is written in it: it keeps other processes away
        if journal is not None:
            staged = journal.path.with_suffix(".staged")
        shutil.rmtree(staged, ignore_errors=True)  # of a run that was killed
        staged.mkdir()
        manifest = _Writer(staged).write(chosen, progress)
        with held():
            staged.replace(target)
            note_published([target])
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError):
            place = str(error.filename or target)
            raise FileError("the vectors cannot be written", where=place, found=error.strerror) from error
        raise
    finally:
        if journal is not None:
            journal.end()
    return manifest


class _Writer:
    """Writes arrays below a directory: each once as a plain file, and in the archive of every subject that has it.

    The vectors of `gguf_*` formats have the bytes of their profiles' vectors, and so the same archive.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, str] = {}  # files by their digests

    def write(self, chosen: list[Vector | EncoderVector], progress: Progress) -> dict[str, Any]:
        entries, archives, same = [], dict[str, dict[str, Array]](), dict[str, str]()
        for number, vector in enumerate(chosen):
            progress(number, len(chosen), vector.identifier)
            subject, _, name = vector.identifier.rpartition("/")
            stem = subject.replace(":", "/")
            arrays = dict(_arrays(vector))
            files = {key: self._file(f"{stem}/{name}.{key}", array) for key, array in arrays.items()}
            if (shared := _shared_stem(vector)) in archives:
                same[stem] = shared
            else:
                archives.setdefault(stem, {}).update({f"{name}.{key}": array for key, array in arrays.items()})
            entries.append({**_described(vector), "arrays": files})
        bundles = {stem: self._archive(f"{stem}.npz", arrays) for stem, arrays in archives.items()}
        bundles |= {stem: bundles[shared] for stem, shared in same.items()}
        used = {entry["rule"] for entry in entries}
        used |= {wide[0] for vector in chosen if isinstance(vector, Vector) and (wide := unrounded(vector)) is not None}
        manifest = {
            "schema": "quantform-conformance",
            "version": MANIFEST_VERSION,
            "rules": {
                rule.identifier: {"meaning": rule.meaning, "section": rule.section}
                for rule in RULES.values()
                if rule.identifier in used or rule.identifier.startswith("output.")
            },
            "archives": bundles,
            "vectors": entries,
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
        (self._root / "manifest.json").write_text(text, "ascii", newline="\n")
        return manifest

    def _file(self, path: str, array: Array) -> dict[str, Any]:
        data = _stored(array).tobytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            self._put(path, data)
            self._known[digest] = path
        return {
            "file": self._known[digest],
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "bytes": len(data),
            "sha256": digest,
        }

    def _archive(self, path: str, arrays: dict[str, Array]) -> dict[str, Any]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                member = io.BytesIO()
                np.lib.format.write_array(member, _stored(array), version=(1, 0), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy", _NO_TIME), member.getvalue())
        data = buffer.getvalue()
        self._put(path, data)
        return {"file": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _put(self, path: str, data: bytes) -> None:
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _shared_stem(vector: Vector | EncoderVector) -> str:
    """Where the vectors with the same bytes are; empty where there are none."""
    record = FORMATS.get(vector.format)
    if isinstance(vector, Vector) and isinstance(record, GgufFormat):
        return record.profile.identifier.replace(":", "/")
    return ""


def _stored(array: Array) -> Array:
    """Little-endian and contiguous; bfloat16, which `.npy` lacks, as its 16-bit words."""
    plain = array.view(np.uint16) if array.dtype.kind == "V" else array
    return np.ascontiguousarray(plain.astype(plain.dtype.newbyteorder("<"), copy=False)).reshape(array.shape)


def _arrays(vector: Vector | EncoderVector) -> Iterator[tuple[str, Array]]:
    if isinstance(vector, Vector):
        yield "payload", vector.payload
        yield from vector.values.items()
    else:
        yield "values", vector.values
        if "importance" in vector.parameters:
            yield "importance", vector.parameters["importance"]
        if vector.payload is not None:
            yield "payload", vector.payload
    for name, array in vector.words.items():
        if name != "blocks":  # the payload itself
            yield name, array


def _described(vector: Vector | EncoderVector) -> dict[str, Any]:
    common = {
        "id": vector.identifier,
        "rule": vector.rule,
        "format": vector.format,
        "layout": vector.layout or None,
        "shape": list(vector.shape),
    }
    if isinstance(vector, Vector):
        return {"kind": "decode", **common, "divisors": vector.divisors}
    return {
        "kind": "encode",
        **common,
        "method": vector.method,
        "source": vector.source,
        "negative_scales": bool(vector.parameters.get("negative_scales", False)),
        "refused": vector.payload is None,
    }
