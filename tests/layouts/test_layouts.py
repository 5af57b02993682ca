"""What holds of every layout: the registry, refusals, sizes, and words that come back from their bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantform._rows import matrix_shape
from quantform.errors import ArgumentError, UnknownNameError, WordsError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat, GroupedFormat, Words, direct_format
from quantform.layouts import LAYOUTS, Layout, reader_of
from words_maker import PAIR_IDS, PAIRS, assert_same_words, divisors_of, faults_of, fields, make_words, stored

every_pair = pytest.mark.parametrize(("layout", "record"), PAIRS, ids=PAIR_IDS)
REFUSED = [
    (layout, record) for layout in LAYOUTS.values() for record in FORMATS.values() if record.name not in layout.formats
]


def test_the_seven_layouts_and_their_formats() -> None:
    direct = tuple(name for name, record in FORMATS.items() if isinstance(record, DirectFormat))
    grouped = tuple(name for name, record in FORMATS.items() if isinstance(record, GroupedFormat))
    gguf = tuple(name for name, record in FORMATS.items() if isinstance(record, GgufFormat))
    assert {name: layout.formats for name, layout in LAYOUTS.items()} == {
        "contiguous_le_v1": direct,
        "row_split_k128_v1": grouped,
        "block_scale_k16_m128x4_v1": ("nvfp4",),
        "row_scale_v1": ("fp8_e4m3fn_row_bf16",),
        "row_interleaved_v1": ("fp8_e4m3fn_row_fp16",),
        "gguf_blocks_v1": gguf,
        "raw_bytes_v1": (),
    }
    assert (len(direct), len(grouped), len(gguf)) == (3, 6, 18)
    assert [layout.alignment for layout in LAYOUTS.values()] == [256] * 6 + [1]


def test_each_format_has_one_layout() -> None:
    assert sorted(record.name for _, record in PAIRS) == sorted(FORMATS)
    assert all(record.default_layout == layout.name for layout, record in PAIRS)


@pytest.mark.parametrize(("layout", "record"), REFUSED, ids=lambda value: value.name)
def test_every_other_pair_is_refused(layout: Layout, record: Format) -> None:
    shape = (128, 256)
    words = make_words(record, shape, np.random.default_rng(0))
    problem = "holds resources" if layout.name == "raw_bytes_v1" else f"does not accept format {record.name}"

    def read(offset: int, out: np.ndarray) -> None:
        pytest.fail(f"{out.size} bytes of a refused tensor were read at {offset}")

    for use in (
        lambda: layout.encoded_size(record.name, shape),
        lambda: layout.encoded_size(record, shape),
        lambda: layout.unpack(np.zeros(1, np.uint8), record, shape),
        lambda: layout.words_of_rows(read, record, shape, [0]),
        lambda: list(layout.faults(read, record, shape)),
        lambda: layout.pack(words),
    ):
        with pytest.raises(ArgumentError, match=problem):
            use()


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS.values() if layout.formats], ids=lambda x: x.name)
def test_unknown_and_foreign_formats(layout: Layout) -> None:
    with pytest.raises(UnknownNameError, match="q9"):
        layout.encoded_size("q9", (128, 256))
    with pytest.raises(UnknownNameError):
        layout.encoded_size(None, (128, 256))  # type: ignore[arg-type]
    imposter = direct_format(FORMATS["bf16"].scalar)  # type: ignore[attr-defined]
    object.__setattr__(imposter, "name", layout.formats[0])
    if layout.name in {"row_split_k128_v1", "gguf_blocks_v1"}:
        with pytest.raises(ArgumentError, match="not described as"):
            layout.encoded_size(imposter, (128, 256))


@every_pair
@given(data=st.data())
def test_words_come_back(layout: Layout, record: Format, data: st.DataObject) -> None:
    words = data.draw(stored(layout, record))
    divisors = divisors_of(words)
    payload = layout.pack(words)
    assert payload.dtype == np.uint8
    assert payload.shape == (layout.encoded_size(record.name, words.shape, divisors),)
    back = layout.unpack(payload, record.name, words.shape, divisors)
    assert_same_words(back, words)
    back.validate()
    assert faults_of(layout, payload, record, words.shape, divisors) == []


@every_pair
@given(data=st.data())
def test_rows_of_words_are_words_of_rows(layout: Layout, record: Format, data: st.DataObject) -> None:
    words = data.draw(stored(layout, record))
    divisors = divisors_of(words)
    payload = layout.pack(words)
    values = layout.unpack(payload, record, words.shape, divisors).decode()
    matrix = values.reshape(matrix_shape(words.shape))
    count = len(matrix)
    some = st.lists(st.integers(-count, count - 1), max_size=9) if count else st.just([])
    ends = st.none() | st.integers(-count - 1, count + 1)
    rows = data.draw(some | st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1])))
    found = layout.words_of_rows(reader_of(payload), record, words.shape, rows, divisors)
    expected = matrix[rows]
    assert found.shape == expected.shape
    found.validate()
    np.testing.assert_array_equal(
        found.decode().view(f"u{values.itemsize}"), expected.view(f"u{values.itemsize}"), err_msg=str(rows)
    )


@every_pair
def test_no_other_rows_codes_are_read(layout: Layout, record: Format) -> None:
    """Reads ask for the bytes of the rows wanted, each once, and nothing when none is wanted."""
    shape = (256, 256)
    words = make_words(record, shape, np.random.default_rng(1))
    payload = layout.pack(words)
    spans: list[tuple[int, int]] = []

    def read(offset: int, out: np.ndarray) -> None:
        assert out.flags.c_contiguous
        spans.append((offset, out.size))
        reader_of(payload)(offset, out)

    found = layout.words_of_rows(read, record, shape, [200])
    tile = 256 // 16 * 127 if record.name == "nvfp4" else 0  # the scales of the tile's other rows
    whole = layout.encoded_size(record, shape)
    assert sum(size for _, size in spans) <= -(-whole // 256) + tile + 4
    assert found.shape == (1, 256)
    spans.clear()
    assert layout.words_of_rows(read, record, shape, slice(9, 9)).decode().shape == (0, 256)
    assert sum(size for _, size in spans) <= 4
    with pytest.raises(ArgumentError, match="row is outside the tensor; expected 0 to 255, found 256"):
        layout.words_of_rows(read, record, shape, [3, 256])


@every_pair
def test_payloads_in_any_buffer(layout: Layout, record: Format) -> None:
    """Read-only, unaligned and strided payloads, and bytes, have the same words."""
    shape = (128, 256)
    words = make_words(record, shape, np.random.default_rng(2))
    payload = layout.pack(words)
    odd = np.zeros(payload.size + 1, np.uint8)[1:]
    odd[...] = payload
    apart = np.zeros(2 * payload.size, np.uint8)[::2]
    apart[...] = payload
    for buffer in (odd, apart, payload.tobytes(), memoryview(payload.tobytes()), bytearray(payload)):
        back = layout.unpack(buffer, record, shape)
        assert_same_words(back, words)
        np.testing.assert_array_equal(back.decode("float64").view(np.uint64), words.decode("float64").view(np.uint64))
        assert all(array.flags.aligned for array in fields(back).values())


@every_pair
def test_payloads_of_the_wrong_length_or_type(layout: Layout, record: Format) -> None:
    shape = (128, 256)
    size = layout.encoded_size(record, shape)
    for other in (size - 1, size + 1, 0):
        with pytest.raises(ArgumentError, match=f"wrong length; expected {size} bytes, found {other} bytes"):
            layout.unpack(np.zeros(other, np.uint8), record, shape)
    for data in (np.zeros(size, np.int8), np.zeros((1, size), np.uint8), "text"):
        with pytest.raises(ArgumentError, match="not a vector of bytes"):
            layout.unpack(data, record, shape)


@every_pair
def test_shapes_that_no_layout_holds(layout: Layout, record: Format) -> None:
    for shape in ([-1, 256], [1.5, 256], "ab", None, [True, 256]):
        with pytest.raises(ArgumentError, match="shape"):
            layout.encoded_size(record, shape)  # type: ignore[arg-type]
    if isinstance(record, DirectFormat):
        assert layout.encoded_size(record, [1] * 16) == record.scalar.nbytes
        with pytest.raises(ArgumentError, match="rank"):
            layout.encoded_size(record, [1] * 17)
        return
    for shape in ([], [256], [1, 128, 256]):
        with pytest.raises(ArgumentError, match="rank"):
            layout.encoded_size(record, shape)
    if not isinstance(record, GgufFormat):
        for shape in ([0, 256], [128, 0]):
            with pytest.raises(ArgumentError, match="zero"):
                layout.encoded_size(record, shape)


@every_pair
def test_divisors(layout: Layout, record: Format) -> None:
    shape = (384, 256)
    for divisors in (0, -1, True, 1.0, "1", None):
        with pytest.raises(ArgumentError, match="divisors"):
            layout.encoded_size(record, shape, divisors)  # type: ignore[arg-type]
    if record.name == "nvfp4":
        one = layout.encoded_size(record, shape)
        assert layout.encoded_size(record, shape, np.int64(3)) == one + 8  # type: ignore[arg-type]
        for divisors in (2, 6, 384):
            with pytest.raises(ArgumentError, match="divisors do not share 384 rows"):
                layout.encoded_size(record, shape, divisors)
    else:
        with pytest.raises(ArgumentError, match="has no divisors; expected 1, found 3"):
            layout.encoded_size(record, shape, 3)


@every_pair
def test_huge_sizes_are_exact_and_bounded(layout: Layout, record: Format) -> None:
    """2^40 rows are counted and never allocated; what leaves U64 is refused."""
    rows = 2**40
    one, two = (layout.encoded_size(record, (128 * n, 256)) for n in (1, 2))
    assert layout.encoded_size(record, (rows, 256)) == (two - one) * (rows // 128) + 2 * one - two
    for shape in ((2**63, 256), (2**40, 2**40), (2**200, 256)):
        with pytest.raises(ArgumentError, match="unsigned 64-bit"):
            layout.encoded_size(record, shape)
    with pytest.raises(ArgumentError, match="wrong length"):
        layout.unpack(np.zeros(9, np.uint8), record, (rows, 256))


@every_pair
def test_illegal_words_are_not_packed(layout: Layout, record: Format) -> None:
    words = make_words(record, (128, 256), np.random.default_rng(3))
    if isinstance(record, (DirectFormat, GgufFormat)):
        return  # they have none
    arrays = fields(words)
    arrays["scales"][5] = 0xFF if record.name == "nvfp4" else 0x7FFF
    with pytest.raises(WordsError, match=re.escape("row 5")):
        layout.pack(words)


def test_sixteen_bit_planes_are_little_endian() -> None:
    words = make_words(FORMATS["bf16"], (2,), np.random.default_rng(0))
    words.words[...] = 0x0102, 0x0304  # type: ignore[attr-defined]
    assert LAYOUTS["contiguous_le_v1"].pack(words).tolist() == [2, 1, 4, 3]


def test_golden_payloads(ninfer_vectors: dict[str, np.ndarray]) -> None:
    """Every payload of the vectors: the same bytes from the words, the same values from the bytes."""
    seen = set()
    for key, payload in ninfer_vectors.items():
        stem, _, last = key.rpartition("/")
        if last != "payload":
            continue
        record = FORMATS[stem.split("/")[1]]
        layout = LAYOUTS[record.default_layout]
        bits = ninfer_vectors[f"{stem}/decoded"]
        divisors = ninfer_vectors[f"{stem}/divisors"].size if record.name == "nvfp4" else 1
        assert layout.encoded_size(record, bits.shape, divisors) == payload.size
        words: Words = layout.unpack(payload, record, bits.shape, divisors)
        words.validate()
        np.testing.assert_array_equal(words.decode().view(np.uint32), bits, err_msg=key)
        np.testing.assert_array_equal(layout.pack(words), payload, err_msg=key)
        arrays = fields(words)
        np.testing.assert_array_equal(arrays["scales"], ninfer_vectors[f"{stem}/scales"])
        codes = ninfer_vectors[f"{stem}/codes"]
        if record.name == "nvfp4":
            codes = codes[:, ::2] | codes[:, 1::2] << 4
            np.testing.assert_array_equal(arrays["divisors"].view(np.float32), ninfer_vectors[f"{stem}/divisors"])
        np.testing.assert_array_equal(arrays["codes"], codes)
        assert faults_of(layout, payload, record, bits.shape, divisors) == []
        seen.add(record.name)
    assert len(seen) == 9
