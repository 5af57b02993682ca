"""GGUF to `.ninfer` and back: words kept, files given back byte for byte, refusals that name tensors."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from quantform._scalars import SCALARS
from quantform.container import Artifact
from quantform.errors import (
    ArgumentError,
    ArtifactError,
    OutputExistsError,
    QuantformError,
    UnknownNameError,
    UnsupportedError,
)
from quantform.formats import FORMATS, GgufFormat
from quantform.packed import PROFILES
from quantform.packed.outside import OUTSIDE_PROFILES
from quantform.sources import NinferSource
from ternary_blocks import pq2_0, ptq1_0, tq1_0, tq2_0

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.gguf"
BLOCK_FORMATS = [record for record in FORMATS.values() if isinstance(record, GgufFormat)]
TERNARY = [
    p for p in (*PROFILES.values(), *OUTSIDE_PROFILES.values()) if p.name in {"TQ1_0", "TQ2_0", "PQ2_0", "PTQ1_0"}
]
HOMELESS = [
    p
    for p in PROFILES.values()
    if p.identifier not in {f.profile.identifier for f in BLOCK_FORMATS} and p not in TERNARY
]
GGML_SCALARS = {"fp32": 0, "fp16": 1, "bf16": 30, "int8": 24, "int16": 25, "int32": 26, "int64": 27, "fp64": 28}


def blocks(profile: Any, *shape: int, seed: int = 0) -> bytes:
    count = int(np.prod(shape)) // profile.values
    return bytes(np.random.default_rng(seed).integers(0, 256, count * profile.bytes, np.uint8))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def there_and_back(tmp_path: Path, original: Path, **options: Any) -> Path:
    """Convert to `.ninfer` and back; the original's bytes must return."""
    artifact, back = tmp_path / "there.ninfer", tmp_path / "back.gguf"
    qf.convert(original, artifact, **options)
    qf.convert(artifact, back)
    assert back.read_bytes() == original.read_bytes()
    report = qf.verify(artifact, deep=True, against=original)
    assert report.ok, report.findings
    return artifact


@pytest.mark.parametrize("record", BLOCK_FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 1), (2, 2, 1, 1), (4,)], ids=str)
def test_blocks_are_kept_byte_for_byte(tmp_path: Path, record: GgufFormat, shape: tuple[int, ...]) -> None:
    profile = record.profile
    shape = (*shape[:-1], shape[-1] * profile.values)
    payload = blocks(profile, *shape)
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("w", shape, profile.ggml_type, payload)]))
    artifact = there_and_back(tmp_path, original)
    with NinferSource(artifact) as source:
        tensor = source["w"]
        assert tensor.format == record.name
        assert tensor.shape == shape
        assert tensor.payload().tobytes() == payload
        assert source.objects["weight/w"].shape == (int(np.prod(shape[:-1])), shape[-1])
    with qf.open(original) as gguf, qf.open(artifact) as ninfer:
        assert np.array_equal(gguf["w"].decode(), ninfer["w"].decode(), equal_nan=True)


@pytest.mark.parametrize("name", GGML_SCALARS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4)], ids=str)
def test_scalars_come_back(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    scalar = SCALARS[name]
    values = np.random.default_rng(3).integers(-100, 100, shape)  # exact in every one of the types
    data = np.asarray(values).astype(scalar.dtype).tobytes()
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("v", shape, GGML_SCALARS[name], data)]))
    artifact = there_and_back(tmp_path, original)
    with qf.open(artifact) as source:
        assert source["v"].format in {"fp32", "bf16", "int32"}
        assert source["v"].shape == shape
        assert np.array_equal(source["v"].decode().astype(np.int64), values)


def test_every_half_survives_with_its_nan_bits(tmp_path: Path) -> None:
    words = np.arange(65536, dtype="<u2")
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("h", (256, 256), gb.F16, words.tobytes())]))
    with qf.open(there_and_back(tmp_path, original)) as source:
        assert source["h"].format == "fp32"
        stored = source["h"].payload().view("<u4").astype(np.uint32)
    assert stored[0x7C01] == 0x7F802000  # a signalling NaN stays one
    assert stored[0x8001] == np.float32(-(2.0**-24)).view(np.uint32)


