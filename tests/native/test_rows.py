"""Compiled kernels for rows of layouts and of words against the NumPy path: the same bits, the same faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantform import _native
from quantform._rows import as_kernel_rows, as_rows
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import ArgumentError, WordsError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat, GroupedFormat, Nvfp4Format, Words, rows, tiled
from quantform.formats.rows import all_legal
from quantform.layouts import LAYOUTS, Layout, row_split
from quantform.layouts import layout as layout_module
from quantform.packed import PROFILES, Profile, dequantize, nonfinite, nonfinite_scales
from words_maker import PAIR_IDS, PAIRS, faults_of, fields, make_words

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)
KERNELS: Any = _native.kernels

TILED = [(layout, record) for layout, record in PAIRS if not isinstance(record, DirectFormat | GgufFormat)]
every_pair = pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
every_tiled = pytest.mark.parametrize(("layout", "record"), TILED, ids=[record.name for _, record in TILED])
every_output = pytest.mark.parametrize("output", FLOAT_OUTPUTS)
CACHED, STREAMED = 1, 2
HALVES = np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x4FF, 0x500, 0x7F80], np.uint16)
SINGLES = np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x79800000, 0x79800001, 0x7F7FFFFF, 0x7F800000], np.uint32)


@pytest.fixture(scope="module", params=KERNELS.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = KERNELS.instruction_set()
    KERNELS.use_instruction_set(request.param)
    yield request.param
    KERNELS.use_instruction_set(before)


@contextmanager
def numpy_alone() -> Iterator[None]:
    """The NumPy path, as where nothing was compiled."""
    modules = (tiled, rows, layout_module, row_split, dequantize, nonfinite)
    with mock.patch.object(dequantize, "_decode_plain", None):
        patches = [mock.patch.object(module, "kernels", None) for module in modules]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


def by_numpy(use: Callable[[], Any]) -> Any:
    with numpy_alone():
        return use()


def bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bits of any output type, with every NaN written alike, since NaN payloads are unspecified."""
    words = values.view(f"u{values.itemsize}").copy()
    if values.dtype.kind != "i":
        with np.errstate(invalid="ignore"):  # of signalling NaN
            words[np.isnan(values)] = 1
    return words


def shapes_of(record: Format) -> st.SearchStrategy[tuple[tuple[int, int], int]]:
    """Shapes that the format's layout holds, with a number of divisors."""
    if isinstance(record, Nvfp4Format):
        return st.builds(
            lambda tiles, k, split: ((128 * tiles, 64 * k), (split and tiles) or 1), *3 * [st.integers(1, 3)]
        )
    if isinstance(record, GgufFormat):
        return st.builds(lambda n, k: ((n, k * record.profile.values), 1), st.integers(1, 9), st.integers(1, 5))
    near = st.sampled_from([1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 256, 1024, 1025, 1152])
    return st.builds(lambda n, k: ((n, k), 1), st.integers(1, 9), near | st.integers(1, 400))


def some_rows(count: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-count - 1, count + 1)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1]))
    return st.none() | slices | st.lists(st.integers(-count, count - 1), max_size=12)


def at_address(payload: npt.NDArray[np.uint8], shift: int) -> npt.NDArray[np.uint8]:
    """The same bytes, read-only, `shift` bytes after the beginning of an array."""
    moved = np.concatenate([np.zeros(shift, np.uint8), payload])[shift:]
    moved.flags.writeable = False
    return moved


