"""Views as the sources of a recipe, banks of experts, and parts of NVFP4 objects: what is kept, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform.errors import ArgumentError, UnsupportedError
from quantform.formats import Nvfp4Words, RowScaledWords
from quantform.packed import PROFILES
from quantform.sources import (
    Checkpoint,
    NinferSource,
    SafetensorsSource,
    concatenate,
    gather,
    select_rows,
    stack,
    transpose,
)

RNG = np.random.default_rng(11)
Configure = Callable[[Any, Any, Any], None]


def words_of(tensor: Any, rows: Any = None) -> Nvfp4Words:
    words = tensor.words(rows)
    assert isinstance(words, Nvfp4Words)
    return words


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix in Q4_K and one in Q8_0."""
    tensors = []
    for name in ("q4_k", "q8_0"):
        profile = PROFILES[f"gguf:{name}"]
        blocks = RNG.integers(0, 128, (8, 512 // profile.values * profile.bytes), np.uint8).view(profile.block)
        for field in ("d", "dmin"):
            if field in (blocks.dtype.names or ()):
                blocks[field] = 0.5
        tensors.append(gb.tensor(name, (8, 512), profile.ggml_type, blocks.tobytes()))
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    path.write_bytes(gb.build(tensors, {}))
    return path


def test_chosen_rows_keep_their_blocks(gguf: Path, tmp_path: Path) -> None:
    order = [5, 4, 4, 0, 1, 2, 7, 3]

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("q4_k", source=gather(model.parameters["q4_k"].source, order))
        recipe.assign("q8_0", source=gather(model.parameters["q8_0"].source, order), format="q8_g32_fp16")

    plan = qf.plan(gguf, recipe=configure)
    assert plan.objects[0].fragments[0].source == "gathered gguf:q4_k"
    qf.convert(gguf, tmp_path / "a.ninfer", recipe=configure)
    assert qf.verify(tmp_path / "a.ninfer", deep=True).ok
    with qf.open(gguf) as before, qf.open(tmp_path / "a.ninfer") as after:
        assert [tensor.format for tensor in after.values()] == ["gguf_q4_k", "q8_g32_fp16"]
        assert np.array_equal(after["q4_k"].words().blocks, before["q4_k"].words().blocks[order])
        assert np.array_equal(after["q8_0"].decode(), before["q8_0"].decode()[order])


@pytest.mark.parametrize("format", [None, "q4_g64_fp16"])
def test_weights_are_transposed_and_put_together(tmp_path: Path, format: str | None) -> None:
    """As for a model whose projections lie the other way round, and in one tensor."""
    fused = RNG.normal(size=(64, 3 * 64)).astype(np.float32)
    target = {name: np.zeros((64, 64), np.float32) for name in ("q", "k", "v")} | {"bank": np.zeros((2, 64, 64), "f4")}

    def configure(model: Any, recipe: Any, sources: Any) -> None:
        for index, name in enumerate(("q", "k", "v")):
            rows = select_rows(transpose(sources["fused"]["qkv"]), (64 * index, 64 * (index + 1)))
            recipe.assign(name, source=rows)
        recipe.assign("bank", source=stack([model.parameters["q"].source, rows]))

    qf.convert(target, tmp_path / "a.ninfer", recipe=configure, sources={"fused": {"qkv": fused}}, format=format)
    want = {name: fused.T[64 * index : 64 * (index + 1)] for index, name in enumerate(("q", "k", "v"))}
    want["bank"] = np.stack([np.zeros((64, 64), np.float32), want["v"]])
    with qf.open(tmp_path / "a.ninfer") as source:
        for name, values in want.items():
            expected = values if format is None else qf.encode(np.ascontiguousarray(values), format).decode()
            assert np.array_equal(source[name].decode(), expected)


def test_a_view_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 6), np.float32)}
    for view, found in ((transpose, r"\[6, 4\] of 'w'"), (lambda t: gather(t, [1]), r"\[1, 6\] of 'w'")):

        def configure(model: Any, recipe: Any, sources: Any, view: Any = view) -> None:  # noqa: ARG001
            recipe.assign("w", source=view(model.parameters["w"].source))

        with pytest.raises(qf.QuantformError, match=rf"another shape.*\[4, 6\].*{found}"):
            qf.convert(weights, tmp_path / "a.ninfer", recipe=configure)


# --- banks of experts -----------------------------------------------------------------------------------------------


