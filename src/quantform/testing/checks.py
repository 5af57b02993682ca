"""Checks of decoders and encoders: Python callables, or programs behind one (see `foreign`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from quantform._progress import Progress, silent
from quantform._scalars import FLOAT_OUTPUTS
from quantform.errors import ArgumentError, ConformanceError, UnknownNameError, UnsupportedError
from quantform.testing.differences import Difference, exercised, no_result, values_differences, words_difference
from quantform.testing.foreign import ForeignError, NotStartedError
from quantform.testing.kit import encoder_vectors, vectors
from quantform.testing.report import Report
from quantform.testing.vectors import EncoderVector, Vector

__all__ = [
    "Cases",
    "Decoder",
    "Encoder",
    "check_decoder",
    "check_encoder",
    "check_vector",
    "decoder_cases",
    "encoder_cases",
    "output_types",
]

Decoder = Callable[..., Any]
"""Takes a payload (uint8 `[n]`, read-only), a format, a shape and an output type's name, and gives an array.

So does `quantform.dequantize_packed`. Payloads with several divisors come with a fifth argument, `divisors=2`.
"""

Encoder = Callable[..., Any]
"""Takes values (or blocks, uint8 `[rows, row_bytes]`), a format, a method's name and a dictionary of parameters.

It gives a payload in the format's layout, arrays of words by name, or `Words`. Parameters are the method's, and
`source` for `import_encoded`: the profile of the blocks. It refuses by raising a `ValueError`.
"""

_MISSING = (NotImplementedError, UnsupportedError, UnknownNameError)
_STOPS = (*_MISSING, NotStartedError)
_CALLED = (
    "decoders are called with (payload, format, shape, dtype), and divisors=n where there are several; encoders with "
    "(values, format, method, parameters)"
)


def check_decoder(
    decode: Decoder,
    formats: str | Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    progress: Progress = silent,
) -> Report:
    """Run a decoder over the vectors.

    Args:
        decode: The decoder. Where it raises `NotImplementedError` (or quantform's errors for unknown names and
            unsupported things), the run counts as not implemented; any other exception is a failure.
        formats: Names or shell patterns of profiles and formats; None is all.
        dtypes: Output types; None is all four. With float32 among them, faults of conversion are told from others.
        progress: Called with the number of vectors done.

    Raises:
        UnknownNameError: A pattern matches nothing.
        ArgumentError: A name of an output type is none, or the program that is the decoder cannot be started.
    """
    outputs = output_types(dtypes)
    report, chosen = Report(), list(vectors(formats))
    for number, vector in enumerate(chosen):
        progress(number, len(chosen), vector.identifier)
        right = None
        for output in outputs:
            try:
                differences, same = _decode(decode, vector, output, right)
            except _MISSING:
                report.missing(vector.format, vector.rule)
                continue
            if output == "float32":
                right = same
            # A conversion was shown to be right only where something came out right.
            shown = {} if same is None else exercised(vector, output)
            kept = [rule for rule, mask in shown.items() if (mask & same).any()]
            report.record(vector.format, [vector.rule, *kept], differences)
    progress(len(chosen), len(chosen), "")
    return report


def check_encoder(encode: Encoder, formats: str | Iterable[str] | None = None, progress: Progress = silent) -> Report:
    """Run an encoder over the vectors of the methods.

    Args:
        encode: The encoder; see `check_decoder` for what counts as not implemented.
        formats: Names or shell patterns of formats; None is all.
        progress: Called with the number of vectors done.

    Raises:
        UnknownNameError: A pattern matches nothing.
        ArgumentError: The program that is the encoder cannot be started.
    """
    report, chosen = Report(), list(encoder_vectors(formats))
    for number, vector in enumerate(chosen):
        progress(number, len(chosen), vector.identifier)
        subject = f"{vector.method} {vector.format}"
        try:
            difference = _encode(encode, vector)
        except _MISSING:
            report.missing(subject, vector.rule)
            continue
        report.record(subject, [vector.rule], [] if difference is None else [difference])
    progress(len(chosen), len(chosen), "")
    return report


def check_vector(vector: Vector | EncoderVector, run: Decoder | Encoder, dtypes: Iterable[str] | None = None) -> None:
    """Run a decoder or an encoder over one vector.

    Raises:
        NotImplementedError: The code under test raised it, as it may.
        ConformanceError: It breaks a rule; the text says which, what it means, where, expected and found. What the
            code under test raised is its cause.
    """
    __tracebackhide__ = True  # pytest shows the test, and the code under test if it raised something
    found: list[Difference] = []
    if isinstance(vector, EncoderVector):
        difference = _encode(run, vector)
        found += [] if difference is None else [difference]
    else:
        right = None
        for output in output_types(dtypes):
            differences, same = _decode(run, vector, output, right)
            right = same if output == "float32" else right
            found += differences
    if found:
        report = Report()
        report.record(vector.format, [], found)
        raise ConformanceError(str(report)) from next((one.cause for one in found if one.cause is not None), None)


class Cases(TypedDict):
    """Arguments of `pytest.mark.parametrize` by name."""

    argnames: str
    argvalues: Sequence[Any]
    ids: Sequence[str]


def decoder_cases(formats: str | Iterable[str] | None = None) -> Cases:
    """Arguments of `pytest.mark.parametrize` for a test that takes a `vector`; the vectors' identifiers are the ids."""
    return _cases(vectors(formats))