def by_kernel(
    layout: Layout,
    record: Format,
    payload: npt.NDArray[np.uint8],
    shape: tuple[int, int],
    divisors: int,
    chosen: Any,
    output: str,
    *,
    stores: int,
    threads: int = 1,
    shift: int = 0,
) -> npt.NDArray[Any]:
    """Decodes to memory that begins `shift` bytes after a cache line, and that ends where the values do."""
    dtype, number = FLOAT_OUTPUTS[output], list(FLOAT_OUTPUTS).index(output)
    numbers = as_rows(slice(None) if chosen is None else chosen, shape[0])
    size = len(numbers) * shape[1] * dtype.itemsize
    memory = np.full(size + 256, 0xA5, np.uint8)
    first = -memory.ctypes.data % 64 + shift
    out = memory[first : first + size]
    where = as_kernel_rows(numbers)
    if isinstance(record, GgufFormat):
        blocks = payload.reshape(shape[0], -1)
        KERNELS.decode_block_rows(record.profile.ggml_type, blocks, *where, number, out, threads, stores)
    else:
        words = layout.row_words(payload, record, shape, divisors)
        assert words is not None
        KERNELS.decode_rows(*words, *where, number, out, threads, stores)
    assert (memory[:first] == 0xA5).all()
    assert (memory[first + size :] == 0xA5).all()
    return out.copy().view(dtype).reshape(len(numbers), shape[1])


@every_pair
@settings(max_examples=10)
@given(data=st.data())
def test_any_bytes_any_rows(layout: Layout, record: Format, data: st.DataObject) -> None:
    """Random payloads: illegal words and padding that is not canonical have values too, and the same ones."""
    shape, divisors = data.draw(shapes_of(record))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    payload = rng.integers(0, 256, layout.encoded_size(record, shape, divisors), np.uint8)
    payload = at_address(payload, data.draw(st.integers(0, 17)))
    chosen, output = data.draw(some_rows(shape[0])), data.draw(st.sampled_from(list(FLOAT_OUTPUTS)))
    threads = data.draw(st.sampled_from([1, 2, 5]))
    values = by_numpy(lambda: layout.unpack(payload, record, shape, divisors).decode(output))
    expected = bits(values if chosen is None else values[chosen])
    found = layout.decode(payload, record, shape, output, rows=chosen, divisors=divisors, threads=threads)
    assert np.array_equal(bits(found), expected)
    alone = by_numpy(lambda: layout.decode(payload, record, shape, output, rows=chosen, divisors=divisors))
    assert np.array_equal(bits(alone), expected)
    if isinstance(record, DirectFormat):
        return
    stores, shift = data.draw(st.sampled_from([CACHED, STREAMED])), data.draw(st.integers(0, 63))
    found = by_kernel(
        *(layout, record, payload, shape, divisors, chosen, output), stores=stores, threads=threads, shift=shift
    )
    assert np.array_equal(bits(found), expected)


