"""Compiled kernels against the readable NumPy decoders: the same bits, on every instruction set this processor has."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantform import _native
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import ArgumentError
from quantform.packed import PROFILES, Profile, dequantize_packed
from quantform.packed import dequantize as module

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)
KERNELS: Any = _native.kernels
pytestmark = pytest.mark.usefixtures("instruction_set")

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
OUTPUTS = pytest.mark.parametrize("output", FLOAT_OUTPUTS)
CACHED, STREAMED = 1, 2


def words(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bits of any output type, with every NaN written alike, since NaN payloads are unspecified."""
    bits = values.view(f"u{values.itemsize}").copy()
    bits[np.isnan(values)] = 1
    return bits


def by_numpy(profile: Profile, payload: npt.NDArray[np.uint8], output: str) -> npt.NDArray[Any]:
    out = np.empty((payload.size // profile.bytes, profile.values), FLOAT_OUTPUTS[output])
    module._decode_by_numpy(profile, payload, out)
    return out


def by_kernel(
    profile: Profile, payload: npt.NDArray[np.uint8], output: str, stores: int, shift: int = 0, threads: int = 1
) -> npt.NDArray[Any]:
    """Decodes to memory that begins `shift` bytes after a cache line."""
    dtype = FLOAT_OUTPUTS[output]
    size = payload.size // profile.bytes * profile.values * dtype.itemsize
    memory = np.full(size + 256, 0xA5, np.uint8)
    first = -memory.ctypes.data % 64 + shift
    out = memory[first : first + size]
    KERNELS.decode_packed(profile.ggml_type, payload, list(FLOAT_OUTPUTS).index(output), out, threads, stores)
    assert (memory[:first] == 0xA5).all()
    assert (memory[first + size :] == 0xA5).all()
    return out.copy().view(dtype).reshape(-1, profile.values)


def special_blocks(profile: Profile) -> npt.NDArray[np.uint8]:
    """Random blocks whose floating-point fields run through signed zeros, subnormals, extremes, infinities and NaN."""
    rng = np.random.default_rng(profile.ggml_type)
    half = np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00], np.uint16)
    single = np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001], np.uint32)
    specials = {2: np.concatenate([half, half | 0x8000]), 4: np.concatenate([single, single | 0x80000000])}
    blocks = np.frombuffer(rng.bytes(1296 * profile.bytes), np.uint8).copy().view(profile.block)
    repeat = 1
    for name in profile.block.names or ():
        dtype = profile.block[name]
        if dtype.kind == "f":
            values = specials[dtype.itemsize]
            # each field runs more slowly than the one before, so that every pair of values meets
            index = np.arange(len(blocks)) // repeat % len(values)
            blocks[name] = values[index].view(dtype.str)
            repeat *= len(values)
        elif dtype == np.uint8:
            blocks[name] = np.arange(len(blocks)) % 256  # the scale bytes of MXFP4
    if profile.name == "IQ1_M":
        scales = blocks["scales"].view("<u2")
        values = specials[2][np.arange(len(blocks)) % len(specials[2])]
        for place in range(4):
            scales[:, place] = scales[:, place] & 0x0FFF | (values >> 4 * place & 15) << 12
    return blocks.view(np.uint8)


@ALL
@OUTPUTS
@pytest.mark.parametrize("stores", [CACHED, STREAMED], ids=["cached", "streamed"])
def test_special_blocks(profile: Profile, output: str, stores: int) -> None:
    payload = special_blocks(profile)
    expected = by_numpy(profile, payload, output)
    assert np.array_equal(words(by_kernel(profile, payload, output, stores)), words(expected))


@ALL
@settings(max_examples=30)
@given(data=st.data())
def test_any_blocks_at_any_address(profile: Profile, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 9) | st.integers(30, 140))
    seed = data.draw(st.integers(0, 2**32 - 1))
    offset = data.draw(st.integers(0, 17))
    payload = np.random.default_rng(seed).integers(0, 256, count * profile.bytes + offset, np.uint8)[offset:]
    payload.flags.writeable = False
    output = data.draw(st.sampled_from(list(FLOAT_OUTPUTS)))
    stores = data.draw(st.sampled_from([CACHED, STREAMED]))
    found = by_kernel(profile, payload, output, stores, shift=data.draw(st.integers(0, 63)))
    assert np.array_equal(words(found), words(by_numpy(profile, payload, output)))


@ALL
def test_every_codebook_row_and_sign(profile: Profile) -> None:
    # enough random blocks to meet each of 2048 rows and 256 signs many times
    payload = np.random.default_rng(5).integers(0, 256, 4096 * profile.bytes, np.uint8)
    found = by_kernel(profile, payload, "float32", CACHED)
    assert np.array_equal(words(found), words(by_numpy(profile, payload, "float32")))


