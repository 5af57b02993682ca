"""Mistakes that decoders make, planted in a plain one, and the rules that must be named for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from plain_decoder import Array, PlainDecoder
from quantform import testing
from quantform._scalars import FLOAT_OUTPUTS
from quantform.packed import PROFILES

AFFINE = ("gguf:q4_1", "gguf:q5_1", "gguf:q2_k", "gguf:q4_k", "gguf:q5_k")
GROUPED = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
# Profiles whose scales are binary16 numbers, and what has values near the end of binary16.
HALVES = tuple(name for name in PROFILES if name not in {"gguf:mxfp4", "gguf:nvfp4", "gguf:q8_k"})
NEAR_THE_END = (
    *(name for name in HALVES if name not in {"gguf:q1_0", "gguf:q2_0", "gguf:tq1_0", "gguf:tq2_0"}),
    *("gguf:q8_k", *GROUPED, "nvfp4", "fp8_e4m3fn_row_fp16", "fp32", "int32"),
)


def broken(decoder: PlainDecoder, formats: str | Iterable[str]) -> dict[str, set[str]]:
    """The rules that are broken for each format, but for those of vectors that mix everything."""
    report = testing.check_decoder(decoder, formats)
    assert not report.unrun
    found = dict[str, set[str]]()
    for result in report.broken:
        if not result.rule.endswith(".together"):
            found.setdefault(result.subject, set()).add(result.rule)
    return found


def each(formats: Iterable[str], rules: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(formats, rules)


def test_without_a_mistake_every_rule_is_kept() -> None:
    report = testing.check_decoder(PlainDecoder())
    assert report.ok, str(report)


# --- layouts and codebooks ------------------------------------------------------------------------------------------


class ColumnsOfTiles(PlainDecoder):
    """Tiles of NVFP4's scales lie column by column."""

    def tile_offset(self, n: Array, g: Array, shape: Any) -> Array:
        tile = g // 4 * (shape[0] // 128) + n // 128
        offset: Array = tile * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4
        return offset


