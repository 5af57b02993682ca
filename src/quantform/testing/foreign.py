"""Programs of any language as decoders and encoders: a command line with placeholders, files in, a file out.

Nothing goes through a shell. A program is given a time limit, and what it writes is bounded. It ends in one of three
ways: exit code 0 and an output file; 77 for what it does not implement; any other, which for an encoder is a refusal.
However it ends, what it has started ends with it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import shlex
import shutil
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

from quantform._interrupts import held
from quantform._scalars import FLOAT_OUTPUTS
from quantform._sizes import product
from quantform.errors import ArgumentError, QuantformError
from quantform.formats import FORMATS
from quantform.packed import PROFILES

__all__ = [
    "NOT_IMPLEMENTED",
    "ForeignDecoder",
    "ForeignEncoder",
    "ForeignError",
    "NotStartedError",
    "RefusedError",
    "check_timeout",
]

NOT_IMPLEMENTED = 77
"""The exit code of a program that does not implement what it is asked for."""

_DECODER = ("format", "payload", "shape", "output", "dtype", "layout", "divisors")
_ENCODER = ("format", "method", "values", "shape", "output", "source", "importance", "negative_scales", "layout")
_SHOWN_BYTES = 2000
_SLACK = 1 << 20
# How often a program is looked at: soon, since most end soon, and then more and more seldom.
_FIRST_POLL, _LAST_POLL = 0.0005, 0.05


class ForeignError(QuantformError):
    """A program did not do what it was asked for; the hint is what it wrote to standard error."""


class RefusedError(ForeignError, ValueError):
    """An encoder ended with an exit code that says no."""


class NotStartedError(ArgumentError):
    """The operating system starts no such program, so that nothing can be said about any vector."""


def check_timeout(seconds: float) -> None:
    """Check a time limit.

    Raises:
        ArgumentError: It is no finite number above zero.
    """
    if not 0 < seconds < math.inf:
        raise ArgumentError(
            "the time limit is no number of seconds", expected="a finite number above 0", found=f"{seconds:g}"
        )


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
        check_timeout(timeout)
        self.used = frozenset(used)
        self._timeout = timeout
        self._directory = _directory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def run(self, files: Mapping[str, npt.NDArray[Any]], values: Mapping[str, str], size: int) -> bytes:
        """Run the program in a fresh place and give its output file.

        Args:
            files: Arrays whose bytes lie in files for the program to read, by placeholder.
            values: The other placeholders.
            size: How many bytes are expected.

        Raises:
            NotImplementedError: Exit code 77.
            RefusedError: Another exit code.
            ForeignError: It was killed, took too long, wrote too much or nothing, or removed its files' directory.
            NotStartedError: It cannot be started.
        """
        place = self._fresh()
        try:
            return self._run(place, files, values, size)
        finally:
            shutil.rmtree(place, ignore_errors=True)  # whatever the program has made of it

    def _fresh(self) -> Path:
        """An empty directory, though a program removed or locked all that there was."""
        try:
            return Path(tempfile.mkdtemp(dir=self._directory.name))
        except OSError:
            self._directory.cleanup()
            self._directory = _directory()
            return Path(tempfile.mkdtemp(dir=self._directory.name))

    def _run(self, place: Path, files: Mapping[str, npt.NDArray[Any]], values: Mapping[str, str], size: int) -> bytes:
        output = place / "output"
        filled = {**values, "output": str(output)}
        for name, content in files.items():
            (place / name).write_bytes(np.ascontiguousarray(content).tobytes())
            filled[name] = str(place / name)
        command = [re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], argument) for argument in self._arguments]
        code, said = self._wait(command, output, size + _SLACK)
        shown = f"It wrote to standard error: {said}" if said else None
        if code == NOT_IMPLEMENTED:
            raise NotImplementedError
        if code < 0:
            raise ForeignError("the program was killed", found=_signal_name(-code), hint=shown)
        if code:
            raise RefusedError("the program failed", found=f"exit code {code}", hint=shown)
        if not place.is_dir():
            raise ForeignError("the program removed the directory of its files", hint=shown)
        return _read(output, size, shown)

    def _wait(self, command: list[str], output: Path, most: int) -> tuple[int, str]:
        process: subprocess.Popen[bytes] | None = None
        try:
            with held():  # so that no process is started and lost
                process = _start(command)
            said = _Listener(process)
            self._watch(process, output, most)
        finally:
            if process is not None:
                _end(process)
        return process.returncode, said.text()

    def _watch(self, process: subprocess.Popen[bytes], output: Path, most: int) -> None:
        """Wait until a program has ended by itself."""
        end, pause = time.monotonic() + self._timeout, _FIRST_POLL
        while not _ended(process):
            left = end - time.monotonic()
            if left <= 0:
                raise ForeignError("the program took too long", expected=f"{self._timeout:g} s at most")
            if _size(output) > most:
                raise ForeignError("the program wrote too much", expected=f"{most} bytes at most")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_POLL)


def _directory() -> tempfile.TemporaryDirectory[str]:
    with held():
        return tempfile.TemporaryDirectory(prefix="quantform-conform-", ignore_cleanup_errors=True)


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


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own."""
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _not_started(command[0], error) from None


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a program has ended. Where that can be, it is not reaped yet, so that its number stays its own."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    return process.poll() is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program, if it has not ended, and what it has started and left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _not_started(program: str, error: OSError | ValueError) -> NotStartedError:
    """What the operating system's refusal to start a program means, and what can be done."""
    found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    code = error.errno if isinstance(error, OSError) else None
    hint = None
    if code == errno.ENOENT:
        hint = _missing(program)
    elif code == errno.EACCES:
        hint = (
            "It is no program: make it executable (chmod +x), or name what runs it first, as in 'python3 decode.py ...'"
        )
    elif code == errno.ENOEXEC:
        hint = (
            "It is for another machine, or a script whose first line names no interpreter: name one first, as in "
            "'python3 decode.py ...'"
        )
    return NotStartedError("the program cannot be started", where=program, found=found, hint=hint)


