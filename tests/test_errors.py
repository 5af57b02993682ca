"""The exception tree: one base, drawn as it is, and messages that carry their parts."""

from __future__ import annotations

import inspect

import pytest

from quantform import errors
from quantform.errors import QuantformError, WordsError

TREE = [getattr(errors, name) for name in errors.__all__]


def test_the_message_has_all_parts_in_order() -> None:
    error = WordsError(
        "a code is not legal", where="w.ninfer, tensor 'a'", expected="-7 to 7", found=-8, hint="Encode it again"
    )
    assert str(error) == "w.ninfer, tensor 'a': a code is not legal; expected -7 to 7, found -8. Encode it again"
    assert str(QuantformError("broken")) == "broken"
    assert str(QuantformError("broken", found=3)) == "broken; found 3"
    assert str(QuantformError("broken", expected=0)) == "broken; expected 0"


def test_an_outer_place_comes_first() -> None:
    error = QuantformError("broken", where="row 3").at("tensor 'a'").at("f.gguf")
    assert str(error) == "f.gguf, tensor 'a', row 3: broken"
    assert str(QuantformError("broken").at("f.gguf")) == "f.gguf: broken"


def test_everything_has_one_base_and_is_in_the_drawing() -> None:
    defined = [
        member for _, member in inspect.getmembers(errors, inspect.isclass) if member.__module__ == errors.__name__
    ]
    assert set(defined) == set(TREE)
    drawing = errors.__doc__ or ""
    for error in TREE:
        assert issubclass(error, QuantformError)
        assert error.__name__ in drawing


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_python_knows_them_by_their_builtin_kind(error: type[QuantformError]) -> None:
    raised = error("broken", where="here", hint=None)
    assert isinstance(raised, QuantformError)
    assert str(raised) == "here: broken"