class DivisorsOfTiles(PlainDecoder):
    """Each of NVFP4's divisors belongs to 128 rows."""

    def divisor_of(self, n: Array, rows: int, divisors: int) -> Array:  # noqa: ARG002
        return np.asarray(np.minimum(n // 128, divisors - 1))


class AlwaysAGap(PlainDecoder):
    """There is a gap before the scales of FP8 rows though the codes end where it would."""

    def fp8(self, payload: Array, shape: Any, bf16: bool) -> Array:
        return super().fp8(np.append(payload, np.zeros(256, np.uint8)) if bf16 else payload, shape, bf16)

    def row_scales_at(self, rows: int, columns: int) -> int:
        return rows * columns // 256 * 256 + 256


class OneTileOfScales(PlainDecoder):
    """The scales of FP8 rows begin at byte 256."""

    def row_scales_at(self, rows: int, columns: int) -> int:  # noqa: ARG002
        return 256


class SameHighBits(PlainDecoder):
    """The lanes of a group share the high bits of the first."""

    def grid_row(self, low: Array, high: Array, lanes: int) -> Array:
        return super().grid_row(low, np.repeat(high[:, ::lanes], lanes, axis=1), lanes)


@pytest.mark.parametrize(
    ("decoder", "format", "rules"),
    [
        (ColumnsOfTiles(), "nvfp4", {"layout.block_scale.order"}),
        (DivisorsOfTiles(), "nvfp4", {"nvfp4.divisors"}),
        (AlwaysAGap(), "fp8_e4m3fn_row_bf16", {"layout.row_scale.padding"}),
        (OneTileOfScales(), "fp8_e4m3fn_row_bf16", {"layout.row_scale.padding", "fp8_row.bf16.rows"}),
        *((SameHighBits(), f"gguf:{name}", {f"packed.{name}.high"}) for name in ("iq1_s", "iq1_m", "iq2_s", "iq3_s")),
    ],
)
def test_places(decoder: PlainDecoder, format: str, rules: set[str]) -> None:
    assert broken(decoder, format) == {format: rules}


# --- arithmetic -----------------------------------------------------------------------------------------------------


class IntegersFirst(PlainDecoder):
    """`d * (scale * code)`, which loses the sign of zeros."""

    def scaled(self, d: Array, local: Array, codes: Array) -> Array:
        return self.times(d, local.astype(int) * codes.astype(int))


class ZeroMinimaSkipped(PlainDecoder):
    """What is zero is not subtracted."""

    def minus(self, a: Array, b: Array) -> Array:
        return np.where(b == 0, a, super().minus(a, b))


class BinarySixteenProducts(PlainDecoder):
    """Products are made in binary16."""

    def times(self, a: Array, b: Array) -> Array:
        return np.multiply(a, b).astype(np.float16).astype(np.float64)


class Rounding(PlainDecoder):
    """Rounds to binary32 in another way."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def rounded(self, values: Array) -> Array:
        right = values.astype(np.float32)
        toward = np.copysign(np.inf, values) if self.kind == "away" else np.zeros_like(values)
        other = np.nextafter(right, toward.astype(np.float32)).astype(np.float64)
        wide = right.astype(np.float64)
        if self.kind == "saturated":
            return np.where(np.isinf(wide) & np.isfinite(values), np.copysign(np.finfo(np.float32).max, values), wide)
        between = np.isfinite(other) & (wide != values)
        if self.kind == "cut off":
            return np.where(between & (np.abs(wide) > np.abs(values)), other, wide)
        return np.where(between & (np.abs(other - values) == np.abs(wide - values)), other, wide)


@pytest.mark.parametrize("name", ["q3_k", "q6_k", "iq4_xs"])
def test_a_group_scale_is_multiplied_before_the_code(name: str) -> None:
    assert broken(IntegersFirst(), f"gguf:{name}") == {f"gguf:{name}": {"packed.zero-sign"}}


@pytest.mark.parametrize("name", ["q2_k", "q4_k", "q5_k"])
def test_zero_is_subtracted_too(name: str) -> None:
    assert broken(ZeroMinimaSkipped(), f"gguf:{name}") == {f"gguf:{name}": {"packed.zero-sign"}}


@pytest.mark.parametrize("name", GROUPED)
def test_products_take_more_bits_than_scales(name: str) -> None:
    stem = f"grouped.{name[:2]}"
    rules = {f"{stem}.scale", f"{stem}.signed-scale", f"{stem}.edges"}
    assert broken(BinarySixteenProducts(), name) == {name: rules}


@pytest.mark.parametrize("kind", ["away", "to zero", "cut off"])
@pytest.mark.parametrize("name", [*AFFINE, "gguf:q8_k"])
def test_rounding(name: str, kind: str) -> None:
    found = broken(Rounding(kind), name)[name]
    assert "packed.rounding" in found
    offset = {"packed.q4_1.m", "packed.q5_1.m"}  # sums of ones and tiny numbers
    assert found <= {"packed.rounding", "packed.binary32", "packed.overflow", *offset}


@pytest.mark.parametrize("name", ["gguf:q8_k", "gguf:mxfp4"])
def test_overflow(name: str) -> None:
    assert broken(Rounding("saturated"), name) == {name: {"packed.overflow"}}


# --- binary32 -------------------------------------------------------------------------------------------------------


class WithoutBinary32(PlainDecoder):
    """Keeps binary64 for some output types."""

    def __init__(self, *dtypes: str) -> None:
        self.dtypes = dtypes
        self.wide = False

    def __call__(self, payload: Array, format: str, shape: tuple[int, ...], dtype: str, divisors: int = 1) -> Array:
        self.wide = dtype in self.dtypes
        return super().__call__(payload, format, shape, dtype, divisors)

    def rounded(self, values: Array) -> Array:
        return values if self.wide else super().rounded(values)


@pytest.mark.parametrize("dtypes", [("float16",), ("bfloat16",), ("float64",), ("float16", "bfloat16", "float64")])
def test_values_are_binary32_numbers_first(dtypes: tuple[str, ...]) -> None:
    decoder, expected = WithoutBinary32(*dtypes), each((*AFFINE, "gguf:q8_k"), {"packed.binary32"})
    expected["nvfp4"] = {"nvfp4.binary32"}
    if "float64" in dtypes:
        expected["gguf:mxfp4"] = {"packed.binary32"}  # finite where binary32 overflows
        expected["fp8_e4m3fn_row_bf16"] = {"fp8_row.bf16.binary32"}
    found = broken(decoder, ["gguf:*", "*_fp16", "nvfp4", "fp8_*"])
    # Where a vector has values that go one way only, it may as well be ties that are broken.
    alike = {"output.bfloat16.ties-to-even", "output.bfloat16.subnormal"} if "bfloat16" in dtypes else set()
    assert {name: rules - alike for name, rules in found.items()} == expected


class IntegersInBinary32(PlainDecoder):
    """Rounds integers to binary32 before anything else."""

    def converted(self, values: Array, dtype: str) -> Array:
        return super().converted(values.astype(np.float32), dtype)


def test_integers_are_rounded_once() -> None:
    rules = {"output.bfloat16.nearest", "output.float64.nearest"}
    assert broken(IntegersInBinary32(), "int32") == {"int32": rules}


def test_who_says_that_values_are_binary32_numbers() -> None:
    sections = {name: rule.section for name, rule in testing.RULES.items() if name.endswith(".binary32")}
    assert sections == {
        "packed.binary32": "DequantizePacked",
        "nvfp4.binary32": "docs/decisions.md",  # section 3.3 names no type
        "fp8_row.bf16.binary32": "3.4",
    }


# --- conversion -----------------------------------------------------------------------------------------------------


class Half(PlainDecoder):
    """Gives other binary16 numbers for some values."""

    def __init__(self, low: float, high: float, result: float) -> None:
        self.low, self.high, self.result = low, high, result

    def to_half(self, values: Array) -> Array:
        size = np.abs(values)
        changed = np.copysign(self.result, values).astype(np.float16)
        return np.where((self.low <= size) & (size < self.high), changed, super().to_half(values))


class NegativeHalf(Half):
    """The same below zero only."""

    def to_half(self, values: Array) -> Array:
        return np.where(values < 0, super().to_half(values), PlainDecoder.to_half(self, values))


@pytest.mark.parametrize("name", NEAR_THE_END)
@pytest.mark.parametrize("kind", [Half, NegativeHalf])
def test_binary16_ends_at_65520(name: str, kind: type[Half]) -> None:
    assert broken(kind(65520, 65536, 65504), name) == {name: {"output.float16.overflow"}}


def test_what_rounds_to_the_largest_number_is_not_infinite() -> None:
    found = broken(Half(np.nextafter(65504, np.inf), 65520, np.inf), NEAR_THE_END)
    # Products of few bits do not come between 65504 and 65520.
    assert found.keys() >= {"gguf:q4_1", "gguf:q8_0", "gguf:q6_k", "gguf:iq4_xs", "q8_g32_fp16", "fp32", "int32"}
    assert set().union(*found.values()) == {"output.float16.nearest"}


def test_subnormal_numbers_end_where_normal_ones_begin() -> None:
    found = broken(Half(2.0**-14 - 2.0**-25, 2.0**-14, 2.0**-14 - 2.0**-24), ["gguf:q8_k", "fp32"])
    assert found == each(found, {"output.float16.nearest", "output.float16.ties-to-even"})
    found = broken(Half(2.0**-25, np.nextafter(2.0**-25, 1), 2.0**-24), ["gguf:q8_k", "gguf:mxfp4", "fp32", "bf16"])
    assert found == each(found, {"output.float16.subnormal"})
    assert len(found) == 4


class PlainlyAdded(PlainDecoder):
    """bfloat16 by adding half of what is cut off, NaN or not; the processor has made NaN quiet."""

    def to_bfloat(self, values: Array) -> Array:
        stored = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        added: Array = (stored + 0x7FFF + (stored >> 16 & 1)) >> 16
        return added.astype(np.uint16).view(FLOAT_OUTPUTS["bfloat16"])

    def converted(self, values: Array, dtype: str) -> Array:
        if values.dtype.kind == "i":
            return PlainDecoder().converted(values, dtype)
        return super().converted(values, dtype)


def test_adding_to_a_nan_makes_a_number() -> None:
    found = broken(PlainlyAdded(), ["gguf:*", "fp32", "bf16"])
    assert found == each((*HALVES, "gguf:q8_k", "fp32"), {"output.bfloat16.special"})
