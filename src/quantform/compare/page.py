"""The report: one page that needs nothing else, neither a network nor scripts.

Names come from files and may be anything: every text goes through `_text`, and the page's own policy lets no script
run but the one written here, which only sorts the table.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from quantform._sizes import counted, human_bytes
from quantform._text import shortened, visible
from quantform._version import __version__
from quantform.compare.measure import Errors
from quantform.compare.page_style import SCRIPT, STYLE
from quantform.compare.pairing import Side
from quantform.compare.parts import Parts, parts
from quantform.compare.pictures import KINDS, Picture, Pictures
from quantform.compare.result import ORDERS, Compared, Comparison
from quantform.errors import QuantformError
from quantform.sources import Tensor

__all__ = ["Report"]

_WIDEST_LEGEND = 80
_NOTHING, _TIMES, _MINUS = "\u2013", "\u00d7", "\u2212"
_MARKS = "●■◆▲▼✚✖★"


class Report:
    """Makes the page.

    Raises:
        MissingExtraError: The plotting library is not installed.
    """

    def __init__(self) -> None:
        self._pictures = Pictures()

    def build(
        self, found: Comparison, one: Mapping[str, Tensor], two: Mapping[str, Tensor], chosen: str | None = None
    ) -> bytes:
        """The page as UTF-8.

        Args:
            found: What it is about.
            one: The tensors of A, still open.
            two: Those of B.
            chosen: The tensor of A whose codes and scales are shown; None is the worst one that has any.
        """
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        lines = [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_text(_name(found.b))} against {_text(_name(found.a))}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            *_head(found),
            "<main>",
            *self._figures(found),
            *self._parts(found, one, two, chosen),
            *_table(found),
            *_notes(found),
            "</main>",
            *_foot(),
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
        ]
        return ("\n".join(lines) + "\n").encode("utf-8")

    def _figures(self, found: Comparison) -> Iterator[str]:
        ordered = ORDERS["name"](found.tensors)
        made = [draw(ordered) for draw in (self._pictures.error_by_layer, self._pictures.error_by_format)]
        if not any(made):
            yield "<p>No tensor that was compared has an error to draw.</p>"
        yield from _figures([*made, self._pictures.bits_by_layer(ordered)])

    def _parts(
        self, found: Comparison, one: Mapping[str, Tensor], two: Mapping[str, Tensor], chosen: str | None
    ) -> Iterator[str]:
        """Histograms of one tensor, of both sides as far as they are quantized."""
        others = {pair.name: pair.other_name for pair in found.tensors}
        others |= {pair.name: pair.other_name for pair in found.shapes}
        names = [pair.name for pair in ORDERS["error"](found.tensors)] if chosen is None else [chosen]
        for name in names:
            sides = (("A", one.get(name)), ("B", two.get(others.get(name, name))))
            counted_parts = [(letter, tensor, _parts_of(tensor)) for letter, tensor in sides if tensor is not None]
            shown = [
                (f"{letter}, {tensor.format}", number, part)
                for number, (letter, tensor, part) in enumerate(counted_parts)
                if part is not None
            ]
            if shown:
                yield f"<h2>Codes and scales of <code>{_text(name)}</code></h2>"
                yield '<div class="pairs">'
                for label, number, part in shown:
                    drawn = [self._pictures.histogram(part, number, what) for what in ("codes", "scales")]
                    yield from _figures(drawn, label)
                yield "</div>"
                return
        if chosen is not None:
            yield f"<p>Neither side of <code>{_text(chosen)}</code> has codes and scales that can be read.</p>"


def _parts_of(tensor: Tensor) -> Parts | None:
    try:
        return parts(tensor)
    except QuantformError:  # a broken side is listed where it was compared
        return None


def _head(found: Comparison) -> Iterator[str]:
    total = found.total
    yield "<header>"
    yield f"<h1>{_text(_name(found.b))} <small>against</small> {_text(_name(found.a))}</h1>"
    yield '<div class="sides">'
    for letter, side in (("A, the reference", found.a), ("B", found.b)):
        yield (
            f"<section><h2>{letter}</h2><p><code>{_text(side.path)}</code></p>"
            f"<p>{_text(side.description)}; {human_bytes(side.bytes)} of tensors, "
            f"{side.bits_per_weight:.4g} bits per weight</p></section>"
        )
    yield "</div>"
    same = sum(one.same is not None for one in found.tensors)
    missing = len(found.only_a) + len(found.shapes) + len(found.unreadable) + len(found.broken)
    yield '<dl class="numbers">'
    for value, label in (
        (_number(total.relative_rms, ".3e"), "relative RMS error"),
        (_number(total.snr_db, ".2f"), "SNR in dB"),
        (_number(total.cosine, ".6f"), "cosine similarity"),
        (f"{total.bits_per_weight:.4g} → {total.other_bits_per_weight:.4g}", "bits per weight"),
        (f"{total.tensors:,}", "tensors compared"),
        (f"{same:,}", "exactly the same"),
        (f"{missing:,}", "of A not compared"),
        *([(f"{total.incomparable:,}", "differences not finite")] if total.incomparable else []),
    ):
        yield f"<div><dd>{value}</dd><dt>{label}</dt></div>"
    yield "</dl>"
    yield "</header>"


def _figures(made: Iterable[Picture | None], label: str = "") -> Iterator[str]:
    for picture in made:
        if picture is None:
            continue
        title = f"{picture.title} of {label}" if label else picture.title
        yield f'<figure role="group" aria-label="{_text(title)}">'
        yield f"<figcaption><strong>{_text(title)}</strong> <span>{_text(picture.text)}</span></figcaption>"
        label_of_all = _text(f"{title}: {picture.text}{picture.detail and '; '}{picture.detail}")
        yield picture.svg.replace('aria-hidden="true"', f'role="img" aria-label="{label_of_all}"', 1)
        if picture.legend:
            yield '<ul class="legend">'
            for place, what in picture.legend:
                color, mark = (f"var(--s{place})", _MARKS[place]) if place < KINDS else ("var(--soft)", "•")
                label = _text(shortened(what, _WIDEST_LEGEND))
                yield f'<li><i aria-hidden="true" style="color:{color}">{mark}</i>{label}</li>'
            yield "</ul>"
        yield "</figure>"


_COLUMNS = (
    ("tensor", False),
    ("shape", False),
    ("A", False),
    ("B", False),
    ("bits A", True),
    ("bits B", True),
    ("relative RMS", True),
    ("SNR dB", True),
    ("largest", True),
    ("row, column", True),
    ("cosine", True),
)


def _table(found: Comparison) -> Iterator[str]:
    total = found.total
    yield "<h2>Tensors</h2>"
    yield '<div class="wide"><table>'
    yield "<caption>Each tensor of B against that of A. A heading sorts by its column.</caption>"
    yield "<thead><tr>"
    for name, right in _COLUMNS:
        yield f'<th scope="col"{" class=n" if right else ""}><button type="button">{name}</button></th>'
    yield "</tr></thead>"
    yield "<tbody>"
    bar = _bars(found.tensors)
    for one in found.tensors:
        name = _text(one.name)
        if one.other_name != one.name:
            name += f"<br><small>B: {_text(one.other_name)}</small>"
        cells = [
            f'<th scope="row">{name}</th>',
            _cell(_TIMES.join(map(str, one.shape)) or "scalar", one.size),
            _cell(one.format),
            _cell(one.other_format),
            *_numbers(one, bar(one)),
        ]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody>"
    cells = [
        '<th scope="row">total</th>',
        _cell(f"{total.weights:,}"),
        *(_cell("") for _ in range(2)),
        *(_right(f"{bits:.4g}") for bits in (total.bits_per_weight, total.other_bits_per_weight)),
        _right(_not_finite(total) if total.incomparable else _number(total.relative_rms, ".3e")),
        _right(_number(total.snr_db, ".2f")),
        _right(_number(total.max_abs, ".3e")),
        _cell(""),
        _right(_number(total.cosine, ".6f")),
    ]
    yield f"<tfoot><tr>{''.join(cells)}</tr></tfoot>"
    yield "</table></div>"


def _numbers(one: Compared, width: float) -> Iterator[str]:
    yield _right(f"{one.bits_per_weight:.4g}", one.bits_per_weight)
    yield _right(f"{one.other_bits_per_weight:.4g}", one.other_bits_per_weight)
    hidden, error = one.badness
    key = 1e308 if hidden or math.isinf(error) else error
    if one.same is not None:
        yield f'<td class="n same" data-v="-1">same {one.same}</td>'
    elif one.incomparable:
        yield f'<td class="n wrong" data-v="{key!r}">{_not_finite(one)}</td>'
    else:
        meter = f'<i class="bar" style="width:{width:.0f}%"></i>'
        yield f'<td class="n" data-v="{key!r}">{_number(one.relative_rms, ".3e")}{meter}</td>'
    best = -math.inf if one.incomparable else math.inf
    yield _right(_number(one.snr_db, ".2f"), best if one.snr_db is None else one.snr_db)
    yield _right(_number(one.max_abs, ".3e"), math.inf if one.max_abs is None else one.max_abs)
    yield _right(_NOTHING if one.row is None else f"{one.row}, {one.column}", -1 if one.row is None else one.row)
    yield _right(_number(one.cosine, ".6f"), -2 if one.cosine is None else one.cosine)


def _bars(tensors: Sequence[Compared]) -> Callable[[Compared], float]:
    """How long a bar each error has, in percent: by its logarithm, between the smallest and the largest."""
    logarithms = [math.log(one.relative_rms) for one in tensors if one.relative_rms]
    low, high = min(logarithms, default=0.0), max(logarithms, default=0.0)

    def width(one: Compared) -> float:
        if not one.relative_rms:
            return 100.0 if one.relative_rms is None else 0.0
        return 100.0 if high == low else 4 + 96 * (math.log(one.relative_rms) - low) / (high - low)

    return width


def _notes(found: Comparison) -> Iterator[str]:
    lines = found.notes()
    if lines:
        yield f"<h2>Not in the table</h2><details open><summary>{counted(len(lines), 'note')}</summary><ul>"
        yield from (f"<li>{_text(line)}</li>" for line in lines)
        yield "</ul></details>"


def _foot() -> Iterator[str]:
    yield "<footer><p>Values are decoded exactly and compared in binary64. The relative RMS error is the root of the"
    yield f"sum of squared differences over that of A's squares, the SNR is {_MINUS}20 log10 of it. Elements whose"
    yield "difference is not finite are counted; unless both sides are the same there, no error has a number."
    yield f"Made by quantform {_text(__version__)}.</p></footer>"


def _name(side: Side) -> str:
    return side.path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or side.path


def _number(number: float | None, form: str) -> str:
    return _NOTHING if number is None else format(number, form)


def _not_finite(one: Errors) -> str:
    return f"{one.incomparable:,} not finite"


def _cell(text: str, key: float | None = None) -> str:
    data = "" if key is None else f' data-v="{key!r}"'
    return f"<td{data}>{_text(text)}</td>"


def _right(text: str, key: float | None = None) -> str:
    data = "" if key is None else f' data-v="{key!r}"'
    return f'<td class="n"{data}>{_text(text)}</td>'


def _text(text: str) -> str:
    """Text of any origin as HTML, in an element or in a quoted attribute."""
    return html.escape(visible(text))