def bank(experts: int, rows: int, divisors: Any, name: str = "experts.up", inputs: Any = None) -> dict[str, Any]:
    """NVFP4 as ModelOpt fuses experts."""
    scales = RNG.integers(0, 0x7F, (experts, rows, 4), np.uint8)
    tensors: dict[str, Any] = {
        name: RNG.integers(0, 256, (experts, rows, 32), np.uint8),
        f"{name}_weight_scale": ("F8_E4M3", scales.shape, scales.tobytes()),
        f"{name}_weight_scale_2": 1 / np.array(divisors, np.float32),
    }
    return tensors if inputs is None else tensors | {f"{name}_input_scale": np.array(inputs, np.float32)}


def converted(tmp_path: Path, tensors: dict[str, Any], recipe: Configure | None = None, **more: Any) -> Path:
    directory = tmp_path / "m"
    directory.mkdir(exist_ok=True)
    settings = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    model = sb.model(directory, tensors, settings)
    output = tmp_path / "a.ninfer"
    qf.convert(model, output, recipe=recipe, force=True, **more)
    report = qf.verify(output, deep=True, against=model)
    assert report.ok, report.findings
    return output


@pytest.mark.parametrize(
    ("rows", "divisors", "stored"), [(128, [4, 2, 8], 3), (128, [2, 2, 2], 1), (128, 4, 1), (256, [4, 4, 2], 3)]
)
def test_banks_of_experts_keep_their_words(tmp_path: Path, rows: int, divisors: Any, stored: int) -> None:
    tensors = bank(3, rows, divisors)
    with NinferSource(converted(tmp_path, tensors)) as source, SafetensorsSource(tmp_path / "m") as raw:
        tensor = source["experts.up"]
        assert (tensor.shape, tensor.stored_shape) == ((3, rows, 64), (3 * rows, 64))
        assert (tensor.format, tensor.divisors) == ("nvfp4", stored)
        assert np.array_equal(words_of(tensor).codes, tensors["experts.up"].reshape(3 * rows, 32))
        assert np.array_equal(tensor.decode(), Checkpoint(raw)["experts.up"].decode())


def test_banks_that_are_no_tiles_need_a_fallback(tmp_path: Path) -> None:
    tensors = bank(2, 64, [4, 2])  # 128 rows, and a divisor for half a tile
    with pytest.raises(UnsupportedError, match=r"'experts\.up' \(modelopt-nvfp4-bank\).*--fallback"):
        converted(tmp_path, tensors)
    with NinferSource(converted(tmp_path, tensors, fallback="bf16")) as source:
        assert source["experts.up"].format == "bf16"
    with NinferSource(converted(tmp_path, bank(2, 64, [4, 4]))) as source:
        assert source["experts.up"].format == "nvfp4"


def test_the_smallest_input_divisor_of_a_bank_is_used(tmp_path: Path) -> None:
    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("experts.up", activation_policy="AllowA4")

    tensors = bank(2, 128, [4, 2], inputs=[0.25, 0.125])
    with NinferSource(converted(tmp_path, tensors, configure)) as source:
        (use,) = source.uses
        (binding,) = use.auxiliaries.values()
        assert float(source.objects[str(binding.object)].decode()) == 4.0


def test_one_expert_of_a_bank_and_banks_of_experts(tmp_path: Path) -> None:
    tensors = bank(3, 128, [4, 2, 8]) | bank(2, 128, [1, 16], name="wanted")

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        one = gather(model.parameters["experts.up"].source, [2, 0])
        recipe.assign("wanted", source=one)

    directory = tmp_path / "m"
    directory.mkdir()
    settings = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    qf.convert(sb.model(directory, tensors, settings), tmp_path / "a.ninfer", recipe=configure)
    with NinferSource(tmp_path / "a.ninfer") as source:
        words = words_of(source["wanted"])
        assert words.divisors.view(np.float32).tolist() == [8.0, 4.0]
        assert np.array_equal(words.codes, tensors["experts.up"][[2, 0]].reshape(256, 32))


def test_fp8_banks_keep_their_words(tmp_path: Path) -> None:
    codes = RNG.integers(0, 0x7F, (2, 3, 16), np.uint8)
    tensors: dict[str, Any] = {"e.up": sb.f8(codes.tolist()), "e.up_scale": np.array([[2], [0.5]], np.float32)}
    directory = tmp_path / "m"
    directory.mkdir()
    model = sb.model(directory, tensors)
    qf.convert(model, tmp_path / "a.ninfer")
    assert qf.verify(tmp_path / "a.ninfer", deep=True, against=model).ok
    with NinferSource(tmp_path / "a.ninfer") as source:
        words = source["e.up"].words()
        assert isinstance(words, RowScaledWords)
        assert source["e.up"].shape == (2, 3, 16)
        assert np.array_equal(words.codes, codes.reshape(6, 16))
        assert words.scales.tolist() == [0x4000] * 3 + [0x3F00] * 3


