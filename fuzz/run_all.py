"""Fuzzes every target for a while and stops at the first defect, with the command that shows it again.

    python fuzz/run_all.py --runs 2000

The same number of runs from the same seed is about the same work on every machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz_harness import CORPUS

HERE = Path(__file__).parent


def main() -> int:
    """Fuzz; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--artifacts", type=Path, default=Path.cwd(), help="where an input that fails is kept")
    given = parser.parse_args()
    for name in sorted(path.name for path in CORPUS.iterdir()):
        with tempfile.TemporaryDirectory(prefix="quantform-fuzz-") as found:
            prefix = f"{given.artifacts.resolve()}/{name}-"
            script = HERE / f"fuzz_{name}.py"
            options = [f"-runs={given.runs}", f"-seed={given.seed}", f"-artifact_prefix={prefix}", "-verbosity=0"]
            done = subprocess.run(  # noqa: S603 - our own scripts
                [sys.executable, script, *options, found, CORPUS / name], capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(done.stdout, done.stderr, sep="\n")  # noqa: T201
                print(f"{name}: a defect; the input is the newest {prefix}*. Show it again:")  # noqa: T201
                print(f"  python {script} {prefix}...")  # noqa: T201
                return 1
            if "instrumented" in done.stderr:  # libFuzzer asks, since no input reached more than another
                print(f"{name}: no code is instrumented; install the package without -e")  # noqa: T201
                return 1
            print(f"{name}: {given.runs} inputs, {len(list(Path(found).iterdir()))} of them reached new code")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
