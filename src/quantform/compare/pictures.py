"""Pictures of a comparison as inline SVG, drawn by matplotlib (the extra `report`).

Colours are names of the page's own (`var(--ink)`), so that one picture serves light, dark and paper. No name from a
file is drawn: legends are the page's business.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quantform._sizes import counted
from quantform.compare.parts import Parts
from quantform.compare.result import Compared
from quantform.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "Picture", "Pictures", "kind_and_layer"]

# Stand-ins that matplotlib takes for colours, and what the page calls them.
_INK, _SOFT, _GRID = "#010101", "#020202", "#030303"
_SERIES = tuple(f"#0404{number:02x}" for number in range(8))
_VARIABLES = {_INK: "--ink", _SOFT: "--soft", _GRID: "--grid"} | {
    color: f"--s{number}" for number, color in enumerate(_SERIES)
}
_MARKERS = "osD^vPX*"
KINDS = len(_SERIES)
"""How many kinds of tensors have a colour of their own."""

_LAYER = re.compile(r"(?<![^./])(\d{1,6})(?=[./])")
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        title: What it shows.
        text: Its main numbers in one line.
        detail: More numbers, for people who do not see it.
        svg: An `<svg>` element.
        legend: Index of a colour and marker, and what has it; an index beyond the last is the common grey.
    """

    title: str
    text: str
    svg: str
    legend: tuple[tuple[int, str], ...] = ()
    detail: str = ""


def kind_and_layer(name: str) -> tuple[str, int | None]:
    """`blk.3.attn_q.weight` is of the kind `blk.*.attn_q.weight` in layer 3; other names have no layer."""
    found = _LAYER.search(name)
    if found is None:
        return name, None
    return f"{name[: found.start()]}*{name[found.end() :]}", int(found[1])


