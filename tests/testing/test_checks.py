"""Checks of Python callables: this package keeps every rule, and mistakes are found under theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import quantform as qf
from quantform import testing
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import ArgumentError, ConformanceError, UnknownNameError, UnsupportedError
from quantform.formats import FORMATS, BlockWords, Words, block_format
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES

Bytes = npt.NDArray[np.uint8]


def decode(payload: Bytes, format: str, shape: tuple[int, ...], dtype: str, divisors: int = 1) -> npt.NDArray[Any]:
    """Everything that this package decodes."""
    if format in PROFILES:
        return qf.dequantize_packed(payload, format, shape, dtype)
    layout = LAYOUTS[FORMATS[format].default_layout]
    return layout.unpack(payload, format, shape, divisors).decode(dtype)


def encode(values: npt.NDArray[Any], format: str, method: str, parameters: Mapping[str, Any]) -> Words:
    """Everything that this package encodes."""
    options = dict(parameters)
    source: str | None = options.pop("source", None)
    given: Any = values
    if source is not None:
        profile = PROFILES[source]
        shape = (len(values), values.shape[1] // profile.bytes * profile.values)
        given = BlockWords(block_format(profile), shape, values)
    return qf.encode(given, format, method=method, **options)


def test_the_operator_keeps_every_rule() -> None:
    report = testing.check_decoder(qf.dequantize_packed, "gguf:*")
    assert report.ok, str(report)
    assert {subject for subject, _ in report.subjects()} == set(PROFILES)


def test_every_format_keeps_every_rule() -> None:
    report = testing.check_decoder(decode, list(FORMATS))
    assert report.ok, str(report)
    assert {subject for subject, _ in report.subjects()} == set(FORMATS)


def test_every_encoder_keeps_every_rule() -> None:
    report = testing.check_encoder(encode)
    assert report.ok, str(report)
    for vector in testing.encoder_vectors("q4_g64_fp16"):
        testing.check_vector(vector, encode)


@pytest.mark.parametrize(**testing.decoder_cases("q6_g64_fp16"))
def test_the_helper_for_pytest(vector: testing.Vector) -> None:
    testing.check_vector(vector, decode)


# --- mistakes in Python, each under its rule ------------------------------------------------------------------------


def changed(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], dtype: str) -> Callable[..., npt.NDArray[Any]]:
    """This package's decoder with a mistake in one output type."""

    def wrong(payload: Bytes, format: str, shape: tuple[int, ...], output: str, divisors: int = 1) -> Any:
        values = decode(payload, format, shape, output, divisors)
        return change(values) if output == dtype else values

    return wrong


def saturated(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.where(np.isinf(values), np.copysign(np.float16(65504), values), values).astype(np.float16)


def flushed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.where(np.abs(values) < 2.0**-14, np.copysign(np.float16(0), values), values).astype(np.float16)


def unsigned_zeros(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values + np.float16(0)


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (saturated, {"output.float16.overflow", "output.float16.special"}),
        (flushed, {"output.float16.subnormal"}),
        (unsigned_zeros, {"output.float16.special", "output.float16.subnormal"}),
    ],
)
def test_mistakes_of_conversion_are_told_from_others(change: Any, rules: set[str]) -> None:
    report = testing.check_decoder(changed(change, "float16"), ["gguf:mxfp4", "gguf:q5_1"])
    assert {result.rule for result in report.failures} == rules


def test_without_binary32_a_mistake_is_the_vectors_own() -> None:
    report = testing.check_decoder(changed(flushed, "float16"), "gguf:q8_0", ["float16"])
    assert {result.rule for result in report.failures} == {"packed.q8_0.d", "packed.together"}