def _missing(program: str) -> str:
    """A program was not found: it, or the interpreter that its first line names."""
    place = shutil.which(program)
    if place is not None:
        first = b""
        with contextlib.suppress(OSError), Path(place).open("rb") as file:
            first = file.readline(256)
        if first.startswith(b"#!"):
            interpreter = first[2:].decode("utf-8", "replace").strip(" \n")
            return f"It is there, but not the interpreter that its first line names: {interpreter!r}"
        return "It is there, but not the loader or the library that it needs: it may be for another system"
    if os.sep not in program and Path(program).exists():
        return f"Say where it is: ./{program}"
    return "The command begins with the program, by its path or by a name that PATH leads to"


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
            "shape": _numbers(shape),
            "dtype": dtype,
            "layout": FORMATS[format].default_layout if format in FORMATS else "-",
            "divisors": str(divisors),
        }
        data = self.run({"payload": payload}, values, size)
        if len(data) != size:
            raise ForeignError(
                "the output file has the wrong length", expected=f"{size} bytes", found=f"{len(data)} bytes"
            )
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
        files = {"values": values.astype(values.dtype.newbyteorder("<"), copy=False)}
        if "importance" in parameters:
            files["importance"] = parameters["importance"].astype("<f4")
        shape = values.shape if blocks is None else _block_shape(values, blocks)
        filled = {
            "format": format,
            "method": method,
            "shape": _numbers(shape),
            "source": source,
            "importance": "-",
            "negative_scales": "true" if parameters.get("negative_scales") else "false",
            "layout": FORMATS[format].default_layout,
        }
        return np.frombuffer(self.run(files, filled, 64 + 32 * values.nbytes), np.uint8)


def _block_shape(values: npt.NDArray[Any], source: str) -> tuple[int, ...]:
    profile = PROFILES[source]
    return len(values), values.shape[1] // profile.bytes * profile.values
