"""The fuzzers' stored inputs, and damage of every kind to them: only errors of ours come out, in bounded memory.

`docs/fuzzing.md` tells how to look for more with a coverage-guided fuzzer.
"""

from __future__ import annotations

import faulthandler
import importlib
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_harness import CORPUS, Target, lay_out, read_everything, read_input
from fuzz_mutations import mutate
from quantform.errors import QuantformError
from quantform.sources import open_source

NAMES = ("gguf", "ninfer", "safetensors", "checkpoint", "onnx")
TARGETS: dict[str, Target] = {name: importlib.import_module(f"fuzz_{name}").TARGET for name in NAMES}
INPUTS = [(name, path) for name, target in TARGETS.items() for path in target.inputs()]
HANG = 120  # seconds; far more than any input takes


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A hang is a defect that no assertion finds: the process says where it hangs, and ends."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[f"{name}-{path.name}" for name, path in INPUTS])
def test_replay(name: str, path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    opened = lay_out(TARGETS[name], data, tmp_path)
    read_everything(opened)  # what is imported late is no memory of the input's
    tracemalloc.start()
    try:
        read_everything(opened)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (16 << 20) + 100 * len(data)
    if not path.name.startswith("found-"):
        open_source(opened).close()  # those that are not damage are sound


def test_the_corpus_is_small_and_whole() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(NAMES)
    assert sum(path.stat().st_size for _, path in INPUTS) < 300_000


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300)
@given(data=st.data())
def test_damage_that_knows_the_structure(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What fails is `read_input(target, mutate(path.read_bytes(), random.Random(seed)), directory)`."""
    target = TARGETS[name]
    path = data.draw(st.sampled_from(target.inputs()))
    seed = data.draw(st.integers(0, 2**32 - 1))
    directory = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    directory.mkdir(exist_ok=True)
    rng = random.Random(seed)  # noqa: S311 - no secret
    read_input(target, mutate(path.read_bytes(), rng), directory)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_can_hurt(name: str, tmp_path: Path) -> None:
    for bad in ("x" * 5000, "a\0b", "a" * 300 + ".gguf", "b" * 300 + ".onnx", "c" * 300 + ".safetensors"):
        with pytest.raises(QuantformError):
            open_source(tmp_path / bad)
    assert TARGETS[name].name == name