SPECIAL64 = [0.0, -0.0, 1.5, -np.inf, np.inf, 2.0**-149, 2.0**127]


def test_wide_types_are_narrowed_only_where_nothing_is_lost(tmp_path: Path) -> None:
    data = np.array(SPECIAL64, "<f8").tobytes() + struct.pack("<Q", 0x7FF8000020000000)
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("d", (8,), gb.F64, data)]))
    there_and_back(tmp_path, original)


@pytest.mark.parametrize(
    ("type", "data", "found"),
    [
        (gb.F64, np.array([1, 2, 0.1, 4], "<f8").tobytes(), "0.1"),
        (gb.F64, np.array([1, 2, 1e300, 4], "<f8").tobytes(), "1e+300"),
        (gb.F64, np.array([1, 2, 5e-324, 4], "<f8").tobytes(), "5e-324"),
        (gb.F64, struct.pack("<4Q", 0, 0, 0x7FF8000000000001, 0), "nan"),
        (gb.I64, np.array([1, 2, 2**31, 4], "<i8").tobytes(), "2147483648"),
        (gb.I64, np.array([1, 2, -(2**31) - 1, 4], "<i8").tobytes(), "-2147483649"),
    ],
)
def test_inexact_values_are_refused_by_place(tmp_path: Path, type: int, data: bytes, found: str) -> None:
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("d", (2, 2), type, data)]))
    with pytest.raises(UnsupportedError, match="tensor 'd', row 1, column 0") as caught:
        qf.convert(original, tmp_path / "o.ninfer")
    assert found in str(caught.value)
    assert "--fallback" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["o.gguf"]


@pytest.mark.parametrize("fallback", ["bf16", "fp32"])
def test_wide_values_are_rounded_once_when_asked(tmp_path: Path, fallback: str) -> None:
    # BF16 steps by 2^-7 here: the second value is past half a step by a bit that binary32 cannot hold
    values = np.array([0.1, 1 + 2.0**-8 + 2.0**-40, 3.0, -2.5])
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("d", (4,), gb.F64, values.astype("<f8").tobytes())]))
    qf.convert(original, tmp_path / "o.ninfer", fallback=fallback)
    with qf.open(tmp_path / "o.ninfer") as source:
        found = source["d"].decode(np.float64)
    once = [float(np.float32(0.1)), 1 + 2.0**-8] if fallback == "fp32" else [0.10009765625, 1 + 2.0**-7]
    assert list(found) == [*once, 3.0, -2.5]


@pytest.mark.parametrize("profile", HOMELESS, ids=lambda p: p.name)
def test_types_without_a_name_are_refused_and_can_be_decoded(tmp_path: Path, profile: Any) -> None:
    payload = bytes(blocks(profile, 2, profile.values))
    good = bytes(len(payload))
    original = write(
        tmp_path / "o.gguf",
        gb.build(
            [gb.tensor("bad", (2, profile.values), profile.ggml_type, good), gb.tensor("ok", (2,), gb.F32, bytes(8))]
        ),
    )
    with pytest.raises(UnsupportedError, match="'bad'") as caught:
        qf.convert(original, tmp_path / "o.ninfer")
    assert profile.name in str(caught.value)
    assert "'ok'" not in str(caught.value)
    assert "--fallback bf16" in str(caught.value)
    assert str(original) in str(caught.value)
    qf.convert(original, tmp_path / "o.ninfer", fallback="bf16")
    with qf.open(tmp_path / "o.ninfer") as source:
        assert source["bad"].format == "bf16"
        assert source["ok"].format == "fp32"
        assert np.array_equal(
            source["bad"].decode(np.float32), qf.dequantize_packed(good, profile.identifier, [2, profile.values])
        )
    assert qf.verify(tmp_path / "o.ninfer", against=original).ok
    with pytest.raises(UnsupportedError, match="original words are not in the artifact: 'bad'"):
        qf.convert(tmp_path / "o.ninfer", tmp_path / "back.gguf")
    assert not (tmp_path / "back.gguf").exists()


