"""Time and memory on a real model: `python benchmarks/model.py MODEL.gguf` prints a Markdown table.

Each row is a process of its own: the best time of several runs, the peak of resident memory beyond the imports. `cp`
and the `gguf` package are measured in the same run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 3

OURS = """
import re, sys, time
import quantform as qf
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
before, start = peak(), time.perf_counter()
{body}
print(time.perf_counter() - start, peak() - before)
"""
PEER = OURS.replace("import quantform as qf", "import gguf")

STEPS = {
    "open and list": (OURS, "f = qf.open(sys.argv[1]); [(t.name, t.shape, t.nbytes) for t in f.values()]"),
    "open and list, `gguf` package": (
        PEER,
        "[(t.name, t.shape, t.n_bytes) for t in gguf.GGUFReader(sys.argv[1]).tensors]",
    ),
    "convert to `.ninfer`": (OURS, "qf.convert(sys.argv[1], sys.argv[2], force=True)"),
    "convert back": (OURS, "qf.convert(sys.argv[2], sys.argv[3], force=True)"),
    "verify --deep --against": (OURS, "assert qf.verify(sys.argv[2], deep=True, against=sys.argv[1]).ok"),
}


def measure(program: str, *arguments: Path) -> tuple[float, int]:
    """Seconds and bytes of the best run."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=True, text=True)  # noqa: S603
        seconds, memory = done.stdout.split()
        runs.append((float(seconds), int(memory)))
    return min(seconds for seconds, _ in runs), max(memory for _, memory in runs)


def copy(source: Path, target: Path) -> float:
    """Seconds of `cp`."""
    start = time.perf_counter()
    subprocess.run([shutil.which("cp") or "cp", source, target], check=True)  # noqa: S603
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    model = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        artifact, back = Path(folder) / "model.ninfer", Path(folder) / "back.gguf"
        print(
            f"| {model.stat().st_size / 1e6:.0f} MB model | seconds | peak memory beyond imports |\n| --- | --- | --- |"
        )
        print(f"| `cp` | {min(copy(model, back) for _ in range(RUNS)):.2f} | |")
        for name, (program, body) in STEPS.items():
            seconds, memory = measure(program.format(body=body), model, artifact, back)
            print(f"| {name} | {seconds:.3f} | {memory / 1e6:.0f} MB |")


if __name__ == "__main__":
    main()
