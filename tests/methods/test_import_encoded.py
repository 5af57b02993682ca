"""`import_encoded`: every word as it was, moved where that is the same, refused where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from bits import bits_of
from quantform.encode import encode
from quantform.errors import ArgumentError, UnsupportedError, WordsError
from quantform.formats import FORMATS, BlockWords, GgufFormat, GroupedWords, Nvfp4Words, RowScaledWords, block_format
from quantform.methods import METHODS, Input, Request
from quantform.methods.import_encoded import MOVED_BLOCKS
from quantform.packed import PROFILES, Profile
from quantform.packed.outside import OUTSIDE_PROFILES
from ternary_blocks import as_rows, pq2_0, ptq1_0, q2_0, tq1_0, tq2_0

METHOD = METHODS["import_encoded"]
BY_NAME = {profile.name: profile for profile in (*PROFILES.values(), *OUTSIDE_PROFILES.values())}
GGUF = [record for record in FORMATS.values() if isinstance(record, GgufFormat)]


def blocks_of(name: str, rows: np.ndarray) -> BlockWords:
    profile = BY_NAME[name]
    columns = rows.shape[1] // profile.bytes * profile.values
    return BlockWords(block_format(profile), (len(rows), columns), rows)


def imported(name: str, rows: np.ndarray, target: str) -> GroupedWords:
    words = encode(blocks_of(name, rows), target)
    assert isinstance(words, GroupedWords)
    words.validate()
    return words


def test_targets() -> None:
    assert set(METHOD.targets) == {name for name, record in FORMATS.items() if record.category != "direct"}
    assert len(GGUF) == 18


@pytest.mark.parametrize("record", GGUF, ids=str)
def test_blocks_pass(packed_vectors: dict[str, np.ndarray], record: GgufFormat) -> None:
    payload = packed_vectors[f"{record.profile.identifier.removeprefix('gguf:')}/payload"].reshape(12, -1)
    for source in (payload, blocks_of(record.profile.name, payload)):
        words = encode(source, record.name, "import_encoded")
        assert isinstance(words, BlockWords)
        assert words.format is record
        assert words.shape == (12, 8 * record.profile.values)
        np.testing.assert_array_equal(words.blocks, payload)


def test_blocks_of_another_type() -> None:
    q4 = blocks_of("Q4_0", np.zeros((2, 18 * 8), np.uint8))
    with pytest.raises(UnsupportedError, match="gguf_q5_0 does not hold the words of gguf_q4_0"):
        encode(q4, "gguf_q5_0")
    with pytest.raises(
        UnsupportedError, match=r"q2_g64_fp16 does not hold the words of gguf_q4_0.*Q2_0 blocks"
    ) as caught:
        encode(q4, "q2_g64_fp16")
    assert caught.value.where == "words"
    with pytest.raises(UnsupportedError, match="does not make bf16"):
        encode(q4, "bf16", "import_encoded")


def test_rows_that_are_not_blocks() -> None:
    with pytest.raises(ArgumentError, match="not whole Q4_0 blocks"):
        encode(np.zeros((2, 19), np.uint8), "gguf_q4_0")
    with pytest.raises(ArgumentError, match="wrong type or shape"):
        encode(BlockWords(FORMATS["gguf_q4_0"], (2, 32), np.zeros((2, 19), np.uint8)), "gguf_q4_0")
    with pytest.raises(UnsupportedError, match="import_encoded needs words"):
        encode(np.zeros((2, 18)), "gguf_q4_0")


def legal_q8(block: np.ndarray) -> bool:
    word, codes = int(block[:2].view("<u2")[0]), block[2:].view(np.int8)
    return word & 0x7C00 != 0x7C00 and word != 0x8000 and codes.min() > -128 and (word != 0 or not codes.any())


def legal_q2(block: np.ndarray) -> bool:
    return int(block[:2].view("<u2")[0]) & 0x7C00 != 0x7C00


@pytest.mark.parametrize(
    ("kind", "target", "legal"), [("q8_0", "q8_g32_fp16", legal_q8), ("q2_0", "q2_g64_fp16", legal_q2)]
)
def test_golden_blocks_move_without_rounding(
    packed_vectors: dict[str, np.ndarray], kind: str, target: str, legal: Callable[[np.ndarray], bool]
) -> None:
    payload, bits = packed_vectors[f"{kind}/payload"], packed_vectors[f"{kind}/bits"].reshape(96, -1)
    good = np.array([legal(block) for block in payload])
    assert 20 < good.sum() < 96
    words = imported(kind.upper(), payload[good], target)
    np.testing.assert_array_equal(bits_of(words.decode()), bits[good])
    np.testing.assert_array_equal(words.scales[:, 0], payload[good, :2].copy().view("<u2")[:, 0])
    together = imported(kind.upper(), payload[good].reshape(1, -1), target)
    np.testing.assert_array_equal(together.codes.reshape(words.codes.shape), words.codes)
    for block in payload[~good]:
        with pytest.raises(WordsError):
            encode(blocks_of(kind.upper(), block[None, :]), target)


@pytest.mark.parametrize(
    ("scale", "code", "where", "found"),
    [
        (0x8000, 0, "row 2, group 1", "0x8000"),
        (0x0000, 1, "row 2, group 1, column 32", "1 "),
        (0x7C00, 0, "row 2, group 1", "0x7C00"),
        (0xFE00, 0, "row 2, group 1", "0xFE00"),
        (0x3800, -128, "row 2, group 1, column 32", "-128"),
    ],
)
def test_q8_contract(scale: int, code: int, where: str, found: str) -> None:
    rows = np.zeros((3, 2, 34), np.uint8)
    rows[2, 1, :2] = scale & 0xFF, scale >> 8
    rows[2, 1, 2] = code & 0xFF
    with pytest.raises(WordsError, match="choose another format") as caught:
        encode(blocks_of("Q8_0", rows.reshape(3, -1)), "q8_g32_fp16")
    assert caught.value.where == f"words, {where}"
    assert str(caught.value.found).startswith(found)


@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E01])
def test_q2_scales(scale: int) -> None:
    with pytest.raises(WordsError, match="finite binary16"):
        imported("Q2_0", as_rows([q2_0([1] * 64, scale)]), "q2_g64_fp16")
    for legal in (0x8000, 0x0000, 0x0001, 0xBC00):  # a zero scale leaves the codes free
        words = imported("Q2_0", as_rows([q2_0([0, 1, 2, 3] * 16, legal)]), "q2_g64_fp16")
        assert words.scales.tolist() == [[legal]]
        assert words.codes[0, :4].tolist() == [-1, 0, 1, 2]


def ternary(name: str) -> tuple[Callable[[Sequence[int], int], bytes], Profile]:
    make = {"TQ1_0": tq1_0, "TQ2_0": tq2_0, "Q2_0": q2_0, "PQ2_0": pq2_0, "PTQ1_0": ptq1_0}[name]
    return make, BY_NAME[name]


@pytest.mark.parametrize("name", MOVED_BLOCKS["t2_g128_fp16"])
def test_ternary_blocks(name: str) -> None:
    make, profile = ternary(name)
    rng = np.random.default_rng(6)
    digits = rng.integers(0, 3, (3, 768))
    scales = [[0x3C00, 0xB801, 0x0001], [0x2E66, 0x7BFF, 0x83FF], [0x3C00, 0x3C00, 0x1234]]
    rows = as_rows(
        *(
            [
                make(row[first : first + profile.values].tolist(), words[first // 256])
                for first in range(0, 768, profile.values)
            ]
            for row, words in zip(digits, scales, strict=True)
        )
    )
    words = imported(name, rows, "t2_g128_fp16")
    np.testing.assert_array_equal(words.codes, digits - 1)
    np.testing.assert_array_equal(words.scales, np.repeat(scales, 2, axis=1))
    blocks = np.ascontiguousarray(rows).reshape(-1).view(profile.block)
    np.testing.assert_array_equal(bits_of(words.decode()), bits_of(profile.decode(blocks).reshape(3, 768)))


@pytest.mark.parametrize("name", ["TQ2_0", "Q2_0", "PQ2_0"])
def test_plus_two_is_not_ternary(name: str) -> None:
    make, profile = ternary(name)
    digits = [1] * profile.values
    digits[5] = 3
    row = [make([1] * profile.values, 0x3C00)] * (256 // profile.values)
    with pytest.raises(WordsError, match="-1 to 1") as caught:
        imported(name, as_rows(row, [*row[:-1], make(digits, 0x3C00)]), "t2_g128_fp16")
    column = 256 - profile.values + 5
    assert caught.value.where == f"words, row 1, group {column // 128}, column {column}"
    assert str(caught.value.found).startswith("2 ")


@pytest.mark.parametrize("name", MOVED_BLOCKS["t2_g128_fp16"])
@pytest.mark.parametrize(("scale", "digit"), [(0x8000, 1), (0x7C00, 1), (0x7E00, 1), (0x0000, 0)])
def test_scales_that_t2_does_not_admit(name: str, scale: int, digit: int) -> None:
    make, profile = ternary(name)
    row = [make([digit] * profile.values, scale)] * (256 // profile.values)
    with pytest.raises(WordsError, match="row 0, group 0"):
        imported(name, as_rows(row), "t2_g128_fp16")


def test_a_t2_group_of_two_q2_blocks_has_one_scale() -> None:
    first, other = q2_0([0] * 64, 0x3C00), q2_0([2] * 64, 0x3C01)
    words = imported("Q2_0", as_rows([first, first, other]), "t2_g128_fp16")  # the last group is half a group
    assert words.scales.tolist() == [[0x3C00, 0x3C01]]
    with pytest.raises(WordsError, match="different scales") as caught:
        imported("Q2_0", as_rows([first] * 4, [first, first, first, other]), "t2_g128_fp16")
    assert caught.value.where == "words, row 1, group 1"
    assert (caught.value.expected, caught.value.found) == ("0x3C00 (1.0)", "0x3C01 (1.0009765625) in block 3")
    assert imported("Q2_0", as_rows([first, other]), "q2_g64_fp16").scales.tolist() == [[0x3C00, 0x3C01]]


def test_rows_keep_their_numbers_across_pieces() -> None:
    rows = np.zeros((5000, 34), np.uint8)
    rows[4321, 1] = 0x80
    source = Input.of_words(blocks_of("Q8_0", rows), "blk.0.weight")
    job = METHOD.start(Request(format=FORMATS["q8_g32_fp16"], shape=(5000, 32), inputs=(source,)))
    assert job.rows(0, 4321).shape == (4321, 32)
    with pytest.raises(WordsError, match=r"^blk\.0\.weight, row 4321, group 0: "):
        job.rows(4300, 5000)


@pytest.mark.parametrize("format", ["q2_g64_fp16", "t2_g128_fp16"])
def test_grouped_words_pass(ninfer_vectors: dict[str, np.ndarray], format: str) -> None:
    codes, scales = (ninfer_vectors[f"words/{format}/3x130/{name}"] for name in ("codes", "scales"))
    words = encode(GroupedWords(FORMATS[format], (3, 130), codes, scales), format)
    assert isinstance(words, GroupedWords)
    np.testing.assert_array_equal(words.codes, codes)
    np.testing.assert_array_equal(words.scales, scales)


def fp8(rows: int, scale: int, code: int) -> RowScaledWords:
    codes = np.full((rows, 8), 0x38, np.uint8)
    codes[-1, 3] = code
    return RowScaledWords(
        FORMATS["fp8_e4m3fn_row_bf16"], (rows, 8), codes, np.array([0x3F80] * (rows - 1) + [scale], np.uint16)
    )


def test_fp8_words_pass_or_are_refused() -> None:
    words = encode(fp8(3, 0x0001, 0x80), "fp8_e4m3fn_row_bf16", "import_encoded")
    assert isinstance(words, RowScaledWords)
    assert words.codes[2].tolist() == [0x38] * 3 + [0x80] + [0x38] * 4
    for scale, code in ((0x8000, 0), (0x7F80, 0), (0x3F80, 0x7F), (0x3F80, 0xFF), (0x0000, 0x38)):
        bad = fp8(3, scale, code)
        with pytest.raises(WordsError, match=r"^row 2"):
            encode(bad, "fp8_e4m3fn_row_bf16", "import_encoded")
        request = Request(format=bad.format, shape=bad.shape, inputs=(Input.of_words(bad, "w"),))
        with pytest.raises(WordsError, match=r"^w, row 2"):
            METHOD.start(request).rows(1, 3)
    with pytest.raises(UnsupportedError, match="does not hold the words of fp8_e4m3fn_row_bf16"):
        encode(fp8(1, 0x3F80, 0), "fp8_e4m3fn_row_fp16", "import_encoded")


def stored(ninfer_vectors: dict[str, np.ndarray], key: str) -> Nvfp4Words:
    rows, columns, _ = map(int, key.split("x"))
    codes, scales, divisors = (ninfer_vectors[f"words/nvfp4/{key}/{name}"] for name in ("codes", "scales", "divisors"))
    if codes.shape[1] == columns:
        codes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return Nvfp4Words(FORMATS["nvfp4"], (rows, columns), codes, scales, divisors.view(np.uint32))


def test_nvfp4_words_pass(ninfer_vectors: dict[str, np.ndarray]) -> None:
    for key in ("128x64x1", "256x128x2"):
        source = stored(ninfer_vectors, key)
        words = encode(source, "nvfp4")
        assert isinstance(words, Nvfp4Words)
        for name in ("codes", "scales", "divisors"):
            np.testing.assert_array_equal(getattr(words, name), getattr(source, name))
        np.testing.assert_array_equal(words.decode().view(np.uint32), ninfer_vectors[f"words/nvfp4/{key}/decoded"])


def matrix(rows: int, divisor: float, code: int) -> Nvfp4Words:
    return Nvfp4Words(
        FORMATS["nvfp4"],
        (rows, 16),
        np.full((rows, 8), code, np.uint8),
        np.full((rows, 1), 0x38, np.uint8),
        np.array([divisor], np.float32).view(np.uint32),
    )


def stacked(*parts: Nvfp4Words) -> Request:
    inputs = tuple(Input.of_words(part, f"part{index}") for index, part in enumerate(parts))
    return Request(format=FORMATS["nvfp4"], shape=(sum(part.shape[0] for part in parts), 16), inputs=inputs)


def test_nvfp4_sources_with_one_divisor_share_it() -> None:
    job = METHOD.start(stacked(matrix(3, 2.0, 1), matrix(5, 2.0, 2)))
    assert job.divisors == 1
    assert list(job.chunks(3)) == [(0, 3), (3, 6), (6, 8)]
    words = job.rows(2, 5)
    assert isinstance(words, Nvfp4Words)
    assert words.codes[:, 0].tolist() == [1, 2, 2]
    assert words.divisors.view(np.float32).tolist() == [2.0]


def test_nvfp4_sources_with_several_divisors_are_stacked() -> None:
    job = METHOD.start(stacked(matrix(4, 2.0, 1), matrix(4, 3.0, 2), matrix(4, 2.0, 3)))
    assert job.divisors == 3
    assert list(job.chunks(3)) == [(0, 3), (3, 4), (4, 7), (7, 8), (8, 11), (11, 12)]
    whole = job.words()
    whole.validate()
    assert isinstance(whole, Nvfp4Words)
    assert whole.divisors.view(np.float32).tolist() == [2.0, 3.0, 2.0]
    part = job.rows(5, 7)
    assert isinstance(part, Nvfp4Words)
    assert part.divisors.view(np.float32).tolist() == [3.0]
    np.testing.assert_array_equal(part.decode(), whole.decode()[5:7])
    with pytest.raises(ArgumentError, match="several divisors"):
        job.rows(3, 5)
    again = METHOD.start(stacked(whole))
    assert again.divisors == 3
    np.testing.assert_array_equal(again.words().decode(), whole.decode())


def test_nvfp4_refusals() -> None:
    with pytest.raises(ArgumentError, match=r"equal row counts.*part0: 4 rows a divisor, part1: 5 rows a divisor"):
        METHOD.start(stacked(matrix(4, 2.0, 1), matrix(5, 3.0, 2)))
    for bad in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(WordsError, match="finite positive binary32"):
            METHOD.start(stacked(matrix(4, bad, 1)))
    negative = replace(matrix(4, 1.0, 1), scales=np.array([[0], [0], [0x80], [0x7F]], np.uint8))
    with pytest.raises(WordsError, match="part0, row 2, group 0"):
        METHOD.start(stacked(negative)).rows(1, 4)
    changing = Input(name="w", shape=(4, 16), words=lambda first, end: matrix(end - first, 1.0 + first, 0))
    job = METHOD.start(Request(format=FORMATS["nvfp4"], shape=(4, 16), inputs=(changing,)))
    with pytest.raises(WordsError, match="w, row 2: rows of one source matrix have different divisors"):
        job.rows(2, 4)
    unknown = Input(name="w", shape=(4, 16), words=changing.words, divisors=np.ones(3, np.uint32))
    with pytest.raises(ArgumentError, match="do not share the rows evenly"):
        METHOD.start(Request(format=FORMATS["nvfp4"], shape=(4, 16), inputs=(unknown,)))
