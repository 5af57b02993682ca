"""How fast `verify --deep` is beside reading the file through `sha256sum`: prints a Markdown table.

    python benchmarks/verify.py                      # an artifact of each family, 256 MB
    python benchmarks/verify.py MODEL.gguf ...       # and these files
    python benchmarks/verify.py --megabytes 64

Both take turns on files in the system's cache, each the best of three runs; peak memory is what verifying adds
to a process that has imported the package. Artifacts have rows with padding (K = 4100) where their layout has any.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from quantform._native import summary
from quantform.container import ArtifactWriter, Binding, Component, PlannedTensor
from quantform.formats import FORMATS, Format
from quantform.layouts import LAYOUTS
from quantform.testing.legal_words import legal_words

RUNS = 3
FAMILIES = (
    *("fp32", "q2_g64_fp16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "t2_g128_fp16", "nvfp4"),
    *("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16", "gguf_q4_k", "gguf_iq1_m"),
)
PROGRAM = """
import re, sys, time
import quantform as qf
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
before, start = peak(), time.perf_counter()
report = qf.verify(sys.argv[1], deep=True)
print(time.perf_counter() - start, peak() - before, report.total)
"""


def make(path: Path, record: Format, size: int) -> None:
    """An artifact of one tensor of about `size` bytes: a few legal rows, repeated."""
    layout = LAYOUTS[record.default_layout]
    columns = 4100 if record.category in {"direct", "grouped", "row-scaled"} else 4096
    some = layout.pack(legal_words(record, (256, columns), np.random.default_rng(1)))
    rows = size // (some.size // 256) // 256 * 256
    words = layout.unpack(some, record, (256, columns))
    planned = PlannedTensor(id="w", shape=(rows, columns), format=record.name, layout=layout.name)
    with ArtifactWriter(
        path,
        components={"text": Component(config={})},
        objects=[planned],
        bindings={"w": Binding(object="w")},
    ) as writer:
        for first in range(0, rows, 256):
            for offset, data in layout.place(words, (rows, columns), first):
                writer.write("w", offset, data)
        for offset, count in layout.gaps(record, (rows, columns)):
            writer.write("w", offset, np.zeros(count, np.uint8))


def sha256sum(path: Path) -> float:
    """Seconds."""
    start = time.perf_counter()
    subprocess.run([shutil.which("sha256sum") or "sha256sum", path], check=True, capture_output=True)  # noqa: S603
    return time.perf_counter() - start


def verify(path: Path) -> tuple[float, int, int]:
    """Seconds, bytes of memory, and how many findings."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, check=True, text=True)  # noqa: S603
    seconds, memory, findings = done.stdout.split()
    return float(seconds), int(memory), int(findings)


def row(name: str, path: Path) -> str:
    """A line of the table."""
    size = path.stat().st_size
    runs, peers = [], []
    for _ in range(RUNS):
        peers.append(sha256sum(path))
        runs.append(verify(path))
    ours, peer = size / min(run[0] for run in runs) / 1e9, size / min(peers) / 1e9
    memory = max(run[1] for run in runs)
    rates = f"{ours:.2f} | {peer:.2f} | {ours / peer:.1f}"
    return f"| {name} | {size / 1e6:.0f} | {rates} | {memory / 1e6:.0f} | {runs[0][2]} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--formats", default=",".join(FAMILIES))
    options = parser.parse_args()
    print(f"{summary()}, rates in GB/s\n")
    print(f"| file | MB | verify --deep | sha256sum | ratio | peak MB | findings |\n{'| --- ' * 7}|")
    for path in options.files:
        print(row(path.name, path))
    for name in filter(None, options.formats.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.ninfer"
            make(path, FORMATS[name], options.megabytes << 20)
            print(row(f"`{name}`", path))


if __name__ == "__main__":
    main()
