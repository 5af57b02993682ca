"""The encoders' arithmetic in PyTorch on one thread of the CPU, as somebody would write it who wants it to be fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.formats import FORMATS, GroupedFormat
from quantform.methods.grouped_search import RATIOS
from rates import Call

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]  # a peer that may be absent

Tensor = Any
Type = Any
SMALLEST = 2.0**-24


def summary() -> str:
    """One line that says which peer there is."""
    return f"PyTorch {torch.__version__}, one thread" if torch is not None else "without PyTorch"


def encoder(method: str, format: str, values: npt.NDArray[np.generic]) -> Call | None:
    """A call that encodes `values` to codes and scales; None where there is no PyTorch."""
    if torch is None:
        return None
    torch.set_num_threads(1)
    source = tensor_of(values)
    record = FORMATS[format]
    if isinstance(record, GroupedFormat):
        work = search if method == "grouped_search" else absmax
        return lambda: work(source, record)
    if format == "nvfp4":
        return lambda: nvfp4(source)
    scale = torch.bfloat16 if format.endswith("bf16") else torch.float16
    return lambda: fp8(source, scale)


def tensor_of(values: npt.NDArray[np.generic]) -> Tensor:
    if values.dtype == np.float32:
        return torch.from_numpy(values)
    kind = torch.float16 if values.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(values.view(np.int16)).view(kind)


def codes_of(groups: Tensor, scales: Tensor, record: GroupedFormat) -> Tensor:
    inverses = torch.where(scales != 0, 1 / scales.float(), 0.0)
    return (groups * inverses[:, None]).round_().clamp_(record.qmin, record.qmax)


def absmax(values: Tensor, record: GroupedFormat) -> tuple[Tensor, Tensor]:
    groups = values.float().view(-1, record.group)
    largest = groups.abs().amax(1)
    scales = (largest / record.qmax).half()
    scales = torch.where((scales == 0) & (largest > 0), SMALLEST, scales)
    assert bool(torch.isfinite(scales).all())
    return codes_of(groups, scales, record).to(torch.int8), scales


def search(values: Tensor, record: GroupedFormat) -> tuple[Tensor, Tensor]:  # noqa: C901 - one text, one function
    groups = values.float().view(-1, record.group)
    exact = groups.double()
    best = absmax(values, record)[1]
    largest, lane = groups.abs().max(1)
    extreme = groups.gather(1, lane[:, None])[:, 0]

    def errors(scales: Tensor) -> Tensor:
        residuals = exact - codes_of(groups, scales, record).double() * scales.double()[:, None]
        return (residuals * residuals).sum(1)

    def rounded(candidates: Tensor) -> Tensor:
        scales = candidates.float().half()
        return torch.where((scales == 0) & (candidates != 0), torch.sign(candidates).half() * SMALLEST, scales)

    def neighbour(scales: Tensor, step: int) -> Tensor:
        words = scales.view(torch.int16)
        moved = (words & 0x7FFF) + step
        legal = ((words & 0x7FFF) > 0) & (moved >= 1) & (moved <= 0x7BFF)
        return torch.where(legal, moved | (words & -0x8000), 0).view(torch.float16)

    def fitted(scales: Tensor) -> Tensor:
        codes = codes_of(groups, scales, record).double()
        below = (codes * codes).sum(1)
        return rounded(torch.where(below > 0, (exact * codes).sum(1) / below.clamp_min(1e-300), 0.0))

    least = errors(best)

    def compete(scales: Tensor) -> None:
        nonlocal best, least
        legal = torch.isfinite(scales) & (scales > 0)
        found = errors(torch.where(legal, scales, 1.0))
        wins = legal & (found < least)
        best, least = torch.where(wins, scales, best), torch.where(wins, found, least)

    start, fit = best, fitted(best)
    for whole in (largest.double() / record.qmax, extreme.double() / record.qmin):
        for ratio in RATIOS:
            compete(rounded(whole * ratio))
    for factor in (0.25, 0.5, 2.0, 4.0):
        compete(rounded(start.double() * factor))
    for step in (-2, -1, 1, 2):
        compete(neighbour(start, step))
    compete(fit)
    for factor in (0.5, 2.0):
        compete(rounded(fit.double() * factor))
    for step in (-2, -1, 1, 2):
        compete(neighbour(fit, step))
    refit = fitted(best)
    for scales in (refit, neighbour(refit, -1), neighbour(refit, 1)):
        compete(scales)
    return codes_of(groups, best, record).to(torch.int8), best


def fp8(values: Tensor, kind: Type) -> tuple[Tensor, Tensor]:
    rounded = values.bfloat16().float()
    largest = rounded.abs().amax(1)
    scales = (largest / 448).to(kind)
    scales = torch.where(
        (scales == 0) & (largest > 0), torch.ones_like(scales).view(torch.int16).sign_().view(kind), scales
    )
    inverses = torch.where(scales != 0, 1 / scales.float(), 0.0)
    assert bool(torch.isfinite(scales).all())
    return (rounded * inverses[:, None]).clamp_(-448, 448).to(torch.float8_e4m3fn), scales


def nvfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    numbers = values.float()
    divisor = 2688 / numbers.abs().max()
    scaled = (numbers * divisor).view(-1, 16)
    scales = (scaled.abs().amax(1) / 6).clamp_max_(448).to(torch.float8_e4m3fn)
    wide = scales.float()[:, None]
    ratios = torch.where(wide != 0, scaled / wide, 0.0)
    magnitudes = ratios.abs()
    codes = (magnitudes > 0.25).to(torch.uint8)
    codes += magnitudes >= 0.75
    codes += magnitudes > 1.25
    codes += magnitudes >= 1.75
    codes += magnitudes > 2.5
    codes += magnitudes >= 3.5
    codes += magnitudes > 5
    codes |= torch.signbit(ratios).to(torch.uint8) << 3
    return codes[:, ::2] | codes[:, 1::2] << 4, scales