def reciprocal_divisor(payload: Bytes, format: str, shape: tuple[int, ...], _: str, divisors: int = 1) -> Any:
    words: Any = LAYOUTS[FORMATS[format].default_layout].unpack(payload, format, shape, divisors)
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / words.divisors.view(np.float32)
        words.divisors[...] = np.float32(1).view(np.uint32)
        rows = np.repeat(inverse, shape[0] // divisors)
        return words.decode("float32") * rows[:, None]


def test_a_reciprocal_is_no_division() -> None:
    report = testing.check_decoder(reciprocal_divisor, "nvfp4", ["float32"])
    broken = {result.rule for result in report.failures}
    assert (
        {"nvfp4.divisor", "nvfp4.divisor-range"}
        <= broken
        <= {
            "nvfp4.divisor",
            "nvfp4.divisor-range",
            "nvfp4.together",
        }
    )


def absolute_scales(payload: Bytes, format: str, shape: tuple[int, ...], dtype: str, divisors: int = 1) -> Any:
    words: Any = LAYOUTS[FORMATS[format].default_layout].unpack(payload, format, shape, divisors)
    words.scales[...] &= 0x7FFF
    return words.decode(dtype)


def test_a_scale_has_a_sign() -> None:
    report = testing.check_decoder(absolute_scales, "q4_g64_fp16", ["float32"])
    broken = {result.rule for result in report.failures}
    assert broken == {f"grouped.q4.{name}" for name in ("signed-scale", "zero-sign", "edges", "together")}


def quotients(values: npt.NDArray[Any], format: str, method: str, parameters: Mapping[str, Any]) -> Words:
    """`grouped_absmax` that divides by the scale instead of multiplying by its reciprocal."""
    if method != "grouped_absmax":
        raise NotImplementedError
    words: Any = encode(values, format, method, parameters)
    record: Any = FORMATS[format]
    scales = words.scales.view(np.float16).astype(np.float32)
    wide = np.repeat(scales, record.group, axis=-1)[..., : values.shape[-1]]
    with np.errstate(all="ignore"):
        codes = np.rint(values.astype(np.float32) / wide).clip(record.qmin, record.qmax)
    words.codes[...] = np.where(wide == 0, 0, codes)
    return words  # type: ignore[no-any-return]


def test_an_encoder_that_divides() -> None:
    report = testing.check_encoder(quotients, ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"])
    assert {result.rule for result in report.failures} == {"encode.grouped_absmax.reciprocal"}
    assert len(report.failures) == 4
    assert {result.status for result in report.results} == {"pass", "fail", "not implemented"}


def test_an_encoder_that_refuses_nothing() -> None:
    vector = next(v for v in testing.encoder_vectors("q8_g32_fp16") if v.payload is None)
    with pytest.raises(ConformanceError, match="the source was encoded; expected a refusal, found bytes"):
        testing.check_vector(vector, lambda *_: b"")


def test_payloads_and_arrays_are_compared_too() -> None:
    vector = next(v for v in testing.encoder_vectors("q5_g64_fp16") if v.identifier.endswith("/partial-group"))
    assert vector.payload is not None
    payload = vector.payload.copy()
    testing.check_vector(vector, lambda *_: payload)
    testing.check_vector(vector, lambda *_: payload.tobytes())
    testing.check_vector(vector, lambda *_: dict(vector.words))
    for at, fragment in (
        (0, "of 393 codes differ; codes[0, 0]"),
        (-1, "of 12 scales differ"),
        (380, "bytes of padding differ"),
    ):
        wrong = payload.copy()
        wrong[at] ^= 0x11
        with pytest.raises(ConformanceError) as caught:
            testing.check_vector(vector, lambda *_, wrong=wrong: wrong)
        if at != -1:  # the last scale of a row is padding here
            assert fragment in str(caught.value)
    with pytest.raises(ConformanceError, match="wrong length"):
        testing.check_vector(vector, lambda *_: payload[:-1])
    testing.check_vector(vector, lambda *_: {**vector.words, "codes": vector.words["codes"].view(np.uint8)})
    with pytest.raises(ConformanceError, match="the codes have the wrong type"):
        testing.check_vector(vector, lambda *_: {**vector.words, "codes": vector.words["codes"].astype(np.int32)})
    with pytest.raises(ConformanceError, match="gave other arrays; expected codes, scales, found none"):
        testing.check_vector(vector, lambda *_: {})


def test_words_may_have_either_sign() -> None:
    vector = next(v for v in testing.encoder_vectors("int32") if v.identifier.endswith("/integers"))
    words = vector.words["words"]
    testing.check_vector(vector, lambda *_: {"words": words.view(np.int32)})
    for other in (words.astype(np.int64), words.astype(np.float32), words.astype(np.uint16)):
        with pytest.raises(ConformanceError, match="the words have the wrong type"):
            testing.check_vector(vector, lambda *_, other=other: {"words": other})


# --- results that are none ------------------------------------------------------------------------------------------


def test_what_a_failure_says() -> None:
    with pytest.raises(ConformanceError) as caught:
        testing.check_vector(next(testing.vectors("gguf:q4_0")), lambda _, __, s, d: np.ones(s, d), ["float32"])
    assert str(caught.value) == (
        "gguf:q4_0: packed.q4_0.d: d, a binary16 number of either sign, multiplies every code of the block\n"
        "    gguf:q4_0/d as float32: 352 of 384 values differ; element [1, 0]: row 1, block 0, value 0 of it; "
        "expected -1.0 (0xBF800000), found 1.0 (0x3F800000)"
    )
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(
    ("result", "fragment"),
    [
        (None, "found NoneType"),
        (np.zeros(3, np.float32), "expected float32 [12, 32], found float32 [3]"),
        (np.zeros((12, 32)), "expected float32 [12, 32], found float64 [12, 32]"),
        ([1.0], "found list"),
    ],
)
def test_results_of_another_kind(result: object, fragment: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        testing.check_vector(next(testing.vectors("gguf:q4_0")), lambda *_: result, ["float32"])
    assert fragment in str(caught.value)


def test_what_a_decoder_raises_is_a_failure_and_not_ours() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    report = testing.check_decoder(broken, "bf16")
    assert not report.ok
    assert {result.status for result in report.results} == {"failed to run"}  # conversions were not shown either
    assert not report.broken
    (group,) = report.unrun
    assert len(group.results) == len(report.results)
    assert group.reason == "RuntimeError: out of luck"
    lines = str(report).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("failed to run, bf16: direct.bf16.words, ")
    assert lines[1] == f"    {group.first.vector} as float32: RuntimeError: out of luck"
    assert re.fullmatch(r"    raised at .*test_checks\.py:\d+ in broken", lines[2])


def test_errors_of_one_line_are_told_once() -> None:
    def broken(_: Bytes, __: str, shape: tuple[int, ...], ___: str) -> None:
        raise RuntimeError(f"out of {shape}")

    (group,) = testing.check_decoder(broken, "gguf:q*").unrun
    assert len(group.results) > 100


def test_a_vector_is_shown_by_its_name() -> None:
    assert repr(next(testing.vectors("bf16"))) == "<Vector bf16/words>"
    assert repr(next(testing.encoder_vectors("bf16"))) == "<EncoderVector cast_direct/bf16/same-bits>"


def test_an_error_that_was_raised_is_the_cause() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(ConformanceError, match=r"failed to run, bf16: direct\.bf16\.words") as caught:
        testing.check_vector(next(testing.vectors("bf16")), broken)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_callable_of_other_arguments_is_told_which() -> None:
    with pytest.raises(ConformanceError, match=r"TypeError: .*\n *decoders are called with \(payload, format, shape"):
        testing.check_vector(next(testing.vectors("bf16")), lambda payload: payload)


def test_wrong_values_go_before_failures_to_run() -> None:
    calls = []

    def sometimes(_: Bytes, __: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        calls.append(shape)
        if len(calls) == 1:
            raise RuntimeError
        return np.zeros(shape, dtype)

    report = testing.check_decoder(sometimes, "gguf:q4_0", ["float32", "float64"])
    result = report.results[0]
    assert (result.status, result.failed, result.unrun, result.passed) == ("fail", 2, 1, 0)
    assert result.first is not None
    assert result.first.failure == "wrong values"
    assert not report.unrun


def test_a_conversion_of_wrong_values_is_not_shown_to_be_right() -> None:
    def nothing(_: Bytes, __: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        return np.full(shape, np.nan, FLOAT_OUTPUTS[dtype])

    report = testing.check_decoder(nothing, "gguf:q4_0", ["float32", "float16", "bfloat16"])
    passed = {result.rule for result in report.results if result.passed}
    assert passed <= {"packed.empty", "output.float16.special", "output.bfloat16.special"}


@pytest.mark.parametrize("error", [NotImplementedError, UnsupportedError("no"), UnknownNameError("no")])
def test_what_is_not_implemented_is_counted_apart(error: Any) -> None:
    def missing(*_: object) -> None:
        raise error

    for report in (testing.check_decoder(missing, "bf16"), testing.check_encoder(missing, "bf16")):
        assert not report.failures
        assert not report.ok  # nothing was shown
        assert str(report).startswith("nothing was checked; ")
        assert {result.status for result in report.results} == {"not implemented"}


def test_bfloat16_may_come_as_words() -> None:
    def words(payload: Bytes, format: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        return qf.dequantize_packed(payload, format, shape, dtype).view(np.uint16)

    assert testing.check_decoder(words, "gguf:q5_1", ["bfloat16"]).ok


def test_names_that_there_are_not() -> None:
    with pytest.raises(UnknownNameError, match="gguf:q4_9"):
        testing.check_decoder(decode, ["gguf:q4_0", "gguf:q4_9"])
    with pytest.raises(ArgumentError, match="not an output type"):
        testing.check_decoder(decode, "bf16", ["int8"])
