"""Module-name patterns: as Python's own matchers decide, and in bounded time."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantform.errors import UnsupportedError
from quantform.sources.conventions.patterns import compile_glob, compile_regex

NAMES = [
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.10.self_attn.o_proj",
    "model.layers.3.mlp.gate",
    "model.layers.3.mlp.gate_proj",
    "model.layers.31.mlp.experts.127.down_proj",
    "visual.blocks.0.attn.qkv",
    "a-b c",
    "x\ny",
    "x\n",
    "",
]
REGEXES = [
    ".*lm_head",
    ".*lm_head.*",
    "lm_head$",
    "^lm_head$",
    ".*mlp.gate$",
    r".*mlp\.gate",
    r".*\.(q|k|v|o)_proj$",
    r"model\.layers\.\d+\.mlp\..*",
    r"model\.layers\.(?:[0-9]|1[0-9])\.",
    r"(?!.*mlp).*proj",
    r"(?=.*self_attn).*proj$",
    r".*layers\.[^3].*",
    r".*layers\.[0-2]\..*",
    r".*experts\.\d{3}\..*",
    r".*experts\.\d{1,2}\..*",
    r".*\.\w+_proj\b",
    r"\w+\.\w+\.\d+\.\w+",
    r".*?attn",
    r"(model|visual)\..*(gate|qkv)",
    r"(?P<part>visual)\.",
    r"[a\-]+b\s[^\d]",
    r"x.y",
    r"x$",
    r"x\Z",
    r"x\sy",
    r"(model\.)?(layers|visual)*.*",
    r"[]x]",
    r"a{x}",
    "m{,}o",
    "x{}",
    r"\Bm|\bl",
    "",
    "|x",
    r"model.layers.{1,3}self",
    r".*\.(?!q_proj)[^.]*_proj$",
]


@pytest.mark.parametrize("text", REGEXES)
def test_regular_expressions_match_as_in_python(text: str) -> None:
    pattern = compile_regex(text)
    assert [pattern.matches(name) for name in NAMES] == [re.match(text, name) is not None for name in NAMES]


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "lm_head",
        "model.layers.*.mlp.gate*",
        "*proj",
        "?m_head",
        "*[ok]_proj",
        "*[!ok]_proj",
        "*.[0-3].*",
        "[",
        "*[",
        "",
    ],
)
def test_globs_match_as_in_the_shell(text: str) -> None:
    pattern = compile_glob(text)
    assert [pattern.matches(name) for name in NAMES] == [fnmatch.fnmatchcase(name, text) for name in NAMES]


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "$", "^", r"\b", "(?=a)", "(?!b)"])
PIECES = st.tuples(ATOMS, st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?"])).map("".join)
SEQUENCES = st.lists(PIECES, max_size=5).map("".join)
GROUPED = st.tuples(SEQUENCES, SEQUENCES, st.sampled_from(["", "*", "?", "{0,2}"]), SEQUENCES).map(
    lambda parts: f"{parts[0]}({parts[1]}|b){parts[2]}{parts[3]}"
)


@given(st.one_of(SEQUENCES, GROUPED), st.text("ab.1\n", max_size=6))
def test_generated_patterns_match_as_in_python(text: str, name: str) -> None:
    try:
        expected = re.match(text, name) is not None
    except re.error:  # Python repeats no anchors
        return
    assert compile_regex(text).matches(name) == expected


@pytest.mark.parametrize(
    "text", ["(a+)+$", "(a|a)*$", "(.*a){20}$", ".*.*.*.*.*.*.*x$", "(a?){30}a{30}$", "(a{1,1000}){1000}b"]
)
def test_patterns_that_would_take_python_ages(text: str) -> None:
    assert not compile_regex(text).matches("a" * 1000 + "!")


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "*",
        "a**",
        "a{2}{3}",
        "a{5,2}",
        "a{1001}",
        r"(a)\1",
        "(?i)a",
        "(?<=a)b",
        "(?P<>a)",
        "\\",
        r"\q",
        r"\x41",
        "[b-a]",
        "((a*)*)*",
        "(" * 17 + ")" * 17,
        "a" * 4097,
        "a*+",
    ],
)
def test_other_syntax_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"pattern"):
        compile_regex(text)


@given(st.text("ab.*+?()[]{}|^$\\dwP<>:=!,12-", max_size=12), st.text("ab1.", max_size=5))
def test_any_text_matches_as_in_python_or_is_refused(text: str, name: str) -> None:
    try:
        matched = compile_regex(text).matches(name)
    except UnsupportedError:
        return
    try:
        expected = re.match(text, name) is not None
    except (re.error, FutureWarning, OverflowError):
        return  # Python refuses or warns of it
    assert matched == expected


def test_very_long_names_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"too long"):
        compile_regex("a").matches("a" * 1025)