# --- parts of objects -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of two experts of 256 rows, each with its divisor."""
    return converted(tmp_path_factory.mktemp("stacked"), bank(2, 256, [4, 2]) | bank(1, 384, [1], name="whole"))


def again(stacked: Path, output: Path, view: Any, rows: tuple[int, int] | None = None) -> Nvfp4Words:
    """The words of `whole`, taken from the bank."""

    def configure(model: Any, recipe: Any, sources: Any) -> None:  # noqa: ARG001
        recipe.assign("whole", source=view(model.parameters["experts.up"].source), format="nvfp4", rows=rows)

    qf.convert(stacked, output, recipe=configure)
    assert qf.verify(output, deep=True).ok
    with NinferSource(output) as source:
        words = words_of(source["whole"])
        assert np.array_equal(source["whole"].decode().reshape(words.shape), words.decode())
        return words


@pytest.mark.parametrize(
    ("ranges", "divisors"),
    [
        ([(128, 512)], [4.0, 2.0, 2.0]),  # cuts the share of the first divisor
        ([(0, 256), (384, 512)], [4.0, 4.0, 2.0]),
        ([(1, 129), (0, 128), (100, 228)], [4.0]),  # no whole tiles of the source
        ([(5, 133), (300, 428), (64, 192)], [4.0, 2.0, 4.0]),
    ],
)
def test_rows_are_placed_in_new_tiles(
    stacked: Path, tmp_path: Path, ranges: list[tuple[int, int]], divisors: list[float]
) -> None:
    words = again(stacked, tmp_path / "b.ninfer", lambda bank: stack([select_rows(bank, *ranges)]))
    assert words.divisors.view(np.float32).tolist() == divisors
    with NinferSource(stacked) as source:
        rows = np.concatenate([np.arange(*one) for one in ranges])
        expected = words_of(source["experts.up"])
        assert np.array_equal(words.codes, expected.codes[rows])
        assert np.array_equal(words.scales, expected.scales[rows])


def test_a_divisor_for_less_than_a_tile_is_refused(stacked: Path, tmp_path: Path) -> None:
    message = (
        r"parameter 'whole', row 192: the divisor .* within a tile of 128 rows; expected one divisor for each 128 "
        r"rows, found 0x40800000 .*and 0x40000000.*separate objects.*order"
    )
    with pytest.raises(ArgumentError, match=message):
        again(stacked, tmp_path / "b.ninfer", lambda bank: stack([select_rows(bank, (64, 448))]))
    message = r"parameter 'whole', row 322: the divisor .* within a tile of 128 rows"
    with pytest.raises(ArgumentError, match=message):  # 64 equal shares, which nobody asked for
        again(stacked, tmp_path / "b.ninfer", lambda bank: stack([select_rows(bank, (0, 256), (0, 66), (256, 318))]))


def test_parts_that_are_no_tiles_are_imported(stacked: Path, tmp_path: Path) -> None:
    """A parameter bound to rows 64 to 192 of an object has words, and they fill a tile of a new one."""

    data = stacked.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    text = data[32 : 32 + length]
    for old, new in (
        (b'"range":[0,%d]' % (384 * 64), b'"range":[%d,%d]' % (64 * 64, 192 * 64)),
        (b'"whole":[1,384,64]', b'"whole":[1,128,64]'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    with NinferSource(stacked) as source:
        expected = words_of(source["whole"], slice(64, 192))
    moved = tmp_path / "moved.ninfer"
    moved.write_bytes(data[:32] + text.rstrip().ljust(length) + data[32 + length :])
    qf.convert(moved, tmp_path / "c.ninfer", recipe=lambda _m, r, _s: r.separate("whole"))
    assert qf.verify(tmp_path / "c.ninfer", deep=True).ok
    with NinferSource(moved) as source, NinferSource(tmp_path / "c.ninfer") as made:
        assert not source["whole"].joined
        assert source["whole"].importable
        words = words_of(made["whole"])
        assert made["whole"].joined
        for part in ("codes", "scales", "divisors"):
            assert np.array_equal(getattr(words, part), getattr(expected, part))


def test_concatenated_weights_of_different_divisors(stacked: Path, tmp_path: Path) -> None:
    words = again(
        stacked,
        tmp_path / "b.ninfer",
        lambda bank: stack([concatenate([select_rows(bank, (256, 384)), select_rows(bank, (0, 256))])]),
    )
    assert words.divisors.view(np.float32).tolist() == [2.0, 4.0, 4.0]