def special(record: Format, shape: tuple[int, int]) -> Words:
    """Every code beside scales that run through zeros of both signs, subnormals, extremes, infinities and NaN."""
    words = make_words(record, shape, np.random.default_rng(3), shape[0] // 128 if record.name == "nvfp4" else 1)
    arrays = fields(words)
    scales = arrays["scales"]
    if scales.dtype == np.uint8:
        scales[...] = np.arange(scales.size).reshape(scales.shape) % 256
        arrays["divisors"][...] = np.resize(np.concatenate([SINGLES, SINGLES | 0x80000000]), arrays["divisors"].size)
    else:
        scales[...] = np.resize(np.concatenate([HALVES, HALVES | 0x8000]), scales.size).reshape(scales.shape)
    codes = arrays["codes"].view(np.uint8)
    if isinstance(record, GroupedFormat):
        codes[...] = record.qmin + np.arange(codes.size).reshape(codes.shape) % (record.qmax - record.qmin + 1) & 0xFF
    else:
        codes[...] = np.random.default_rng(4).integers(0, 256, codes.shape)
    return words


@every_tiled
@every_output
@pytest.mark.parametrize("stores", [CACHED, STREAMED], ids=["cached", "streamed"])
def test_special_words(layout: Layout, record: Format, output: str, stores: int) -> None:
    shape = (128 * len(SINGLES) * 2, 256) if record.name == "nvfp4" else (96, 1344)
    words = special(record, shape)
    expected = bits(by_numpy(lambda: words.decode(output)))
    assert record.row_words(words) is not None  # type: ignore[attr-defined]
    assert np.array_equal(bits(words.decode(output)), expected)
    with mock.patch.object(type(record), "validate"):
        payload = layout.pack(words)
    divisors = shape[0] // 128 if record.name == "nvfp4" else 1
    found = by_kernel(layout, record, payload, shape, divisors, None, output, stores=stores)
    assert np.array_equal(bits(found), expected)


@every_tiled
@settings(max_examples=10)
@given(data=st.data())
def test_words_wherever_their_arrays_lie(layout: Layout, record: Format, data: st.DataObject) -> None:
    """Rows, columns and strides of arrays; what has no rows of bytes goes by NumPy."""
    near = st.sampled_from([16, 32, 48, 64, 128, 144]) if record.name == "nvfp4" else st.integers(1, 300)
    columns, count = data.draw(near), data.draw(st.integers(0, 9))
    words = make_words(record, (2 * count, columns), np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))
    arrays = {name: array for name, array in fields(words).items() if name != "divisors"}
    ways: list[Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = [
        lambda array: array[::2],
        lambda array: array[::-1][:count],
        lambda array: np.asfortranarray(array[:count]),
        lambda array: array[:count].copy(),
    ]
    way = data.draw(st.sampled_from(ways))
    divisors = {"divisors": words.divisors} if record.name == "nvfp4" else {}  # type: ignore[attr-defined]
    some = type(words)(record, (count, columns), **{name: way(array) for name, array in arrays.items()}, **divisors)
    output = data.draw(st.sampled_from(list(FLOAT_OUTPUTS)))
    assert np.array_equal(bits(some.decode(output)), bits(by_numpy(lambda: some.decode(output))))
    some.validate()
    assert layout.name == record.default_layout


# Output of more than one thread's share, even with five threads.
LARGE = {"q4_g64_fp16": (10_243, 1030), "nvfp4": (10_240, 1088), "gguf_q4_k": (10_243, 1280)}


@pytest.mark.parametrize("name", LARGE)
def test_results_do_not_depend_on_threads(name: str) -> None:
    shape, record = LARGE[name], FORMATS[name]
    layout = LAYOUTS[record.default_layout]
    payload = np.random.default_rng(6).integers(0, 256, layout.encoded_size(record, shape), np.uint8)
    expected = bits(layout.decode(payload, record, shape, threads=1))
    backwards = layout.decode(payload, record, shape, rows=slice(None, None, -1), threads=2)
    assert np.array_equal(bits(backwards), expected[::-1])
    assert np.array_equal(bits(layout.decode(payload, record, shape, threads=5)), expected)


def failure(check: Callable[[], object]) -> str:
    try:
        check()
    except WordsError as error:
        return str(error)
    return ""


def plant(words: Words, rng: np.random.Generator) -> bool:
    """Write one word that breaks a rule; whether the format has such."""
    record, arrays = words.format, fields(words)
    what = rng.choice(["codes", "scales", "divisors"][: len(arrays)])
    place = tuple(rng.integers(0, size) for size in arrays[what].shape)
    if what == "divisors":
        arrays[what][place] = rng.choice(np.array([0, 0x7F800000, 0x80000001], np.uint32))
    elif what == "scales" and arrays[what].dtype == np.uint8:
        arrays[what][place] = rng.choice([0x7F, 0x80, 0xFF])
    elif what == "scales":
        arrays[what][place] = rng.choice(np.array([0x7F80, 0xFC00, 0xFFFF], np.uint16))
    elif isinstance(record, GroupedFormat):
        arrays[what][place] = record.qmin - 1  # -2 and -128 are the ones that a payload can hold
    elif record.name == "nvfp4":
        return False
    else:
        arrays[what][place] = rng.choice([0x7F, 0xFF])
    return True


@every_tiled
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), columns=st.sampled_from([1, 64, 65, 129, 320]))
def test_planted_words_are_found(layout: Layout, record: Format, seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (256, 64 * (1 + columns % 3)) if record.name == "nvfp4" else (int(rng.integers(1, 9)), columns)
    divisors = 2 if record.name == "nvfp4" else 1
    words = make_words(record, shape, rng, divisors)
    payload = layout.pack(words)
    if record.name != "nvfp4":
        assert all_legal(words.format.row_words(words))  # type: ignore[attr-defined]
        assert all_legal(layout.row_words(payload, record, shape, divisors))
    words.validate()
    assert faults_of(layout, payload, record, shape, divisors) == []
    if plant(words, rng):
        expected = failure(lambda: by_numpy(words.validate))
        assert expected
        assert failure(words.validate) == expected
        fits = not isinstance(record, GroupedFormat) or "out of range" not in expected
        if fits or record.name in {"q8_g32_fp16", "t2_g128_fp16"}:
            with mock.patch.object(type(record), "validate"):
                payload = layout.pack(words)
            assert failure(layout.unpack(payload, record, shape, divisors).validate) == expected
            stored = faults_of(layout, payload, record, shape, divisors)
            assert stored == by_numpy(lambda: faults_of(layout, payload, record, shape, divisors))
            assert stored[0].where.partition(", of rows")[0] in expected
            assert stored[0].found in expected


@every_tiled
def test_codes_under_zero_scales(layout: Layout, record: Format) -> None:
    """Only one code under one of many zero scales: found where the format forbids it, and in either plane."""
    if record.name == "nvfp4":
        return
    words = make_words(record, (5, 320), np.random.default_rng(8))
    arrays = fields(words)
    arrays["scales"][...] = 0
    arrays["codes"][...] = 0
    for column in (0, 63, 64, 200, 319):
        for code in (1, -1 if isinstance(record, GroupedFormat) else 0x81):
            arrays["codes"][3, column] = code
            with mock.patch.object(type(record), "validate"):
                payload = layout.pack(words)
            expected = failure(lambda: by_numpy(words.validate))
            assert bool(expected) == (record.name != "q2_g64_fp16")
            assert failure(words.validate) == expected
            stored = faults_of(layout, payload, record, (5, 320))
            assert [(one.rule, one.row, one.column) for one in stored] == [("zero-scale", 3, column)] * bool(expected)
            arrays["codes"][3, column] = 0


@every_tiled
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 300))
def test_planted_padding_is_found(layout: Layout, record: Format, seed: int, columns: int) -> None:
    """One bit anywhere: both paths say the same of the padding, and bits of words are no padding."""
    rng = np.random.default_rng(seed)
    shape = (128, 64) if record.name == "nvfp4" else (int(rng.integers(1, 9)), columns)
    payload = layout.pack(make_words(record, shape, rng))
    payload[rng.integers(0, payload.size)] ^= 1 << rng.integers(0, 8)
    every = faults_of(layout, payload, record, shape)
    assert every == by_numpy(lambda: faults_of(layout, payload, record, shape))
    found = [fault for fault in every if fault.rule == "padding"]
    before = layout.unpack(payload, record, shape)
    with mock.patch.object(type(record), "validate"):
        assert (len(found) == 1) == (not np.array_equal(layout.pack(before), payload))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_nonfinite_scales(profile: Profile) -> None:
    """As many as are planted, by each path; the sums that are stored beside scales do not count."""
    rng = np.random.default_rng(profile.ggml_type)
    blocks = rng.integers(0, 256, (1000, profile.bytes), np.uint8).reshape(-1).view(profile.block)
    scales = [name for name in profile.block.names or () if profile.block[name].kind == "f" and name != "s"]
    planted = 0
    for name in scales:
        some = rng.random(1000) < 0.1
        blocks[name] = rng.choice([0.0, -0.0, 1.5, 6e-8, 65504.0], 1000)
        blocks[name][some] = rng.choice([np.inf, -np.inf, np.nan], int(some.sum()))
        planted += int(some.sum())
    if profile.name == "IQ1_M":  # the sixteen bits are the uppermost four of four words
        words = rng.choice(HALVES, 1000)
        digits = blocks["scales"].view("<u2")
        digits[...] = digits & 0x0FFF | (words[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15) << 12
        planted = int(np.count_nonzero((words & 0x7C00) == 0x7C00))
    payload = blocks.view(np.uint8)
    assert nonfinite_scales(payload, profile) == planted
    assert by_numpy(lambda: nonfinite_scales(payload, profile)) == planted
    with pytest.raises(ArgumentError, match="not whole"):
        nonfinite_scales(payload[1:], profile)


def test_every_kernel_has_a_format() -> None:
    grouped = [record.name for record in FORMATS.values() if isinstance(record, GroupedFormat)]
    others = [record.name for _, record in TILED if record.name not in grouped]
    assert sorted(KERNELS.row_kernels()) == sorted([*grouped, *(f"{name} bytes" for name in grouped), *others])


REFUSED = r"no |not |outside|too small|others|leaves|fit|argument"
PLANE = np.zeros((4, 64), np.uint8)
SCALES = np.zeros((4, 4), np.uint8)
FITTING: dict[str, Any] = {
    "kernel": "q4_g64_fp16",
    "columns": 128,
    "codes": PLANE,
    "high": None,
    "scales": SCALES,
    "tiled": False,
    "divisors": None,
    "rows": None,
    "first": 0,
    "count": 4,
    "output": 0,
    "out": np.zeros((4, 128), np.float32),
    "threads": 1,
}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("kernel", "q3"),
        ("columns", 129),
        ("columns", 0),
        ("columns", 2**63),
        ("codes", PLANE[:, :63]),
        ("codes", np.zeros((4, 128), np.uint8)[:, ::2]),
        ("codes", np.zeros((5, 64), np.uint8)),
        ("high", PLANE),
        ("scales", SCALES[:3]),
        ("scales", SCALES[:, :3]),
        ("tiled", True),
        ("divisors", np.zeros(3, np.float32)),
        ("divisors", np.zeros(0, np.float32)),
        ("rows", np.array([0, 1, 2, 4])),
        ("rows", np.array([0, 1, 2, -1])),
        ("rows", np.array([0, 1, 2])),
        ("first", 1),
        ("count", 5),
        ("count", 2**63),
        ("output", 4),
        ("out", np.zeros((3, 128), np.float32)),
        ("out", np.zeros((4, 128), np.float64)),
        ("stores", 3),
    ],
)
def test_the_binding_refuses_what_does_not_fit(argument: str, value: Any) -> None:
    KERNELS.decode_rows(**FITTING)
    with pytest.raises(ValueError, match=REFUSED):
        KERNELS.decode_rows(**FITTING | {argument: value})


