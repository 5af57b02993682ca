"""Encoders in plain NumPy, written from the texts, whose lines `test_planted_mistakes.py` gets wrong one at a time.

They are an encoder for `testing.check_encoder`: words by name, and a `ValueError` for what is refused. Nothing here
uses the package under test. Each decision stands on a line of its own, so that a mistake replaces one piece of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
F16 = npt.NDArray[np.float16]
Parameters = Mapping[str, Any]

# group, smallest and largest code
GRIDS = {
    "q4_g64_fp16": (64, -8, 7),
    "q5_g64_fp16": (64, -16, 15),
    "q6_g64_fp16": (64, -32, 31),
    "q8_g32_fp16": (32, -127, 127),
}
SMALLEST = np.uint16(1).view(np.float16)


def encode(values: Array, format: str, method: str, parameters: Parameters) -> dict[str, Array]:
    """Everything but casts and blocks that stay blocks."""
    if method not in ENCODERS or format.startswith("gguf_"):
        raise NotImplementedError
    with np.errstate(all="ignore"):
        return ENCODERS[method](values, format, parameters)


def refuse(bad: npt.NDArray[np.bool_]) -> None:
    if bad.any():
        raise ValueError("refused")


def grouped(values: Array, format: str, choose: Callable[[F32, int, int], tuple[F32, F16]]) -> dict[str, Array]:
    """Codes and scales of groups `[rows, groups, lanes]` by `choose`."""
    group, qmin, qmax = GRIDS[format]
    wide = values.astype(np.float32)
    refuse(~np.isfinite(wide))
    rows, columns = wide.shape
    count = -(-columns // group)
    padded = np.zeros((rows, count * group), wide.dtype)
    padded[:, :columns] = wide
    codes, scales = choose(padded.reshape(rows, count, group), qmin, qmax)
    refuse(~np.isfinite(scales))
    return {"codes": codes.reshape(rows, -1)[:, :columns].astype(np.int8), "scales": scales.view(np.uint16)}


def inverses(scales: Array) -> F32:
    wide = scales.astype(np.float32)
    return np.where(wide != 0, np.float32(1) / wide, np.float32(0)).astype(np.float32)


def codes_of(groups: F32, scales: F16, qmin: int, qmax: int) -> F32:
    products = groups * inverses(scales)[..., None]
    rounded = np.rint(products)
    codes: F32 = np.clip(rounded, np.float32(qmin), np.float32(qmax))
    return codes


def absmax_scales(groups: F32, qmax: int) -> F16:
    amax = np.abs(groups).max(axis=-1)
    raw = amax / np.float32(qmax)
    scales: F16 = raw.astype(np.float16)
    scales[(scales == 0) & (amax > 0)] = SMALLEST
    return scales


def absmax(values: Array, format: str, parameters: Parameters) -> dict[str, Array]:  # noqa: ARG001 - it has none
    def choose(groups: F32, qmin: int, qmax: int) -> tuple[F32, F16]:
        scales = absmax_scales(groups, qmax)
        return codes_of(groups, scales, qmin, qmax), scales

    return grouped(values, format, choose)


# --- grouped_search ---------------------------------------------------------------------------------------------------


def fold(terms: F64) -> F64:
    """Sums of the last axis, halves onto halves."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]


def stored(candidates: F64) -> F16:
    """binary64, binary32, binary16; what underflows becomes the smallest of its sign."""
    single = candidates.astype(np.float32)
    scales = single.astype(np.float16)
    lost = (scales == 0) & (candidates != 0)
    return np.where(lost, np.copysign(SMALLEST, candidates), scales).astype(np.float16)


def beside(scales: F16, step: int) -> F16:
    """The scale whose magnitude's word is `step` away; zero, which is no candidate, where there is none."""
    words = scales.view(np.uint16).astype(np.int32)
    moved = (words & 0x7FFF) + step
    there = (words & 0x7FFF != 0) & (moved >= 1) & (moved <= 0x7BFF)
    return np.where(there, moved | words & 0x8000, 0).astype(np.uint16).view(np.float16)


