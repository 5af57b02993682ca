"""Chat templates in the JSON files of a checkpoint: one is kept, and nothing is left out without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import safetensors_builder as sb
from quantform.convert.checkpoint_carried import checkpoint_carried
from quantform.sources import Checkpoint, SafetensorsSource

TOOLS, DEFAULT = {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}
ODD = "chat_template is neither"


@pytest.mark.parametrize(
    ("value", "kept", "note"),
    [
        ("text", b"text", ""),
        ([TOOLS, DEFAULT], b"plain", "'default' is kept, and left out are 'tool_use'"),
        ([TOOLS, {"name": "rag", "template": "r"}], b"tools", "'tool_use' is kept, and left out are 'rag'"),
        ([{"name": str(n), "template": ""} for n in range(9)], None, "left out are '1', '2', '3', '4' and 4 more"),
        ([TOOLS], b"tools", ""),
        (5, None, ODD),
        ([1], None, ODD),
        ([TOOLS, {"name": "x"}], None, ODD),
        ([TOOLS, {"name": ["x"], "template": "t"}], None, ODD),
        ([], None, ODD),
        (None, None, ""),
    ],
)
@pytest.mark.parametrize("file", ["chat_template.json", "tokenizer_config.json"])
def test_one_template_is_kept_and_the_rest_noted(
    tmp_path: Path, file: str, value: Any, kept: bytes | None, note: str
) -> None:
    sb.model(tmp_path, {"w": np.ones((2, 3), np.float32)}, {})
    (tmp_path / file).write_text(json.dumps({"chat_template": value}))
    with Checkpoint(SafetensorsSource(tmp_path)) as source:
        carried = checkpoint_carried(source, "text")
    resource = carried.resources.get(("text", "chat_template"))
    assert (None if resource is None else b"".join(map(bytes, resource.read()))) == kept
    if note:
        assert len(carried.notes) == 1
        assert carried.notes[0].startswith(f"{file}: ")
        assert note in carried.notes[0]
    else:
        assert carried.notes == []


def test_a_file_without_a_template_gives_way_to_the_next(tmp_path: Path) -> None:
    sb.model(tmp_path, {"w": np.ones((2, 3), np.float32)}, {})
    (tmp_path / "chat_template.json").write_text('{"chat_template": 5}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "text"}')
    with Checkpoint(SafetensorsSource(tmp_path)) as source:
        carried = checkpoint_carried(source, "text")
    assert carried.resources["text", "chat_template"].nbytes == 4
    assert len(carried.notes) == 1
