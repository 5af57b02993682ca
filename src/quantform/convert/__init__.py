"""From one file format to another: the one place that sees all stages."""

from __future__ import annotations

import os
from pathlib import Path

from quantform._progress import Progress, silent
from quantform.convert.gguf_import import import_gguf
from quantform.convert.gguf_restore import restore_gguf
from quantform.convert.report import Report
from quantform.errors import ArgumentError, UnsupportedError
from quantform.sources import GGUFSource, NinferSource, open_source

__all__ = ["Report", "convert"]


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    format: str | None = None,
    fallback: str | None = None,
    max_file_bytes: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Report:
    """Convert a file; the suffix of `output` says to what.

    GGUF to `.ninfer` keeps the words of every tensor and the rest of the file as resources; `.ninfer` to GGUF gives the
    file back that it was made from, byte for byte. Nothing appears under the output's name before it is complete.

    Args:
        source: A GGUF file (any one of a split set) or a `.ninfer` entry file.
        output: `*.ninfer` or `*.gguf`.
        format: The format of every matrix; None keeps each one's words.
        fallback: `"bf16"` or `"fp32"`: decode to it those tensors whose words no format holds; None refuses them.
        max_file_bytes: Split a `.ninfer` output into files of at most so many bytes.
        force: Replace an existing output, which stays as it is until the new one is complete.
        progress: Called as bytes are written.

    Raises:
        UnsupportedError: Tensors have words that the output cannot hold; lists them and says what to do.
        OutputExistsError: The output exists and `force` is false.
        ArgumentError: An option does not fit this conversion.
        FileError: A file cannot be read or written, or breaks its format's rules.
    """
    target = Path(output)
    with open_source(source) as opened:
        if isinstance(opened, GGUFSource) and target.suffix == ".ninfer":
            return import_gguf(
                opened,
                target,
                format=format,
                fallback=fallback,
                max_file_bytes=max_file_bytes,
                force=force,
                progress=progress,
            )
        if isinstance(opened, NinferSource) and target.suffix == ".gguf":
            for name, value in (("format", format), ("fallback", fallback), ("max_file_bytes", max_file_bytes)):
                if value is not None:
                    raise ArgumentError(f"{name} does not fit a conversion back to GGUF", found=repr(value))
            return restore_gguf(opened, target, force=force, progress=progress)
        if target.suffix not in {".ninfer", ".gguf"}:
            raise ArgumentError(
                "the output's suffix names no file format", where=str(target), expected=".ninfer or .gguf"
            )
        raise UnsupportedError(
            f"no conversion from {opened.kind} to {target.suffix}",
            where=str(target),
            hint="GGUF converts to .ninfer, and .ninfer back to the GGUF that it was made from",
        )
