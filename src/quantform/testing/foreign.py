"""Programs of any language as decoders and encoders: a command line with placeholders, files in, a file out.

Nothing goes through a shell. A program is given a time limit, and what it writes is bounded. It ends in one of three
ways: exit code 0 and an output file; 77 for what it does not implement; any other, which for an encoder is a refusal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from quantform._scalars import FLOAT_OUTPUTS
from quantform._sizes import product
from quantform.errors import ArgumentError, QuantformError
from quantform.formats import FORMATS
from quantform.packed import PROFILES

__all__ = ["NOT_IMPLEMENTED", "ForeignDecoder", "ForeignEncoder", "ForeignError", "RefusedError"]

NOT_IMPLEMENTED = 77
"""The exit code of a program that does not implement what it is asked for."""

_DECODER = ("format", "payload", "shape", "output", "dtype", "layout", "divisors")
_ENCODER = ("format", "method", "values", "shape", "output", "source", "importance", "negative_scales", "layout")
_SHOWN_BYTES = 2000
_SLACK = 1 << 20
_POLL_SECONDS = 0.05


class ForeignError(QuantformError):
    """A program did not do what it was asked for; its standard error is in the text."""


class RefusedError(ForeignError, ValueError):
    """An encoder ended with an exit code that says no."""


class _Program:
    """A command line with placeholders, and a directory for its files.

    Args:
        template: The command; it is split as a shell would, and placeholders are replaced in each argument.
        known: The placeholders that there are.
        needed: Those that must occur.
        timeout: Seconds that one run may take.
    """

    def __init__(self, template: str, known: Sequence[str], needed: Sequence[str], timeout: float) -> None:
        try:
            self._arguments = shlex.split(template)
        except ValueError as error:
            raise ArgumentError("the command cannot be split into arguments", found=str(error)) from None
        used = {name for argument in self._arguments for name in re.findall(r"\{(\w*)\}", argument)}
        listed = " ".join(f"{{{name}}}" for name in known)
        if unknown := sorted(used - set(known)):
            raise ArgumentError("the command has an unknown placeholder", expected=listed, found=f"{{{unknown[0]}}}")
        if missing := [name for name in needed if name not in used]:
            raise ArgumentError(f"the command lacks {{{missing[0]}}}", expected=listed, found=template)
        if timeout <= 0:
            raise ArgumentError("the time limit is not positive", found=timeout)
        self.used = frozenset(used)
        self._timeout = timeout
        self._directory = tempfile.TemporaryDirectory(prefix="quantform-conform-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def file(self, name: str, content: npt.NDArray[Any]) -> str:
        """A file with an array's bytes, for the program to read."""
        path = Path(self._directory.name) / name
        path.write_bytes(np.ascontiguousarray(content).tobytes())
        return str(path)

    def run(self, values: Mapping[str, str], size: int) -> bytes:
        """Run the program and give its output file, of which `size` bytes are expected.

        Raises:
            NotImplementedError: Exit code 77.
            RefusedError: Another exit code.
            ForeignError: It cannot be started, was killed, took too long, or wrote too much or nothing.
        """
        output = Path(self._directory.name) / "output"
        with contextlib.suppress(FileNotFoundError):
            output.unlink()
        filled = {**values, "output": str(output)}
        command = [re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], argument) for argument in self._arguments]
        code, said = self._wait(command, output, size + _SLACK)
        shown = f"it wrote to standard error: {said}" if said else None
        if code == NOT_IMPLEMENTED:
            raise NotImplementedError
        if code < 0:
            raise ForeignError("the program was killed", found=_signal_name(-code), hint=shown)
        if code:
            raise RefusedError("the program failed", found=f"exit code {code}", hint=shown)
        return _read(output, size, shown)

    def _wait(self, command: list[str], output: Path, most: int) -> tuple[int, str]:
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ForeignError("the program cannot be started", where=command[0], found=str(error)) from None
        said = _Listener(process)
        end = time.monotonic() + self._timeout
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_SECONDS), said.text()
                if time.monotonic() > end:
                    raise ForeignError("the program took too long", expected=f"{self._timeout:g} s at most")
                if _size(output) > most:
                    raise ForeignError("the program wrote too much", expected=f"{most} bytes at most")
        finally:
            _kill(process)


