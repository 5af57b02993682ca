"""How fast the 27 packed profiles decode, beside their limits and peers: prints Markdown tables.

    python benchmarks/decode.py                                   # 256 KiB and 64 MiB of float32, one thread and two
    python benchmarks/decode.py --sizes 4K,256K,4M,64M,256M --dtypes float32,float16,bfloat16,float64
    QUANTFORM_GGML=/path/to/library.so python benchmarks/decode.py

Every number is in 10^9 decoded values a second, the best of several rounds; all contenders take turns in each round and
write to the same memory. A size is that of the output. `fill` and `copy` are NumPy's, of the same output, and show what
memory admits. The peers: the `gguf` package, and ggml's row decoders (`dequantize_row_q4_0(blocks, out, count)`, one
thread, float32 only) where `QUANTFORM_GGML` names a shared library that has them.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quantform import _native
from quantform._scalars import FLOAT_OUTPUTS
from quantform.packed import PROFILES, Profile, dequantize_packed
from rates import Call, best_rates, parse_size, table

try:
    import gguf
except ImportError:
    gguf = None  # type: ignore[assignment]  # a peer that may be absent

# The package takes a second for this many values; its rate does not grow beyond them.
GGUF_VALUES = 1 << 24
GGUF = "gguf package"


def payload_of(profile: Profile, count: int) -> npt.NDArray[np.uint8]:
    """Random blocks with ordinary scales: infinities and subnormal numbers would time other things."""
    rng = np.random.default_rng(profile.ggml_type)
    blocks = np.frombuffer(rng.bytes(count * profile.bytes), np.uint8).copy().view(profile.block)
    for name in profile.block.names or ():
        if profile.block[name].kind == "f":
            blocks[name] = rng.uniform(0.001, 0.1, count)
    if profile.name == "MXFP4":
        blocks["exponent"] = rng.integers(110, 130, count)
    return blocks.view(np.uint8)


def ggml_rows(library: ctypes.CDLL, profile: Profile) -> Callable[[int, int, int], None] | None:
    """ggml's decoder of the profile's rows, or None."""
    function = getattr(library, f"dequantize_row_{profile.name.lower().replace('_k', '_K')}", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function


def gguf_call(profile: Profile, payload: npt.NDArray[np.uint8]) -> Call | None:
    """The `gguf` package's decoder on a part of the payload, where it has the profile."""
    if gguf is None:
        return None
    part = payload[: max(1, GGUF_VALUES // profile.values) * profile.bytes]

    try:
        kind = gguf.GGMLQuantizationType(profile.ggml_type)
        gguf.dequantize(part, kind)
    except (NotImplementedError, ValueError):
        return None
    return lambda: gguf.dequantize(part, kind)


def measure(profile: Profile, size: int, dtype: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of all contenders for one profile, output type and output size."""
    kind = FLOAT_OUTPUTS[dtype]
    count = max(1, size // kind.itemsize // profile.values)
    values = count * profile.values
    payload = payload_of(profile, count)
    memory = np.zeros(values * kind.itemsize + 64, np.uint8)
    out = memory[-memory.ctypes.data % 64 :][: values * kind.itemsize].view(kind)
    other = np.ones(values, kind)
    shape = (values,)
    calls: dict[str, tuple[Call, int]] = {}
    for threads in arguments.threads:

        def ours(threads: int = threads) -> object:
            return dequantize_packed(payload, profile.identifier, shape, kind, out=out, threads=threads)

        calls[f"quantform, {threads} thread{'s' * (threads > 1)}"] = ours, values
    calls["fill"] = (lambda: out.fill(1)), values
    calls["copy"] = (lambda: np.copyto(out, other)), values
    if dtype == "float32":
        if arguments.ggml is not None and (rows := ggml_rows(arguments.ggml, profile)) is not None:
            addresses = payload.ctypes.data, out.ctypes.data
            calls["ggml"] = (lambda: rows(*addresses, values)), values
        if not arguments.without_gguf and (call := gguf_call(profile, payload)) is not None:
            calls[GGUF] = call, min(values, GGUF_VALUES)
    return best_rates(calls, arguments.seconds, arguments.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="256K,64M", help="bytes of output: 4K,256K,64M")
    parser.add_argument("--dtypes", default="float32", help=", ".join(FLOAT_OUTPUTS))
    parser.add_argument("--threads", default="1,2", help="numbers of threads of quantform; the first is compared")
    parser.add_argument("--profiles", default="", help="q4_k,q6_k (all by default)")
    parser.add_argument("--seconds", type=float, default=0.3, help="measured for each contender")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-gguf", action="store_true", help="leave the slow gguf package out")
    arguments = parser.parse_args()
    arguments.threads = [int(text) for text in arguments.threads.split(",")]
    library = os.environ.get("QUANTFORM_GGML")
    arguments.ggml = ctypes.CDLL(library) if library else None
    wanted = [f"gguf:{name}" for name in arguments.profiles.split(",") if name] or list(PROFILES)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, NumPy {np.__version__}, {_native.summary()}\n")
    for dtype in arguments.dtypes.split(","):
        for size in arguments.sizes.split(","):
            rows = {PROFILES[name].name: measure(PROFILES[name], parse_size(size), dtype, arguments) for name in wanted}
            print(table(f"{dtype}, {size}iB", "profile", rows, {"fill", "ggml", GGUF}), flush=True)


if __name__ == "__main__":
    main()
