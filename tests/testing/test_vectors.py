"""The kit is judged by others: by scalar oracles written from the texts, and by counts of what it must contain."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import encoder_oracle
import ninfer_oracle
from bits import bits_of
from quantform._scalars import FLOAT_OUTPUTS
from quantform.formats import FORMATS, DirectFormat, GgufFormat, GroupedFormat
from quantform.layouts import LAYOUTS
from quantform.methods import METHODS
from quantform.packed import PROFILES
from quantform.packed.codebooks import codebooks
from quantform.testing import RULES, EncoderVector, Vector, decoder_cases, encoder_vectors, vectors
from quantform.testing.differences import exercised
from quantform.testing.packed_parts import BENCHES
from quantform.testing.plain_random import PlainRandom

EVERY = tuple(vectors())
ENCODERS = tuple(encoder_vectors())


def of(name: str) -> dict[str, Vector]:
    return {vector.identifier.partition("/")[2]: vector for vector in vectors(name)}


# --- what there is --------------------------------------------------------------------------------------------------


def test_every_profile_and_every_format_in_every_layout_has_vectors() -> None:
    assert set(BENCHES) == set(PROFILES)
    found = {(vector.format, vector.layout) for vector in EVERY}
    expected = {(name, "") for name in PROFILES}
    expected |= {(name, layout.name) for layout in LAYOUTS.values() for name in layout.formats}
    assert found == expected


def test_every_method_has_vectors_for_every_format_that_it_makes() -> None:
    found = {(vector.method, vector.format) for vector in ENCODERS}
    expected = {(method.name, name) for method in METHODS.values() for name in method.targets}
    # import_encoded also copies words of formats that no block has; there is nothing to be got wrong about a copy.
    copied = {"q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "nvfp4", *_fp8()}
    assert expected - found == {("import_encoded", name) for name in copied}
    assert found <= expected


def _fp8() -> list[str]:
    return [name for name in FORMATS if name.startswith("fp8_")]


def test_identifiers_are_unique_and_every_rule_has_a_vector() -> None:
    names = [vector.identifier for vector in EVERY] + [vector.identifier for vector in ENCODERS]
    assert len(names) == len(set(names))
    used = {vector.rule for vector in EVERY} | {vector.rule for vector in ENCODERS}
    for vector in EVERY:
        for output in FLOAT_OUTPUTS:
            used |= exercised(vector, output).keys()
    assert used == set(RULES)
    for rule in RULES.values():
        assert rule.meaning[0].isupper() or rule.meaning.startswith(("d,", "m,", "dmin,", "amax", "int32"))
        assert not rule.meaning.endswith(".")


def test_it_is_small() -> None:
    size = sum(vector.payload.nbytes + sum(array.nbytes for array in vector.values.values()) for vector in EVERY)
    assert size < 12 << 20


def test_plain_random_is_what_it_says() -> None:
    # the first outputs of SplitMix64 seeded with FNV-1a of "a", worked out with Python's integers
    state, outputs = 0xAF63DC4C8601EC8C, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ z >> 31)
    random = PlainRandom("a")
    assert random.words(2).tolist() + random.words(1).tolist() == outputs
    drawn = PlainRandom("b").integers(-3, 4, (20, 30))
    assert (drawn.min(), drawn.max(), drawn.shape) == (-3, 3, (20, 30))


# --- what it contains -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_scales_of_every_kind_are_there(profile: Any) -> None:
    """Zero, negative zero, subnormal, largest, infinities and NaN, wherever a block has a number."""
    blocks = np.concatenate([vector.payload for vector in vectors(profile.identifier)]).view(profile.block)
    for name in profile.block.names:
        dtype = profile.block[name]
        if dtype.kind != "f" or name == "s":
            continue
        found = set(np.unique(blocks[name].view(f"<u{dtype.itemsize}")).tolist())
        sign = 1 << 8 * dtype.itemsize - 1
        infinity, one = (0x7C00, 1) if dtype.itemsize == 2 else (0x7F800000, 1)
        assert {0, sign, sign | one, sign | infinity - 1, infinity, sign | infinity} <= found
        assert any(word & ~sign > infinity for word in found)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gguf:q4_0", range(-8, 8)),
        ("gguf:q4_1", range(16)),
        ("gguf:q8_0", range(-128, 128)),
        ("gguf:q8_1", range(-128, 128)),
        ("gguf:q8_k", range(-128, 128)),
        ("gguf:q2_k", range(4)),
        ("gguf:q4_k", range(16)),
        ("gguf:iq4_nl", (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
        ("gguf:iq4_xs", (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
        ("gguf:tq1_0", (-1, 0, 1)),
        ("gguf:tq2_0", (-1, 0, 1, 2)),
        ("gguf:mxfp4", (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6)),
        ("gguf:nvfp4", (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6)),
        ("gguf:q1_0", (-1, 1)),
        ("gguf:q2_0", (-1, 0, 1, 2)),
        ("q2_g64_fp16", range(-1, 3)),
        ("q4_g64_fp16", range(-8, 8)),
        ("q5_g64_fp16", range(-16, 16)),
        ("q6_g64_fp16", range(-32, 32)),
        ("q8_g32_fp16", range(-127, 128)),
        ("t2_g128_fp16", range(-1, 2)),
        ("nvfp4", (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6)),
    ],
)
def test_every_code_is_there_under_a_scale_of_one(name: str, values: Sequence[float]) -> None:
    own = of(name)
    rules = ("q", "q-order") if name in BENCHES else ("codes", "order")
    found = {value for rule in rules for value in own[rule].values["float64"].reshape(-1).tolist()}
    assert found == set(map(float, values))


@pytest.mark.parametrize(
    ("name", "low", "high", "step"),
    [
        ("gguf:q5_0", "q", "high", 16),
        ("gguf:q5_1", "q", "high", 16),
        ("gguf:q3_k", "q", "mask", 4),
        ("gguf:q5_k", "q", "high", 16),
        ("gguf:q6_k", "low", "high", 16),
    ],
)
def test_low_and_high_bits_are_there_in_turn_and_together(name: str, low: str, high: str, step: int) -> None:
    own = of(name)
    lows = set(own[f"{low}-order"].values["float64"].reshape(-1).tolist())
    highs = set(own[f"{high}-order"].values["float64"].reshape(-1).tolist())
    width = 2 if name == "gguf:q6_k" else 1
    assert len(lows) == step
    assert lows == set(range(int(min(lows)), int(min(lows)) + step))
    assert highs == {min(highs) + step * bits for bits in range(1 << width)}
    blocks = own["together"].payload.view(PROFILES[name].block)
    assert len(np.unique(blocks[low])) > 50
    assert len(np.unique(blocks[high])) > 30


GRIDS = {
    "gguf:iq2_xxs": ("iq2xxs_grid", 8.0),
    "gguf:iq2_xs": ("iq2xs_grid", 8.0),
    "gguf:iq2_s": ("iq2s_grid", 8.0),
    "gguf:iq3_xxs": ("iq3xxs_grid", 4.0),
    "gguf:iq3_s": ("iq3s_grid", 1.0),
    "gguf:iq1_s": ("iq1s_grid", 1.0),
    "gguf:iq1_m": ("iq1s_grid", 1.0),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_row_of_every_codebook_is_there(name: str) -> None:
    grid = codebooks()[GRIDS[name][0]].astype(np.float64) + (0.125 if name.startswith("gguf:iq1") else 0)
    own = of(name)
    low = own["grid"].values["float64"].reshape(-1, grid.shape[1])
    np.testing.assert_array_equal(low, grid[: len(low)])  # in turn
    if "high" not in own:
        assert len(low) == len(grid)
        return
    assert len(low) == 256
    high = own["high"].values["float64"].reshape(-1, grid.shape[1])
    expected = grid if name == "gguf:iq3_s" else grid[256:]
    assert not np.array_equal(high, expected)  # in disorder
    np.testing.assert_array_equal(high[np.lexsort(high.T)], expected[np.lexsort(expected.T)])


def test_every_scale_byte_of_the_fp4_profiles_is_there() -> None:
    assert sorted(of("gguf:mxfp4")["exponent"].payload.reshape(-1, 17)[:, 0].tolist()) == list(range(256))
    assert sorted(of("gguf:nvfp4")["scales"].payload.reshape(-1, 36)[:, :4].reshape(-1).tolist()) == list(range(256))
    assert set(of("nvfp4")["scales"].words["scales"].reshape(-1).tolist()) == set(range(127))
    for name in _fp8():
        codes = set(of(name)["codes"].words["codes"].reshape(-1).tolist())
        assert codes == set(range(256)) - {0x7F, 0xFF}


ENDS = {
    "gguf:q2_k": (0, 15),
    "gguf:q3_k": (-32, 31),
    "gguf:q4_k": (0, 63),
    "gguf:q5_k": (0, 63),
    "gguf:q6_k": (-128, 127),
    "gguf:iq4_xs": (0, 15),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_ends_of_local_scales_are_there(name: str) -> None:
    values = of(name)["scales"].values["float64"]
    assert (values.min(), values.max()) == ENDS[name]
    if name == "gguf:iq4_xs":  # the bits above
        assert set(of(name)["high"].values["float64"].reshape(-1).tolist()) == {-31.0, -15.0, 1.0, 17.0}
    if "minima" in of(name):
        minima = -of(name)["minima"].values["float64"]
        assert (minima.min(), minima.max()) == ENDS[name]


def test_shapes_of_every_kind_are_there() -> None:
    shapes = {vector.shape for vector in EVERY}
    assert () in shapes
    assert any(0 in shape for shape in shapes)
    assert {len(shape) for shape in shapes} == {0, 2, 3}
    for record in FORMATS.values():
        if isinstance(record, GroupedFormat):
            own = [vector.shape for vector in vectors(record.name)]
            assert any(columns % record.group for _, columns in own)
            assert any(columns % 128 == 1 for _, columns in own)
            assert any(rows > 1 and columns > 128 for rows, columns in own)
    assert {vector.divisors for vector in vectors("nvfp4")} == {1, 2}
    assert any(vector.shape[1] > 64 for vector in vectors("nvfp4"))


# --- what it says, against others -----------------------------------------------------------------------------------


def test_the_gguf_formats_are_their_profiles() -> None:
    for record in FORMATS.values():
        if isinstance(record, GgufFormat):
            for own, packed in zip(vectors(record.name), vectors(record.profile.identifier), strict=True):
                assert own.rule == packed.rule
                assert own.payload is packed.payload
                assert LAYOUTS[own.layout].encoded_size(record, own.shape) == own.payload.size


def scalar(code: int, scale: float) -> int:
    """`M(d, code)` as a word, one rounding on exact fractions; an infinite or NaN scale is Python's own business."""
    if not np.isfinite(scale):
        return int(bits_of(np.array([scale * code], np.float32))[0])
    exact = Fraction(scale) * code
    if exact == 0:
        return int(np.signbit(scale) ^ (code < 0)) << 31
    sign = int(exact < 0)
    return ninfer_oracle.binary32((sign, abs(exact)))