@pytest.mark.parametrize("fallback", [None, "bf16"])
@pytest.mark.parametrize("profile", TERNARY, ids=lambda p: p.name)
def test_ternary_blocks_keep_codes_and_scales(tmp_path: Path, profile: Any, fallback: str | None) -> None:
    make = {"TQ1_0": tq1_0, "TQ2_0": tq2_0, "PQ2_0": pq2_0, "PTQ1_0": ptq1_0}[profile.name]
    digits = np.random.default_rng(1).integers(0, 3, (2, 2, profile.values))
    payload = b"".join(make(block.tolist(), 0x3800) for block in digits.reshape(-1, profile.values))
    shape = (2, 2 * profile.values)
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("w", shape, profile.ggml_type, payload)]))
    report = qf.convert(original, tmp_path / "o.ninfer", fallback=fallback)
    assert report.tensors == {"import_encoded to t2_g128_fp16": 1}
    assert any("1 tensor of ternary blocks" in note for note in report.notes)
    with qf.open(tmp_path / "o.ninfer") as source:
        assert source["w"].format == "t2_g128_fp16"
        assert source["w"].shape == shape
        assert np.array_equal(source["w"].decode(), (digits.reshape(shape) - 1) * np.float32(0.5))
    assert qf.verify(tmp_path / "o.ninfer", deep=True).ok
    with pytest.raises(UnsupportedError, match="original words are not in the artifact: 'w'"):
        qf.convert(tmp_path / "o.ninfer", tmp_path / "back.gguf")


def test_nan_is_not_rounded_into_a_format(tmp_path: Path) -> None:
    payload = bytearray(40)
    payload[20:22] = struct.pack("<e", float("nan"))  # the scale of the second row's block
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("w", (2, 32), 3, bytes(payload))]))
    with pytest.raises(UnsupportedError, match="not finite") as caught:
        qf.convert(original, tmp_path / "o.ninfer", fallback="fp32")
    assert "tensor 'w', row 1, column 0" in str(caught.value)


@pytest.mark.parametrize("type", [4, 31, 142, 143, 9999])
def test_undecodable_types_are_refused_by_name(tmp_path: Path, type: int) -> None:
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("w", (2, 128), type, bytes(128))]))
    for fallback in (None, "bf16"):
        with pytest.raises(UnsupportedError, match="'w'") as caught:
            qf.convert(original, tmp_path / "o.ninfer", fallback=fallback)
        assert "cannot even be decoded: export the model with types of current ggml" in str(caught.value)


@pytest.mark.parametrize("target", ["bf16", "fp32"])
def test_format_takes_every_matrix_and_leaves_vectors(tmp_path: Path, target: str) -> None:
    qf.convert(EXAMPLE, tmp_path / "o.ninfer", format=target)
    with qf.open(tmp_path / "o.ninfer") as ninfer, qf.open(EXAMPLE) as gguf:
        for name, tensor in ninfer.items():
            integers = gguf[name].format == "int32"
            assert integers or tensor.format == target or len(tensor.shape) == 1
        assert ninfer["blk.0.ffn_bias"].format == "bf16"
        assert ninfer["blk.0.attn_norm.weight"].format == "fp32"
    assert qf.verify(tmp_path / "o.ninfer", deep=True, against=EXAMPLE).ok


# --- whole files ----------------------------------------------------------------------------------------------------


def test_the_example(tmp_path: Path) -> None:
    artifact = there_and_back(tmp_path, EXAMPLE)
    with NinferSource(artifact) as source:
        text = source.components["text"]
        assert text.config["general.architecture"] == "toy"
        assert text.config["toy.block_count"] == 1
        assert text.config["toy.tied"] is True
        assert text.config["toy.attention.layer_norm_rms_epsilon"] == float(np.float32(1e-6))
        assert "tokenizer.ggml.tokens" not in text.config
        assert "tokenizer.chat_template" not in text.config
        assert source.resources["chat_template"].startswith(b"{% for message")
        assert source["blk.0.ffn_gate_exps.weight"].shape == (4, 16, 64)
        assert "blk.0.ffn_unused" not in source
        assert source.metadata["name"] == "Toy mixed"
        provenance = source.directory.provenance
    assert provenance is not None
    (file,) = provenance["source"]["files"]
    assert file == {
        "path": "mixed.gguf",
        "bytes": EXAMPLE.stat().st_size,
        "sha256": hashlib.sha256(EXAMPLE.read_bytes()).hexdigest(),
    }
    assert provenance["converter"]["name"] == "quantform"


