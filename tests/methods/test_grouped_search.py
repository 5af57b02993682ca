"""`grouped_search` against the scalar search, the golden words and the specification's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_oracle import FP16, GRIDS, search
from encoder_values import values
from quantform.encode import encode
from quantform.errors import ArgumentError, ValuesError
from quantform.formats import GroupedWords
from quantform.methods.grouped_search import RATIOS

F64 = npt.NDArray[np.float64]


def encoded(array: npt.ArrayLike, format: str, method: str = "grouped_search", **parameters: Any) -> GroupedWords:
    words = encode(array, format, method, **parameters)
    assert isinstance(words, GroupedWords)
    words.validate()
    return words


def errors(words: GroupedWords, source: npt.NDArray[Any], importance: npt.NDArray[Any]) -> F64:
    """The weighted squared error of every group, exactly rounded products and plain sums."""
    group = GRIDS[words.format.name][0]
    weighted = importance.astype(np.float64) * (source.astype(np.float64) - words.decode("float64")) ** 2
    padded = np.pad(weighted, ((0, 0), (0, -source.shape[1] % group)))
    sums: F64 = padded.reshape(len(source), -1, group).sum(axis=2)
    return sums


def group(first: list[float], columns: int = 64) -> npt.NDArray[np.float32]:
    row = np.zeros((1, columns), np.float32)
    row[0, : len(first)] = first
    return row


def test_ratios_are_the_decimals() -> None:
    assert len(RATIOS) == 25
    assert [f"{ratio!r}" for ratio in RATIOS[:4]] == ["0.7", "0.72", "0.74", "0.76"]
    assert RATIOS[15] == 1.0
    assert RATIOS[-1] == 1.18
    assert list(RATIOS) == [float(f"{0.70 + 0.02 * step:.2f}") for step in range(25)]


def test_golden(ninfer_vectors: dict[str, np.ndarray]) -> None:
    keys = [key for key in ninfer_vectors if key.startswith("grouped_search/") and key.endswith("/source")]
    assert len(keys) == 8
    for key in keys:
        _, format, kind, _ = key.split("/")
        source, importance, codes, scales = (
            ninfer_vectors[f"grouped_search/{format}/{kind}/{name}"]
            for name in ("source", "importance", "codes", "scales")
        )
        words = encoded(source, format, importance=importance, negative_scales=kind == "signed")
        golden = GroupedWords(words.format, words.shape, codes, scales)
        same = words.scales == scales
        ours, theirs = errors(words, source, importance), errors(golden, source, importance)
        # Where two candidates agree to binary64 rounding, either is right.
        np.testing.assert_allclose(ours[~same], theirs[~same], rtol=1e-12)
        np.testing.assert_array_equal(
            codes[same.repeat(GRIDS[format][0], axis=1)], words.codes[same.repeat(GRIDS[format][0], axis=1)]
        )
        assert same.mean() > 0.9


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("format", GRIDS)
@settings(max_examples=25)
@given(data=st.data())
def test_oracle(format: str, negative: bool, data: st.DataObject) -> None:
    size, qmin, qmax = GRIDS[format]
    columns = data.draw(st.sampled_from([1, 5, size, size + 2]))
    row = data.draw(values(columns, float(FP16.largest * qmax)))
    weights = data.draw(
        st.one_of(
            st.none(),
            st.lists(
                st.sampled_from([0.0, -0.0, 1.0, 0.25, 1e-30, 1e-300, 3e7]) | st.floats(0, 1e9),
                min_size=columns,
                max_size=columns,
            ),
        )
    )
    words = encoded(row[None, :], format, importance=weights, negative_scales=negative)
    for index, first in enumerate(range(0, columns, size)):
        lanes = slice(first, first + size)
        importance = None if weights is None else weights[lanes]
        codes, scale = search(row[lanes].tolist(), size, qmin, qmax, importance, negative=negative)
        assert words.scales[0, index] == scale
        assert words.codes[0, lanes].tolist() == codes


def test_largest_positive_value() -> None:
    words = encoded(group([8, -3, 5, 1]), "q4_g64_fp16", negative_scales=True)
    assert words.scales.tolist() == [[0xBC00]]
    assert words.codes[0, :4].tolist() == [-8, 3, -5, -1]
    words = encoded(group([8, -3, 5, 1]), "q4_g64_fp16")
    assert words.scales.tolist() == [[0x3D43]]
    assert words.codes[0, :4].tolist() == [6, -2, 4, 1]


def test_largest_negative_value() -> None:
    words = encoded(group([-8, 3, -5, 1]), "q4_g64_fp16")
    assert words.scales.tolist() == [[0x3C00]]
    assert words.codes[0, :4].tolist() == [-8, 3, -5, 1]


def test_small_groups() -> None:
    assert encoded(group([]), "q6_g64_fp16").scales.tolist() == [[0]]
    tiny = encoded(group([2.0**-126]), "q6_g64_fp16")
    assert (tiny.scales[0, 0], tiny.codes[0, 0]) == (1, 0)
    assert encoded(group([1.0]), "q6_g64_fp16").scales[0, 0] != 0
    signed = encoded(group([1.0]), "q6_g64_fp16", negative_scales=True)
    assert (signed.scales[0, 0], signed.codes[0, 0]) == (0xA800, -32)


def test_importance_of_nothing_keeps_absmax() -> None:
    row = group([1.0] + [0.013] * 63)
    words = encoded(row, "q4_g64_fp16", importance=np.zeros(64))
    assert words.scales.tolist() == [[0x3092]]
    assert words.codes[0, :2].tolist() == [7, 0]


@pytest.mark.parametrize(
    ("format", "scale", "codes", "weighted"),
    [
        ("q4_g64_fp16", 0x2E79, [-6, 0, 5, -4, 1, 7, -3, 3], False),
        ("q5_g64_fp16", 0x2AB9, [-12, -1, 10, -9, 2, 13, -6, 5], False),
        ("q6_g64_fp16", 0x2676, [-24, -1, 22, -18, 5, 28, -12, 11], False),
        ("q8_g32_fp16", 0x1E4C, [-99, -5, 89, -74, 20, 114, -48, 46], False),
        ("q4_g64_fp16", 0x2E70, [-6, 0, 5, -5, 1, 7, -3, 3], True),
    ],
)
def test_formula_group(format: str, scale: int, codes: list[int], weighted: bool) -> None:
    lanes = np.arange(GRIDS[format][0])
    source = (((37 * lanes + 11) % 101 - 50) / 64)[None, :]
    parameters: dict[str, Any] = {"importance": 1.0 + lanes % 5, "negative_scales": True} if weighted else {}
    words = encoded(source, format, **parameters)
    assert words.scales.tolist() == [[scale]]
    assert words.codes[0, :8].tolist() == codes


@pytest.mark.parametrize("format", GRIDS)
@pytest.mark.parametrize("negative", [False, True])
def test_never_worse_than_absmax(format: str, negative: bool) -> None:
    rng = np.random.default_rng(20261002)
    source = (rng.standard_normal((6, 200)) * 0.02).astype(np.float32)
    source[0], source[2, 5], source[3, 70] = 0.5, 0.9, -0.8
    source[1] *= 1e-7
    importance = rng.random(200).astype(np.float32) * 3
    found = encoded(source, format, importance=importance, negative_scales=negative)
    reference = encoded(source, format, "grouped_absmax")
    ours, theirs = errors(found, source, importance), errors(reference, source, importance)
    assert (ours <= theirs * (1 + 1e-12)).all()
    assert ours.sum() < theirs.sum()
    assert negative or not (found.scales & 0x8000).any()


@pytest.mark.parametrize("format", GRIDS)
def test_rows_do_not_know_each_other(format: str) -> None:
    rng = np.random.default_rng(3)
    source = rng.standard_normal((700, 70)).astype(np.float32)
    importance = rng.random(70)
    whole = encoded(source, format, importance=importance, negative_scales=True)
    strided = np.asfortranarray(source)
    np.testing.assert_array_equal(
        encoded(strided, format, importance=importance, negative_scales=True).scales, whole.scales
    )
    for rows in (slice(0, 1), slice(3, 17), slice(511, 700)):
        part = encoded(source[rows], format, importance=importance, negative_scales=True)
        np.testing.assert_array_equal(part.codes, whole.codes[rows])
        np.testing.assert_array_equal(part.scales, whole.scales[rows])


def test_refused_sources() -> None:
    with pytest.raises(ValuesError, match="row 0, column 1: the value is not finite"):
        encode([[0, np.nan]], "q4_g64_fp16", "grouped_search")
    with pytest.raises(ValuesError, match="row 1, group 0: the scale of a group"):
        encode([[0.0], [1e30]], "q4_g64_fp16", "grouped_search")


@pytest.mark.parametrize(
    "importance", [np.ones(32), np.ones((1, 64)), np.ones(64, bool), "x" * 64, [[1], [1, 2]], 1, np.ones(64, complex)]
)
def test_importance_of_another_shape_or_type(importance: Any) -> None:
    with pytest.raises(ArgumentError, match="one value per input channel"):
        encode(np.ones((2, 64)), "q4_g64_fp16", "grouped_search", importance=importance)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -(2.0**-1074)])
def test_importance_out_of_range(value: float) -> None:
    importance = np.ones(64)
    importance[[5, 9]] = value
    with pytest.raises(ArgumentError, match="not finite and nonnegative") as caught:
        encode(np.ones((2, 64)), "q4_g64_fp16", "grouped_search", importance=importance)
    assert caught.value.where == "column 5"
    assert caught.value.found == f"{value}, the first of 2"


@pytest.mark.parametrize("value", [1, 0, "true", None, np.True_])
def test_negative_scales_is_a_bool(value: Any) -> None:
    with pytest.raises(ArgumentError, match="must be a bool"):
        encode(np.ones((2, 64)), "q4_g64_fp16", "grouped_search", negative_scales=value)


def test_unknown_parameters_name_the_near_ones() -> None:
    with pytest.raises(ArgumentError, match="unknown grouped_search parameters: group, negative_scale") as caught:
        encode(np.ones((2, 64)), "q4_g64_fp16", "grouped_search", negative_scale=True, group=64)
    assert "importance" in str(caught.value)
    with pytest.raises(ArgumentError, match="Did you mean 'negative_scales'"):
        encode(np.ones((2, 64)), "q4_g64_fp16", "grouped_search", negative_scale=True)
