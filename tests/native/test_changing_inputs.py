"""Arrays that another thread changes while kernels read them: results are anything, but nothing outside is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quantform
from quantform import _native

if _native.kernels is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)

# The child reads for half a second, while a thread of it writes one and the other all the time.
CHILD = """
import threading, time
import numpy as np
from quantform import _native
from quantform.encode import encode
from quantform.errors import ValuesError

def both(array, one, other, read):
    done = threading.Event()
    def change():
        while not done.is_set():
            array[...] = one
            array[...] = other
    thread = threading.Thread(target=change)
    thread.start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            read()
        except ValuesError:
            pass
    done.set()
    thread.join()
"""
READS = {
    "searched values": """
values = np.random.default_rng(1).normal(size=(16, 512)).astype(np.float32)
both(values, np.float32(0), values.copy(), lambda: encode(values, "q4_g64_fp16", "grouped_search", threads=1))
""",
    "values that become infinite": """
values = np.random.default_rng(1).normal(size=(16, 512)).astype(np.float32)
both(values, np.float32("inf"), values.copy(), lambda: encode(values, "q8_g32_fp16", "grouped_search", threads=1))
""",
    "numbers of rows": """
blocks, rows = np.zeros((4, 18), np.uint8), np.zeros(1 << 16, np.int64)
out = np.empty(32 * len(rows) * 4, np.uint8)
def read():
    try:
        _native.kernels.decode_block_rows(2, blocks, rows, 0, len(rows), 0, out, 1)
    except ValueError:
        pass
both(rows, 3, 1 << 50, read)
""",
}


@pytest.mark.parametrize("case", READS)
def test_changes_are_harmless(case: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(quantform.__file__).parent.parent)}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            CHILD + READS[case],
        ],  # NumPy warns of infinities that were finite before
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