def search(values: Array, format: str, parameters: Parameters) -> dict[str, Array]:  # noqa: C901 - one text
    group = GRIDS[format][0]
    columns = values.shape[1]
    weights = np.zeros(-(-columns // group) * group)
    weights[:columns] = parameters.get("importance", np.ones(columns))
    lanes = weights.reshape(-1, group)
    negative = parameters.get("negative_scales", False)

    def choose(groups: F32, qmin: int, qmax: int) -> tuple[F32, F16]:  # noqa: C901
        exact = groups.astype(np.float64)
        start = absmax_scales(groups, qmax)
        amax = np.abs(exact).max(axis=-1)
        lane = np.abs(groups).argmax(axis=-1)
        extreme = np.take_along_axis(exact, lane[..., None], axis=-1)[..., 0]

        def error(scales: F16) -> F64:
            codes = codes_of(groups, scales, qmin, qmax).astype(np.float64)
            residuals = exact - codes * scales.astype(np.float64)[..., None]
            return fold(lanes * residuals * residuals)

        def fit(scales: F16) -> F16:
            codes = codes_of(groups, scales, qmin, qmax).astype(np.float64)
            above, below = fold(lanes * exact * codes), fold(lanes * codes * codes)
            return stored(np.where(below > 0, above / np.where(below > 0, below, 1), 0))

        best, least = start.copy(), error(start)

        def compete(candidates: F16) -> None:
            legal = np.isfinite(candidates) & (candidates != 0) & (start != 0)
            if not negative:
                legal &= candidates > 0
            errors = error(candidates)
            wins = legal & (errors < least)
            best[wins], least[wins] = candidates[wins], errors[wins]

        for percent in range(70, 120, 2):
            compete(stored(amax / qmax * (percent / 100)))
        for percent in range(70, 120, 2):
            compete(stored(extreme / qmin * (percent / 100)))
        for factor in (0.25, 0.5, 2.0, 4.0):
            compete(stored(start.astype(np.float64) * factor))
        for step in (-2, -1, 1, 2):
            compete(beside(start, step))
        fitted = fit(start)
        compete(fitted)
        for factor in (0.5, 2.0):
            compete(stored(fitted.astype(np.float64) * factor))
        for step in (-2, -1, 1, 2):
            compete(beside(fitted, step))
        refitted = fit(best)
        compete(refitted)
        for step in (-1, 1):
            compete(beside(refitted, step))
        return codes_of(groups, best, qmin, qmax), best

    return grouped(values, format, choose)


# --- FP8 and NVFP4 ----------------------------------------------------------------------------------------------------


def e4m3fn(values: F32) -> npt.NDArray[np.uint8]:
    return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def nearest_bfloat16(values: F64) -> F64:
    """One rounding, which a cast of binary64 by way of binary32 is not."""
    _, exponents = np.frexp(values)
    steps = np.exp2(np.maximum(exponents - 8, -133))
    rounded = np.rint(values / steps) * steps
    return np.where(np.abs(rounded) < 2.0**128, rounded, np.inf)


def fp8_rows(values: Array, format: str, parameters: Parameters) -> dict[str, Array]:  # noqa: ARG001
    kind = ml_dtypes.bfloat16 if format.endswith("bf16") else np.float16
    rounded = nearest_bfloat16(values.astype(np.float64)).astype(np.float32)
    refuse(~np.isfinite(rounded))
    largest = np.abs(rounded).max(axis=1)
    raw = largest / np.float32(448)
    scales = raw.astype(kind)
    scales[(scales == 0) & (largest > 0)] = np.uint16(1).view(kind)
    refuse(~np.isfinite(scales.astype(np.float32)))
    products = rounded * inverses(scales)[:, None]
    products[largest == 0] = 0
    refuse(~np.isfinite(products))
    clamped = np.clip(products, np.float32(-448), np.float32(448))
    return {"codes": e4m3fn(clamped), "scales": scales.view(np.uint16)}


def e2m1(values: F32) -> npt.NDArray[np.uint8]:
    magnitudes = np.abs(values)
    codes = np.zeros(values.shape, np.uint8)
    for border in (0.25, 1.25, 2.5, 5):
        codes += magnitudes > border
    for border in (0.75, 1.75, 3.5):
        codes += magnitudes >= border  # the code above is the even one
    return codes | np.signbit(values).astype(np.uint8) << np.uint8(3)


def nvfp4(values: Array, format: str, parameters: Parameters) -> dict[str, Array]:  # noqa: ARG001
    wide = values.astype(np.float32)
    refuse(~np.isfinite(wide))
    largest = np.abs(wide).max()
    divisor = np.float32(2688) / largest if largest else np.float32(1)
    refuse(~np.isfinite(divisor))
    scaled = (wide * divisor).reshape(len(wide), -1, 16)
    raw = np.abs(scaled).max(axis=-1) / np.float32(6)
    scales = e4m3fn(np.minimum(raw, np.float32(448)))
    multipliers = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32)[..., None]
    ratios = np.where(multipliers != 0, scaled / multipliers, np.float32(0))
    codes = e2m1(ratios).reshape(len(wide), -1)
    return {
        "codes": codes[:, ::2] | codes[:, 1::2] << 4,
        "scales": scales,
        "divisors": np.array([divisor], np.float32).view(np.uint32),
    }


# --- blocks into planes -----------------------------------------------------------------------------------------------


def ternary(packed: npt.NDArray[np.uint8], count: int) -> Array:
    """The first `count` base-3 digits of bytes, from the top: each byte is a fraction of 256."""
    return np.stack([(packed * np.uint8(3**digit)).astype(np.uint16) * 3 >> 8 for digit in range(count)], axis=-2)


def pairs(packed: npt.NDArray[np.uint8]) -> Array:
    """The four fields of two bits of bytes, as an axis before the last."""
    return np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=-2)


