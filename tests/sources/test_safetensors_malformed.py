"""Hostile safetensors files: each breaks one rule, and each is refused by an error that says which."""

# ruff: noqa: E501 - tables have one case a line

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from quantform.errors import FileError, QuantformError, TruncatedFileError
from quantform.sources.safetensors import SafetensorsSource
from safetensors_builder import build, entry, raw

X = {"x": entry("F32", [2], 0, 8)}


def with_x(**members: object) -> dict[str, object]:
    return {"x": {**X["x"], **members}}


# Name, bytes, what the message says, and whether the safetensors package lets it pass.
CASES: list[tuple[str, bytes, str, bool]] = [
    ("an empty file", b"", "inside the header's length", False),
    ("seven bytes", bytes(7), "inside the header's length", False),
    ("no header at all", raw(b""), "does not begin with '{'", False),
    ("a length beyond the file", raw(b"{}", length=3), "ends inside the header", False),
    ("a length beyond the format", raw(b"{}", length=100_000_001), "longer than the format allows", False),
    ("the largest length", raw(b"{}", length=2**64 - 1), "longer than the format allows", False),
    ("a header cut short", raw(json.dumps(X)[:-1], bytes(8)), "the header is not JSON", False),
    ("white space before the header", raw(" " + json.dumps(X), bytes(8)), "does not begin with '{'", True),
    ("text after the header", raw(json.dumps(X) + "x", bytes(8)), "not JSON", False),
    ("NULs after the header", raw(json.dumps(X) + "\0\0", bytes(8)), "not JSON", False),
    ("no UTF-8", raw(b'{"\xff": 1}'), "not UTF-8", False),
    ("half a surrogate pair", raw('{"\\ud800": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}', bytes(4)), "surrogate", False),
    ("a tensor twice", raw(f'{{"x": {json.dumps(X["x"])}, "x": {json.dumps(X["x"])}}}', bytes(8)), "occurs twice", True),
    ("a member twice", raw('{"x": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', bytes(8)), "occurs twice", False),
    ("metadata twice", raw('{"__metadata__": {}, "__metadata__": {}}'), "occurs twice", False),
    ("metadata of numbers", raw({"__metadata__": {"a": 1}}), "'a' is no string", False),
    ("metadata of objects", raw({"__metadata__": {"a": {"b": "c"}}}), "'a' is no string", False),
    ("metadata that is a list", raw({"__metadata__": []}), "no object", False),
    ("an entry that is a list", raw({"x": []}), "'x': .*no object", False),
    ("an entry that is null", raw({"x": None}), "'x': .*no object", False),
    ("no dtype", raw({"x": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "no dtype", False),
    ("no shape", raw({"x": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "no shape", False),
    ("no data_offsets", raw({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)), "no data_offsets", False),
    ("dtype a number", raw(with_x(dtype=32), bytes(8)), "dtype is no type's name", False),
    ("dtype empty", raw(with_x(dtype=""), bytes(8)), "dtype is no type's name", False),
    ("dtype with an escape code", raw(with_x(dtype="\x1b[31m"), bytes(8)), "dtype is no type's name", False),
    ("dtype endless", raw(with_x(dtype="F" * 33), bytes(8)), "dtype is no type's name", False),
    ("shape a number", raw(with_x(shape=2), bytes(8)), "shape is no list", False),
    ("a negative dimension", raw(with_x(shape=[-2]), bytes(8)), "shape.0. is no unsigned", False),
    ("a fractional dimension", raw(with_x(shape=[2.0]), bytes(8)), "shape.0. is no unsigned", False),
    ("a boolean dimension", raw(with_x(shape=[2, True]), bytes(8)), "shape.1. is no unsigned", False),
    ("a dimension beyond 64 bits", raw(with_x(shape=[2**64]), bytes(8)), "shape.0. is no unsigned", False),
    ("a dimension of thousands of digits", raw('{"x": {"dtype": "F32", "shape": [' + "9" * 5000 + "]}}"), "digits", False),
    ("a dimension NaN", raw('{"x": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}', bytes(8)), "NaN", False),
    ("a product beyond 64 bits", raw(with_x(shape=[2**32, 2**32, 2**32]), bytes(8)), "64 bits", False),
    ("a product of a million dimensions", raw(with_x(shape=[2**60] * 100_000), bytes(8)), "64 bits", False),
    ("a product that wraps to eight bytes", raw(with_x(shape=[2**63, 2, 2]), bytes(8)), "64 bits|do not fit", False),
    ("offsets of one number", raw(with_x(data_offsets=[8]), bytes(8)), "not a range", False),
    ("offsets of three numbers", raw(with_x(data_offsets=[0, 8, 8]), bytes(8)), "not a range", False),
    ("offsets that run backwards", raw(with_x(data_offsets=[8, 0]), bytes(8)), "not a range", False),
    ("offsets that are text", raw(with_x(data_offsets=["0", "8"]), bytes(8)), "no unsigned", False),
    ("offsets beyond 64 bits", raw(with_x(data_offsets=[0, 2**64]), bytes(8)), "no unsigned", False),
    ("one byte too few for the shape", raw(with_x(data_offsets=[0, 7]), bytes(7)), "expected 8 bytes, found 7", False),
    ("one byte too many for the shape", raw(with_x(data_offsets=[0, 9]), bytes(9)), "expected 8 bytes, found 9", False),
    ("half a byte of F4", raw({"x": entry("F4", [3], 0, 2)}, bytes(2)), "whole bytes", False),
    ("two bits of F6", raw({"x": entry("F6_E2M3", [5], 0, 4)}, bytes(4)), "whole bytes", False),
    ("a tensor beyond the file", raw(X, bytes(7)), "ends before its tensors", False),
    ("bytes after the last tensor", raw(X, bytes(9)), "goes on after", False),
    ("bytes and no tensor", raw({}, bytes(1)), "goes on after", False),
    ("a hole before the first tensor", raw({"x": entry("F32", [2], 4, 12)}, bytes(12)), "unused", False),
    ("a hole between tensors", raw({**X, "y": entry("F32", [1], 12, 16)}, bytes(16)), "'y': bytes before", False),
    ("overlapping tensors", raw({**X, "y": entry("F32", [2], 4, 12)}, bytes(12)), "'y': the tensor overlaps", False),
    ("two tensors on the same bytes", raw({**X, "y": X["x"]}, bytes(8)), "overlaps", False),
    ("a tensor inside another of unknown type", raw({"x": entry("F9", [2], 0, 8), "y": entry("U8", [2], 2, 4)}, bytes(8)), "overlaps", False),
    ("deep nesting", raw(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"), "nests too deeply", False),
    ("a million lists", raw(b'{"x":{"shape":[' + b"[]," * 1_000_000 + b"0]}}"), "no map of tensors.*array", False),
    ("a large header that is not JSON", raw(b'{"x":' + b" " * 2_000_000), "no map of tensors", False),
    ("a large header that is not UTF-8", raw(b'{"\xff":{}' + b" " * 2_000_000 + b"}"), "no map of tensors|not UTF-8", False),
    ("very deep nesting", raw(b'{"a":' + b"[" * 200_000), "nests too deeply|no map", False),
    ("a string for a header", raw(b'"x"'), "begin with", False),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_malformed(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(FileError, match=message) as caught:
        SafetensorsSource(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("data", "passes"), [(case[1], case[3]) for case in CASES], ids=[case[0] for case in CASES])
def test_we_are_as_strict_as_the_package(tmp_path: Path, data: bytes, passes: bool) -> None:
    """Nothing in the table is a file that the format's own reader takes, but for the two cases that say so."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    try:
        with safetensors.safe_open(path, "np"):
            pass
    except Exception:  # noqa: BLE001 - theirs
        assert not passes
    else:
        assert passes


GOOD = build(
    {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": ("F4", (2, 4), bytes(4)),
        "c": ("F8_E4M3", (3,), bytes(3)),
    },
    {"format": "pt"},
)


def use(path: Path) -> None:
    with SafetensorsSource(path) as source:
        for tensor in source.values():
            tensor.payload()
            tensor.decode()
            if tensor.shape and tensor.matrix[0]:
                tensor.words([0])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_succeed_or_fail_by_our_errors(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(data)
    try:
        use(path)
    except QuantformError as error:
        assert str(path) in str(error)  # noqa: PT017 - success is as good


def test_every_truncation_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(GOOD)
    use(path)
    for size in range(len(GOOD)):
        path.write_bytes(GOOD[:size])
        with pytest.raises(TruncatedFileError, match=re.escape(str(path))):
            SafetensorsSource(path)
