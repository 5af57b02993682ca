"""Importance of input channels: llama.cpp's `llama-imatrix` files, and the vectors imported from them.

llama.cpp writes a GGUF with two tensors a weight: `NAME.in_sum2`, the sum of each channel's squared inputs, and
`NAME.counts`, how often it was seen. Importance is `in_sum2 / max(counts, 1)`, in binary32. A bank of experts has one
count and one vector an expert.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._files import Closing
from quantform._publish import NewFiles
from quantform.errors import FileError
from quantform.recipes.roles import RoleImportance
from quantform.sources import GGUFSource, Source, Tensor, open_source
from quantform.sources.safetensors import SafetensorsSource
from quantform.sources.safetensors_json import read_json

__all__ = ["Importance", "ImportedImportance", "import_importance"]

F32 = npt.NDArray[np.float32]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_CONFIG_MAX = 16 << 20
_FLOATS = ("fp32", "fp16", "bf16", "fp64")


class Importance(Closing, Mapping[str, F32]):
    """Importance vectors by parameter name, read when they are asked for: `[K]`, or `[E, K]` for a bank of experts.

    A context manager.

    Args:
        path: llama.cpp's GGUF, or the safetensors file that `import_importance` makes of it.

    Attributes:
        path: The same.
        files: The file that it was read from.

    Raises:
        FileError: It is neither, holds no vectors, or a vector's tensors do not fit together.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._source: Source[Any] = open_source(path)
        self.files = self._source.files
        try:
            self._names = self._find()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> F32:
        where = f"{self.path}, {name!r}"
        tensor: Tensor = self._source[self._names[name]]
        vector: F32 = tensor.decode().astype(np.float32)
        if isinstance(self._source, GGUFSource):
            counts = self._source[name + _COUNTS].decode().astype(np.float32).reshape(-1)
            # A count that is no number gives an importance that is none, which is refused below.
            sums = vector.reshape(counts.size, -1)
            np.divide(sums, np.maximum(counts, np.float32(1))[:, None], out=sums)
            vector = sums[0] if counts.size == 1 else sums
        bad = ~(np.isfinite(vector) & (vector >= 0))
        if bad.any():
            place = int(np.argmax(bad))
            raise FileError(
                "an importance is not finite and nonnegative",
                where=f"{where}, element {place}",
                found=f"{vector.reshape(-1)[place]}, "
                f"{'the only one' if bad.sum() == 1 else f'the first of {int(bad.sum())}'}",
            )
        return vector

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _find(self) -> dict[str, str]:
        """The names of parameters, and of the tensors that hold their vectors or sums."""
        where = str(self.path)
        if isinstance(self._source, GGUFSource):
            names = {name.removesuffix(_SUMS): name for name in self._source if name.endswith(_SUMS) and name != _SUMS}
            for name, sums in names.items():
                self._check_sums(name, self._source[sums])
        elif isinstance(self._source, SafetensorsSource):
            names = {name: name for name in self._source}
            for tensor in self._source.values():
                if tensor.format != "fp32" or len(tensor.shape) not in {1, 2} or not tensor.size:
                    raise FileError(
                        "not an importance vector",
                        where=f"{where}, tensor {tensor.name!r}",
                        expected="F32 [K], or [E, K] for a bank of experts",
                        found=f"{tensor.dtype_name} {list(tensor.shape)}",
                    )
        else:
            names = {}
        if not names:
            raise FileError(
                "the file holds no importance vectors",
                where=where,
                expected=f"tensors NAME{_SUMS} and NAME{_COUNTS} of llama-imatrix, or what `quantform imatrix` wrote",
                found=self._source.describe(),
            )
        return names

    def _check_sums(self, name: str, sums: Tensor) -> None:
        where = f"{self.path}, {name!r}"
        counts: Tensor | None = self._source.get(name + _COUNTS)
        if counts is None:
            raise FileError("the sums have no counts", where=where, expected=f"a tensor {name + _COUNTS!r}")
        for tensor in (sums, counts):
            if tensor.format not in _FLOATS:
                raise FileError(
                    "not sums or counts",
                    where=f"{self.path}, tensor {tensor.name!r}",
                    expected="F32",
                    found=tensor.format,
                )
        if (
            not counts.size
            or not sums.size
            or sums.size % counts.size
            or (counts.size > 1 and sums.shape[0] != counts.size)
        ):
            raise FileError(
                "the counts do not fit the sums",
                where=where,
                expected="one count, or one for each row of sums",
                found=f"counts {list(counts.shape)}, sums {list(sums.shape)}",
            )


@dataclass(frozen=True, slots=True)
class ImportedImportance:
    """What `import_importance` wrote and what it left out.

    Attributes:
        shapes: The shape of each vector, `[K]`, or `[E, K]` for a bank of experts.
        unused: The names of the source's vectors that have no role in the config's layers; without a config, none.
    """

    shapes: dict[str, tuple[int, ...]]
    unused: tuple[str, ...] = ()


def import_importance(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> ImportedImportance:
    """Write the importance vectors of llama.cpp's file as a safetensors file: parameter name to F32.

    Args:
        source: The GGUF that `llama-imatrix` wrote.
        output: The safetensors file; its metadata's `source` is the GGUF's file name.
        config: The model's `config.json`. With it, vectors are called `text/layers/<n>/<role>` (`attention/query`,
            `gdn/output`, `mlp/down`, ...), those of a linear attention's output in the model's order of heads, and
            what has no role is left out and named in the result.
        force: Replace an existing output.

    Returns:
        The vectors that were written, and those that were left out.

    Raises:
        FileError: The source is no such file, or one of its numbers is not finite and nonnegative; or the config does
            not say what the layers are.
        OutputExistsError: The output exists and `force` is false, or it is the source itself.
    """
    with Importance(source) as importance:
        sources = importance.files
        vectors: Mapping[str, F32] = importance
        unused: tuple[str, ...] = ()
        if config is not None:
            path = Path(config)
            document = read_json(path, _CONFIG_MAX, what="config", constants=True)
            vectors = roles = RoleImportance(importance, document, str(path), str(importance.path))
            unused = roles.unused
            sources = (*sources, path)
        return ImportedImportance(_write(vectors, importance.path.name, output, sources, force=force), unused)


def _write(
    vectors: Mapping[str, F32],
    source: str,
    output: str | os.PathLike[str],
    sources: tuple[Path, ...],
    *,
    force: bool,
) -> dict[str, tuple[int, ...]]:
    """A safetensors file of vectors, of which one is held at a time."""
    shapes = {name: vectors[name].shape for name in vectors}
    header: dict[str, Any] = {"__metadata__": {"source": source}}
    at = 0
    for name, shape in shapes.items():
        end = at + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw = raw.ljust(-(-len(raw) // 8) * 8)
    head = len(raw).to_bytes(8, "little") + raw
    files = NewFiles([output], force=force, sources=sources)
    try:
        files.create([len(head) + at])
        files.write(0, 0, memoryview(head))
        for name in shapes:
            data = vectors[name].astype("<f4").reshape(-1).view(np.uint8)
            files.write(0, len(head) + header[name]["data_offsets"][0], data.data)
        files.publish()
    except BaseException:
        files.abort()
        raise
    return shapes
