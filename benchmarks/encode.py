"""How fast values are quantized, beside their limits and peers: prints Markdown tables.

    python benchmarks/encode.py                                   # 256 KiB and 64 MiB of float32, one thread and two
    python benchmarks/encode.py --sizes 16K,256K,4M,64M,256M --dtypes float32,float16,bfloat16
    pip install '.[bench]'                                        # PyTorch, a peer

Every number is in 10^9 source values a second, the best of several rounds; all contenders take turns in each round. A
size is that of the source. `payload` makes the bytes of a `.ninfer` object at once, in memory that is there already, as
conversion does; `words` is `encode`, which makes new arrays. `copy` is NumPy's, of the source, and `fill` that of the
payload: they show what memory admits. The peers do the same arithmetic to codes and scales: this package's NumPy path,
and PyTorch on one thread of the CPU where it is installed.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import torch_encoders
from quantform import _native
from quantform._scalars import FLOAT_OUTPUTS
from quantform.encode import encode
from quantform.formats import FORMATS
from quantform.layouts import LAYOUTS
from quantform.methods import METHODS, Input, Request
from quantform.methods.kernel import ValuesJob
from rates import Call, best_rates, parse_size, table

PAIRS = [
    (method.name, format)
    for method in METHODS.values()
    if method.takes == "values"
    for format in method.targets
    if FORMATS[format].category != "direct"
]
COLUMNS = 1024
# The slow contenders get so many values; their rates do not grow beyond.
PEER_VALUES = {"grouped_search": 1 << 16}
PEER_DEFAULT = 1 << 22
NUMPY, TORCH = "NumPy path", "PyTorch"


def job_of(method: str, format: str, values: npt.NDArray[np.generic], threads: int) -> ValuesJob:
    source = Input.of_values(values)
    job = METHODS[method].start(Request(format=FORMATS[format], shape=values.shape, inputs=(source,), threads=threads))
    assert isinstance(job, ValuesJob)
    return job


def measure(method: str, format: str, size: int, dtype: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of all contenders for one method, format, source type and source size."""
    kind = FLOAT_OUTPUTS[dtype]
    rows = max(1, size // kind.itemsize // COLUMNS)
    rows = -(-rows // 128) * 128 if format == "nvfp4" else rows
    values = (np.random.default_rng(1).standard_normal((rows, COLUMNS), np.float32) * np.float32(0.02)).astype(kind)
    count, layout = values.size, LAYOUTS[FORMATS[format].default_layout]
    planes = [np.zeros(size, np.uint8) for _, size in layout.spans(format, values.shape, 0, rows)]
    other = values.copy()
    calls: dict[str, tuple[Call, int]] = {}
    for threads in arguments.threads:
        job = job_of(method, format, values, threads)
        suffix = f"{threads} thread{'s' * (threads > 1)}"
        if job.kernel is not None:
            calls[f"payload, {suffix}"] = (lambda job=job: job.pack(0, rows, planes)), count
        calls[f"words, {suffix}"] = (lambda threads=threads: encode(values, format, method, threads=threads)), count
    calls["copy"] = (lambda: np.copyto(other, values)), count
    calls["fill"] = (lambda: [plane.fill(1) for plane in planes]), count
    part = values[: max(1, min(rows, PEER_VALUES.get(method, PEER_DEFAULT) // COLUMNS))]
    if not arguments.without_numpy:
        definition = replace(job_of(method, format, part, 1), kernel=None)
        calls[NUMPY] = (lambda: definition.rows(0, len(part))), part.size
    peer = torch_encoders.encoder(method, format, part)
    if peer is not None:
        calls[TORCH] = peer, part.size
    return best_rates(calls, arguments.seconds, arguments.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="256K,64M", help="bytes of source: 16K,256K,64M")
    parser.add_argument("--dtypes", default="float32", help="float32, float16, bfloat16")
    parser.add_argument("--threads", default="1,2", help="numbers of threads of quantform; the first is compared")
    parser.add_argument("--methods", default="", help="grouped_absmax,fp8_row_maxabs (all by default)")
    parser.add_argument("--seconds", type=float, default=0.3, help="measured for each contender")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-numpy", action="store_true", help="leave the NumPy path out")
    arguments = parser.parse_args()
    arguments.threads = [int(text) for text in arguments.threads.split(",")]
    wanted = arguments.methods.split(",") if arguments.methods else METHODS
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, NumPy {np.__version__}, {_native.summary()}")
    print(f"{torch_encoders.summary()}\n")
    for dtype in arguments.dtypes.split(","):
        for size in arguments.sizes.split(","):
            rows = {
                f"{method} {format}": measure(method, format, parse_size(size), dtype, arguments)
                for method, format in PAIRS
                if method in wanted
            }
            print(table(f"{dtype}, {size}iB", "method and format", rows, {"copy", NUMPY, TORCH}), flush=True)


if __name__ == "__main__":
    main()
