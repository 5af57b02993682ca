"""What tests of ONNX models share."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_builder as gb
from gguf_to_onnx import every_type


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(gb.build(every_type(), {"general.name": "toy"}))
    return path
