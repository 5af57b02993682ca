"""The closed registry: names are exact, errors teach, nothing is added later."""

from __future__ import annotations

import pytest

from quantform._registry import Registry, near_matches
from quantform.errors import UnknownNameError


@pytest.fixture
def colours() -> Registry[str]:
    return Registry("colour", ["red", "green", "Blue"], key=str)


def test_it_is_a_mapping_in_order(colours: Registry[str]) -> None:
    assert list(colours) == ["red", "green", "Blue"]
    assert colours["Blue"] == "Blue"
    assert colours.get("green") == "green"
    assert colours.get("pink") is None
    assert colours.get("pink", "none") == "none"
    assert "red" in colours
    assert "Red" not in colours
    odd: object = []
    assert odd not in colours


@pytest.mark.parametrize(("name", "hint"), [("blue", "Did you mean 'Blue'?"), ("gren", "'green'"), ("x", "Known: red")])
def test_unknown_names_list_near_matches(colours: Registry[str], name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match="no colour is called") as caught:
        colours[name]
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", [None, 3, [], b"red"])
def test_keys_of_other_types_are_unknown(colours: Registry[str], name: object) -> None:
    with pytest.raises(UnknownNameError):
        colours[name]  # type: ignore[index]


def test_two_records_of_one_name_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="two records"):
        Registry("colour", ["red", "red"], key=str)


def test_long_lists_are_not_printed() -> None:
    assert near_matches("zzz", [f"name-{n}" for n in range(50)]).startswith("There are 50 known names")
    assert near_matches("zzz", []) == "There are none"
