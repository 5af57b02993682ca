"""Compiled encoders against the NumPy definitions: the same words, payloads and errors, on every instruction set."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import encoder_values
from quantform import _native
from quantform.convert.packing import packed_rows
from quantform.encode import encode
from quantform.errors import QuantformError
from quantform.formats import FORMATS, GroupedFormat, Words
from quantform.layouts import LAYOUTS
from quantform.methods import METHODS, Input, Request
from quantform.methods.kernel import ValuesJob

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)
KERNELS: Any = _native.kernels
pytestmark = pytest.mark.usefixtures("instruction_set")

Array = npt.NDArray[Any]

# Every method that quantizes values; to direct formats they are only cast.
PAIRS = [
    (name, format)
    for name, method in METHODS.items()
    if method.takes == "values"
    for format in method.targets
    if FORMATS[format].category != "direct"
]
ALL = pytest.mark.parametrize(("method", "format"), PAIRS)
GROUPED = METHODS["grouped_search"].targets
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int16, np.uint64)]


def job_of(method: str, format: str, *sources: Array, threads: int = 1, **parameters: Any) -> ValuesJob:
    inputs = tuple(Input.of_values(source, f"p{index}") for index, source in enumerate(sources))
    shape = (sum(len(source) for source in sources), sources[0].shape[1])
    request = Request(format=FORMATS[format], shape=shape, inputs=inputs, parameters=parameters, threads=threads)
    job = METHODS[method].start(request)
    assert isinstance(job, ValuesJob)
    return job


def by_numpy(job: ValuesJob) -> ValuesJob:
    return replace(job, kernel=None)


def arrays(words: Words) -> list[bytes]:
    return [getattr(words, name).tobytes() for name in ("codes", "scales", "divisors") if hasattr(words, name)]


def outcome(method: str, format: str, values: Array, **options: Any) -> list[bytes] | str:
    """The words, or what the error says."""
    try:
        return arrays(job_of(method, format, values, **options).words())
    except QuantformError as error:
        return str(error)


def columns_of(format: str, columns: int) -> int:
    """The columns nearest to these that a format can have."""
    return -(-columns // 16) * 16 if format == "nvfp4" else columns


@st.composite
def matrices(draw: st.DrawFn, format: str) -> Array:
    """Matrices of any type that lie in memory in any way, now and then with a value that cannot be encoded."""
    rows = draw(st.integers(1, 5))
    columns = columns_of(
        format, draw(st.integers(1, 20) | st.sampled_from([31, 32, 33, 63, 64, 65, 127, 128, 129, 300]))
    )
    limit = draw(st.sampled_from([1e4, 1e4, 3e38]))
    values: Array = np.stack([draw(encoder_values.values(columns, limit)) for _ in range(rows)])
    dtype = draw(st.sampled_from(DTYPES))
    if dtype.kind in "iu":
        values = np.clip(values, -1000 if dtype.kind == "i" else 0, 1000)
    elif draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
        values[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38]))
    with np.errstate(all="ignore"):
        values = values.astype(dtype)
    match draw(st.sampled_from(["plain", "columns first", "every other", "backwards", "unaligned"])):
        case "columns first":
            values = np.asfortranarray(values)
        case "every other":
            values = np.repeat(values, 2, axis=0)[::2]
        case "backwards":
            values = values[::-1, ::-1].copy()[::-1, ::-1]
        case "unaligned":
            memory = np.empty(values.nbytes + 1, np.uint8)[1:]
            memory[...] = values.reshape(-1).view(np.uint8)
            values = memory.view(dtype).reshape(values.shape)
    values.flags.writeable = False
    return values


@st.composite
def importances(draw: st.DrawFn, columns: int) -> Array | None:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    match draw(st.sampled_from(["none", "some", "powers", "sparse", "extreme"])):
        case "some":
            return rng.random(columns)
        case "powers":
            return 2.0 ** rng.integers(-150, 150, columns)
        case "sparse":
            return np.where(rng.random(columns) < 0.1, rng.random(columns), 0.0)
        case "extreme":
            return rng.choice([0.0, -0.0, 5e-324, 1e-310, 1e-160, 1.0, 1e160, 1.7e308], columns)
    return None


@ALL
@settings(max_examples=25)
@given(data=st.data())
def test_the_words_and_errors_are_those_of_numpy(method: str, format: str, data: st.DataObject) -> None:
    values = data.draw(matrices(format))
    parameters: dict[str, Any] = {}
    if method == "grouped_search":
        parameters = {
            "importance": data.draw(importances(values.shape[1])),
            "negative_scales": data.draw(st.booleans()),
        }
        parameters = {name: value for name, value in parameters.items() if value is not None}
    found = outcome(method, format, values, threads=data.draw(st.sampled_from([1, 2, 5])), **parameters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "kernels", None)
        expected = outcome(method, format, values, **parameters)
    assert found == expected


@cache
def sample(method: str, format: str, columns: int) -> tuple[Array, dict[str, Any], list[bytes], bytes]:
    """Three rows, parameters, and the words and the payload by NumPy."""
    rng = np.random.default_rng(columns)
    values = (rng.standard_normal((3, columns)) * [[1e-3], [1.0], [1e-7]]).astype(np.float32)
    weighted = method == "grouped_search" and columns % 2
    parameters: dict[str, Any] = {"importance": rng.random(columns), "negative_scales": True} if weighted else {}
    job = by_numpy(job_of(method, format, values, **parameters))
    words = job.words()
    payload = LAYOUTS[FORMATS[format].default_layout].pack(words).tobytes() if format != "nvfp4" else b""
    return values, parameters, arrays(words), payload


@ALL
def test_every_length_of_a_row(method: str, format: str) -> None:
    lengths = range(16, 900, 16) if format == "nvfp4" else [*range(1, 132), 255, 256, 257, 1023, 1024, 1025, 2100]
    layout = LAYOUTS[FORMATS[format].default_layout]
    for columns in lengths:
        values, parameters, words, payload = sample(method, format, columns)
        job = job_of(method, format, values, **parameters)
        assert arrays(job.words()) == words
        if payload:
            placed = packed_rows(job, (0, 3), layout, values.shape, 0)
            assert placed is not None
            assert b"".join(data.tobytes() for _, data in placed) == b"".join(
                payload[offset : offset + size] for offset, size in layout.spans(format, values.shape, 0, 3)
            )


@ALL
@pytest.mark.parametrize("step", [128, 256, 384])
def test_packed_rows_are_placed_words(method: str, format: str, step: int) -> None:
    rng = np.random.default_rng(step)
    columns = 192 if format == "nvfp4" else 200
    sources = [rng.standard_normal((rows, columns)).astype(np.float32) for rows in (100, 1, 283)]
    job = job_of(method, format, *sources)
    layout = LAYOUTS[FORMATS[format].default_layout]
    assert job.kernel is not None
    assert job.kernel.layout == layout.name
    # The second and following rows of an object that holds other rows as well.
    shape, divisors = (768, columns), 2 if format == "nvfp4" else 1
    whole = by_numpy(job)
    for first, end in job.chunks(step):
        expected = layout.place(whole.rows(first, end), shape, 384 + first, divisors)
        found = packed_rows(job, (first, end), layout, shape, 384 + first, divisors)
        assert found is not None
        assert [(offset, data.tobytes()) for offset, data in found] == [
            (offset, data.tobytes()) for offset, data in expected
        ]


@ALL
def test_what_cannot_be_encoded_is_left_to_words(method: str, format: str) -> None:
    values = np.ones((128, 64), np.float32)
    job = job_of(method, format, values)
    values[5, 7] = np.nan
    layout = LAYOUTS[FORMATS[format].default_layout]
    assert packed_rows(job, (0, 128), layout, values.shape, 0) is None
    with pytest.raises(QuantformError, match="row 5, column 7: the value is not finite"):
        job.rows(0, 128)


@ALL
def test_results_do_not_depend_on_threads(method: str, format: str) -> None:
    rows = 40 if method == "grouped_search" else 1100
    values = np.random.default_rng(5).standard_normal((rows, 1008)).astype(np.float32)
    expected = arrays(job_of(method, format, values).words())
    for threads in (0, 2, 7):
        assert arrays(job_of(method, format, values, threads=threads).words()) == expected
    assert arrays(encode(values, format, method, threads=2)) == expected


@pytest.mark.parametrize("format", GROUPED)
def test_every_largest_magnitude(format: str) -> None:
    """Scales and reciprocals around every place where they round differently."""
    record = FORMATS[format]
    assert isinstance(record, GroupedFormat)
    tops = np.arange(0, 0x7F80, 3, dtype=np.uint32) << 16
    words = (tops[:, None] | np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0xFFFF], np.uint32)).reshape(-1)
    largest = words.view(np.float32)
    largest = largest[largest < 65519 * record.qmax]
    rng = np.random.default_rng(1)
    groups = (largest[:, None] * rng.uniform(-1, 1, (len(largest), record.group))).astype(np.float32)
    groups[:, 3] = largest
    job = job_of("grouped_absmax", format, groups)
    assert arrays(job.words()) == arrays(by_numpy(job).words())


@pytest.mark.parametrize("format", METHODS["fp8_row_maxabs"].targets)
def test_every_value_under_a_scale_of_one(format: str) -> None:
    words = np.arange(0x10000, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    row = np.append(words[np.abs(words) <= 448], np.float32(448))[None, :]
    job = job_of("fp8_row_maxabs", format, row)
    codes, scales = arrays(job.words())
    assert codes == row.astype(ml_dtypes.float8_e4m3fn).tobytes()
    assert [codes, scales] == arrays(by_numpy(job).words())


def test_every_nvfp4_code_and_scale() -> None:
    rng = np.random.default_rng(2)
    ties = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 5.5])
    near = np.concatenate([np.nextafter(ties, 0), ties, np.nextafter(ties, 9)]).astype(np.float32)
    groups = rng.choice(np.concatenate([near, -near]), (4096, 16))
    groups[:, 0] = np.float32(6) * rng.uniform(2**-12, 448, 4096).astype(np.float32)
    groups[::2, 1:] *= groups[::2, :1] / np.float32(6)
    groups[7] = 0
    groups[0, 0] = 2688  # the divisor is one
    job = job_of("nvfp4_maxabs", "nvfp4", groups.reshape(128, -1).astype(np.float32))
    assert arrays(job.words()) == arrays(by_numpy(job).words())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_largest_magnitude_finds_what_is_not_finite(bad: float) -> None:
    for columns in (1, 15, 16, 17, 1030):
        values = np.full((3, columns), -2.5, np.float32)
        assert KERNELS.largest_magnitude(values, 0, 1) == 2.5
        values[1, columns - 1] = bad
        assert not np.isfinite(KERNELS.largest_magnitude(values, 0, 2))
    assert KERNELS.largest_magnitude(np.zeros((0, 5), np.float32), 0, 1) == 0


def test_other_rows_of_the_planes_are_left_alone() -> None:
    values = np.ones((2, 70), np.float32)
    codes, scales = np.full((5, 70), 0xA5, np.uint8), np.full((5, 4), 0xA5, np.uint8)
    planes = [codes.reshape(-1), scales.reshape(-1)]
    assert KERNELS.encode_grouped(values, 0, planes, 2, False, 1, 4)
    assert (codes[[0, 1, 4]] == 0xA5).all()
    assert (scales[[0, 1, 4]] == 0xA5).all()
    assert (codes[2:4] == 7).all()
    assert KERNELS.encode_grouped(values[:0], 0, planes, 5, False, 1, 4)


def plane(size: int) -> Array:
    return np.zeros(size, np.uint8)


@pytest.mark.parametrize(
    ("values", "number", "planes", "row", "packed", "bits", "importance"),
    [
        (np.ones((2, 64), np.float32), 3, [128, 4], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 1, [128, 4], 0, False, 4, None),
        (np.ones((2, 64), np.uint16), 0, [128, 4], 0, False, 4, None),
        (np.ones((2, 128), np.float32)[:, ::2], 0, [128, 4], 0, False, 4, None),
        (np.ones((2, 0), np.float32), 0, [0, 0], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 4], 0, False, 3, None),
        (np.ones((2, 64), np.float32), 0, [128], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 4, 0], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [127, 4], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 6], 0, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 4], 1, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 4], 2**63, False, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 4], 0, True, 4, None),
        (np.ones((2, 64), np.float32), 0, [128, 8], 0, True, 5, None),
        (np.ones((2, 65), np.float32), 0, [130, 8], 0, False, 4, np.ones(65)),
    ],
)
def test_the_binding_refuses_what_does_not_fit(
    values: Array, number: int, planes: list[int], row: int, packed: bool, bits: int, importance: Array | None
) -> None:
    with pytest.raises(ValueError, match=r"number type|format|planes|importance"):
        KERNELS.encode_grouped(values, number, [plane(size) for size in planes], row, packed, 1, bits, True, importance)


@pytest.mark.parametrize(
    ("columns", "planes", "packed"),
    [
        (24, [24, 3], False),
        (48, [6144, 768, 4], True),
        (64, [8192, 512], True),
        (64, [4096, 512, 3], True),
        (64, [32, 4, 4], True),
    ],
)
def test_the_nvfp4_binding_refuses_what_does_not_fit(columns: int, planes: list[int], packed: bool) -> None:
    values = np.ones((1, columns), np.float32)
    with pytest.raises(ValueError, match=r"groups or tiles|planes|plane of divisors"):
        KERNELS.encode_nvfp4(values, 0, [plane(size) for size in planes], 0, packed, 1, 1.0)
