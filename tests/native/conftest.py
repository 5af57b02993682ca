"""Shared by the kernels' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quantform import _native

KERNELS: Any = _native.kernels


@pytest.fixture(scope="module", params=KERNELS.instruction_sets() if KERNELS is not None else [])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has, in use for the module's tests."""
    before = KERNELS.instruction_set()
    KERNELS.use_instruction_set(request.param)
    yield request.param
    KERNELS.use_instruction_set(before)
