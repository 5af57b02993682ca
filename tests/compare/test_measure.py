"""The measures: worked out by hand on tiny tensors, by exact sums on larger ones, and the same whatever the pieces."""

from __future__ import annotations

import dataclasses
import importlib
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gguf_builder as gb
import quantform as qf
from quantform.compare.measure import Errors, Measure, measure
from quantform.sources.arrays import ArrayTensor

NAN, INF = math.nan, math.inf


def errors(reference: Any, other: Any, dtype: Any = np.float64) -> Errors:
    one, two = np.asarray(reference, dtype), np.asarray(other, dtype)
    return measure(ArrayTensor("a", one), ArrayTensor("b", two)).errors(one.shape[-1] if one.ndim else 1)


def test_a_matrix_worked_out_by_hand() -> None:
    """Differences 0, 1, -2, 0, 0, 2: squares 9; the reference's 1 + 4 + 16 + 4 + 0 + 0 = 25; so 3/5."""
    found = errors([[1, 2, 4], [-2, 0, 0]], [[1, 3, 2], [-2, 0, 2]])
    assert found.relative_rms == 0.6
    assert found.snr_db is not None
    assert math.isclose(found.snr_db, 4.43697499232713, rel_tol=1e-14)  # 20 (log10 5 - log10 3)
    assert (found.max_abs, found.row, found.column) == (2, 0, 2)  # the first of two
    assert found.differing == 3
    # products 1 + 6 + 8 + 4 = 19; the other's squares 1 + 9 + 4 + 4 + 4 = 22
    assert found.cosine is not None
    assert math.isclose(found.cosine, 19 / math.sqrt(25 * 22), rel_tol=1e-15)
    assert found.incomparable == found.other_nan == found.reference_infinite == 0


def test_equal_tensors_have_no_error() -> None:
    found = errors([[3, -4]], [[3, -4]])
    assert (found.relative_rms, found.snr_db, found.max_abs, found.row, found.column) == (0, None, 0, None, None)
    assert found.cosine == 1
    assert found.differing == 0


def test_opposite_and_orthogonal_tensors() -> None:
    assert errors([1, 2], [-1, -2]).cosine == -1
    assert errors([1, 2], [-1, -2]).relative_rms == 2
    assert errors([1, 0], [0, 5]).cosine == 0


@pytest.mark.parametrize(
    ("reference", "other", "relative", "largest", "place"),
    [([0, 0], [0, 0], 0.0, 0.0, None), ([0, 0], [0, 3], None, 3.0, 1), ([0, 4], [0, 0], 1.0, 4.0, 1)],
)
def test_a_side_of_zeros(
    reference: list[float], other: list[float], relative: float | None, largest: float, place: int | None
) -> None:
    found = errors(reference, other)
    assert (found.relative_rms, found.max_abs, found.column, found.cosine) == (relative, largest, place, None)
    assert found.snr_db == (0 if relative == 1 else None)


def test_a_zero_of_the_other_sign_differs_by_nothing() -> None:
    found = errors([0.0, 1], [-0.0, 1])
    assert (found.differing, found.relative_rms, found.max_abs, found.row) == (1, 0, 0, None)


def test_the_same_on_both_sides_is_left_out() -> None:
    found = errors([NAN, INF, -INF, 1, 4], [NAN, INF, -INF, 1, 1])
    # left: 1 and 1, 4 and 1: a difference of 3, a reference of root 17
    assert found.relative_rms == math.sqrt(9 / 17)
    assert (found.max_abs, found.column, found.differing, found.incomparable) == (3, 4, 1, 0)
    assert (found.reference_nan, found.reference_infinite, found.other_nan, found.other_infinite) == (1, 2, 1, 2)


def test_what_is_not_finite_on_one_side_is_beyond_every_number() -> None:
    reference = [NAN, INF, 1, -INF, NAN, 2, 1, INF, 4]
    other = [NAN, INF, 9, INF, 1, INF, 1, NAN, 1]
    found = errors(reference, other)
    assert found.relative_rms is found.snr_db is found.max_abs is found.cosine is None
    assert (found.row, found.column) == (0, 3)  # the first, and not the largest of the finite ones
    assert (found.reference_nan, found.reference_infinite, found.other_nan, found.other_infinite) == (2, 3, 2, 3)
    assert found.incomparable == 4
    assert found.differing == 6
    assert found.badness > errors([1.0], [-1e9]).badness


def test_nan_of_another_payload_is_the_same() -> None:
    words = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    found = errors(words, words[::-1], np.float32)
    assert (found.differing, found.incomparable, found.reference_nan, found.other_nan) == (0, 0, 3, 3)


def test_a_difference_that_overflows_is_incomparable() -> None:
    found = errors([1.7e308, 3], [-1.7e308, 4])
    assert (found.incomparable, found.differing, found.max_abs, found.column) == (1, 2, None, 0)
    assert found.relative_rms is None


