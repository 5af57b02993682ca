"""Comparing tensors of any two sources: what belongs together, what is said of each, what a broken file does."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
import safetensors_builder as sb
from quantform.compare import Comparison
from quantform.errors import ArgumentError, FileError, UnknownNameError
from quantform.methods import METHODS
from quantform.packed import PROFILES
from quantform.sources import NinferSource

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"


def by_name(found: Comparison) -> dict[str, Any]:
    json.dumps(found.as_dict(), allow_nan=False)
    return {one.name: one for one in found.tensors}


# --- what is said of a tensor ----------------------------------------------------------------------------------------


def test_everything_that_is_said_of_one_tensor() -> None:
    reference = np.array([[1, 2, 4], [-2, 0, 0]], np.float32)
    other = np.array([[1, 3, 2], [-2, 0, 2]], ml_dtypes.bfloat16)
    found = qf.compare({"w": reference}, {"w": other})
    (one,) = found.as_dict()["tensors"]
    assert one == {
        "name": "w",
        "other_name": "w",
        "shape": [2, 3],
        "format": "fp32",
        "other_format": "bf16",
        "bytes": 24,
        "other_bytes": 12,
        "bits_per_weight": 32.0,
        "other_bits_per_weight": 16.0,
        "same": None,
        "relative_rms": 0.6,
        "snr_db": pytest.approx(20 * math.log10(5 / 3), rel=1e-15),
        "max_abs": 2.0,
        "row": 0,
        "column": 2,
        "cosine": pytest.approx(19 / math.sqrt(550), rel=1e-15),
        "differing": 3,
        "incomparable": 0,
        "reference_nan": 0,
        "reference_infinite": 0,
        "other_nan": 0,
        "other_infinite": 0,
    }
    assert found.ok
    assert found.a.bits_per_weight == 32
    assert found.b.description == "1 tensor"


def test_the_total_is_over_all_values() -> None:
    """Squares of differences 9 and 16, of the reference 25 and 75: a quarter, so a half."""
    one = {"a": np.array([3.0, 4.0]), "b": np.array([5.0, 5.0, 5.0]), "only": np.ones(9)}
    two = {"a": np.array([0.0, 4.0]), "b": np.array([5.0, 1.0, 5.0], np.float32), "c": np.ones(1)}
    found = qf.compare(one, two)
    assert found.total.relative_rms == 0.5
    assert (found.total.max_abs, found.total.tensors, found.total.weights) == (4, 2, 5)
    assert (found.total.bytes, found.total.other_bytes) == (40, 28)
    assert found.total.bits_per_weight == 64
    assert found.total.other_bits_per_weight == 44.8
    assert found.a.weights == 14
    assert (found.only_a, found.only_b) == ({"only": 9}, {"c": 1})
    assert not {"row", "column"} & set(found.as_dict()["total"])
    assert [one.name for one in found.tensors] == ["a", "b"]
    empty = qf.compare({}, {})
    assert (empty.total.tensors, empty.total.bits_per_weight, empty.a.bits_per_weight) == (0, 0, 0)


@pytest.mark.parametrize(
    ("order", "names"),
    [("error", "nwzlq"), ("largest", "nlwzq"), ("size", "lzwnq"), ("name", "lnqwz"), ("file", "qwznl")],
)
def test_orders(order: str, names: str) -> None:
    one = {
        "q": np.ones(1),
        "w": np.full(3, 2.0),
        "z": np.full(4, 3.0),
        "n": np.array([np.nan, 1]),
        "l": np.full(9, 1e6),
    }
    two = one | {"w": np.full(3, 4.0), "z": np.full(4, 4.5), "n": np.ones(2), "l": np.full(9, 1e6 + 10)}
    assert "".join(one.name for one in qf.compare(one, two, sort=order).tensors) == names


def test_unknown_orders_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="error"):
        qf.compare({}, {}, sort="errors")


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (np.array([1.5, -0.0], np.float32), np.array([1.5, -0.0], np.float32), "bytes"),
        (np.array([1.5, -0.0], np.float32), np.array([1.5, -0.0], np.float16), "values"),
        (np.array([1.5, -0.0], np.float32), np.array([1.5, 0.0], np.float16), None),
        (np.array([1.5, np.nan], np.float32), np.array([1.5, np.nan], np.float64), "values"),
        (np.array([7], np.int8), np.array([7], np.float16), "values"),
        (np.array([2**60 + 1], np.int64), np.array([2**60], np.int64), None),
        (np.array([2**60 + 1], np.int64), np.array([2**60 + 1], np.int64), "bytes"),
        (np.array([True, False]), np.array([1, 0], np.uint8), "values"),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), "bytes"),
    ],
)
def test_what_is_exactly_the_same(one: np.ndarray, two: np.ndarray, same: str | None) -> None:
    (found,) = qf.compare(one, two).tensors
    assert found.same == same


# --- what belongs together -------------------------------------------------------------------------------------------


def test_shapes_that_differ_are_listed() -> None:
    found = qf.compare({"w": np.ones((2, 3)), "v": np.ones(2)}, {"w": np.ones((3, 2)), "v": np.ones(2)})
    assert [one.name for one in found.tensors] == ["v"]
    (shapes,) = found.as_dict()["shapes"]
    assert shapes == {"name": "w", "other_name": "w", "shape": [2, 3], "other_shape": [3, 2]}
    assert found.notes() == ["shapes differ: w: [2, 3] in A, [3, 2] in B"]


def test_tensors_alone_need_no_names() -> None:
    with qf.open(EXAMPLE) as file:
        tensor = file["blk.0.attn_q.weight"]
        values = tensor.decode()
        (found,) = qf.compare(tensor, values).tensors
        assert found.same == "values"
        (found,) = qf.compare({"some": values}, tensor).tensors
        assert (found.name, found.other_name) == ("some", "tensor")
        (found,) = qf.compare(tensor, {"some": values}).tensors
        assert (found.name, found.other_name) == ("tensor", "some")
        assert qf.compare(file, {tensor.name: values}).tensors[0].same == "values"
        assert qf.compare({"x": tensor}, {"x": values}).b.bytes == values.nbytes


def test_a_map_of_names(tmp_path: Path) -> None:
    one = {"blk.0.a": np.ones(3), "b": np.ones(2), "c": np.ones(1)}
    two = {"model.0.a": np.zeros(3), "b": np.ones(2), 'say "c"': np.ones(1)}
    path = tmp_path / "map.toml"
    path.write_text("blk.0.a = 'model.0.a'\n\"c\" = 'say \"c\"'\n")
    for names in (path, str(path), {"blk.0.a": "model.0.a", "c": 'say "c"'}):
        found = qf.compare(one, two, names=names)
        assert {one.name: one.other_name for one in found.tensors} == {
            "blk.0.a": "model.0.a",
            "b": "b",
            "c": 'say "c"',
        }
        assert not found.only_a | found.only_b
        assert "called model.0.a in B: blk.0.a" in found.notes()
    found = qf.compare(one, two, names={"blk.0.a": "model.0.a", "b": "b", "c": "b"})
    assert [one.name for one in found.shapes] == ["c"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"= 3", "no TOML"),
        (b"\xff", "no TOML"),
        (b"a = 3", "is no name"),
        (b"a = ['b']", "is no name"),
        (b'a.b = "x"\n"a.b" = "x"', "is no name"),
        (b"a = " + b"[" * 100_000, "no TOML"),
        (b"\n'a'" + b" . a" * 100_000 + b" = 'x'", "line 2: the map has a key of more than 32 parts"),
    ],
)
def test_maps_that_are_none(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "map.toml"
    path.write_bytes(text)
    with pytest.raises(ArgumentError if problem == "is no name" else FileError, match=problem) as caught:
        qf.compare({"a": np.ones(1), "a.b": np.ones(1)}, {"x": np.ones(1)}, names=path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_maps_of_tensors_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no tensor of A .*Did you mean 'weight'"):
        qf.compare({"weight": np.ones(1)}, {"w": np.ones(1)}, names={"weigth": "w"})
    with pytest.raises(UnknownNameError, match="no tensor of B"):
        qf.compare({"weight": np.ones(1)}, {"w": np.ones(1)}, names={"weight": "v"})
    with pytest.raises(FileError, match="no such file"):
        qf.compare({}, {}, names=tmp_path / "none.toml")


@pytest.mark.parametrize("given", [3, None, ["a"], {"a": [1.0]}, {1: np.ones(1)}, {"a": np.array(["x"])}])
def test_what_has_no_tensors_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError):
        qf.compare({"a": np.ones(1)}, given)


# --- every kind of file ----------------------------------------------------------------------------------------------


def test_a_gguf_and_the_artifact_made_from_it(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "m.ninfer")
    found = qf.compare(EXAMPLE, tmp_path / "m.ninfer")
    same = {name: one.same for name, one in by_name(found).items()}
    assert same.pop("blk.0.attn_sinks") == "values"  # fp16 as fp32
    assert set(same.values()) == {"bytes"}
    assert found.only_a == {"blk.0.ffn_unused": 0}
    assert found.total.relative_rms == 0
    assert found.total.cosine == 1
    turned = qf.compare(tmp_path / "m.ninfer", EXAMPLE)
    assert turned.only_b == {"blk.0.ffn_unused": 0}
    assert (turned.total.relative_rms, turned.b.bytes) == (0, found.a.bytes)


def test_every_profile_against_its_values(tmp_path: Path, packed_vectors: dict[str, np.ndarray]) -> None:
    specs, values = [], {}
    for profile in PROFILES.values():
        payload = packed_vectors[f"{profile.name.lower()}/payload"].reshape(-1)[: 2 * profile.bytes]
        specs.append(gb.tensor(profile.name, (2, profile.values), profile.ggml_type, payload.tobytes()))
        values[profile.name] = qf.dequantize_packed(payload, profile.identifier, (2, profile.values))
    (tmp_path / "a.gguf").write_bytes(gb.build(specs))
    found = by_name(qf.compare(tmp_path / "a.gguf", values))
    assert len(found) == 27
    assert {one.same for one in found.values()} == {"values"}


@pytest.mark.parametrize("format", [*METHODS["grouped_absmax"].targets, *METHODS["fp8_row_maxabs"].targets, "nvfp4"])
def test_methods_and_their_source(tmp_path: Path, format: str) -> None:
    rng = np.random.default_rng(2)
    values = {"a": rng.standard_normal((128, 256)).astype(np.float32), "b": rng.standard_normal(256).astype(np.float32)}
    qf.convert(values, tmp_path / "m.ninfer", format=format)
    found = by_name(qf.compare(values, tmp_path / "m.ninfer"))
    assert found["b"].same == "bytes"
    with NinferSource(tmp_path / "m.ninfer") as made:
        decoded = made["a"].decode().astype(np.float64)
    difference = decoded - values["a"]
    assert found["a"].max_abs == np.abs(difference).max()
    assert found["a"].relative_rms == pytest.approx(
        np.linalg.norm(difference) / np.linalg.norm(values["a"].astype(np.float64)), rel=1e-12
    )
    assert 0.001 < found["a"].relative_rms < 0.15
    assert found["a"].other_format == format


def test_a_checkpoint_of_quantized_weights_and_what_it_is_worth(tmp_path: Path) -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    scales = np.array([[0.5], [2.0]], np.float32)
    (tmp_path / "q").mkdir()
    model = sb.model(tmp_path / "q", {"w.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "w.weight_scale": scales})
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
    found = by_name(qf.compare(model, {"w.weight": values}))
    assert found["w.weight"].same == "values"
    assert found["w.weight"].bytes == 64 + 8
    assert by_name(qf.compare(model, model))["w.weight"].same == "values"  # it has no bytes of its own
    qf.convert(model, tmp_path / "m.ninfer")
    assert by_name(qf.compare(model, tmp_path / "m.ninfer"))["w.weight"].same == "values"


def test_parts_of_a_split_artifact_and_banks_of_experts(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "m.ninfer", max_file_bytes=20_000)
    found = by_name(qf.compare(EXAMPLE, tmp_path / "m.ninfer"))
    assert found["blk.0.ffn_gate_exps.weight"].same == "bytes"
    assert found["blk.0.ffn_gate_exps.weight"].shape == (4, 16, 64)


def test_either_byte_order(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    for big in (False, True):
        data = values.astype(">f4" if big else "<f4").tobytes()
        (tmp_path / f"{big}.gguf").write_bytes(gb.build([gb.tensor("a", (8,), gb.F32, data)], big_endian=big))
    assert qf.compare(tmp_path / "True.gguf", tmp_path / "False.gguf").tensors[0].same == "bytes"


def test_an_onnx_model_of_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    shutil.copy(EXAMPLE, tmp_path / "m.gguf")
    qf.convert(tmp_path / "m.gguf", tmp_path / "m.onnx")
    found = by_name(qf.compare(EXAMPLE, tmp_path / "m.onnx"))
    assert {one.same for one in found.values()} <= {"bytes", "values"}
    assert found["blk.0.attn_q.weight"].same == "bytes"
    assert len(found) >= 11


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_types_that_are_not_read_are_listed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(sb.build({"c": ("C64", (2,), bytes(16)), "d": np.ones(2, np.float32)}))
    found = qf.compare(tmp_path, tmp_path)
    assert found.ok
    assert [one.name for one in found.tensors] == ["d"]
    (one,) = found.unreadable
    assert (one.name, "C64" in one.reason) == ("c", True)
    assert any(line.startswith("not compared: c: ") for line in found.notes())


def test_a_weight_whose_scales_are_missing_is_broken(tmp_path: Path) -> None:
    codes = np.zeros((2, 32), np.uint8)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    model = sb.model(
        tmp_path, {"w.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "n": np.ones(2, np.float32)}, config
    )
    found = qf.compare(model, {"w.weight": np.zeros((2, 32), np.float32), "n": np.ones(2, np.float32)})
    assert not found.ok
    assert [one.name for one in found.broken] == ["w.weight"]
    assert [one.name for one in found.tensors] == ["n"]


def test_illegal_words_of_a_checkpoint_break_its_tensor(tmp_path: Path) -> None:
    codes = np.zeros((2, 32), np.uint8)
    scales = np.array([[1.0], [np.nan]], np.float32)
    model = sb.model(tmp_path, {"w.weight": ("F8_E4M3", codes.shape, codes.tobytes()), "w.weight_scale": scales})
    found = qf.compare(model, {"w.weight": np.zeros((2, 32), np.float32)})
    assert [one.name for one in found.broken] == ["w.weight"]
    assert "row 1" in found.broken[0].reason


def test_a_file_that_becomes_shorter_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    data = gb.build([gb.tensor("a", (2, 8), gb.F32, bytes(64)), gb.tensor("b", (2, 8), gb.F32, bytes(64))])
    path.write_bytes(data)
    with qf.open(path) as file:
        path.write_bytes(data[:-64])
        found = qf.compare(file, {"a": np.zeros((2, 8), np.float32), "b": np.zeros((2, 8), np.float32)})
    assert [one.name for one in found.tensors] == ["a"]
    assert [one.name for one in found.broken] == ["b"]


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(FileError):
        qf.compare(tmp_path / "x", EXAMPLE)
    with pytest.raises(FileError):
        qf.compare(EXAMPLE, tmp_path / "none")


def test_beyond_an_error() -> None:
    one = {"a": np.ones(4), "z": np.zeros(1), "n": np.ones(1), "s": np.ones(2), "m": np.ones(1), "e": np.ones(3)}
    one["0"] = np.ones((0, 2))  # an artifact would not have it
    two = {
        "a": np.full(4, 1.5),
        "z": np.ones(1),
        "n": np.array([np.nan]),
        "s": np.ones(3),
        "e": np.full(3, 1.25),
        "x": np.ones(1),
    }
    found = qf.compare(one, two)
    assert set(found.beyond(0.5)) == {"z", "n", "s", "m"}
    assert set(found.beyond(0.49)) == {"z", "n", "s", "m", "a"}
    assert not qf.compare(one, one).beyond(0)
    for wrong in (math.nan, -1, math.inf):
        with pytest.raises(ArgumentError, match="no relative error"):
            found.beyond(wrong)


@pytest.mark.parametrize(
    ("left", "right"), [(1.0, np.nan), (np.nan, 1.0), (np.inf, -np.inf), (np.inf, 1.0), (1.0, -np.inf)]
)
def test_a_value_that_is_not_finite_on_one_side_is_the_worst(left: float, right: float) -> None:
    one = {"n": np.array([1.0, left], np.float32), "e": np.ones(2, np.float32)}
    two = {"n": np.array([1.0, right], np.float32), "e": np.full(2, 9, np.float32)}
    found = qf.compare(one, two)
    worst = found.tensors[0]
    assert (worst.name, worst.same, worst.differing, worst.incomparable) == ("n", None, 1, 1)
    assert (worst.row, worst.column) == (0, 1)
    for one_of in (worst, found.total):
        assert one_of.relative_rms is one_of.max_abs is one_of.cosine is None
        counts = one_of.reference_nan + one_of.reference_infinite, one_of.other_nan + one_of.other_infinite
        assert counts == (int(not np.isfinite(left)), int(not np.isfinite(right)))
    assert found.beyond(100) == ["n"]
    assert any(line.startswith("not finite: n: ") for line in found.notes())
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["tensors"][0]["relative_rms"] is document["total"]["relative_rms"] is None
    assert document["tensors"][0]["incomparable"] == document["total"]["incomparable"] == 1


def test_empty_tensors_are_within_any_error() -> None:
    one = {"same": np.ones((0, 3)), "missing": np.ones((2, 0)), "shape": np.ones((0, 4))}
    found = qf.compare(one, {"same": np.ones((0, 3), np.float16), "shape": np.ones((4, 0))})
    assert found.beyond(0) == ["shape"]
    assert found.tensors[0].relative_rms == found.total.relative_rms == 0


def test_progress_is_told_in_bytes_of_a() -> None:
    told = []
    one = {"a": np.ones((3, 100_000), np.float32), "b": np.ones(2, np.float32)}
    qf.compare(one, one, progress=lambda *now: told.append(now))
    assert told[0] == (0, 1_200_008, "a")
    assert told[-1] == (1_200_008, 1_200_008, "")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert len(told) > 4


def test_a_difference_that_overflows_is_told_as_one() -> None:
    found = qf.compare({"n": np.array([1e308, 2.0])}, {"n": np.array([-1e308, 2.0])})
    assert (found.tensors[0].incomparable, found.tensors[0].differing) == (1, 1)
    assert found.notes() == ["not finite: n: 1 difference; the numbers are finite"]
    found = qf.compare({"n": np.array([np.inf, np.nan])}, {"n": np.array([1.0, np.nan])})
    assert found.notes() == ["not finite: n: 1 difference; 1 NaN and 1 infinite in A, 1 and 0 in B"]