class Pictures:
    """Draws pictures, the same bytes for the same comparison.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def __init__(self) -> None:
        try:
            from matplotlib import style  # noqa: PLC0415 - only a report needs it
            from matplotlib.figure import Figure  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(
                "a report needs the plotting library matplotlib",
                hint="Install it with: pip install 'quantform[report]'",
            ) from error
        self._style = style
        self._figure: type[Figure] = Figure
        self._count = 0

    def error_by_layer(self, tensors: Sequence[Compared]) -> Picture | None:
        """The relative RMS error of each tensor over its layer, one line a kind."""
        shown = [one for one in tensors if one.relative_rms]
        if not shown:
            return None
        kinds: dict[str, list[tuple[int, float]]] = {}
        for one in shown:
            kind, layer = kind_and_layer(one.name)
            kinds.setdefault(kind, []).append((-1 if layer is None else layer, one.relative_rms or 0.0))
        ranked = sorted(kinds, key=lambda kind: -max(error for _, error in kinds[kind]))
        with self._drawing(12, 4.4) as (figure, made):
            axes: Axes = figure.add_subplot()
            for place, kind in reversed(list(enumerate(ranked))):
                points = sorted(kinds[kind])
                color, marker = (_SERIES[place], _MARKERS[place]) if place < KINDS else (_SOFT, ".")
                axes.plot(*zip(*points, strict=True), color=color, marker=marker, linewidth=1.2)
            _layers(axes, [layer for points in kinds.values() for layer, _ in points])
            _logarithmic(axes.yaxis, [error for points in kinds.values() for _, error in points])
            axes.set_ylabel("relative RMS error")
        worst = max(shown, key=lambda one: one.badness)
        equal = len(tensors) - len(shown)
        text = (
            f"{counted(len(shown), 'tensor')} of {counted(len(kinds), 'kind')}, errors from "
            f"{min(one.relative_rms or 0 for one in shown):.2e} to {worst.relative_rms:.2e}"
            + (f"; {counted(equal, 'tensor')} without an error to draw" if equal else "")
        )
        legend = [(place, kind) for place, kind in enumerate(ranked[:KINDS])]
        if len(ranked) > KINDS:
            legend.append((KINDS, counted(len(ranked) - KINDS, "other kind")))
        return Picture("Error by layer", text, made[0], tuple(legend))

    def error_by_format(self, tensors: Sequence[Compared]) -> Picture | None:
        """The relative RMS error of each tensor, by what it is stored as on both sides."""
        groups: dict[str, list[float]] = {}
        for one in tensors:
            if one.relative_rms:
                groups.setdefault(f"{one.format} → {one.other_format}", []).append(one.relative_rms)
        if not groups:
            return None
        ranked = sorted(groups, key=lambda name: (_middle(groups[name]), name))
        with self._drawing(12, 1.2 + 0.42 * len(ranked)) as (figure, made):
            axes: Axes = figure.add_subplot()
            for place, name in enumerate(ranked):
                errors = groups[name]
                axes.plot([min(errors), max(errors)], [place, place], color=_GRID, linewidth=6, solid_capstyle="round")
                axes.plot(errors, [place] * len(errors), "o", color=_SERIES[0], alpha=0.45, markeredgewidth=0)
                axes.plot([_middle(errors)], [place], "|", color=_INK, markersize=15, markeredgewidth=2)
            axes.set_yticks(range(len(ranked)), [_drawable(f"{name} ({len(groups[name])})") for name in ranked])
            axes.set_ylim(-0.6, len(ranked) - 0.4)
            axes.grid(visible=False, axis="y")
            _logarithmic(axes.xaxis, [error for errors in groups.values() for error in errors])
            axes.set_xlabel("relative RMS error; the bar is the median")
        detail = "; ".join(f"{name}: median {_middle(groups[name]):.2e} of {len(groups[name])}" for name in ranked)
        return Picture("Error by format", f"{counted(len(ranked), 'pair')} of formats", made[0], detail=detail)

    def bits_by_layer(self, tensors: Sequence[Compared]) -> Picture | None:
        """Stored bits an element of each layer, on both sides."""
        layers: dict[int, list[int]] = {}
        for one in tensors:
            layer = kind_and_layer(one.name)[1]
            sums = layers.setdefault(-1 if layer is None else layer, [0, 0, 0])
            for place, number in enumerate((one.size, one.bytes, one.other_bytes)):
                sums[place] += number
        layers = {layer: layers[layer] for layer in sorted(layers) if layers[layer][0]}
        if not layers:
            return None
        bits = [[8 * sums[side] / sums[0] for sums in layers.values()] for side in (1, 2)]
        with self._drawing(12, 3.3) as (figure, made):
            axes: Axes = figure.add_subplot()
            for side, shift in enumerate((-0.2, 0.2)):
                axes.bar([layer + shift for layer in layers], bits[side], 0.38, color=_SERIES[side])
            _layers(axes, list(layers))
            axes.set_ylabel("bits per weight")
            axes.grid(visible=False, axis="x")
        text = ", ".join(
            f"{min(some):.3g} to {max(some):.3g} bits in {letter}" for letter, some in zip("AB", bits, strict=True)
        )
        detail = ", ".join(
            f"{'without a layer' if layer < 0 else f'layer {layer}'}: {one:.3g} in A and {two:.3g} in B"
            for layer, one, two in zip(layers, *bits, strict=True)
        )
        return Picture("Bits per weight by layer", text, made[0], ((0, "A"), (1, "B")), detail)

    def histogram(self, parts: Parts, side: int, what: str) -> Picture | None:
        """How often each code occurs (`what` is `"codes"`), or each magnitude of scale (`"scales"`)."""
        counts = parts.codes if what == "codes" else parts.scales
        if not counts:
            return None
        values, numbers = list(counts), list(counts.values())
        with self._drawing(6, 2.9) as (figure, made):
            axes: Axes = figure.add_subplot()
            axes.grid(visible=False, axis="x")
            axes.set_ylabel("how many")
            axes.yaxis.set_major_formatter(lambda number, _: _short(number))
            if what == "codes":
                _bars(axes, values, numbers, _SERIES[side])
                axes.set_xlabel("code")
            else:
                widths = [_quarter(value) for value in values]
                axes.bar(values, numbers, widths, align="edge", color=_SERIES[side])
                _octaves(axes, values)
                axes.set_xlabel("magnitude of the scale")
        text = f"{counted(sum(numbers), what[:-1])} from {min(values):.4g} to {max(values):.4g}"
        if what == "scales":
            text += "".join(
                f", {number} {label}"
                for number, label in ((parts.negative, "below zero"), (parts.zero, "zero"), (parts.unknown, "unknown"))
                if number
            )
        return Picture(what.capitalize(), text, made[0])

    @contextmanager
    def _drawing(self, width: float, height: float) -> Iterator[tuple[Figure, list[str]]]:
        """A figure to draw on; the list holds its SVG afterwards."""
        self._count += 1
        made: list[str] = []
        # The user's own settings would show otherwise; a style leaves the choice of a backend alone.
        with self._style.context(["default", {**_STYLE, "svg.hashsalt": str(self._count)}]):
            figure = self._figure(figsize=(width, height), layout="constrained")
            yield figure, made
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        made.append(_inlined(buffer.getvalue(), f"p{self._count}-"))


def _inlined(svg: str, prefix: str) -> str:
    """The element alone, its identifiers unique in the page and its colours the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    svg = re.sub("|".join(_VARIABLES), lambda match: f"var({_VARIABLES[match.group()]})", svg)
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)


