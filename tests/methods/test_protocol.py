"""The protocol: requests, jobs, the registry, and Python callables as methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantform.encode import encode
from quantform.errors import ArgumentError, UnknownNameError, UnsupportedError, ValuesError, WordsError
from quantform.formats import FORMATS, DirectWords, GroupedWords, Nvfp4Words, Words
from quantform.methods import METHODS, Input, Job, Method, Request, Span, as_method, default_method

Q4 = FORMATS["q4_g64_fp16"]
BF16 = np.dtype(ml_dtypes.bfloat16)

# Every method on values with a format of its own, and the columns that suit all of them.
ENCODERS = [(name, target) for name, method in METHODS.items() if method.takes == "values" for target in method.targets]


def arrays(words: Words) -> dict[str, np.ndarray]:
    names = [name for name in ("words", "codes", "scales", "divisors", "blocks") if hasattr(words, name)]
    return {name: getattr(words, name) for name in names}


def request_of(format: str, *sources: np.ndarray, **parameters: Any) -> Request:
    inputs = tuple(Input.of_values(source, f"p{index}") for index, source in enumerate(sources))
    rows = sum(source.shape[0] for source in sources)
    return Request(format=FORMATS[format], shape=(rows, sources[0].shape[1]), inputs=inputs, parameters=parameters)


def test_names() -> None:
    assert list(METHODS) == [
        *("cast_direct", "grouped_absmax", "grouped_search", "fp8_row_maxabs", "nvfp4_maxabs", "import_encoded")
    ]
    assert {target for method in METHODS.values() for target in method.targets} == set(FORMATS)


@pytest.mark.parametrize("method", METHODS.values(), ids=str)
def test_records_describe_themselves(method: Method) -> None:
    assert method.summary.endswith(".")
    assert method.takes in {"values", "words"}
    for parameter in method.parameters or ():
        assert parameter.meaning.endswith(".")
        assert parameter.type


def test_defaults() -> None:
    found = {name: default_method(record).name for name, record in FORMATS.items() if record.category != "gguf"}
    assert found == {
        **dict.fromkeys(("bf16", "fp32", "int32"), "cast_direct"),
        **dict.fromkeys(("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"), "grouped_absmax"),
        **dict.fromkeys(("q2_g64_fp16", "t2_g128_fp16"), "import_encoded"),
        "nvfp4": "nvfp4_maxabs",
        **dict.fromkeys(("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"), "fp8_row_maxabs"),
    }


def test_unknown_method() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'grouped_absmax'"):
        as_method("groupd_absmax")
    with pytest.raises(ArgumentError, match="neither a name nor callable"):
        as_method(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "format"), ENCODERS)
def test_no_result_depends_on_how_rows_are_cut(method: str, format: str) -> None:
    source = np.random.default_rng(8).integers(-90, 90, (37, 80)).astype(np.float32)
    record = METHODS[method]
    whole = arrays(record.start(request_of(format, source)).words())
    jobs = [record.start(request_of(format, *parts)) for parts in ((source,), (source[:5], source[5:6], source[6:]))]
    for job in jobs:
        for size in (1, 7, 36, 100):
            pieces = [arrays(job.rows(first, end)) for first, end in job.chunks(size)]
            for name, expected in whole.items():
                found = [piece[name] for piece in pieces]
                joined = found[0] if name == "divisors" else np.concatenate(found)
                np.testing.assert_array_equal(joined, expected)
        backwards = [arrays(job.rows(row, row + 1)) for row in range(36, -1, -1)]
        for name in whole.keys() - {"divisors"}:
            np.testing.assert_array_equal(np.concatenate([piece[name] for piece in backwards[::-1]]), whole[name])


@pytest.mark.parametrize(("method", "format"), ENCODERS)
def test_types_may_differ_between_inputs(method: str, format: str) -> None:
    source = np.random.default_rng(9).integers(-8, 9, (4, 16)).astype(np.float32)
    mixed = request_of(
        format, source[:1], source[1:2].astype(BF16), source[2:3].astype(np.float64), source[3:].astype(int)
    )
    found, expected = METHODS[method].start(mixed).words(), METHODS[method].start(request_of(format, source)).words()
    for name, array in arrays(expected).items():
        np.testing.assert_array_equal(arrays(found)[name], array)


def test_bits_of_the_same_type_pass_beside_other_types() -> None:
    nan = np.array([[0x7F81]], np.uint16).view(BF16)
    words = METHODS["cast_direct"].start(request_of("bf16", nan, np.ones((1, 1), np.float32))).words()
    assert isinstance(words, DirectWords)
    assert words.words.tolist() == [[0x7F81], [0x3F80]]


def test_errors_count_rows_within_their_input() -> None:
    bad = np.ones((900, 80))
    bad[850, 79] = np.nan
    job = METHODS["grouped_absmax"].start(request_of("q4_g64_fp16", np.ones((3, 80)), bad))
    with pytest.raises(ValuesError, match=r"^p1, row 850, column 79: "):
        job.rows(800, 903)


def test_ranges_and_chunks() -> None:
    job = METHODS["grouped_absmax"].start(request_of("q4_g64_fp16", np.ones((5, 80))))
    assert list(job.chunks(2)) == [(0, 2), (2, 4), (4, 5)]
    assert job.divisors == 1
    for first, end in ((0, 0), (3, 2), (-1, 2), (0, 6)):
        with pytest.raises(ArgumentError, match="leave the target"):
            job.rows(first, end)
    with pytest.raises(ArgumentError, match="at least one row"):
        list(job.chunks(0))


def test_inputs_make_up_the_target() -> None:
    request = request_of("q4_g64_fp16", np.ones((5, 80)))
    absmax = METHODS["grouped_absmax"]
    with pytest.raises(ArgumentError, match="p0: the input's rows have another length"):
        absmax.start(replace(request, shape=(5, 81)))
    with pytest.raises(ArgumentError, match="do not make up the target"):
        absmax.start(replace(request, shape=(6, 80)))
    with pytest.raises(ArgumentError, match="do not make up the target"):
        absmax.start(replace(request, inputs=()))
    with pytest.raises(UnsupportedError, match="p0: import_encoded needs words"):
        METHODS["import_encoded"].start(request)
    wordy = Input(name="w", shape=(5, 80), words=lambda first, end: encode(np.ones((end - first, 80)), "q4_g64_fp16"))
    with pytest.raises(UnsupportedError, match="w: grouped_absmax needs values"):
        absmax.start(replace(request, inputs=(wordy,)))


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda first, end: np.ones((end - first, 3)), "wrong shape"),
        (lambda first, end: np.ones((end - first + 1, 80)), "wrong shape"),
        (lambda first, end: np.ones((end - first, 80), object), "no numbers"),
    ],
)
def test_reads_are_checked(read: Callable[[int, int], np.ndarray], problem: str) -> None:
    source = Input(name="w", shape=(5, 80), values=read)
    job = METHODS["grouped_absmax"].start(Request(format=Q4, shape=(5, 80), inputs=(source,)))
    with pytest.raises(ArgumentError, match=f"^w: .*{problem}"):
        job.rows(0, 5)


def test_word_reads_are_checked() -> None:
    short = encode(np.ones((1, 64)), Q4)
    for words in (lambda _first, _end: short, lambda _first, _end: None):
        source = Input(name="w", shape=(5, 80), words=words)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"^w: a read of rows gave the wrong words"):
            METHODS["import_encoded"].start(Request(format=Q4, shape=(5, 80), inputs=(source,)))
    with pytest.raises(UnsupportedError, match="only words"):
        Span(source, 0, 1).values()
    with pytest.raises(UnsupportedError, match="only values"):
        Span(Input.of_values(np.ones((1, 1))), 0, 1).words()


# --- Python callables ---


def negated(request: Request) -> Callable[[int, int], Words]:
    """The opposite values, by way of a built-in method."""
    inner = METHODS["grouped_absmax"].start(replace(request, parameters={}))

    def rows(first: int, end: int) -> Words:
        words = inner.rows(first, end)
        assert isinstance(words, GroupedWords)
        return replace(words, scales=np.where(words.scales != 0, words.scales ^ np.uint16(0x8000), words.scales))

    return rows


class Halving:
    """Half of every value, as bf16."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def rows(self, first: int, end: int) -> np.ndarray:
        values: np.ndarray = self._request.values(first, end) * self._request.parameters.get("by", 0.5)
        return values.astype(BF16)