def test_the_other_bindings_refuse_what_does_not_fit() -> None:
    bytes_ = np.zeros(36, np.uint8)
    out = np.zeros(64, np.float32)
    refusals: list[Callable[[], object]] = [
        lambda: KERNELS.decode_block_rows(99, bytes_.reshape(2, 18), None, 0, 2, 0, out, 1),
        lambda: KERNELS.decode_block_rows(2, bytes_.reshape(1, 36)[:, :35], None, 0, 1, 0, out, 1),
        lambda: KERNELS.decode_block_rows(2, bytes_.reshape(2, 18), None, 1, 2, 0, out, 1),
        lambda: KERNELS.decode_block_rows(2, bytes_.reshape(2, 18), None, 0, 1, 0, out, 1),
        lambda: KERNELS.bytes_at_most(bytes_, 256),
        lambda: KERNELS.rows_match(bytes_.reshape(2, 18), bytes_[:17], bytes_[:18]),
        lambda: KERNELS.count_set(bytes_, 18, 17, 2, 1),
        lambda: KERNELS.count_set(bytes_, 18, 0, 3, 1),
        lambda: KERNELS.count_set(bytes_, 17, 0, 2, 1),
        lambda: KERNELS.legal_rows(
            "nvfp4", 64, np.zeros((1, 32), np.uint8), None, np.zeros((1, 4), np.uint8), False, None, 1
        ),
    ]
    for refused in refusals:
        with pytest.raises(ValueError, match=REFUSED):
            refused()
