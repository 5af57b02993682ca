"""Which fault is named, and when: the same whatever the chunks, and before anything is written where that can be."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_builder as gb
import quantform as qf
from quantform.convert import work
from quantform.errors import ArgumentError, QuantformError


@pytest.mark.parametrize("own", [False, True])
def test_the_first_bad_row_is_named_whatever_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Rows 9, 5 and 3 break the rules that are looked at first, second and third."""
    blocks = np.zeros(32, np.dtype([("d", "<f2"), ("qs", "i1", 32)]))
    blocks["d"] = 1
    blocks["qs"][9, 4] = -128
    blocks["d"][5] = np.inf
    blocks["d"][3], blocks["qs"][3, 7] = 0, 1
    (tmp_path / "m.gguf").write_bytes(gb.build([gb.tensor("w", (32, 32), gb.Q8_0, blocks.tobytes())]))
    codes, scales = blocks["qs"].copy(), blocks["d"].astype(np.float16)[:, None]
    options: dict[str, Any] = {"format": "q8_g32_fp16"}
    if own:
        options["method"] = lambda _: lambda first, end: (codes[first:end], scales[first:end])
    texts = set()
    for chunk in (32, 128, 256, 1 << 30):
        monkeypatch.setattr(work, "CHUNK_VALUES", chunk)
        with pytest.raises(QuantformError) as caught:
            qf.convert(tmp_path / "m.gguf", tmp_path / "a.ninfer", **options)
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert "row 3, group 0, column 7" in texts.pop()


def test_a_dry_run_counts_the_whole_directory(tmp_path: Path) -> None:
    """A limit that the directory exceeds because of its provenance alone is refused before and while writing alike."""
    arrays = {"w" * 3000: np.ones((2, 64), np.float32)}  # named thrice in objects and bindings, once more in provenance
    refused = []
    for limit in (4096, 8192, 12_288, 16_384, 20_480):
        output = tmp_path / f"{limit}.ninfer"
        outcomes = []
        for run in (partial(qf.plan, arrays, output=output), partial(qf.convert, arrays, output)):
            try:
                run(max_file_bytes=limit)
                outcomes.append("")
            except ArgumentError as error:
                outcomes.append(error.problem)
        assert outcomes[0] == outcomes[1]
        refused.append(bool(outcomes[0]))
    assert refused == [True, True, True, True, False]
