"""The files that frames are laid out in."""

from __future__ import annotations

from pathlib import Path

import gguf_builder as gb
import quantform as qf
from quantform.convert.gguf_skeleton import Skeleton, original_files
from quantform.convert.recorded import MAIN
from quantform.sources import NinferSource


def test_zeros_of_a_frame_take_no_space(tmp_path: Path) -> None:
    head, unused = gb.build([gb.tensor("w", (8,), gb.F32, data=bytes(range(32)))]), 16 << 20
    original = tmp_path / "m.gguf"
    original.write_bytes(head + bytes(unused) + b"end")
    qf.convert(original, tmp_path / "m.ninfer")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with NinferSource(tmp_path / "m.ninfer") as source:
        frames, at = Skeleton(source, MAIN, original_files(source, MAIN), scratch), 0
        for data in frames.read(0):
            frames.take(0, at, data)
            at += data.size
        with frames.open() as skeleton:
            assert list(skeleton) == ["w"]
    (made,) = scratch.iterdir()
    assert made.stat().st_size == original.stat().st_size
    assert made.stat().st_blocks * 512 < unused // 2
    qf.convert(tmp_path / "m.ninfer", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == original.read_bytes()