def test_callables_make_words_and_values() -> None:
    source = np.arange(-6, 7).reshape(1, 13).astype(np.float32)
    words = encode(source, "q5_g64_fp16", negated)
    np.testing.assert_array_equal(words.decode(), -encode(source, "q5_g64_fp16").decode())
    np.testing.assert_array_equal(encode(source, "bf16", Halving).decode("float32"), source / 2)
    np.testing.assert_array_equal(encode(source, "bf16", Halving, by=2).decode("float32"), source * 2)


def test_callables_have_names() -> None:
    method = as_method(negated)
    assert method.name.endswith(":negated")
    assert method.summary == "The opposite values, by way of a built-in method."
    assert as_method(method) is method
    assert as_method(Halving).name.endswith(":Halving")


def test_values_of_several_inputs() -> None:
    request = request_of("bf16", np.ones((2, 3), np.float32), np.full((1, 3), 2, BF16))
    assert request.values(0, 2).dtype == np.float32
    assert request.values(1, 3).tolist() == [[1] * 3, [2] * 3]
    assert request.values(1, 3).dtype == np.float64


def _words(format: str, rows: int, **changes: Any) -> Words:
    return replace(encode(np.ones((rows, 16)), format), **changes)


@pytest.mark.parametrize(
    ("format", "rows", "error", "problem"),
    [
        ("q4_g64_fp16", lambda _first, _end: None, ArgumentError, "found NoneType"),
        ("q4_g64_fp16", lambda first, end: np.ones((end - first, 16)), ArgumentError, "found ndarray"),
        ("q4_g64_fp16", lambda _first, _end: _words("q4_g64_fp16", 1), ArgumentError, r"found q4_g64_fp16 \[1, 16\]"),
        ("q4_g64_fp16", lambda first, end: _words("q5_g64_fp16", end - first), ArgumentError, "found q5_g64_fp16"),
        (
            "q4_g64_fp16",
            lambda first, end: _words("q4_g64_fp16", end - first, codes=np.full((end - first, 16), 8, np.int8)),
            WordsError,
            "row 2, group 0, column 0",
        ),
        ("bf16", lambda first, end: np.ones((end - first, 16), np.complex64), ArgumentError, "found complex64"),
        ("bf16", lambda _first, _end: np.ones((1, 16), BF16), ArgumentError, r"found bfloat16 \[1, 16\]"),
        (
            "nvfp4",
            lambda first, end: _words("nvfp4", end - first, divisors=np.array([0x3F800000 + first], np.uint32)),
            ArgumentError,
            "the same for all rows",
        ),
    ],
)
def test_what_a_callable_gives_is_validated(
    format: str, rows: Callable[[int, int], Any], error: type[Exception], problem: str
) -> None:
    source = Input.of_values(np.ones((5, 16)), "w")
    job = as_method(lambda _request: rows).start(Request(format=FORMATS[format], shape=(5, 16), inputs=(source,)))
    with pytest.raises(error, match=problem):  # noqa: PT012 - the first piece may pass
        if format == "nvfp4":
            assert isinstance(job.rows(0, 2), Nvfp4Words)
        job.rows(2, 5)


def test_a_callable_must_give_rows() -> None:
    request = request_of("q4_g64_fp16", np.ones((5, 80)))
    with pytest.raises(ArgumentError, match="gave nothing that gives rows"):
        as_method(lambda _request: 3).start(request)
    job: Job = as_method(negated).start(request)
    with pytest.raises(ArgumentError, match="leave the target"):
        job.rows(0, 6)
