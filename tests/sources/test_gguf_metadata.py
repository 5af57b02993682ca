"""Metadata of GGUF files: every type, nested and lazy arrays, and what only reading a value can find wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_builder import Raw, build, typed
from quantform.errors import ArgumentError, ChangedFileError, GGUFError, UnknownNameError
from quantform.sources.gguf import GGUFArray, GGUFSource

Open = Callable[..., GGUFSource]

RANGES = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "uint16": (0, 2**16 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint32": (0, 2**32 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint64": (0, 2**64 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float32": (-1.5, math.inf),
    "float64": (0.1, -math.inf),
    "bool": (False, True),
    "string": ("", "ünïcode\N{SNOWMAN}"),
}
ORDERS = pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def opened(metadata: Any, **options: Any) -> GGUFSource:
        path = tmp_path / "toy.gguf"
        path.write_bytes(build([], metadata, **options))
        return GGUFSource(path)

    return opened


@ORDERS
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", RANGES)
def test_every_type(opened: Open, kind: str, version: int, big_endian: bool) -> None:
    low, high = RANGES[kind]
    metadata = {"low": typed(kind, low), "high": typed(kind, high), "both": typed(kind, [low, high, low])}
    with opened(metadata, version=version, big_endian=big_endian) as source:
        assert list(source.metadata) == ["low", "high", "both"]
        for key, value in (("low", low), ("high", high)):
            assert source.metadata[key] == value
            assert type(source.metadata[key]) is type(value)
            assert source.metadata.field(key).type_name == kind
        both = source.metadata["both"]
        assert isinstance(both, GGUFArray)
        assert (len(both), both.element_type) == (3, kind)
        assert (both[0], both[1], both[-1], both[1:], both[::-2]) == (low, high, low, [high, low], [low, low])
        assert list(both) == both.tolist() == [low, high, low]
        assert [type(item) for item in both] == [type(low)] * 3
        assert source.metadata.field("both").type_name == f"array of {kind}"
        assert repr(both) == f"<GGUFArray of 3 {kind}>"


@given(
    st.recursive(
        st.lists(st.text(max_size=5), min_size=1, max_size=4),
        lambda inner: st.lists(inner, min_size=1, max_size=3),
        max_leaves=8,
    ),
    st.booleans(),
)
def test_nested_arrays(tmp_path_factory: pytest.TempPathFactory, value: list[Any], big_endian: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "nested.gguf"
    path.write_bytes(build([], {"a": value, "after": 7}, big_endian=big_endian))
    with GGUFSource(path) as source:
        array = source.metadata["a"]
        assert isinstance(array, GGUFArray)
        assert array.tolist() == value
        last = array[-1]
        assert (last.tolist() if isinstance(last, GGUFArray) else last) == value[-1]
        assert source.metadata["after"] == 7


def test_empty_arrays(opened: Open) -> None:
    with opened({"numbers": typed("float32", []), "strings": typed("string", []), "after": "x"}) as source:
        for key in ("numbers", "strings"):
            array = source.metadata[key]
            assert isinstance(array, GGUFArray)
            assert (len(array), array.tolist(), array[:]) == (0, [], [])
            with pytest.raises(IndexError, match="outside an array of 0"):
                array[0]
        assert source.metadata["after"] == "x"


@ORDERS
def test_numpy_views(opened: Open, big_endian: bool) -> None:
    metadata = {"x": "odd offsets ahead", "n": typed("int64", [1, -2, 2**62]), "s": ["a"]}
    with opened(metadata, big_endian=big_endian) as source:
        numbers = source.metadata["n"]
        assert isinstance(numbers, GGUFArray)
        np.testing.assert_array_equal(numbers.numpy(), [1, -2, 2**62])
        assert not numbers.numpy().flags.writeable
        strings = source.metadata["s"]
        assert isinstance(strings, GGUFArray)
        with pytest.raises(ArgumentError, match="'s' holds no numbers"):
            strings.numpy()
        with pytest.raises(ArgumentError, match="elements are of type int64"):
            numbers.raw(0)


@ORDERS
def test_bytes_that_are_no_text(opened: Open, big_endian: bool) -> None:
    """They never prevent opening; reading that value fails, and its bytes are there."""
    with opened({"bad": b"ab\xff", "list": [b"fine", b"\x80"], "good": "x"}, big_endian=big_endian) as source:
        with pytest.raises(GGUFError, match=r"'bad', byte .*a string is not UTF-8"):
            source.metadata["bad"]
        assert source.metadata.raw("bad") == b"ab\xff"
        items = source.metadata["list"]
        assert isinstance(items, GGUFArray)
        assert items[0] == "fine"
        for read in (lambda: items[1], items.tolist, lambda: items[:]):
            with pytest.raises(GGUFError, match=r"'list'.*not UTF-8.*`raw` of the metadata or the array"):
                read()
        assert items.raw(1) == b"\x80"
        assert source.metadata["good"] == "x"


def test_booleans_that_are_none(opened: Open) -> None:
    with opened({"flag": Raw(7, b"\x02"), "flags": typed("bool", [True, False])}) as source:
        with pytest.raises(GGUFError, match=r"'flag', byte .*a boolean is neither 0 nor 1; found 2"):
            source.metadata["flag"]
        flags = source.metadata["flags"]
        assert isinstance(flags, GGUFArray)
        assert flags.numpy().tolist() == [True, False]


def test_looking_up(opened: Open) -> None:
    with opened({"general.name": "toy", "n": 3, "wide": typed("uint64", 2**64 - 1)}) as source:
        metadata = source.metadata
        assert dict(metadata) == {"general.name": "toy", "n": 3, "wide": 2**64 - 1}
        assert (metadata.get("n"), metadata.get("m"), metadata.get("m", 5)) == (3, None, 5)
        assert "n" in metadata
        assert "m" not in metadata
        with pytest.raises(UnknownNameError, match=r"toy.gguf.*Did you mean 'general.name'"):
            metadata["general.nam"]
        assert (metadata.integer("n"), metadata.integer("wide"), metadata.integer("m")) == (3, 2**64 - 1, None)
        with pytest.raises(GGUFError, match="expected an integer, found string"):
            metadata.integer("general.name")
        assert metadata.raw("n") == b"\3\0\0\0"
        assert repr(metadata) == "<GGUFMetadata of 3 keys>"


def test_a_file_that_changes_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    path.write_bytes(build([], {"a": ["x"] * 1000}))
    with GGUFSource(path) as source:
        array = source.metadata["a"]
        assert isinstance(array, GGUFArray)
        path.write_bytes(b"GGUF")
        with pytest.raises(ChangedFileError, match="became shorter"):
            array[900]
        with pytest.raises(ChangedFileError, match="became shorter"):
            array.tolist()
