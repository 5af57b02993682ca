"""The `gguf` package, a decoder that owes this project nothing.

It keeps every rule of the types that it has but one: tensors without elements are an error of NumPy's in most.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from quantform import testing
from quantform._rows import matrix_shape
from quantform.packed import PROFILES
from quantform.testing.packed_parts import BENCHES

# What version 0.19 has no decoder for, or does not know at all, and the rule that it breaks. A later one may do better.
MISSING = {"gguf:q8_1", "gguf:q8_k", "gguf:q1_0", "gguf:q2_0"}
BROKEN = {"packed.empty"}


def decode(payload: npt.NDArray[np.uint8], format: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """The package gives binary32 and nothing else."""
    if dtype != "float32" or PROFILES[format].ggml_type not in set(gguf.GGMLQuantizationType):
        raise NotImplementedError
    kind = gguf.GGMLQuantizationType(PROFILES[format].ggml_type)
    profile = PROFILES[format]
    rows, columns = matrix_shape(shape)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(payload.reshape(rows, columns // profile.values * profile.bytes), kind)
    return values.reshape(shape)


def test_what_it_keeps_and_what_it_does_not() -> None:
    report = testing.check_decoder(decode, BENCHES)
    assert {name for name, counts in report.subjects() if not counts["pass"]} <= MISSING
    assert {result.rule for result in report.failures} <= BROKEN, str(report)
    kept = {(result.subject, result.rule) for result in report.results if result.status == "pass"}
    for name in BENCHES.keys() - MISSING:
        rules = {vector.rule for vector in testing.vectors(name)} - BROKEN
        assert {(name, rule) for rule in rules} <= kept


@pytest.mark.parametrize(**testing.decoder_cases(["gguf:q8_0", "gguf:nvfp4"]))
def test_vector_by_vector(vector: testing.Vector) -> None:
    testing.check_vector(vector, decode, ["float32"])
