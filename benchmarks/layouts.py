"""How fast payloads of the other formats decode and are checked, beside their limits: prints Markdown tables.

    python benchmarks/layouts.py                                  # 256 KiB and 64 MiB of float32, one thread and two
    python benchmarks/layouts.py --sizes 64M --dtypes float16,bfloat16 --formats nvfp4

Decoding is in 10^9 values a second, checking in 10^9 bytes of payload; each the best of several rounds, all contenders
taking turns. A size is that of the decoded values. `fill` and `copy` are NumPy's, of the same output; `sha256` is
`hashlib`'s, of the same payload.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform

import numpy as np
import numpy.typing as npt

from quantform import _native
from quantform._scalars import FLOAT_OUTPUTS
from quantform.formats import (
    FORMATS,
    DirectFormat,
    Format,
    GgufFormat,
    GroupedFormat,
    GroupedWords,
    Nvfp4Format,
    Nvfp4Words,
    RowScaledFormat,
    RowScaledWords,
    Words,
)
from quantform.layouts import LAYOUTS, reader_of
from rates import Call, best_rates, parse_size, table

MOST_COLUMNS = 4096


def words_of(record: Format, rows: int, columns: int) -> Words:
    """Random legal words with ordinary scales: zeros and subnormal numbers would time other things."""
    rng = np.random.default_rng(1)
    shape = (rows, columns)
    if isinstance(record, GroupedFormat):
        codes = rng.integers(record.qmin, record.qmax, shape, np.int8, endpoint=True)
        scales = rng.uniform(0.001, 0.1, (rows, record.groups(columns))).astype(np.float16)
        return GroupedWords(record, shape, codes, scales.view(np.uint16))
    if isinstance(record, Nvfp4Format):
        packed = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        small = rng.integers(0x28, 0x70, (rows, columns // 16), np.uint8)
        return Nvfp4Words(record, shape, packed, small, np.array([300.0], np.float32).view(np.uint32))
    assert isinstance(record, RowScaledFormat)
    codes8 = rng.integers(0, 0x7F, shape, np.uint8) | rng.integers(0, 2, shape, np.uint8) << 7
    multipliers = rng.uniform(0.001, 0.1, rows).astype(record.scale.dtype)
    return RowScaledWords(record, shape, codes8, multipliers.view(np.uint16))


def measure(record: Format, size: int, dtype: str, arguments: argparse.Namespace) -> tuple[dict[str, float], ...]:
    """Rates of decoding and of checking for one format, output type and output size."""
    kind = FLOAT_OUTPUTS[dtype]
    columns = min(MOST_COLUMNS, max(128, size // kind.itemsize // 128 // 128 * 128))
    rows = max(128, size // kind.itemsize // columns // 128 * 128)
    shape, values = (rows, columns), rows * columns
    layout = LAYOUTS[record.default_layout]
    words = words_of(record, rows, columns)
    payload = layout.pack(words)
    memory = np.zeros(values * kind.itemsize + 64, np.uint8)
    out: npt.NDArray[np.generic] = (
        memory[-memory.ctypes.data % 64 :][: values * kind.itemsize].view(kind).reshape(shape)
    )
    other = np.ones(shape, kind)
    decoding: dict[str, tuple[Call, int]] = {}
    for threads in arguments.threads:

        def ours(threads: int = threads) -> object:
            return layout.decode(payload, record, shape, kind, out=out, threads=threads)

        decoding[f"quantform, {threads} thread{'s' * (threads > 1)}"] = ours, values
    decoding["fill"] = (lambda: out.fill(1)), values
    decoding["copy"] = (lambda: np.copyto(out, other)), values
    checking: dict[str, tuple[Call, int]] = {
        "stored payload": ((lambda: list(layout.faults(reader_of(payload), record, shape))), payload.size),
        "words in memory": (words.validate, payload.size),
        "sha256": ((lambda: hashlib.sha256(payload)), payload.size),
    }
    calls = decoding, checking
    return tuple(best_rates(some, arguments.seconds, arguments.rounds) for some in calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="256K,64M", help="bytes of output: 4K,256K,64M")
    parser.add_argument("--dtypes", default="float32", help=", ".join(FLOAT_OUTPUTS))
    parser.add_argument("--threads", default="1,2", help="numbers of threads of quantform; the first is compared")
    parser.add_argument("--formats", default="", help="q4_g64_fp16,nvfp4 (all by default but those of decode.py)")
    parser.add_argument("--seconds", type=float, default=0.3, help="measured for each contender")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.threads = [int(text) for text in arguments.threads.split(",")]
    ours = [record.name for record in FORMATS.values() if not isinstance(record, DirectFormat | GgufFormat)]
    wanted = [name for name in arguments.formats.split(",") if name] or ours
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, NumPy {np.__version__}, {_native.summary()}\n")
    for dtype in arguments.dtypes.split(","):
        for size in arguments.sizes.split(","):
            rows = {name: measure(FORMATS[name], parse_size(size), dtype, arguments) for name in wanted}
            decoding, checking = ({name: row[place] for name, row in rows.items()} for place in (0, 1))
            print(table(f"{dtype}, {size}iB", "format", decoding, {"fill"}), flush=True)
            print(table(f"Checks, {size}iB of {dtype}", "format", checking, {"sha256"}), flush=True)


if __name__ == "__main__":
    main()
