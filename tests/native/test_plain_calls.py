"""Calls of `dequantize_packed` that the compiled module does by itself: what it takes, and that it weakens no check."""

from __future__ import annotations

import functools
import gc
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bits import bits_of
from quantform import _native
from quantform._scalars import FLOAT_OUTPUTS
from quantform.packed import PROFILES, Profile, dequantize_packed
from quantform.packed import dequantize as module

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)
PLAIN: Any = module._decode_plain
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
Q4_0 = PROFILES["gguf:q4_0"]


class Text(str):
    __slots__ = ()


class Bytes(bytes):
    pass


class Array(np.ndarray[Any, Any]):
    pass


class Index:
    def __index__(self) -> int:
        return 2


def payload_of(profile: Profile, blocks: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(blocks).integers(0, 256, blocks * profile.bytes, np.uint8)


def released(data: npt.NDArray[np.uint8]) -> memoryview:
    view = memoryview(data.tobytes())
    view.release()
    return view


def spread(data: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.uint8]:
    """The same values, `step` apart."""
    memory = np.zeros(data.size * abs(step), np.uint8)
    memory[::step] = data
    return memory[::step]


def locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


# The ways to give one argument, each a function of what a plain call would give. Those of the first group are plain.
PLAIN_PAYLOADS: dict[str, Callable[[npt.NDArray[np.uint8]], Any]] = {
    "array": lambda data: data,
    "read-only": locked,
    "bytes": lambda data: data.tobytes(),
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(data.tobytes()),
    "memoryview of words": lambda data: memoryview(data.tobytes()).cast("h"),
    "unaligned": lambda data: np.append(np.uint8(0), data)[1:],
}
OTHER_PAYLOADS: dict[str, Callable[[npt.NDArray[np.uint8]], Any]] = {
    "strided": lambda data: spread(data, 3),
    "reversed": lambda data: spread(data, -1),
    "strided memoryview": lambda data: spread(data, 2).data,
    "Fortran memoryview": lambda data: np.asfortranarray(data.reshape(2, -1)).data,
    "released": released,
    "subclass of bytes": lambda data: Bytes(data.tobytes()),
    "subclass of an array": lambda data: data.view(Array),
    "int8": lambda data: data.view(np.int8),
    "words": lambda data: data.view(np.uint16),
    "bool": lambda data: (data & 1).view(np.bool_),
    "matrix": lambda data: data.reshape(2, -1),
    "scalar": lambda _: np.array(3, np.uint8),
    "list": lambda data: data.tolist(),
    "short": lambda data: data[:-1],
    "long": lambda data: np.append(data, data),
    "empty": lambda _: b"",
    "None": lambda _: None,
    "text": lambda _: "abc",
}
PLAIN_FORMATS: dict[str, Callable[[str], Any]] = {
    "text": lambda name: name,
    "new text": lambda name: "".join(list(name)),
}
OTHER_FORMATS: dict[str, Callable[[str], Any]] = {
    "subclass": Text,
    "unknown": lambda name: name + "_",
    "upper case": lambda name: name.upper(),
    "bytes": lambda name: name.encode(),
    "list": lambda name: [name],
    "half a pair": lambda _: "\ud800",
    "None": lambda _: None,
}
PLAIN_SHAPES: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "tuple": lambda shape: shape,
    "list": list,
    "more axes": lambda shape: (1, 1, *shape),
    "NumPy's most": lambda shape: (1,) * (64 - len(shape)) + shape,
}
OTHER_SHAPES: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "array": np.array,
    "NumPy integers": lambda shape: tuple(map(np.int64, shape)),
    "iterator": iter,
    "too many axes": lambda shape: (1,) * 64 + shape,
    "scalar": lambda shape: shape[-1],
    "rank 0": lambda _: (),
    "bool": lambda shape: (True, *shape),
    "float": lambda shape: (*shape[:-1], float(shape[-1])),
    "index": lambda shape: (Index(), *shape),
    "text": lambda _: "32",
    "bytes": lambda _: b"\x02\x20",
    "None": lambda _: None,
    "negative": lambda shape: (-1, *shape),
    "twice negative": lambda shape: (-1, -1, *shape),
    "zero": lambda shape: (0, *shape),
    "empty": lambda shape: (*shape[:-1], 0),
    "not whole blocks": lambda shape: (*shape[:-1], shape[-1] + 1),
    "more blocks": lambda shape: (2, *shape),
    "huge": lambda shape: (2**62, *shape),
    "beyond 64 bits": lambda shape: (2**64, *shape),
    "wraps to the right size": lambda shape: (2**32, 2**32, *shape),
    "wraps to one": lambda shape: (2**63 - 1, 2**63 - 1, *shape),
}
PLAIN_TYPES: dict[str, Callable[[str], Any]] = {"text": lambda name: name, "NumPy's": FLOAT_OUTPUTS.__getitem__}
OTHER_TYPES: dict[str, Callable[[str], Any]] = {
    "class": lambda name: FLOAT_OUTPUTS[name].type,
    "subclass": Text,
    "code": lambda name: FLOAT_OUTPUTS[name].str if name != "bfloat16" else "E",
    "big-endian": lambda name: FLOAT_OUTPUTS[name].newbyteorder(">") if name != "bfloat16" else ">f4",
    "with metadata": lambda _: np.dtype("float32", metadata={"a": 1}),
    "int32": lambda _: "int32",
    "float8": lambda _: ml_dtypes.float8_e5m2,
    "nonsense": lambda _: "flaot32",
    "list": lambda _: ["float32"],
    "None": lambda _: None,
}
PLAIN_THREADS: tuple[Any, ...] = (None, 1, 2, 1024)
OTHER_THREADS: tuple[Any, ...] = (0, -1, 1025, 2**31, 2**64 + 1, 10**30, 1.0, "2", True, np.int64(2), Index())


