"""Rates of contenders that take turns, and the tables that show them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

Call = Callable[[], object]


def best_rates(calls: dict[str, tuple[Call, int]], seconds: float, rounds: int) -> dict[str, float]:
    """The best rate of each call in 10^9 values a second; every call has its turn in each round."""
    best = dict.fromkeys(calls, math.inf)
    repeats = {}
    for name, (call, _) in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(seconds / rounds / max(1e-7, time.perf_counter() - start)))
    for _ in range(rounds):
        for name, (call, _) in calls.items():
            count = range(repeats[name])
            start = time.perf_counter()
            for _ in count:
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return {name: values / best[name] / 1e9 for name, (_, values) in calls.items()}


def geometric_mean(numbers: Iterable[float]) -> float:
    """NaN where there are none."""
    logarithms = [math.log(number) for number in numbers]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def table(title: str, subject: str, rows: dict[str, dict[str, float]], peers: AbstractSet[str]) -> str:
    """A Markdown table of rates, with ratios of the first contender to the peers that there are."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    ours, against = names[0], [name for name in names if name in peers]
    ratios = {name: [row[ours] / row[name] for row in rows.values() if name in row] for name in against}
    lines = [
        f"### {title}",
        "",
        f"| {subject} | " + " | ".join(names) + " | " + " | ".join(f"to {name}" for name in against) + " |",
        "|---|" + "---:|" * (len(names) + len(against)),
    ]
    for name, row in rows.items():
        cells = [f"{row[column]:.3g}" if column in row else "" for column in names]
        cells += [f"{row[ours] / row[column]:.2f}" if column in row else "" for column in against]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for label, summary in (("geometric mean", geometric_mean), ("least", min)):
        cells = [f"{summary(found):.2f}" for found in ratios.values()]
        lines.append(f"| *{label}* |" + " |" * len(names) + " " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parse_size(text: str) -> int:
    """`"256K"` and `"64M"` as bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