def moved(values: Array, format: str, parameters: Parameters) -> dict[str, Array]:
    source, rows = parameters["source"], len(values)
    if source == "gguf:q8_0":
        blocks = values.reshape(rows, -1, 34)
        scales, codes = blocks[..., :2], blocks[..., 2:].view(np.int8)
    elif source == "gguf:q2_0":
        blocks = values.reshape(rows, -1, 18)
        scales, codes = blocks[..., :2], np.moveaxis(pairs(blocks[..., 2:]), -2, -1).astype(np.int8) - 1
    elif source == "gguf:tq2_0":
        blocks = values.reshape(rows, -1, 66)
        scales, codes = blocks[..., 64:], pairs(blocks[..., :64].reshape(rows, -1, 2, 32)).astype(np.int8) - 1
    else:
        blocks = values.reshape(rows, -1, 54)
        parts = (ternary(blocks[..., :32], 5), ternary(blocks[..., 32:48], 5), ternary(blocks[..., 48:52], 4))
        flat = [part.reshape(*part.shape[:2], -1) for part in parts]
        scales, codes = blocks[..., 52:], np.concatenate(flat, axis=-1).astype(np.int8) - 1
    words = np.ascontiguousarray(scales).view("<u2")[..., 0]
    codes = codes.reshape(rows, -1)
    group = codes.shape[1] // words.shape[1]
    if format == "t2_g128_fp16":
        if group == 64:
            refuse(words[:, ::2] != words[:, 1::2])
            words = words[:, ::2]
        words = np.repeat(words, max(1, group // 128), axis=1)
        refuse(codes > 1)
    if format == "q8_g32_fp16":
        refuse(codes == -128)
    refuse(words & 0x7C00 == 0x7C00)
    if format != "q2_g64_fp16":
        refuse(words == 0x8000)
        under = np.repeat(words == 0, codes.shape[1] // words.shape[1], axis=1)
        refuse(under & (codes != 0))
    return {"codes": codes, "scales": np.ascontiguousarray(words)}


ENCODERS: dict[str, Callable[[Array, str, Parameters], dict[str, Array]]] = {
    "grouped_absmax": absmax,
    "grouped_search": search,
    "fp8_row_maxabs": fp8_rows,
    "nvfp4_maxabs": nvfp4,
    "import_encoded": moved,
}