def array_of(shape: tuple[int, ...], name: str, shift: int = 0) -> npt.NDArray[Any]:
    dtype = FLOAT_OUTPUTS[name]
    size = int(np.prod(shape)) * dtype.itemsize
    return np.full(size + shift, 0xA5, np.uint8)[shift:].view(dtype).reshape(shape)


def broadcast(shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Of which NumPy warns that it will become read-only."""
    shape = shape[-4:]
    return np.broadcast_arrays(array_of(shape[-1:], name), array_of(shape, name))[0]


# Of the shape as a tuple and the type's name, where those were plain themselves.
PLAIN_OUTPUTS: dict[str, Callable[[tuple[int, ...], str], Any]] = {
    "none": lambda _shape, _name: None,
    "array": array_of,
    "unaligned": lambda shape, name: array_of(shape, name, 1),
}
OTHER_OUTPUTS: dict[str, Callable[[tuple[int, ...], str], Any]] = {
    "strided": lambda shape, name: array_of((*shape[:-1], 2 * shape[-1]), name)[..., ::2],
    "reversed": lambda shape, name: array_of(shape, name)[..., ::-1],
    "Fortran order": lambda shape, name: np.asfortranarray(array_of(shape, name)),
    "read-only": lambda shape, name: locked(array_of(shape, name)),
    "broadcast": broadcast,
    "subclass": lambda shape, name: array_of(shape, name).view(Array),
    "flat": lambda shape, name: array_of(shape, name).reshape(1, -1),
    "fewer axes": lambda shape, name: array_of(shape[:-1], name),
    "more axes": lambda shape, name: array_of((*shape[-4:], 1), name),
    "shorter": lambda shape, name: array_of(shape, name)[..., :-1].copy(),
    "words": lambda shape, name: array_of(shape, name).view(f"u{FLOAT_OUTPUTS[name].itemsize}"),
    "another type": lambda shape, name: array_of(shape, "float16" if name == "float32" else "float32"),
    "big-endian": lambda shape, name: array_of(shape, name).view(">f4" if name == "float32" else ">u2"),
    "list": lambda shape, name: array_of(shape, name).tolist(),
    "bytes": lambda shape, name: bytearray(array_of(shape, name).tobytes()),
}


def outcome(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """What a call gave or raised, so that it can be compared."""
    try:
        values = dequantize_packed(**arguments)
    except Exception as error:  # noqa: BLE001 - it is compared, whatever it is
        return type(error), str(error)
    assert arguments["out"] is None or values is arguments["out"]
    return type(values), values.dtype, values.shape, values.flags.c_contiguous, bits_of(values).tobytes()


def plain(arguments: dict[str, Any]) -> Any:
    return PLAIN(*(arguments[name] for name in ("x", "format", "shape", "output_dtype", "out", "threads")))


def by_python(arguments: dict[str, Any]) -> npt.NDArray[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_decode_plain", None)
        return dequantize_packed(**arguments)


@pytest.fixture(autouse=True)
def no_threads_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUANTFORM_THREADS", raising=False)


def test_all_plain_calls_are_taken() -> None:
    for profile in PROFILES.values():
        data = payload_of(profile, 4)
        for name in FLOAT_OUTPUTS:
            shape = (2, 2 * profile.values)
            for make_out in PLAIN_OUTPUTS.values():
                arguments = {"x": data, "format": profile.identifier, "shape": shape, "output_dtype": name}
                values = plain({**arguments, "out": make_out(shape, name), "threads": 1})
                assert values is not None
                assert np.array_equal(values, by_python(arguments), equal_nan=True)
    for argument, (kinds, _) in KINDS.items():
        for kind, make in kinds.items():
            taken = compare(maker(Q4_0, (2, 64), "float32", {**USUAL, argument: make}))
            assert taken == (not FREE_THREADED or (argument, kind) != ("threads", "None")), (argument, kind)


def compare(make: Callable[[], dict[str, Any]]) -> bool:
    """Whether a call is taken; it ends in any case as it does in Python alone."""
    found = outcome(make())
    taken = plain(make())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_decode_plain", None)
        expected = outcome(make())
    assert found == expected
    assert taken is None or expected[0] is np.ndarray
    return taken is not None


Make = Callable[..., Any]


def constants(values: tuple[Any, ...]) -> dict[str, Make]:
    return {repr(value): functools.partial(lambda one: one, value) for value in values}


KINDS: dict[str, tuple[dict[str, Make], dict[str, Make]]] = {
    "x": (PLAIN_PAYLOADS, OTHER_PAYLOADS),
    "format": (PLAIN_FORMATS, OTHER_FORMATS),
    "shape": (PLAIN_SHAPES, OTHER_SHAPES),
    "output_dtype": (PLAIN_TYPES, OTHER_TYPES),
    "out": (PLAIN_OUTPUTS, OTHER_OUTPUTS),
    "threads": (constants(PLAIN_THREADS), constants(OTHER_THREADS)),
}


def maker(profile: Profile, shape: tuple[int, ...], name: str, kinds: dict[str, Make]) -> Callable[[], dict[str, Any]]:
    """Makes the same arguments anew at each call, since outputs are written to and views released."""
    whole = tuple(kinds["shape"](shape)) if kinds["shape"] in PLAIN_SHAPES.values() else shape
    blocks = math.prod(shape) // profile.values
    return lambda: {
        "x": kinds["x"](payload_of(profile, blocks)),
        "format": kinds["format"](profile.identifier),
        "shape": kinds["shape"](shape),
        "output_dtype": kinds["output_dtype"](name),
        "out": kinds["out"](whole, name),
        "threads": kinds["threads"](),
    }


USUAL = {argument: list(kinds.values())[argument == "threads"] for argument, (kinds, _) in KINDS.items()}
ONE_UNUSUAL = [(argument, kind) for argument, (_, kinds) in KINDS.items() for kind in kinds]


@pytest.mark.parametrize(("argument", "kind"), ONE_UNUSUAL)
@pytest.mark.parametrize("out", ["none", "array"])
@pytest.mark.parametrize("rows", [1, 4])
def test_one_unusual_argument(argument: str, kind: str, out: str, rows: int) -> None:
    kinds = {**USUAL, "out": PLAIN_OUTPUTS[out], argument: KINDS[argument][1][kind]}
    compare(maker(Q4_0, (rows, 128 // rows), "float32", kinds))


@settings(max_examples=600)
@given(data=st.data())
def test_the_same_result_or_the_same_error(data: st.DataObject) -> None:
    unusual = data.draw(st.sets(st.sampled_from(list(KINDS)), max_size=3))
    chosen = {argument: KINDS[argument][argument in unusual] for argument in KINDS}
    kinds = {argument: makes[data.draw(st.sampled_from(list(makes)))] for argument, makes in chosen.items()}
    profile = data.draw(st.sampled_from(list(PROFILES.values())))
    name = data.draw(st.sampled_from(list(FLOAT_OUTPUTS)))
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)) * 2 * profile.values
    environment = data.draw(st.sampled_from([None, "2", "", "0", "two"]))
    with pytest.MonkeyPatch.context() as patch:
        if environment is not None:
            patch.setenv("QUANTFORM_THREADS", environment)
        taken = compare(maker(profile, shape, name, kinds))
    assert taken or unusual or (kinds["threads"]() is None and (environment is not None or FREE_THREADED))


@pytest.mark.parametrize("shift", [0, 1, 17, 18, 127, 128, 145, 146])
@pytest.mark.parametrize("kind", ["array", "bytearray", "memoryview"])
def test_outputs_that_overlap_their_payload_are_left_alone(shift: int, kind: str) -> None:
    # the payload lies at 128..146, the output begins at `shift`: they touch unless it ends or begins beyond
    memory = bytearray(384)
    whole = np.frombuffer(memory, np.uint8)
    x = {"array": whole[128:146], "bytearray": memory, "memoryview": memoryview(memory)[128:146]}[kind]
    out = whole[shift : shift + 128].view(np.float32)
    taken = PLAIN(x, "gguf:q4_0", (32,), "float32", out, 1)
    assert (taken is out) == (kind != "bytearray" and shift in {0, 146})


def test_nothing_is_written_where_python_has_to_look() -> None:
    for make in (lambda out: out[::2], locked, lambda out: out.view(np.uint32)):
        memory = np.full(64, 7, np.float32)
        assert PLAIN(bytes(18), "gguf:q4_0", (32,), "float32", make(memory), 1) is None
        assert (memory == 7).all()


def test_references_are_given_back() -> None:
    x, shape, dtype = bytearray(payload_of(Q4_0, 64)), (64, 32), FLOAT_OUTPUTS["bfloat16"]
    out, name, view = np.empty(shape, dtype), "gguf:" + "q4_0"[:4], memoryview(bytes(18 * 64))
    held = (x, shape, dtype, out, name, view, None)

    def counts() -> list[int]:
        return [sys.getrefcount(one) for one in held]

    gc.collect()
    before = counts()
    for _ in range(10_000):
        PLAIN(x, name, shape, dtype, out, 1)
        PLAIN(view, name, shape, dtype, None, None)
        PLAIN(x, name, shape, "float32", out, 1)  # left alone after all else was looked at
        PLAIN(x, name, (-1, 32), dtype, out, 1)
    gc.collect()
    assert all(abs(now - then) < 1000 for now, then in zip(counts(), before, strict=True))
    x.append(0)  # fails while a view of it is open
    view.release()


def test_six_arguments_are_needed() -> None:
    with pytest.raises(TypeError, match="six"):
        PLAIN(bytes(18), "gguf:q4_0", (32,))


def test_the_environment_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (bytes(18), "gguf:q4_0", (32,), "float32", None, None)
    for _ in range(2):
        assert (PLAIN(*arguments) is None) == FREE_THREADED
        monkeypatch.setenv("QUANTFORM_THREADS", "3")
        assert PLAIN(*arguments) is None
        monkeypatch.delenv("QUANTFORM_THREADS")


def test_many_threads_share_a_list_and_an_output() -> None:
    data, shape = payload_of(Q4_0, 2048), [2048, 32]
    expected = bits_of(dequantize_packed(data, "gguf:q4_0", shape)).tobytes()
    wrong: list[int] = []

    def work() -> None:
        out = np.empty((2048, 32), np.float32)
        for _ in range(50):
            values = dequantize_packed(data, "gguf:q4_0", shape, out=out, threads=1)
            if bits_of(values).tobytes() != expected:
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
