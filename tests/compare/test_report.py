"""The HTML report: what it says, that nothing in a file's names can act in it, and that a browser shows it."""

from __future__ import annotations

import builtins
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from chromium import Page, chromium
from quantform.compare.pictures import kind_and_layer
from quantform.errors import MissingExtraError, OutputExistsError, UnknownNameError

pytest.importorskip("matplotlib", reason="the extra `report` is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
HOSTILE = [
    "<script>document.title='owned'</script>.weight",
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg onload=alert(1)>',
    "$\\frac{1}{0$ ]]> --> \u202e\u0007\u2028",
    "</style></title></table>{{7*7}}",
    "blk.3.' onmouseover='x.weight",
    "日本語.0.\U0001f600",
]


class Reader(HTMLParser):
    """Collects elements, their attributes and texts, and checks that they nest."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)


def lossy(directory: Path) -> Path:
    path = directory / "small.ninfer"
    qf.convert(EXAMPLE, path, format="q4_g64_fp16")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    qf.compare(EXAMPLE, lossy(directory), html=directory / "report.html")
    return directory / "report.html"


def test_the_page_has_everything(report: Path) -> None:
    page = Reader(report.read_text("utf-8"))
    text = " ".join(page.texts)
    for what in ("Error by layer", "Error by format", "Bits per weight by layer", "Codes of A", "Scales of B"):
        assert what in text
    assert page.count("figure") == page.count("svg") == 7
    body = text[text.index("Each tensor of B") :]
    with qf.open(EXAMPLE) as file:
        assert all(name in body for name in file)
    assert "only in A: blk.0.ffn_unused" in text
    assert "same bytes" in text
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"] or "") > 20
    identifiers = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(identifiers) == len(set(identifiers))


def test_the_page_needs_nothing_else(report: Path) -> None:
    page = Reader(report.read_text("utf-8"))
    for _, attributes in page.tags:
        assert not {"src", "srcset", "action"} & set(attributes)
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert page.count("script") == 1
    assert page.count("link") == 0
    style = re.search(r"<style>(.*?)</style>", report.read_text("utf-8"), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_same_comparison_gives_the_same_page(report: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    qf.compare(EXAMPLE, report.parent / "small.ninfer", html=again)
    assert again.read_bytes() == report.read_bytes()


def hostile(directory: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((len(HOSTILE), 2, 32)).astype("<f4")
    one, two = directory / "a<b>&'\".gguf", directory / "$b$.gguf"
    for path, factor in ((one, 1), (two, 1.01)):
        tensors = [
            gb.tensor(name, (2, 32), gb.F32, (row * np.float32(factor)).tobytes())
            for name, row in zip(HOSTILE, values, strict=True)
        ]
        blocks = rng.integers(0, 256, (2, 18), np.uint8)
        blocks[:, 0], blocks[:, 1] = 0, 0x30
        tensors.append(gb.tensor("<b>q</b>", (2, 32), gb.Q4_0, blocks.tobytes()))
        path.write_bytes(gb.build(tensors))
    return one, two


def test_names_are_only_text(tmp_path: Path) -> None:
    one, two = hostile(tmp_path)
    qf.compare(one, two, html=tmp_path / "r.html")
    page = Reader((tmp_path / "r.html").read_text("utf-8"))
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    text = "".join(page.texts)
    for name in HOSTILE:
        assert name.replace("\u202e\u0007\u2028", "\\u202e\\x07\\u2028") in text
    assert "Codes and scales of <b>q</b>" in text
    assert not {"\u202e", "\u0007", "\u2028"} & set(text)


def test_what_is_chosen_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    small = lossy(tmp_path)
    for name, shown in (
        ("blk.0.attn_k.weight", "Codes and scales of blk.0.attn_k.weight"),
        ("blk.0.attn_norm.weight", "Neither side of blk.0.attn_norm.weight has codes and scales that can be read."),
        ("blk.0.ffn_unused", "Neither side of blk.0.ffn_unused has codes"),
    ):
        qf.compare(EXAMPLE, small, html=path, tensor=name, force=True)
        assert shown in "".join(Reader(path.read_text("utf-8")).texts)
    with pytest.raises(UnknownNameError, match="Did you mean"):
        qf.compare(EXAMPLE, small, html=path, tensor="blk.0.attn_Q.weight", force=True)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {}),
        ({"a": np.ones(3)}, {"b": np.ones(3)}),
        ({"a": np.ones(3)}, {"a": np.ones(3)}),
        ({"a": np.zeros(3)}, {"a": np.ones(3)}),
        ({"a": np.array([np.nan, 1e300])}, {"a": np.array([1.0, 1e-300])}),
        ({"a.7.b": np.ones(3), "c": np.zeros((0, 2))}, {"a.7.b": np.full(3, 2.0), "c": np.zeros((0, 2))}),
        ({f"l.{n}.{k}": np.ones(1) for n in range(90) for k in range(11)},) * 2,
        (
            {f"l.{n}.{'k' * k}": np.ones(1) for n in range(40) for k in range(1, 12)},
            {f"l.{n}.{'k' * k}": np.full(1, 1 + 10.0 ** -(k + n / 9)) for n in range(40) for k in range(1, 12)},
        ),
    ],
    ids=["nothing", "no pair", "equal", "zero", "not finite", "one layer", "many equal", "many kinds"],
)
def test_odd_comparisons_have_a_page_too(tmp_path: Path, one: dict[str, Any], two: dict[str, Any]) -> None:
    qf.compare(one, two, html=tmp_path / "r.html")
    Reader((tmp_path / "r.html").read_text("utf-8"))


def test_layers_are_the_first_numbers_in_names() -> None:
    assert kind_and_layer("blk.13.attn_q.weight") == ("blk.*.attn_q.weight", 13)
    assert kind_and_layer("model.layers.2.mlp.experts.7.w1") == ("model.layers.*.mlp.experts.7.w1", 2)
    assert kind_and_layer("0.weight") == ("*.weight", 0)
    for name in ("output.weight", "w1.x", "conv2d.weight", "a.99999999999.b", "layer.5"):
        assert kind_and_layer(name) == (name, None)


def test_nothing_is_overwritten_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("mine")
    with pytest.raises(OutputExistsError):
        qf.compare({}, {}, html=path)
    assert path.read_text() == "mine"
    qf.compare({}, {}, html=path, force=True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    copy, names, link = tmp_path / "a.html", tmp_path / "map.html", tmp_path / "link.html"
    copy.write_bytes(EXAMPLE.read_bytes())
    names.write_text("")
    link.symlink_to("a.html")
    for read in (copy, names, link):
        for one, two in ((copy, EXAMPLE), (EXAMPLE, copy)):
            with pytest.raises(OutputExistsError, match="is being read"):
                qf.compare(one, two, html=read, names=names, force=True)
    assert copy.read_bytes() == EXAMPLE.read_bytes()
    assert names.read_bytes() == b""


def test_a_value_that_is_not_finite_on_one_side_is_seen(tmp_path: Path) -> None:
    one, two = {"n": np.array([1.0, 2.0])}, {"n": np.array([1.0, np.nan])}
    qf.compare(one, two, html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text("utf-8")
    assert text.count(">1 not finite</td>") == 2  # its own row and the total
    assert "0.000e+00" not in text
    assert "<dd>1</dd><dt>differences not finite</dt>" in text


@pytest.mark.parametrize("character", [0x1B, 0x9B, 0xAD, 0x61C, 0x200B, 0x202E, 0x2066, 0xFEFF, 0xFFF9, 0xE0041])
def test_characters_that_are_not_seen_are_escaped(tmp_path: Path, character: int) -> None:
    name = f"a{chr(character)}b"
    qf.compare({name: np.ones(1)}, {name: np.zeros(1)}, html=tmp_path / "r.html", tensor=name)
    text = (tmp_path / "r.html").read_text("utf-8")
    assert chr(character) not in text
    assert f"a{chr(character).encode('unicode_escape').decode()}b" in text


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"quantform\[report\]"):
        qf.compare({}, {}, html=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())
    assert "matplotlib" in sys.modules  # and the others keep it


# --- in a browser ----------------------------------------------------------------------------------------------------

SIZES = """[...document.querySelectorAll(%s)].map(e => { const r = e.getBoundingClientRect();
return [r.width, r.height]; })"""
INKED = """[...document.querySelectorAll('figure svg')].map(svg => [...svg.querySelectorAll('path, use')].filter(e => {
const b = e.getBoundingClientRect(); return b.width + b.height > 1; }).length)"""
COLORS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg text')).fill]"


def sizes(page: Page, selector: str) -> list[list[float]]:
    found: list[list[float]] = page.run(SIZES % json.dumps(selector))
    return found


def test_a_browser_shows_table_and_pictures(report: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as page:
        page.load(report)
        pictures = sizes(page, "figure svg")
        assert len(pictures) == 7
        assert all(width > 300 and height > 100 for width, height in pictures)
        assert all(count > 5 for count in page.run(INKED))
        assert len(sizes(page, "tbody tr")) == 11
        assert all(width > 500 and height > 15 for width, height in sizes(page, "tbody tr, thead tr, tfoot tr"))
        assert all(width > 5 and height > 5 for width, height in sizes(page, "svg text"))
        light = page.screenshot(tmp_path / "light.png"), page.run(COLORS)
        dark = page.screenshot(tmp_path / "dark.png", dark=True), page.run(COLORS)
        assert len(light[0]) > 20_000
        assert light[0] != dark[0]
        assert light[1] == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
        assert dark[1] == ["rgb(20, 23, 27)", "rgb(232, 234, 237)"]
        # nothing runs out of the page, on a desk or on a telephone
        for width in (1280, 390):
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
            assert page.run("document.documentElement.scrollWidth") <= width
        page.call("Emulation.clearDeviceMetricsOverride")
        names = [
            node["name"]["value"]
            for node in page.call("Accessibility.getFullAXTree")["nodes"]
            if node.get("role", {}).get("value") in {"image", "img", "graphics-document"}
        ]
        assert sum(name.startswith(("Error by", "Bits per", "Codes of", "Scales of")) for name in names) == 7
        assert page.complaints == []
        assert [one for one in page.requests if not one.startswith("about:")] == [report.resolve().as_uri()]


def test_a_heading_sorts_the_table(report: Path, tmp_path: Path) -> None:
    first = "document.querySelector('tbody th').innerText"
    with chromium(tmp_path) as page:
        page.load(report)
        assert page.run(first) == "blk.0.attn_v.weight"  # the worst
        for column, descending, ascending in (
            (0, "token_embd.weight", "blk.0.attn_k.weight"),
            (1, "token_embd.weight", "blk.0.attn_sinks"),
        ):
            for expected, order in ((descending, "descending"), (ascending, "ascending")):
                page.run(f"document.querySelectorAll('thead button')[{column}].click()")
                assert page.run(f"document.querySelectorAll('thead th')[{column}].ariaSort") == order
                assert page.run(first) == expected
        errors = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[6].innerText.trim())"
        page.run("document.querySelectorAll('thead button')[6].click()")
        shown = page.run(errors)
        assert [one.startswith("same") for one in shown] == [False] * 7 + [True] * 4
        numbers = [float(one) for one in shown[:7]]
        assert numbers == sorted(numbers, reverse=True)
        assert page.complaints == []


def test_a_browser_runs_nothing_of_a_name(tmp_path: Path) -> None:
    one, two = hostile(tmp_path)
    qf.compare(one, two, html=tmp_path / "r.html")
    with chromium(tmp_path / "profile") as page:
        page.load(tmp_path / "r.html")
        assert page.run("document.title") == "$b$.gguf against a<b>&'\".gguf"
        assert page.run("document.querySelectorAll('tbody tr').length") == len(HOSTILE) + 1
        assert page.run("document.querySelectorAll('script, img, [onload], [onerror]').length") == 1
        assert page.run("[...document.querySelectorAll('.legend li')].some(e => e.innerText.includes('<script>'))")
        assert page.complaints == []
        # and if something slipped through, the page's policy would stop it
        page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        assert page.run("document.title") != "1"


def test_a_long_name_loses_its_middle_in_the_legend(tmp_path: Path) -> None:
    name = "a" * 2500 + "b" * 2500
    qf.compare({name: np.ones((2, 64))}, {name: np.full((2, 64), 1.5)}, html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text("utf-8")
    (legend,) = re.findall(r'<ul class="legend">.*?</ul>', text, re.DOTALL)[:1]
    assert "a" * 38 + "..." + "b" * 39 + "</li>" in legend
    assert "a" * 39 not in legend
    assert name in text