@pytest.mark.parametrize("name", ["gguf:q8_1", "gguf:q8_k", "gguf:q1_0", "gguf:q2_0"])
def test_profiles_that_the_gguf_package_lacks(name: str) -> None:
    """The others are compared with that package in `test_gguf_package.py`."""
    profile = PROFILES[name]
    for vector in vectors(name):
        words = bits_of(vector.values["float32"]).reshape(-1, profile.values)
        for block, found in zip(vector.payload.reshape(-1, profile.bytes), words, strict=True):
            data = block.tobytes()
            if name == "gguf:q8_1":
                d, codes = struct.unpack("<e", data[:2])[0], struct.unpack("<32b", data[4:])
            elif name == "gguf:q8_k":
                d, codes = struct.unpack("<f", data[:4])[0], struct.unpack("<256b", data[4:260])
            else:
                d, bits = struct.unpack("<e", data[:2])[0], int.from_bytes(data[2:], "little")
                codes = (
                    tuple(1 if bits >> j & 1 else -1 for j in range(128))
                    if name == "gguf:q1_0"
                    else tuple((bits >> 2 * j & 3) - 1 for j in range(64))
                )
            assert found.tolist() == [scalar(code, d) for code in codes], vector.identifier


@pytest.mark.parametrize("name", [name for name, record in FORMATS.items() if isinstance(record, GroupedFormat)])
def test_grouped_formats_by_the_oracle(name: str) -> None:
    record = FORMATS[name]
    assert isinstance(record, GroupedFormat)
    for vector in vectors(name):
        codes, scales = vector.words["codes"].tolist(), vector.words["scales"].tolist()
        assert vector.payload.tobytes() == ninfer_oracle.row_split(name, codes, scales), vector.identifier
        expected = [
            [ninfer_oracle.grouped_value(code, row_scales[k // record.group]) for k, code in enumerate(row)]
            for row, row_scales in zip(codes, scales, strict=True)
        ]
        assert vector.values["float32"].view(np.uint32).tolist() == expected, vector.identifier


def test_nvfp4_by_the_oracle() -> None:
    for vector in vectors("nvfp4"):
        packed = vector.words["codes"]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(vector.shape).tolist()
        scales, divisors = vector.words["scales"].tolist(), vector.words["divisors"].tolist()
        assert vector.payload.tobytes() == ninfer_oracle.block_scale(codes, scales, divisors)
        share = vector.shape[0] // vector.divisors
        for n in (*range(0, vector.shape[0], 17), vector.shape[0] - 1):
            expected = [
                ninfer_oracle.nvfp4_value(code, scales[n][k // 16], divisors[n // share])
                for k, code in enumerate(codes[n])
            ]
            assert vector.values["float32"][n].view(np.uint32).tolist() == expected, (vector.identifier, n)


@pytest.mark.parametrize("name", _fp8())
def test_fp8_rows_by_the_oracle(name: str) -> None:
    bf16 = name.endswith("bf16")
    place = ninfer_oracle.row_scale if bf16 else ninfer_oracle.row_interleaved
    for vector in vectors(name):
        codes, scales = vector.words["codes"].tolist(), vector.words["scales"].tolist()
        assert vector.payload.tobytes() == place(codes, scales)
        for row, scale, found in zip(codes, scales, vector.values["float32"], strict=True):
            value = ninfer_oracle.bf16(scale) if bf16 else ninfer_oracle.fp16(scale)
            assert found.view(np.uint32).tolist() == [ninfer_oracle.fp8_value(code, value) for code in row]


def test_direct_formats_by_their_words() -> None:
    for record in FORMATS.values():
        if not isinstance(record, DirectFormat):
            continue
        for vector in vectors(record.name):
            words = vector.words["words"]
            assert vector.payload.tobytes() == words.astype(words.dtype.newbyteorder("<")).tobytes()
            for word, found in zip(words.reshape(-1).tolist(), vector.values["float64"].reshape(-1), strict=True):
                if record.name == "int32":
                    assert found == (word if word < 2**31 else word - 2**32)
                else:
                    bits = word << 16 if record.name == "bf16" else word
                    expected = struct.unpack("<f", struct.pack("<I", bits))[0]
                    assert found == expected or (np.isnan(found) and np.isnan(expected))


@pytest.mark.parametrize("output", ["float16", "bfloat16"])
def test_conversions_by_exact_fractions(output: str) -> None:
    kind = encoder_oracle.FP16 if output == "float16" else encoder_oracle.BF16
    infinity = 0x7C00 if output == "float16" else 0x7F80
    for name in ("gguf:mxfp4", "gguf:q5_1", "int32", "nvfp4", "fp8_e4m3fn_row_bf16"):
        for vector in vectors(name):
            exact = vector.values["float64"].reshape(-1)[:80]
            words = vector.values[output].view(np.uint16).reshape(-1)[:80]
            for value, word in zip(exact.tolist(), words.tolist(), strict=True):
                if np.isnan(value):
                    assert word & 0x7FFF > infinity
                    continue
                sign = int(np.signbit(value)) << 15
                try:
                    rounded = encoder_oracle.round_to(Fraction(abs(value)), kind)
                    expected = encoder_oracle.word_of(rounded, kind)
                except (encoder_oracle.RefusedError, OverflowError):
                    expected = infinity
                assert word == expected | sign, (vector.identifier, value)


def encoded(vector: EncoderVector) -> dict[str, list[Any]]:
    """The words of one encoder vector, by the oracles; empty where the text says that encoding fails."""
    rows = vector.values.astype(np.float64).tolist()
    if vector.method == "nvfp4_maxabs":
        codes, scales, divisor = encoder_oracle.nvfp4(rows)
        packed = [[low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)] for row in codes]
        return {"codes": packed, "scales": scales, "divisors": [divisor]}
    if vector.method == "fp8_row_maxabs":
        kind = encoder_oracle.BF16 if vector.format.endswith("bf16") else encoder_oracle.FP16
        both = [encoder_oracle.fp8_row(row, kind) for row in rows]
        return {"codes": [codes for codes, _ in both], "scales": [scale for _, scale in both]}
    group, qmin, qmax = encoder_oracle.GRIDS[vector.format]
    importance = vector.parameters.get("importance", np.ones(len(rows[0]))).tolist()
    all_codes: list[list[int]] = []
    all_scales: list[list[int]] = []
    for row in rows:
        row_codes: list[int] = []
        row_scales: list[int] = []
        for first in range(0, len(row), group):
            values = row[first : first + group]
            if vector.method == "grouped_absmax":
                found, scale = encoder_oracle.absmax(values, qmin, qmax)
            else:
                weights = importance[first : first + group]
                negative = bool(vector.parameters.get("negative_scales"))
                found, scale = encoder_oracle.search(values, group, qmin, qmax, weights, negative=negative)
            row_codes += found
            row_scales.append(scale)
        all_codes.append(row_codes)
        all_scales.append(row_scales)
    return {"codes": all_codes, "scales": all_scales}


@pytest.mark.parametrize(
    "vector",
    [
        vector
        for vector in ENCODERS
        if vector.method in {"grouped_absmax", "grouped_search", "fp8_row_maxabs", "nvfp4_maxabs"}
        and not vector.rule.endswith("nonfinite")
        and vector.rule != "encode.fp8_row_maxabs.refused-tiny"  # the oracle's numbers have no infinite reciprocal
    ],
    ids=str,
)
def test_encoders_by_the_oracle(vector: EncoderVector) -> None:
    if vector.payload is None:
        with pytest.raises(encoder_oracle.RefusedError):
            encoded(vector)
        return
    for name, expected in encoded(vector).items():
        assert vector.words[name].tolist() == expected, name


def test_encoders_refuse_what_is_not_finite() -> None:
    refused = [vector for vector in ENCODERS if vector.rule.endswith("nonfinite")]
    assert {vector.format for vector in refused} >= {name for name in FORMATS if not name.startswith("gguf")} - {
        "q2_g64_fp16",
        "t2_g128_fp16",
    }
    for vector in ENCODERS:
        assert (vector.payload is None) == ("/refused" in vector.identifier)
        if vector in refused:
            assert not np.isfinite(vector.values).all()


def test_casts_by_hand() -> None:
    own = {vector.identifier: vector for vector in ENCODERS if vector.method == "cast_direct"}
    near = own["cast_direct/bf16/nearest"].words["words"].reshape(-1)[:7].tolist()
    # a tie to even below, one above, just beyond one, just short of one, and the same among subnormals
    assert near == [0x3F80, 0x3F82, 0x3F81, 0xBF80, 0x0000, 0x0002, 0x0000]
    wide = own["cast_direct/fp32/nearest"].words["words"].reshape(-1).tolist()
    assert wide == [0x3F800000, 0x3F800002, 0x3F800001, 0x00000000, 0x00000002, 0x3DCCCCCD]
    whole = own["cast_direct/int32/integers"].words["words"].view(np.int32).reshape(-1).tolist()
    assert whole == [0, 0, 1, -16777216, 2147483520, -(2**31)]


def test_blocks_move_into_planes_unchanged() -> None:
    for vector in ENCODERS:
        if vector.method != "import_encoded" or vector.payload is None:
            continue
        if vector.rule.endswith("blocks"):
            assert vector.payload.tobytes() == vector.values.tobytes()
            continue
        profile = PROFILES[vector.source]
        decoded = profile.decode(vector.values.reshape(-1).view(profile.block)).reshape(vector.shape)
        scales = np.repeat(vector.words["scales"], vector.shape[1] // vector.words["scales"].shape[1], axis=1)
        values = scales.view(np.float16).astype(np.float32) * vector.words["codes"].astype(np.float32)
        np.testing.assert_array_equal(bits_of(values), bits_of(decoded))


def test_cases_are_arguments_of_parametrize() -> None:
    cases = decoder_cases("gguf:q4_?")
    assert cases["argnames"] == "vector"
    assert list(cases["ids"]) == [vector.identifier for vector in cases["argvalues"]]
    assert {vector.format for vector in cases["argvalues"]} == {"gguf:q4_0", "gguf:q4_1", "gguf:q4_k"}


def test_nothing_in_a_vector_can_be_changed_by_the_code_under_test() -> None:
    arrays: list[npt.NDArray[Any]] = []
    for vector in EVERY:
        arrays += [vector.payload, *vector.values.values()]
    for source in ENCODERS:
        arrays += [source.values] + ([] if source.payload is None else [source.payload])
    assert not any(array.flags.writeable for array in arrays)
