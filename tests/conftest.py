"""Shared by every test: golden vectors, and the rule that a run for the record skips nothing."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from quantform._native import kernels

DATA = Path(__file__).parent / "data"

# Derandomized: a red run is red again on the next machine. Deadlines measure the machine, not the code.
hypothesis.settings.register_profile("quantform", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("quantform")


@pytest.fixture(scope="session")
def packed_vectors() -> dict[str, np.ndarray]:
    """`KIND/payload` and `KIND/bits` for the 27 profiles."""
    with np.load(DATA / "packed_vectors.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="session")
def ninfer_vectors() -> dict[str, np.ndarray]:
    """Words and payloads of the `.ninfer` formats."""
    with np.load(DATA / "ninfer_vectors.npz") as archive:
        return dict(archive)


def unexcused(reporter: pytest.TerminalReporter) -> list[str]:
    """Why tests were skipped, but for those that need a compiler or what it makes where nothing was compiled."""
    reasons = [str(report.longrepr[-1]) for report in reporter.stats.get("skipped", [])]
    excused = ("no compiled kernels", "no C compiler") if kernels is None else ()
    return [reason for reason in reasons if not any(excuse in reason for excuse in excused)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.environ.get("QUANTFORM_TESTS_NO_SKIPS") != "1" or exitstatus != pytest.ExitCode.OK:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and unexcused(reporter):
        reporter.write_line(f"\nQUANTFORM_TESTS_NO_SKIPS=1: skipped tests count as failures: {unexcused(reporter)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