@ALL
def test_golden_blocks(profile: Profile, packed_vectors: dict[str, np.ndarray]) -> None:
    payload = packed_vectors[f"{profile.name.lower()}/payload"].reshape(-1)
    expected = packed_vectors[f"{profile.name.lower()}/bits"].reshape(-1).view(np.float32)
    assert np.array_equal(words(by_kernel(profile, payload, "float32", CACHED).reshape(-1)), words(expected))


# Blocks of 256 values of which even float16 output is more than one thread takes.
MANY = 34_003


@pytest.fixture(scope="module")
def many_blocks() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(6).integers(0, 256, MANY * PROFILES["gguf:q4_k"].bytes, np.uint8)


@pytest.fixture(scope="module")
def many_values(many_blocks: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
    return {output: words(by_numpy(PROFILES["gguf:q4_k"], many_blocks, output)) for output in ("float32", "float16")}


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("stores", [CACHED, STREAMED], ids=["cached", "streamed"])
@pytest.mark.parametrize("output", ["float32", "float16"])
def test_results_do_not_depend_on_threads(
    output: str, stores: int, shift: int, many_blocks: npt.NDArray[np.uint8], many_values: dict[str, npt.NDArray[Any]]
) -> None:
    found = by_kernel(PROFILES["gguf:q4_k"], many_blocks, output, stores, shift, threads=3)
    assert np.array_equal(words(found), many_values[output])


def test_calls_from_many_threads(many_blocks: npt.NDArray[np.uint8], many_values: dict[str, npt.NDArray[Any]]) -> None:
    same: list[bool] = []

    def work() -> None:
        found = dequantize_packed(many_blocks, "gguf:q4_k", [MANY, 256], threads=2)
        same.append(np.array_equal(words(found), many_values["float32"]))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same == [True] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_decodes() -> None:
    # in a process of its own, which has no other threads to be warned of
    code = (
        "import os, numpy as np\n"
        "from quantform.packed import dequantize_packed\n"
        "x = np.zeros(34003 * 144, np.uint8)\n"
        "dequantize_packed(x, 'gguf:q4_k', [34003, 256], threads=2)\n"
        "child = os.fork()\n"
        "values = dequantize_packed(x, 'gguf:q4_k', [34003, 256], threads=2)\n"
        "if child == 0: os._exit(int(values.any()))\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    source = str(Path(module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@OUTPUTS
def test_large_outputs_begin_at_a_cache_line(output: str) -> None:
    for count in (2048, 5001, 90000):
        values = dequantize_packed(bytes(18 * count), "gguf:q4_0", [count, 32], output)
        assert values.ctypes.data % 64 == 0
        assert values.flags.c_contiguous
        assert values.flags.writeable


def test_strided_and_reversed_payloads() -> None:
    profile = PROFILES["gguf:q5_k"]
    payload = np.random.default_rng(8).integers(0, 256, 2 * 7 * profile.bytes, np.uint8)
    for view in (payload[::2], payload[: 7 * profile.bytes][::-1]):
        found = dequantize_packed(view, profile.identifier, [7, 256])
        assert np.array_equal(words(found), words(by_numpy(profile, view.copy(), "float32")))


def test_outputs_that_are_not_aligned_to_their_type() -> None:
    profile = PROFILES["gguf:q8_0"]
    payload = np.random.default_rng(9).integers(0, 256, 9 * profile.bytes, np.uint8)
    for output, dtype in FLOAT_OUTPUTS.items():
        out = np.empty(9 * 32 * dtype.itemsize + 1, np.uint8)[1:].view(dtype).reshape(9, 32)
        dequantize_packed(payload, profile.identifier, [9, 32], output, out=out)
        assert np.array_equal(words(out.copy()), words(by_numpy(profile, payload, output)))


@pytest.mark.parametrize(
    ("ggml_type", "size", "output", "out"),
    [
        (-1, 18, 0, 128),
        (43, 18, 0, 128),
        (4, 18, 0, 128),
        (2, 17, 0, 128),
        (2, 18, 4, 128),
        (2, 18, 0, 127),
        (2, 0, 0, 128),
    ],
)
def test_the_binding_refuses_what_does_not_fit(ggml_type: int, size: int, output: int, out: int) -> None:
    with pytest.raises(ValueError, match=r"no such type|do not fit"):
        KERNELS.decode_packed(ggml_type, np.zeros(size, np.uint8), output, np.zeros(out, np.uint8), 1)


def test_unknown_instruction_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="no such instruction set"):
        KERNELS.use_instruction_set("x86-64-v5")


def test_kernels_know_every_profile() -> None:
    for profile in PROFILES.values():
        payload, out = np.zeros(profile.bytes, np.uint8), np.zeros(profile.values * 4, np.uint8)
        KERNELS.decode_packed(profile.ggml_type, payload, 0, out, 1)


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**30, 1.0, "2", True])
def test_thread_counts_are_checked(threads: Any) -> None:
    with pytest.raises(ArgumentError, match="threads is not a number of threads"):
        dequantize_packed(bytes(18), "gguf:q4_0", [32], threads=threads)