class _Listener(threading.Thread):
    """Reads standard error to its end and keeps the beginning, so that no talkative program waits or fills memory."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = cast("io.BufferedReader", process.stderr)
        self._kept = b""
        self.start()

    def run(self) -> None:
        with self._stream:
            while piece := self._stream.read1(1 << 16):
                self._kept += piece[: _SHOWN_BYTES - len(self._kept)]

    def text(self) -> str:
        """What came first; a process left behind may still hold the stream, and is not waited for."""
        self.join(1)
        return self._kept.decode("utf-8", "replace").strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(output: Path, size: int, said: str | None) -> bytes:
    try:
        status = output.lstat()
    except OSError:
        raise ForeignError("the program wrote no output file", hint=said) from None
    if not stat.S_ISREG(status.st_mode):
        raise ForeignError("what the program wrote is no ordinary file", hint=said)
    if status.st_size > size + _SLACK:
        raise ForeignError("the program wrote too much", expected=f"{size} bytes", found=f"{status.st_size} bytes")
    return output.read_bytes()


def _numbers(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


class ForeignDecoder(_Program):
    """A program as a decoder for `check_decoder`.

    Placeholders: `{format}`, `{payload}` (a file), `{shape}` (`2,256`; nothing for a scalar), `{output}` (the file to
    be written: values in C order, little-endian, without header), `{dtype}`, `{layout}` (`-` for a profile),
    `{divisors}`. Only `{payload}` and `{output}` must occur.
    """

    def __init__(self, template: str, timeout: float = 60.0) -> None:
        super().__init__(template, _DECODER, ("payload", "output"), timeout)

    def __call__(
        self, payload: npt.NDArray[np.uint8], format: str, shape: tuple[int, ...], dtype: str, divisors: int = 1
    ) -> npt.NDArray[Any]:
        """Run the program on one payload."""
        kind = FLOAT_OUTPUTS[dtype]
        size = product(shape) * kind.itemsize
        values = {
            "format": format,
            "payload": self.file("payload", payload),
            "shape": _numbers(shape),
            "dtype": dtype,
            "layout": FORMATS[format].default_layout if format in FORMATS else "-",
            "divisors": str(divisors),
        }
        data = self.run(values, size)
        if len(data) != size:
            raise ForeignError("the output file has the wrong length", expected=f"{size} bytes", found=len(data))
        words = np.frombuffer(data, f"<u{kind.itemsize}").astype(f"u{kind.itemsize}")
        return words.view(kind).reshape(shape)


class ForeignEncoder(_Program):
    """A program as an encoder for `check_encoder`.

    Placeholders: `{format}`, `{method}`, `{values}` (a file: numbers in C order, little-endian, or blocks), `{shape}`
    (the logical one), `{output}` (the file to be written: the payload in the format's layout), `{source}` (what
    `{values}` has: `float32`, `gguf:q8_0`), `{importance}` (a file of float32, or `-`), `{negative_scales}` (`true` or
    `false`), `{layout}`. Only `{values}` and `{output}` must occur; vectors that need a placeholder that the command
    lacks count as not implemented.
    """

    def __init__(self, template: str, timeout: float = 60.0) -> None:
        super().__init__(template, _ENCODER, ("values", "output"), timeout)

    def __call__(
        self, values: npt.NDArray[Any], format: str, method: str, parameters: Mapping[str, Any]
    ) -> npt.NDArray[np.uint8]:
        """Run the program on one source."""
        blocks = parameters.get("source")
        source = blocks or values.dtype.name
        for name, needed in (
            ("source", source != "float32"),
            ("importance", "importance" in parameters),
            ("negative_scales", "negative_scales" in parameters),
        ):
            if needed and name not in self.used:
                raise NotImplementedError
        importance = "-"
        if "importance" in parameters:
            importance = self.file("importance", parameters["importance"].astype("<f4"))
        shape = values.shape if blocks is None else _block_shape(values, blocks)
        filled = {
            "format": format,
            "method": method,
            "values": self.file("values", values.astype(values.dtype.newbyteorder("<"), copy=False)),
            "shape": _numbers(shape),
            "source": source,
            "importance": importance,
            "negative_scales": "true" if parameters.get("negative_scales") else "false",
            "layout": FORMATS[format].default_layout,
        }
        return np.frombuffer(self.run(filled, 64 + 32 * values.nbytes), np.uint8)


def _block_shape(values: npt.NDArray[Any], source: str) -> tuple[int, ...]:
    profile = PROFILES[source]
    return len(values), values.shape[1] // profile.bytes * profile.values
