"""The strategies draw what is legal, of every profile and format, and say what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantform.errors import ArgumentError, UnknownNameError
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.packed import PROFILES, dequantize_packed
from quantform.testing import strategies


@pytest.mark.parametrize("name", [*PROFILES, *FORMATS])
@settings(max_examples=15)
@given(data=st.data())
def test_payloads_are_legal(name: str, data: st.DataObject) -> None:
    payload = data.draw(strategies.payloads(name))
    assert payload.format == name
    if name in PROFILES:
        assert dequantize_packed(payload.data, name, payload.shape).shape == payload.shape
        return
    layout = LAYOUTS[FORMATS[name].default_layout]
    words = layout.unpack(payload.data, name, payload.shape, payload.divisors)
    words.validate()
    assert words.decode().shape == payload.shape


def test_a_shape_may_be_given() -> None:
    @settings(max_examples=5)
    @given(strategies.payloads("gguf:q4_k", (2, 3, 256)), strategies.payloads("nvfp4", (256, 64)))
    def check(packed: strategies.Payload, words: strategies.Payload) -> None:
        assert packed.data.size == 6 * 144
        assert words.divisors in {1, 2}

    check()


def test_names_that_have_none() -> None:
    with pytest.raises(UnknownNameError):
        strategies.payloads("q9")
    with pytest.raises(ArgumentError, match="no words"):
        strategies.words("gguf:q4_0")


def test_without_hypothesis_only_the_strategies_are_missing() -> None:
    script = (
        "import sys; sys.modules['hypothesis'] = None; sys.modules['pytest'] = None\n"
        "from quantform import testing\n"
        "assert testing.decoder_cases('bf16')['ids']\n"
        "try:\n    from quantform.testing import strategies\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("MissingExtraError ")
    assert "quantform[test]" in done.stdout
