"""Orders of heads: the check values, and what the functions mean for matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from quantform.convert.auxiliaries import auxiliary
from quantform.errors import ArgumentError
from quantform.recipes import head_order, interleaved_heads, untiled_heads
from quantform.sources import gather
from quantform.sources.arrays import ArrayTensor


def test_check_values_of_the_head_order() -> None:
    rows = np.array([0, 1, 2, 10, 11, 12])
    there = rows[head_order((2, 3), 1)]
    assert there.tolist() == [0, 10, 1, 11, 2, 12]
    assert there[head_order((3, 2), 1)].tolist() == rows.tolist()  # the inverse has the counts swapped
    assert there[head_order((2, 3), 1)].tolist() != rows.tolist()


def test_check_values_of_query_and_gate_rows() -> None:
    query, gate = interleaved_heads(4, 256, 0), interleaved_heads(4, 256, 1)
    assert query[250:260].tolist() == [*range(250, 256), *range(512, 516)]
    assert gate[:3].tolist() == [256, 257, 258]
    assert sorted([*query, *gate]) == list(range(2 * 4 * 256))


def test_check_values_of_untiled_rows() -> None:
    """Value rows of a fused projection begin behind 4096 rows of queries and keys."""
    order = 4096 + untiled_heads(16, 32, 128)
    assert order[128:130].tolist() == [6144, 6145]
    assert order[:2].tolist() == [4096, 4097]


def test_check_values_of_sign_words() -> None:
    signs = np.ones(1024)
    signs[1] = -1
    assert auxiliary("hadamard_signs", signs, 1024).data[:4] == bytes.fromhex("80 3F 80 BF")


def test_untiled_heads_are_those_of_their_keys() -> None:
    keys, ratio, width = 3, 2, 2
    tiled = np.array([[r, k, lane] for r in range(ratio) for k in range(keys) for lane in range(width)])
    there = tiled[untiled_heads(keys, keys * ratio, width)]
    assert there.tolist() == [[r, k, lane] for k in range(keys) for r in range(ratio) for lane in range(width)]
    assert there[head_order((keys, ratio), width)].tolist() == tiled.tolist()


def test_rows_and_columns_are_gathered() -> None:
    values = np.arange(12 * 12, dtype=np.float32).reshape(12, 12)
    order = untiled_heads(3, 6, 2)
    tensor = ArrayTensor("w", values)
    assert np.array_equal(gather(tensor, order).decode(), values[order])
    assert np.array_equal(gather(tensor, order, axis=-1).decode(), values[:, order])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: head_order((0, 3), 1), "counted from 1"),
        (lambda: head_order((2, 3), -1), "counted from 1"),
        (lambda: head_order((2, True), 1), "counted from 1"),
        (lambda: head_order(cast("Any", (2, 3, 4)), 1), "integers"),
        (lambda: head_order((2, cast("Any", 1.5)), 1), "integers"),
        (lambda: head_order((1 << 20, 1 << 20), 1), "2147483648 rows at most"),
        (lambda: untiled_heads(4, 6, 1), "a multiple of 4.*found 6"),
        (lambda: interleaved_heads(4, 2, 2), "0 to 1.*found 2"),
        (lambda: interleaved_heads(4, 2, -1), "0 to 1"),
    ],
)
def test_wrong_numbers_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
