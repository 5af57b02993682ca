"""Views: rows, columns, transposed and stacked tensors, as the words and values that NumPy gives for the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_builder as gb
import quantform as qf
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import BlockWords, DirectWords, GroupedWords, Nvfp4Words, RowScaledWords
from quantform.packed import PROFILES
from quantform.sources import (
    ArraySource,
    Checkpoint,
    GGUFSource,
    NinferSource,
    SafetensorsSource,
    Tensor,
    TransposedView,
    concatenate,
    gather,
    select_rows,
    stack,
    transpose,
    values_views,
)
from quantform.sources.arrays import ArrayTensor

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
Q = "layers.0.self_attn.q_proj.weight"
RNG = np.random.default_rng(7)
MATRIX = RNG.normal(size=(12, 40)).astype(np.float32)
BANK = RNG.normal(size=(3, 4, 8)).astype(np.float32)


def array(values: Any, name: str = "w") -> ArrayTensor:
    return ArrayTensor(name, np.asarray(values))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    profile = PROFILES["gguf:q4_k"]
    blocks = RNG.integers(0, 256, (6, profile.bytes * 2), np.uint8)
    blocks.view(profile.block)["d"] = 0.5
    blocks.view(profile.block)["dmin"] = 0.25
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tensors = [
        gb.tensor("q", (6, 512), profile.ggml_type, blocks.tobytes()),
        gb.tensor("f", (6, 40), gb.F32, MATRIX[:6].astype("<f4").tobytes()),
    ]
    path.write_bytes(gb.build(tensors, {}))
    return path


def check(view: Tensor, want: np.ndarray[Any, Any]) -> None:
    """The whole face of a view."""
    assert view.shape == want.shape
    assert view.decode().tobytes() == want.tobytes()
    some = [view.matrix[0] - 1, 0]
    matrix = want.reshape(view.matrix)
    assert np.array_equal(view.decode(rows=some), matrix[some])
    assert np.array_equal(view.words(slice(0, 1)).decode(), matrix[:1])
    if view.joined and view.format in {"fp32", "bf16", "fp16"}:
        assert view.payload().tobytes() == want.tobytes()
        assert view.nbytes == want.nbytes
        out = np.empty(view.nbytes - 9, np.uint8)
        view.read_into(7, out)
        assert out.tobytes() == want.tobytes()[7:-2]
        with pytest.raises(ArgumentError):
            view.read_into(view.nbytes, np.empty(1, np.uint8))
    with pytest.raises(ArgumentError):
        view.words([view.matrix[0]])


def test_rows_of_scalars() -> None:
    check(select_rows(array(MATRIX), (3, 5), (0, 2), (4, 12)), np.concatenate([MATRIX[3:5], MATRIX[:2], MATRIX[4:]]))
    check(gather(array(MATRIX), [3, 3, 0]), MATRIX[[3, 3, 0]])
    check(gather(array(BANK), np.array([2, 0], np.uint8)), BANK[[2, 0]])
    check(gather(array(BANK), range(3, -1, -2), axis=1), BANK[:, [3, 1]])
    check(gather(array(BANK), [7, 1, 1], axis=-1), BANK[..., [7, 1, 1]])
    check(gather(array(MATRIX[0]), [5, 2, 7, 7]), MATRIX[0][[5, 2, 7, 7]])


def test_transposed_scalars() -> None:
    check(transpose(array(MATRIX)), MATRIX.T.copy())
    check(transpose(array(BANK)), BANK.swapaxes(1, 2).copy())
    check(gather(transpose(array(MATRIX)), [9, 0]), MATRIX.T[[9, 0]])
    check(transpose(select_rows(array(MATRIX), (1, 4))), MATRIX[1:4].T.copy())


def test_twice_transposed(gguf: Path) -> None:
    tensor = array(MATRIX)
    assert transpose(transpose(tensor)) is tensor
    check(transpose(transpose(transpose(tensor))), MATRIX.T.copy())
    rows = select_rows(transpose(tensor), (0, 40))
    check(transpose(rows), MATRIX)
    check(transpose(concatenate([transpose(tensor), transpose(array(MATRIX))])), np.hstack([MATRIX, MATRIX]))
    with GGUFSource(gguf) as source:  # values alone came back
        back = transpose(transpose(source["q"]))
        assert back is not source["q"]
        check(back, source["q"].decode())


@pytest.mark.parametrize("stored", [(2, 128), (8, 32)])
@pytest.mark.parametrize(
    "make",
    [transpose, lambda t: gather(t, [1, 0]), lambda t: gather(t, [1, 0], axis=1), lambda t: stack([t])],
    ids=["transpose", "rows", "columns", "stack"],
)
def test_rows_that_are_stored_in_another_shape(
    tmp_path: Path, stored: tuple[int, int], make: Callable[[Tensor], Tensor]
) -> None:
    """Their own columns are not those of the stored rows, which alone are read."""
    path = tmp_path / "m.gguf"
    spec = gb.tensor("w", stored, gb.F32, np.arange(256, dtype="<f4").tobytes())
    path.write_bytes(gb.build([spec], {"comfy.gguf.orig_shape.w": gb.typed("int32", [4, 64])}))
    with GGUFSource(path) as source:
        message = rf"'w'.*in another shape; expected \[4, 64\], found \[{stored[0]}, {stored[1]}\].*select_rows"
        with pytest.raises(UnsupportedError, match=message):
            make(source["w"])
        check(select_rows(source["w"], (1, 2)), np.arange(256, dtype=np.float32).reshape(stored)[1:2])


def test_put_together() -> None:
    check(concatenate([array(MATRIX), array(MATRIX[:5])]), np.concatenate([MATRIX, MATRIX[:5]]))
    check(concatenate([array(BANK), array(BANK[1:])]), np.concatenate([BANK, BANK[1:]]))
    check(stack([array(MATRIX), array(-MATRIX)]), np.stack([MATRIX, -MATRIX]))
    check(gather(stack([array(MATRIX), array(-MATRIX)]), [1, 0]), np.stack([-MATRIX, MATRIX]))


@given(st.data())
def test_gather_is_numpy_take(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    indices = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=9))
    view = gather(array(values), indices, axis)
    assert view.decode().tolist() == np.take(values, indices, axis).tolist()
    rows = data.draw(st.lists(st.integers(0, view.matrix[0] - 1), max_size=5))
    assert view.decode(rows=rows).tolist() == np.take(values, indices, axis).reshape(view.matrix)[rows].tolist()


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp64", "e4m3fn", "int8", "e2m1"])
def test_scalars_keep_every_bit(kind: str) -> None:
    scalar = SCALARS[kind]
    words = RNG.integers(0, 1 << scalar.bits, (3, 5), np.uint64).astype(scalar.word_dtype)
    tensor = array(words.view(scalar.dtype))
    for view, want in (
        (transpose(tensor), words.T),
        (gather(tensor, [4, 0], 1), words[:, [4, 0]]),
        (select_rows(tensor, (1, 3)), words[1:]),
    ):
        found = view.words()
        assert isinstance(found, DirectWords)
        assert view.format == kind
        assert np.array_equal(found.words, want)


def test_blocks_keep_their_bytes(gguf: Path) -> None:
    with GGUFSource(gguf) as source:
        view = gather(source["q"], [5, 0, 1])
        words = view.words()
        assert isinstance(words, BlockWords)
        assert (view.format, view.importable, view.joined) == ("gguf:q4_k", True, True)
        stored = source["q"].payload().reshape(6, -1)[[5, 0, 1]]
        assert words.blocks.tobytes() == view.payload().tobytes() == stored.tobytes()
        values = source["q"].decode()
        check(view, values[[5, 0, 1]])
        check(concatenate([select_rows(source["q"], (2, 3)), source["q"]]), np.concatenate([values[2:3], values]))
        check(transpose(source["q"]), values.T.copy())
        check(gather(source["q"], [300, 2], axis=1), values[:, [300, 2]])
        assert transpose(source["q"]).format == "fp32"
        check(select_rows(source["f"], (1, 3)), MATRIX[1:3])


@pytest.mark.parametrize("format", ["q4_g64_fp16", "q5_g64_fp16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16", "bf16"])
def test_encoded_rows_of_an_artifact(tmp_path: Path, format: str) -> None:
    values = RNG.normal(size=(6, 96)).astype(np.float32)
    qf.convert({"w": values}, tmp_path / "a.ninfer", format=format)
    with NinferSource(tmp_path / "a.ninfer") as source:
        view = select_rows(source["w"], (4, 6), (0, 1))
        expected = qf.encode(values[[4, 5, 0]], format, method="cast_direct" if format == "bf16" else None)
        for part in ("codes", "scales", "words"):
            if hasattr(expected, part):
                assert np.array_equal(getattr(view.words(), part), getattr(expected, part))
        assert view.importable == (format != "bf16")
        assert np.array_equal(view.decode(np.float32), expected.decode("float32"))
        both = stack([source["w"], source["w"]])
        if format.startswith("q"):
            words = both.words()
            assert isinstance(words, GroupedWords)
            assert words.codes.shape == (2, 6, 96)
        check(transpose(source["w"]), source["w"].decode().T.copy())


def test_rows_of_checkpoints_keep_words_and_scales() -> None:
    with Checkpoint(SafetensorsSource(CHECKPOINTS / "fp8_channel")) as source:
        view, weight = select_rows(source[Q], (5, 9), (1, 2)), source[Q]
        words = view.words()
        assert isinstance(words, RowScaledWords)
        assert np.array_equal(words.codes, getattr(weight.words([5, 6, 7, 8, 1]), "codes"))  # noqa: B009
        assert (view.format, view.importable, view.joined) == ("fp8_e4m3fn_row_bf16", True, False)
        assert np.array_equal(view.decode(), weight.decode(rows=[5, 6, 7, 8, 1]))
        with pytest.raises(UnsupportedError, match="no bytes of their own"):
            view.payload()
        check(transpose(weight), weight.decode().T.copy())
    with Checkpoint(SafetensorsSource(CHECKPOINTS / "fp8_block")) as source:
        view = select_rows(source[Q], (3, 4))
        assert not view.importable
        assert np.array_equal(view.decode(), source[Q].decode(rows=[3]))


def nvfp4(rows: int, divisor: float, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "p.weight_packed": rng.integers(0, 256, (rows, 32), np.uint8),
        "p.weight_scale": rng.integers(0, 0x7F, (rows, 4), np.uint8).view(ml_dtypes.float8_e4m3fn),
        "p.weight_global_scale": np.array(divisor, np.float32),
        "p.input_global_scale": np.array(divisor / 4, np.float32),
    }


def test_rows_of_nvfp4_keep_their_divisors() -> None:
    one, two = (Checkpoint(ArraySource(nvfp4(8, divisor, seed)))["p.weight"] for divisor, seed in ((4, 1), (2, 2)))
    view = concatenate([select_rows(one, (4, 8)), select_rows(two, (0, 2)), gather(two, [7, 5])])
    words = view.words()
    assert isinstance(words, Nvfp4Words)
    assert words.divisors.view(np.float32).tolist() == [4.0, 2.0]
    runs = view.divisor_runs()
    assert runs is not None
    assert (runs.rows.tolist(), runs.words.view(np.float32).tolist()) == ([4, 4], [4.0, 2.0])
    want = np.concatenate([one.decode(rows=range(4, 8)), two.decode(rows=[0, 1, 7, 5])])
    assert np.array_equal(words.decode(), want)
    assert np.array_equal(view.decode(), want)
    assert view.words([7, 0]).decode().tobytes() == want[[7, 0]].tobytes()
    divisor = view.activation_divisor()
    assert divisor is not None
    assert float(np.array(divisor).view(np.float32)) == 0.5
    # Rows that lie apart in one source matrix are still of one divisor.
    apart = gather(one, [0, 2, 5]).divisor_runs()
    assert apart is not None
    assert apart.rows.tolist() == [3]


def test_a_transposed_matrix_is_read_in_bounded_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_views, "_BLOCK_VALUES", 36)
    monkeypatch.setattr(values_views, "_PIECE_VALUES", 80)
    tensor, reads = array(MATRIX), []

    def read_into(offset: int, out: np.ndarray[Any, Any]) -> None:
        reads.append(out.size)
        ArrayTensor.read_into(tensor, offset, out)

    monkeypatch.setattr(tensor, "read_into", read_into)
    view = transpose(tensor)  # blocks of 3 of 40 columns
    for row in range(6):
        assert np.array_equal(view.decode(rows=[row]), MATRIX.T[[row]])
    assert max(reads) == 2 * 40 * 4
    assert sum(reads) == 2 * MATRIX.nbytes  # two blocks, each read once
    check(view, MATRIX.T.copy())
    others = [transpose(array(MATRIX)) for _ in range(3)]
    for one in others:
        one.decode(rows=[0])
    kept = [len(one._kept) for one in (view, *others) if isinstance(one, TransposedView)]
    assert kept == [0, 0, 1, 1]


def test_threads_read_the_same() -> None:
    values = RNG.normal(size=(300, 200)).astype(np.float32)
    view = transpose(array(values))
    wrong: list[int] = []

    def read(first: int) -> None:
        rows = range(first, 200, 4)
        wrong.extend(row for row in rows if not np.array_equal(view.decode(rows=[row]), values.T[[row]]))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_transposed_views_of_each_other_never_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has several blocks, and more views keep some than may: all the time one makes another forget its own."""
    monkeypatch.setattr(values_views, "_BLOCK_VALUES", 4 * 40)
    monkeypatch.setattr(values_views, "_PIECE_VALUES", 80)

    def around(tensor: Tensor) -> Tensor:
        return concatenate([transpose(tensor)])

    shared = around(array(MATRIX))
    views = [around(around(shared)), around(around(around(shared))), around(around(around(array(MATRIX))))]
    want = [MATRIX.T, MATRIX, MATRIX.T]
    right: list[bool] = []

    def read(index: int) -> None:
        for turn in range(3):
            at = (index + turn) % len(views)
            right.append(np.array_equal(views[at].decode(), want[at]))

    threads = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert right == [True] * 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (select_rows, "no rows are selected"),
        (lambda t: select_rows(t, (3, 3)), r"a range is empty.*0 <= begin < end <= 12.*\(3, 3\)"),
        (lambda t: select_rows(t, (0, 13)), r"'w'.*leaves the tensor.*<= 12"),
        (lambda t: select_rows(t, (-1, 3)), "leaves the tensor"),
        (lambda t: select_rows(t, (False, 3)), "leaves the tensor"),
        (lambda t: select_rows(t, cast("Any", 5)), "leaves the tensor"),
        (lambda _: select_rows(array(MATRIX[0]), (0, 1)), r"enough axes.*2 axes or more.*\[40\]"),
        (lambda t: gather(t, []), "not a list|is not a list"),
        (lambda t: gather(t, cast("Any", [1.5])), "one or more integers"),
        (lambda t: gather(t, [True]), "one or more integers"),
        (lambda t: gather(t, cast("Any", [[1], [2]])), "one or more integers"),
        (lambda t: gather(t, [0, 12]), r"axis 0, index 1.*0 to 11.*12"),
        (lambda t: gather(t, [-1]), r"index 0.*0 to 11.*-1"),
        (lambda t: gather(t, range(10**10)), r"axis 0: an index leaves.*0 to 11, found 9999999999"),
        (lambda t: gather(t, range(-2, 3)), "found -2"),
        (lambda t: gather(t, range(0)), "one or more integers"),
        (lambda t: gather(t, [10**30]), "integers|0 to 11"),
        (lambda t: gather(t, [0], axis=2), "no axis.*-2 to 1.*2"),
        (lambda t: gather(t, [0], axis=True), "no axis"),
        (lambda _: gather(array(np.float32(1)), [0]), "one axis or more"),
        (lambda _: transpose(array(MATRIX[0])), "2 axes or more"),
        (lambda _: transpose(array(MATRIX[:0])), r"with elements.*\[0, 40\]"),
        (lambda _: transpose(cast("Any", MATRIX)), "not a tensor.*ArraySource"),
        (lambda _: concatenate([]), "no tensors"),
        (lambda _: stack([]), "no tensors"),
        (lambda t: concatenate([t, array(MATRIX[:, :5])]), r"do not fit.*'N', 40.*\[12, 5\]"),
        (lambda t: concatenate([t, array(MATRIX.astype(np.float16))]), "one format.*fp32.*fp16.*rows"),
        (lambda t: stack([t, array(MATRIX[:5])]), r"do not fit.*\[12, 40\].*\[5, 40\]"),
        (lambda _: concatenate([array(MATRIX[0]), array(MATRIX[0])]), "2 axes"),
    ],
    ids=str,
)
def test_faults_are_named(make: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(array(MATRIX))