@pytest.mark.parametrize("limit", [4096 * 5, 4096 * 6 + 1, 20_000])
def test_split_artifacts(tmp_path: Path, limit: int) -> None:
    artifact = there_and_back(tmp_path, EXAMPLE, max_file_bytes=limit)
    parts = sorted(tmp_path.glob("there.ninfer*"))
    assert len(parts) > 1
    assert all(part.stat().st_size <= limit for part in parts)
    with Artifact(artifact) as opened:
        assert set(opened.files) == set(parts)


FILES: dict[str, bytes] = {
    "empty": gb.build(),
    "only metadata": gb.build(metadata={"a": 1, "b": "text", "c": [1, 2, 3]}),
    "version 2": gb.build([gb.tensor("a", (4,), gb.F32, bytes(16))], version=2),
    "big-endian": gb.build(
        [
            gb.tensor("f", (4,), gb.F32, np.array([1, -2, np.nan, 4], ">f4").tobytes()),
            gb.tensor("h", (4,), gb.F16, np.array([1, -2, np.inf, 4], ">f2").tobytes()),
            gb.tensor("q", (2, 64), gb.Q4_0, bytes(range(72))),
            gb.tensor("k", (1, 256), gb.Q4_K, bytes(range(144))),
        ],
        {"general.architecture": "be", "x": [1.5, 2.5]},
        big_endian=True,
    ),
    "alignment": gb.build([gb.tensor("a", (1,), gb.I8, b"a"), gb.tensor("b", (1,), gb.I8, b"b")], alignment=4096),
    "no padding at the end": gb.build([gb.tensor("a", (1,), gb.I8, b"a")], pad_end=False),
    "trailing bytes": gb.build([gb.tensor("a", (1,), gb.I8, b"a")]) + b"signature",
    "padding that is not zeros": gb.build(
        [gb.tensor("a", (1,), gb.I8, b"a"), gb.tensor("b", (1,), gb.I8, b"b")]
    ).replace(b"a" + bytes(31), b"a" + b"x" * 31),
    "empty tensors": gb.build(
        [gb.tensor("e", (0, 32), gb.Q4_0), gb.tensor("a", (1,), gb.I8, b"a"), gb.tensor("z", (0,), gb.F32)]
    ),
    "names": gb.build([gb.tensor("weight/ü \n\"'", (1,), gb.I8, b"a"), gb.tensor("resource/x", (1,), gb.I8, b"b")]),
    "odd metadata": gb.build(
        [gb.tensor("a", (1,), gb.I8, b"a")],
        {
            "nan": float("nan"),
            "inf": float("-inf"),
            "huge": gb.typed("uint64", 2**64 - 1),
            "invalid": b"\xff\xfe",
            "general.name": b"\xff",
            "tokenizer.chat_template": b"\xff",
            "nested": [[1, 2], [3]],
        },
    ),
    "templates": gb.build([gb.tensor("a", (1,), gb.I8, b"a")], {"tokenizer.chat_template": "", "general.name": ""}),
    "offsets out of order": gb.build(
        [gb.tensor("b", (1,), gb.I8, b"a", offset=32), gb.tensor("a", (1,), gb.I8, b"b", offset=0)]
    ),
    "original shape": gb.build(
        [gb.tensor("conv", (6, 64), gb.Q4_0, bytes(range(216)))],
        {"comfy.gguf.orig_shape.conv": gb.typed("int32", [2, 3, 8, 8])},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_odd_files_come_back(tmp_path: Path, name: str) -> None:
    original = write(tmp_path / "o.gguf", FILES[name])
    artifact = there_and_back(tmp_path, original)
    with qf.open(original) as gguf, qf.open(artifact) as ninfer:
        assert set(ninfer) == {name for name, tensor in gguf.items() if tensor.size}
        for tensor in ninfer.values():
            assert tensor.shape == gguf[tensor.name].shape
            assert tensor.size == 0 or np.array_equal(
                tensor.decode(np.float64), gguf[tensor.name].decode(np.float64), equal_nan=True
            )


def test_split_models_come_back_as_they_were(tmp_path: Path) -> None:
    count = 3
    for number in range(count):
        metadata = {**gb.split_metadata(number, count, count), "general.architecture": "split"}
        data = gb.build([gb.tensor(f"t{number}", (4,), gb.F32, np.full(4, number, "<f4").tobytes())], metadata)
        write(tmp_path / gb.part_name("model", number, count), data)
    second = tmp_path / gb.part_name("model", 1, count)
    qf.convert(second, tmp_path / "m.ninfer")
    for target in ("back.gguf", "again-00002-of-00003.gguf"):
        report = qf.convert(tmp_path / "m.ninfer", tmp_path / target)
        stem = target.split("-")[0].removesuffix(".gguf")
        assert [path.name for path, _ in report.files] == [gb.part_name(stem, n, count) for n in range(count)]
        for number in range(count):
            original = tmp_path / gb.part_name("model", number, count)
            assert (tmp_path / gb.part_name(stem, number, count)).read_bytes() == original.read_bytes()
    assert qf.verify(tmp_path / "m.ninfer", deep=True, against=second).ok


# --- what must not happen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".ninfer", ".gguf"])
def test_outputs_are_not_overwritten_unless_told(tmp_path: Path, suffix: str) -> None:
    source = EXAMPLE
    if suffix == ".gguf":
        source = tmp_path / "m.ninfer"
        qf.convert(EXAMPLE, source)
    target = write(tmp_path / f"there{suffix}", b"precious")
    with pytest.raises(OutputExistsError, match="--force"):
        qf.convert(source, target)
    assert target.read_bytes() == b"precious"
    qf.convert(source, target, force=True)
    assert target.read_bytes() != b"precious"


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [
        ("x.safetensors", {}, ArgumentError),
        ("x", {}, ArgumentError),
        ("x.ninfer/", {}, ArgumentError),
        ("x.gguf", {}, UnsupportedError),
        ("x.ninfer", {"format": "q9"}, UnknownNameError),
        ("x.ninfer", {"fallback": "int32"}, ArgumentError),
        ("x.ninfer", {"max_file_bytes": 10}, ArgumentError),
        ("missing/x.ninfer", {}, QuantformError),
    ],
)
def test_wrong_requests(tmp_path: Path, target: str, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        qf.convert(EXAMPLE, f"{tmp_path}/{target}", **options)
    assert not list(tmp_path.iterdir())


def test_an_artifact_that_changed_does_not_pass_as_the_original(tmp_path: Path) -> None:
    artifact = tmp_path / "m.ninfer"
    qf.convert(EXAMPLE, artifact)
    with NinferSource(artifact) as source:
        payload = source["blk.0.attn_q.weight"].payload().tobytes()
    data = bytearray(artifact.read_bytes())
    data[data.index(payload) + 100] ^= 1
    artifact.write_bytes(data)
    with pytest.raises(ArtifactError, match="does not give the original file back"):
        qf.convert(artifact, tmp_path / "back.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["m.ninfer"]
    report = qf.verify(artifact, against=EXAMPLE)
    (finding,) = report.findings
    assert finding.object == "blk.0.attn_q.weight"
    assert "byte 100 differs" in finding.problem


def test_artifacts_of_others_do_not_become_gguf(tmp_path: Path) -> None:
    from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor  # noqa: PLC0415

    with ArtifactWriter(
        tmp_path / "m.ninfer",
        components={"text": Component(config={})},
        objects=[PlannedTensor(id="w", shape=(2,), format="fp32", layout="contiguous_le_v1")],
        bindings={"w": Binding(object="w")},
    ) as writer:
        writer.write("w", 0, bytes(8))
    with pytest.raises(UnsupportedError, match="not made from a GGUF file"):
        qf.convert(tmp_path / "m.ninfer", tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", ["no source", "wrong size", "float size", "missing frame", "huge"])
def test_hostile_provenance(tmp_path: Path, kind: str) -> None:
    artifact = tmp_path / "m.ninfer"
    qf.convert(write(tmp_path / "o.gguf", FILES["version 2"]), artifact)
    data = artifact.read_bytes()
    size = f'"bytes":{len(FILES["version 2"])},"sha256"'.encode()
    assert size in data
    change = {
        "no source": (b'"source":{', b'"sourcX":{'),
        "wrong size": (size, size.replace(b":", b":1", 1)),
        "float size": (size, size.replace(b":", b":.", 1).replace(b".", b"1.")),
        "missing frame": (b'"gguf_frame":', b'"gguf_framX":'),
        "huge": (size, b'"bytes":18446744073709551615,"sha256"'),
    }[kind]
    head, tail = data[:4096], data[4096:]
    changed = head.replace(*change)
    surplus = len(changed) - len(head)
    changed = changed[: len(head)] if surplus >= 0 else changed + bytes(-surplus)
    artifact.write_bytes(changed + tail)
    with pytest.raises(QuantformError):
        qf.convert(artifact, tmp_path / "back.gguf")
    assert not (tmp_path / "back.gguf").exists()


def test_a_frame_of_more_files_than_there_were(tmp_path: Path) -> None:
    artifact = tmp_path / "m.ninfer"
    qf.convert(write(tmp_path / "o.gguf", FILES["version 2"]), artifact)
    data = artifact.read_bytes()
    text = data[32:4096].decode().rstrip()
    document = json.loads(text)
    document["provenance"]["source"]["files"] *= 2
    document["components"]["text"]["resources"]["gguf_frame_00002"] = "resource/gguf_frame"
    changed = json.dumps(document, separators=(",", ":")).encode().ljust(4096 - 32)
    artifact.write_bytes(data[:32] + changed + data[4096:])
    with pytest.raises(ArtifactError, match="another number of files; expected 1, found 2"):
        qf.convert(artifact, tmp_path / "back.gguf")


def test_metadata_without_end_stays_in_the_frame(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"long": "x" * (1 << 20), "general.name": "\x01" * (1 << 20), "short": "y"}
    metadata |= {f"key.{number}": number for number in range(12_000)}
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("a", (1,), gb.F32, bytes(4))], metadata))
    report = qf.convert(original, tmp_path / "m.ninfer")
    assert any("kept in the frame" in note for note in report.notes)
    with NinferSource(tmp_path / "m.ninfer") as source:
        config = source.components["text"].config
        assert config["short"] == "y"
        assert "long" not in config
        assert len(config) == 10_000
        assert "name" not in source.metadata
    qf.convert(tmp_path / "m.ninfer", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == original.read_bytes()


def test_file_names_of_any_bytes(tmp_path: Path) -> None:
    original = tmp_path / os.fsdecode(b"bad\xff.gguf")
    try:
        write(original, FILES["version 2"])
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    qf.convert(original, tmp_path / "m.ninfer")
    with NinferSource(tmp_path / "m.ninfer") as source:
        assert source.directory.provenance is not None
        assert source.directory.provenance["source"]["files"][0]["path"] == "bad\\udcff.gguf"


def test_a_tensor_without_a_name_is_no_parameter(tmp_path: Path) -> None:
    original = write(tmp_path / "o.gguf", gb.build([gb.tensor("", (1,), gb.F32, bytes(4))]))
    with pytest.raises(UnsupportedError, match="empty name") as caught:
        qf.convert(original, tmp_path / "m.ninfer")
    assert str(original) in str(caught.value)


def test_hints_name_what_would_work(tmp_path: Path) -> None:
    vector = write(tmp_path / "v.gguf", gb.build([gb.tensor("v", (32,), 3, bytes(20))]))
    with pytest.raises(UnsupportedError) as caught:
        qf.convert(vector, tmp_path / "m.ninfer", format="fp32")
    assert "--format" not in str(caught.value)
    assert "--fallback bf16" in str(caught.value)
    qf.convert(vector, tmp_path / "m.ninfer", format="fp32", fallback="bf16")


def test_arguments_of_other_types(tmp_path: Path) -> None:
    qf.convert(EXAMPLE, tmp_path / "X.NINFER", max_file_bytes=np.int64(1 << 30))  # type: ignore[arg-type]
    qf.convert(tmp_path / "X.NINFER", tmp_path / "X.Gguf")
    assert (tmp_path / "X.Gguf").read_bytes() == EXAMPLE.read_bytes()
    for wrong in (None, 3, 2.5, object()):
        with pytest.raises(ArgumentError, match="not a path"):
            qf.open(wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="not a path"):
            qf.convert(EXAMPLE, wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the path is empty"):
        qf.open("")
