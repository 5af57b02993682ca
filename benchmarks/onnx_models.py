"""Packed weights in onnxruntime: `python benchmarks/onnx_models.py` prints two Markdown tables.

The first: one weight of 4096 x 4096 behind a Gemm with one row of activations, in five formats and four ways: as
float32, with the compiled operator (where this installation has it), and lowered to standard operators, with the
runtime's constant folding off and on. Weights are external data, which the runtime maps. The second: a model of 1,000
small weights. Each row is a process of its own; times are the best of several, memory is the peak of what is resident
beyond the imports, mapped pages included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from quantform.errors import UnsupportedError
from quantform.onnx import custom_op_library, lower
from quantform.packed import PROFILES, Profile, dequantize_packed

FORMATS = ("gguf:q4_0", "gguf:q8_0", "gguf:q4_k", "gguf:q6_k", "gguf:iq3_s")
SIZE = 4096
COUNT = 1000
RUNS = 3
FLOAT32, COMPILED, KEPT, FOLDED = "float32", "compiled operator", "functions, not folded", "functions, folded"

PROGRAM = """
import re, sys, time
import numpy as np, onnxruntime as ort
from quantform.onnx import session_options
path, way, width, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1e3
options = ort.SessionOptions() if way != "compiled operator" else session_options()
options.intra_op_num_threads = threads
x = np.ones((1, width), np.float32)
before, start = peak(), time.perf_counter()
left_out = ["ConstantFolding"] if way == "functions, not folded" else []
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out)
load, loaded, times = time.perf_counter() - start, peak() - before, []
for _ in range(10):
    start = time.perf_counter()
    session.run(None, {"x": x})
    times.append(time.perf_counter() - start)
print(load, loaded, times[0], min(times), peak() - before)
"""


def payload_of(profile: Profile, count: int) -> bytes:
    """Random blocks with ordinary scales."""
    rng = np.random.default_rng(profile.ggml_type)
    blocks = np.frombuffer(rng.bytes(count * profile.bytes), np.uint8).copy().view(profile.block)
    for name in profile.block.names or ():
        if profile.block[name].kind == "f":
            blocks[name] = rng.uniform(0.001, 0.1, count)
    return blocks.tobytes()


def external(name: str, kind: int, shape: tuple[int, ...], folder: Path, data: bytes) -> TensorProto:
    """An initializer whose data is a file of its own."""
    (folder / f"{name}.bin").write_bytes(data)
    tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=f"{name}.bin")
    return tensor


def model_of(nodes: list[onnx.NodeProto], initializers: list[TensorProto], width: int, height: int) -> onnx.ModelProto:
    """A model from `x` `[1, width]` to `y` `[1, height]`."""
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", 1, [1, width])], [value("y", 1, [1, height])]
    graph = helper.make_graph(nodes, "benchmark", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)


def decoding(x: str, y: str, profile: Profile, shape: tuple[int, ...]) -> onnx.NodeProto:
    """A node of the operator. Under opset 26 no checker knows it; the compiled operator and `lower` do."""
    return helper.make_node("DequantizePacked", [x], [y], format=profile.identifier, shape=shape)


def one_weight(profile: Profile, folder: Path) -> Iterator[tuple[str, Path]]:
    """The models with one weight, by way."""
    shape = (SIZE, SIZE)
    data = payload_of(profile, SIZE * SIZE // profile.values)
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    packed = model_of(
        [decoding("p", "w", profile, shape), gemm],
        [external("p", TensorProto.UINT8, (len(data),), folder, data)],
        SIZE,
        SIZE,
    )
    floats = external(
        "w", TensorProto.FLOAT, shape, folder, dequantize_packed(data, profile.identifier, shape).tobytes()
    )
    yield from written({FLOAT32: model_of([gemm], [floats], SIZE, SIZE), COMPILED: packed, KEPT: lower(packed)}, folder)


def many_weights(profile: Profile, folder: Path) -> Iterator[tuple[str, Path]]:
    """The models with 1,000 weights of two blocks each, by way."""
    width = 2 * profile.values
    nodes, initializers, last = [], [], "x"
    for index in range(COUNT):
        data = payload_of(profile, 2)
        initializers.append(TensorProto(name=f"p{index}", data_type=TensorProto.UINT8, dims=[len(data)], raw_data=data))
        nodes.append(decoding(f"p{index}", f"w{index}", profile, (1, width)))
        nodes.append(helper.make_node("Add", [last, f"w{index}"], [last := f"s{index}" if index < COUNT - 1 else "y"]))
    packed = model_of(nodes, initializers, width, width)
    yield from written({COMPILED: packed, KEPT: lower(packed)}, folder)


def written(models: dict[str, onnx.ModelProto], folder: Path) -> Iterator[tuple[str, Path]]:
    """Each model as a file; the compiled operator's only where there is one, the lowered one for both its ways."""
    for way, model in models.items():
        path = folder / f"{way.split()[0]}.onnx"
        path.write_bytes(model.SerializeToString())
        if way != COMPILED or compiled():
            yield way, path
        if way == KEPT:
            yield FOLDED, path


def compiled() -> bool:
    """Whether this installation has the compiled operator."""
    try:
        custom_op_library()
    except UnsupportedError:
        return False
    return True


def measure(path: Path, way: str, width: int, threads: int) -> list[float]:
    """Seconds to load, MB then, seconds of the first and of the best run, MB at the end: the best of each."""
    runs = []
    for _ in range(RUNS):
        arguments = [sys.executable, "-c", PROGRAM, path, way, str(width), str(threads)]
        done = subprocess.run(arguments, capture_output=True, check=True, text=True)  # noqa: S603 - our own program
        runs.append([float(number) for number in done.stdout.split()])
    return [min(column) for column in zip(*runs, strict=True)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--formats", default=",".join(FORMATS), help="identifiers, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime")
    options = parser.parse_args()
    profiles = [PROFILES[name] for name in options.formats.split(",")]
    print(f"| {SIZE} x {SIZE} | way | load s | MB | first run ms | best run ms | peak MB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for profile in profiles:
        with tempfile.TemporaryDirectory() as folder:
            for way, path in one_weight(profile, Path(folder)):
                load, loaded, first, best, peak = measure(path, way, SIZE, options.threads)
                row = f"{load:.2f} | {loaded:.0f} | {first * 1e3:.0f} | {best * 1e3:.1f} | {peak:.0f}"
                print(f"| {profile.name} | {way} | {row} |", flush=True)
    print(f"\n| {COUNT} weights | way | load s | MB |\n|---|---|---:|---:|")
    for profile in profiles:
        with tempfile.TemporaryDirectory() as folder:
            for way, path in many_weights(profile, Path(folder)):
                load, loaded, *_ = measure(path, way, 2 * profile.values, options.threads)
                print(f"| {profile.name} | {way} | {load:.2f} | {loaded:.0f} |", flush=True)


if __name__ == "__main__":
    main()