def _layers(axes: Axes, layers: Sequence[int]) -> None:
    """Whole numbers on the axis of layers; tensors without one stand at the left."""
    last = max(layers)
    step = max(1, math.ceil((last + 1) / 20))
    ticks = [*([-1] if min(layers) < 0 else []), *range(0, last + 1, step)]
    axes.set_xticks(ticks, ["none" if tick < 0 else str(tick) for tick in ticks])
    axes.set_xlim(min(layers) - 0.7, max(last, 0) + 0.7)
    axes.set_xlabel("layer")


def _logarithmic(axis: Any, numbers: Sequence[float]) -> None:  # noqa: ANN401 - either axis, of a type of their own
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = min(numbers), max(numbers)
    if high < 10 * low:
        # Powers of ten are too far apart: round numbers between them serve better.
        factors = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 4 * low else (1, 2, 3, 5, 7)
        exponent = math.floor(math.log10(low))
        ticks = [factor * 10.0**power for power in range(exponent - 1, exponent + 3) for factor in factors]
        axis.set_ticks([tick for tick in ticks if low / 1.2 <= tick <= high * 1.2])
        axis.axes.set(**{f"{axis.axis_name}lim": (low / 1.2, high * 1.2)})
    axis.set_major_formatter(lambda number, _: f"{number:.3g}")
    axis.set_minor_formatter(lambda *_: "")


def _octaves(axes: Axes, values: Sequence[float]) -> None:
    """Powers of two on the axis, at most six."""
    first, last = math.floor(math.log2(min(values) or 2.0**-149)), math.ceil(math.log2(max(values) * 1.25))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0**first, 2.0**last)
    axes.set_xticks([2.0**power for power in range(first, last + 1, (last - first) // 6 + 1)])
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:.3g}")
    axes.xaxis.set_minor_formatter(lambda *_: "")


def _bars(axes: Axes, values: Sequence[float], numbers: Sequence[int], color: str) -> None:
    """One bar a code; codes that are not evenly spaced stand side by side under their values."""
    gaps = {round(two - one, 6) for one, two in pairwise(values)}
    if all(value == int(value) for value in values) and (not gaps or max(gaps) <= 32):
        axes.bar(values, numbers, 0.85, color=color)
        return
    axes.bar(range(len(values)), numbers, 0.85, color=color)
    step = math.ceil(len(values) / 12)
    axes.set_xticks(range(0, len(values), step), [f"{value:.3g}" for value in values[::step]])


def _quarter(value: float) -> float:
    """How wide the quarter of an octave is that begins here; a subnormal bin is as wide as the first normal ones."""
    return math.ldexp(0.125, max(math.frexp(value)[1], -125)) if value else math.ldexp(1.0, -128)


def _middle(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def _drawable(text: str) -> str:
    """`text` in the glyphs that matplotlib's own font is sure to have."""
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\\u2192", "→")
