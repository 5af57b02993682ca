"""What every fuzz target does: lay bytes out as files, open them, read everything in bounds, verify.

An input is the bytes of one or more files, one after another with `SEPARATOR` between them; a target names them. Only
an error of ours may come out of reading them, in bounded time and memory. Tests replay the corpus through `read_input`;
`python fuzz/fuzz_gguf.py` and its siblings let a coverage-guided fuzzer look for more, see docs/fuzzing.md.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantform.sources import Source, Tensor

__all__ = ["CORPUS", "SEPARATOR", "Target", "fuzz", "lay_out", "read_everything", "read_input"]

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "corpus"
SEPARATOR = b"\n--- next file ---\n"

_TENSORS = 32  # of one file that are read
_BYTES = 1 << 22  # of one payload, or of one row, that are read at a time
_ROWS = 3
_MEMORY = 3 << 30
_SECONDS = 60  # for one input, which takes a hundredth of one on an idle machine
_STRUCTURED = 0.5  # of all mutations
_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        name: Its corpus is the directory of that name in `CORPUS`.
        files: What the files of an input are called, in order. An empty file is not written.
        opened: The one of them that is opened; an empty name stands for their directory.
    """

    name: str
    files: tuple[str, ...]
    opened: str

    def inputs(self) -> list[Path]:
        """The stored corpus."""
        return sorted((CORPUS / self.name).iterdir())


def lay_out(target: Target, data: bytes, directory: Path) -> Path:
    """Write the files of an input and give the path to open."""
    parts = data.split(SEPARATOR, len(target.files) - 1)
    for index, name in enumerate(target.files):
        path = directory / name
        if index < len(parts) and parts[index]:
            path.write_bytes(parts[index])
        else:
            path.unlink(missing_ok=True)
    return directory / target.opened


def read_input(target: Target, data: bytes, directory: Path) -> None:
    """Lay an input out and read everything; whatever is raised but an error of ours is a defect."""
    read_everything(lay_out(target, data, directory))


def read_everything(path: Path) -> None:
    """What users do with a file: open, list, read some of each tensor in every way, verify. Each may be refused."""
    from quantform import open as open_file  # noqa: PLC0415 - only after the fuzzer has instrumented it
    from quantform import verify  # noqa: PLC0415

    with _refusing(), open_file(path) as source:
        source.describe()
        _read_metadata(source)
        for name in list(source)[:_TENSORS]:
            _read_tensor(source[name])
    with _refusing():
        verify(path, deep=True).as_dict()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    from quantform.errors import QuantformError  # noqa: PLC0415

    try:
        yield
    except QuantformError as error:
        str(error)


def _read_metadata(source: Source[Any]) -> None:
    for key in list(source.metadata)[:_TENSORS]:
        with _refusing():
            value = source.metadata[key]
            if hasattr(value, "tolist") and len(value) < _BYTES:
                value.tolist()


def _read_tensor(tensor: Tensor) -> None:
    import numpy as np  # noqa: PLC0415

    repr(tensor)
    _ = tensor.bits_per_weight, tensor.decodable, tensor.joined, tensor.importable
    rows, columns = tensor.matrix
    some = slice(0, min(_ROWS, rows))
    calls: list[Callable[[], object]] = [tensor.check, tensor.divisor_runs, tensor.activation_divisor]
    if tensor.nbytes <= _BYTES:
        calls += [tensor.payload, lambda: tensor.read_into(0, np.empty(tensor.nbytes, np.uint8))]
    if columns <= _BYTES:
        calls += [functools.partial(tensor.words, some), functools.partial(tensor.decode, None, some)]
        calls += [functools.partial(tensor.decode, "bfloat16", [rows - 1, 0])] if rows else []
    if tensor.size <= _BYTES:
        calls += [tensor.words, tensor.decode]
    for call in calls:
        with _refusing():
            call()


def fuzz(target: Target) -> None:
    """Run the coverage-guided fuzzer on one target; the arguments are libFuzzer's.

    A file among them is only read, which reproduces a defect. Inputs that reach new code go to the first directory.
    """
    import atheris  # noqa: PLC0415 - of the extra `fuzz`

    with atheris.instrument_imports(include=["quantform"]):
        import quantform.sources.onnx_model  # noqa: F401, PLC0415 - the readers, before the first input
    import resource  # noqa: PLC0415

    from fuzz_mutations import mutate  # noqa: PLC0415

    # Address space, not memory in use: a single huge allocation fails at once, and its MemoryError is a defect.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < _STRUCTURED:
            return mutate(data, rng)[:most]
        return bytes(atheris.Mutate(data, most))

    shared = Path("/dev/shm")  # noqa: S108 - the files are in a fresh directory there
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="quantform-fuzz-") as scratch:
        options = [f"-timeout={_SECONDS}", "-rss_limit_mb=2048", f"-max_len={_LENGTH}"]
        given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        atheris.Setup(
            [sys.argv[0], *options, *sys.argv[1:], *([] if given else [str(CORPUS / target.name)])],
            lambda data: read_input(target, data, Path(scratch)),
            custom_mutator=mutator,
        )
        atheris.Fuzz()