def encoder_cases(formats: str | Iterable[str] | None = None) -> Cases:
    """As `decoder_cases`, for encoders."""
    return _cases(encoder_vectors(formats))


def _cases(chosen: Iterable[Vector | EncoderVector]) -> Cases:
    values = tuple(chosen)
    return Cases(argnames="vector", argvalues=values, ids=[vector.identifier for vector in values])


def output_types(dtypes: Iterable[str] | None) -> tuple[str, ...]:
    """Names of output types, float32 first; None is all.

    Raises:
        ArgumentError: One is none.
    """
    chosen = list(FLOAT_OUTPUTS) if dtypes is None else list(dtypes)
    for name in chosen:
        if name not in FLOAT_OUTPUTS:
            raise ArgumentError("dtype is not an output type", expected=", ".join(FLOAT_OUTPUTS), found=repr(name))
    return tuple(name for name in FLOAT_OUTPUTS if name in chosen)


def _decode(
    decode: Decoder, vector: Vector, output: str, right: npt.NDArray[np.bool_] | None
) -> tuple[list[Difference], npt.NDArray[np.bool_] | None]:
    more = {"divisors": vector.divisors} if vector.divisors > 1 else {}
    try:
        found = decode(vector.payload, vector.format, vector.shape, output, **more)
    except _STOPS:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is what we report
        return [_raised(vector, error, output)], None
    return values_differences(vector, output, found, right)


def _encode(encode: Encoder, vector: EncoderVector) -> Difference | None:
    parameters = dict(vector.parameters)
    if vector.source.startswith("gguf:"):
        parameters["source"] = vector.source
    try:
        found = encode(vector.values, vector.format, vector.method, parameters)
    except _STOPS:
        raise
    except Exception as error:  # noqa: BLE001
        if vector.payload is None and isinstance(error, ValueError):
            return None
        return _raised(vector, error)
    return words_difference(vector, found)


def _raised(vector: Vector | EncoderVector, error: Exception, output: str = "") -> Difference:
    problem, expected, found, detail = f"{type(error).__name__}: {error}", "", "", _raised_at(error)
    if isinstance(error, ForeignError):  # a program's failure: it has a reason, and no place in Python
        problem, detail = error.problem, error.hint or ""
        expected, found = (str(text or "") for text in (error.expected, error.found))
    return no_result(vector, problem, expected, found, output, detail=detail, cause=error)


def _raised_at(error: Exception) -> str:
    """Where an error was raised, if in Python code that we called."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    if frames:
        return f"raised at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"
    return _CALLED if isinstance(error, TypeError) else ""