@pytest.mark.parametrize("at", [0, 4095, 4096, 70_000, 99_999])
@pytest.mark.parametrize(("left", "right"), [(NAN, 1.0), (1.0, NAN), (INF, -INF), (1.0, INF), (NAN, INF)])
def test_one_element_in_many_is_never_lost(at: int, left: float, right: float) -> None:
    one, two = np.ones((2, 100_000)), np.ones((2, 100_000))
    one[0, 7], two[0, 7] = 5, 9
    one[1, at], two[1, at] = left, right
    found = errors(one, two)
    assert (found.differing, found.incomparable, found.row, found.column) == (2, 1, 1, at)
    assert found.max_abs is found.relative_rms is None
    together = measure(ArrayTensor("a", one), ArrayTensor("b", two)) + measure(*(ArrayTensor("c", np.ones(3)),) * 2)
    assert together.errors(1).relative_rms is together.errors(1).max_abs is None


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-150, 1, 1e150, 1e300])
@pytest.mark.parametrize("other", [1e-300, 1, 1e300])
def test_squares_that_leave_binary64(size: float, other: float) -> None:
    reference = np.full(5000, size)
    found = errors(reference, np.append(reference[1:], size + other))
    exact = Fraction(size + other) - Fraction(size)
    assert found.max_abs == float(exact)
    ratio = exact / Fraction(size)
    expected = math.sqrt(Fraction(1, 5000)) * float(ratio) if ratio < Fraction(10) ** 308 else None
    if expected is None:
        assert found.relative_rms is None
    else:
        assert found.relative_rms is not None
        assert math.isclose(found.relative_rms, expected, rel_tol=1e-13, abs_tol=1e-320)


def test_blocks_of_very_different_sizes() -> None:
    reference = np.concatenate([np.full(4096, size) for size in (2.0**-700, 1.0, 2.0**700, 2.0**-700)])
    other = reference * np.repeat([1.5, 2, 1.25, 3], 4096)
    found = errors(reference, other)
    assert found.relative_rms == 0.25
    assert found.cosine == 1
    assert found.max_abs == 2.0**698


def oracle(reference: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The relative RMS error and the cosine by exactly rounded sums of Python's own."""
    one, two = reference.astype(np.float64).ravel().tolist(), other.astype(np.float64).ravel().tolist()
    difference = math.fsum((b - a) * (b - a) for a, b in zip(one, two, strict=True))
    squares = math.fsum(a * a for a in one), math.fsum(b * b for b in two)
    product = math.fsum(a * b for a, b in zip(one, two, strict=True))
    return math.sqrt(difference / squares[0]), product / math.sqrt(squares[0]) / math.sqrt(squares[1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (64, 64), (2, 3, 1000), (5, 20_001)], ids=str)
def test_sums_are_those_of_exact_addition(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(shape))
    reference = (rng.standard_normal(shape) * 9 * np.exp(rng.standard_normal(shape))).astype(dtype)
    other = (reference.astype(np.float64) * 1.25 + rng.standard_normal(shape)).astype(dtype)
    reference.flat[0] += 5
    found = errors(reference, other, dtype)
    relative, cosine = oracle(reference, other)
    assert found.relative_rms is not None
    assert found.cosine is not None
    assert math.isclose(found.relative_rms, relative, rel_tol=1e-14)
    assert math.isclose(found.cosine, cosine, rel_tol=1e-14)
    matrix = np.abs(other.astype(np.float64) - reference.astype(np.float64)).reshape(-1, shape[-1])
    assert found.max_abs == matrix.max()
    assert (found.row, found.column) == divmod(int(matrix.argmax()), shape[-1])


@given(
    st.data(),
    hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(allow_subnormal=True)),
    st.integers(1, 40),
)
def test_no_bit_depends_on_the_pieces(data: st.DataObject, values: np.ndarray, repeats: int) -> None:
    reference = np.tile(values, repeats * 20)[: 4096 * 3 + 77]
    other = np.roll(reference, 1)
    whole = Measure()
    whole.add(reference, other)
    cuts = sorted(data.draw(st.lists(st.integers(0, reference.size), max_size=12)))
    parts = Measure()
    for first, end in zip([0, *cuts], [*cuts, reference.size], strict=True):
        parts.add(reference[first:end], other[first:end])
    assert repr(parts.sums()) == repr(whole.sums())


def test_no_bit_depends_on_how_a_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    shape = (40, 1024)
    blocks = rng.integers(0, 256, (40, 32, 18), np.uint8)
    blocks[..., :2] = np.float16(0.01).tobytes()[0], np.float16(0.01).tobytes()[1]
    plain = rng.standard_normal(shape).astype(np.float32)
    path = tmp_path / "a.gguf"
    path.write_bytes(
        gb.build([gb.tensor("p", shape, 2, blocks.tobytes()), gb.tensor("f", shape, gb.F32, plain.tobytes())])
    )
    module = importlib.import_module("quantform.compare.measure")
    found = set()
    with qf.open(path) as file:
        for piece in (1, 3000, 5000, 1 << 17):
            monkeypatch.setattr(module, "_PIECE_VALUES", piece)
            for batch in (1, 5, 16):
                monkeypatch.setattr(module, "_BATCH", batch)
                found.add(repr(measure(file["f"], file["p"])))
        monkeypatch.setenv("QUANTFORM_THREADS", "2")
        found.add(repr(measure(file["f"], file["p"])))
        flat = ArrayTensor("flat", plain.reshape(-1))  # one row, read in windows
        monkeypatch.setattr(module, "_PIECE_VALUES", 5000)
        found.add(repr(measure(flat, file["p"])))
    assert len(found) == 1


def test_sums_of_several_tensors_add_up() -> None:
    one, two = np.array([3.0, 4.0, NAN]), np.array([1e200])
    sums = measure(ArrayTensor("a", one), ArrayTensor("b", one * 2)) + measure(
        ArrayTensor("c", two), ArrayTensor("d", two)
    )
    found = sums.errors(1)
    assert found.relative_rms == pytest.approx(5e-200, rel=1e-14)
    assert (found.max_abs, found.row, found.differing, found.reference_nan) == (4, None, 2, 1)
    assert {one.name for one in dataclasses.fields(Errors)} == set(found.as_fields())
