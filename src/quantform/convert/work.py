"""Making the bytes of one object: copied, streamed, or encoded by a method in chunks of rows, or of parts of long rows.

Chunks may be worked on by several threads; each is placed where it belongs, so that nothing depends on who is first.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from quantform._native import thread_limit
from quantform.convert.packing import packed_rows
from quantform.convert.streams import Stream
from quantform.errors import ArgumentError, ArtifactError, QuantformError, RecipeError, UnknownNameError
from quantform.formats import Words
from quantform.layouts import LAYOUTS, Layout, RowPlaneLayout
from quantform.methods import Input, Job, Method, Request
from quantform.methods.method import by_rows
from quantform.methods.request import Span
from quantform.recipes import as_recipe_error
from quantform.sources import NinferTensor

__all__ = ["CHUNK_VALUES", "Encoded", "Kept", "Literal", "Segment", "Streamed", "Work", "Workers"]

Write = Callable[[int, Any], None]
"""Writes bytes at an offset of the object."""

CHUNK_VALUES = 1 << 18
"""Values encoded at a time. A longer row is cut where its method, its layout and its source let it be."""

_TILE_ROWS = 128
_ZEROS = 1 << 16
_COUNT = re.compile(r", (the only one|the first of \d+)$")
# Parts of rows are multiples of it: whole groups, whole bytes of every plane, and whole blocks of a source.
_WINDOW_COLUMNS = 1024


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Workers:
    """Threads that work on chunks; a context manager.

    Args:
        threads: How many; None takes `QUANTFORM_THREADS` of the environment, else every CPU that the process may use.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._count = thread_limit(threads) or _cpus()
        self._stack = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: Iterator[Callable[[], int]], done: Callable[[int], None]) -> None:
        """Run tasks, a bounded number of them at a time, and tell the sum of what they give, in order.

        The first task in order that fails decides the error; no task runs any more when this returns.
        """
        if self._count == 1:
            for task in tasks:
                done(task())
            return
        if self._pool is None:
            self._pool = self._stack.enter_context(ThreadPoolExecutor(self._count, "quantform-encode"))
        waiting: deque[Future[int]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(task))
                if len(waiting) > self._count:
                    done(waiting[0].result())
                    waiting.popleft()
            for future in waiting:
                done(future.result())
        except Exception:
            # What the next task is made of may fail before a task that stands earlier has; that one is the first.
            _raise_first(waiting)
            raise
        finally:
            _stop(waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _raise_first(waiting: Iterable[Future[int]]) -> None:
    for future in waiting:
        error = future.exception()
        if error is not None:
            raise error from None


def _stop(waiting: Iterable[Future[int]]) -> None:
    """Wait until none of them runs any more."""
    for future in waiting:
        future.cancel()
    for future in waiting:
        if not future.cancelled():
            future.exception()


class Work(ABC):
    """How an object's bytes come about."""

    @abstractmethod
    def tasks(self, write: Write) -> Iterator[Callable[[], int]]:
        """Tasks in order; each writes some bytes of the object and gives their number."""


@dataclass(frozen=True, slots=True)
class Literal(Work):
    """Bytes that are there already."""

    data: bytes

    def tasks(self, write: Write) -> Iterator[Callable[[], int]]:
        """One task."""

        def task() -> int:
            write(0, self.data)
            return len(self.data)

        yield task


@dataclass(frozen=True, slots=True)
class Streamed(Work):
    """A stream, which needs no more than one thread to be as fast as the disk."""

    stream: Stream

    def tasks(self, write: Write) -> Iterator[Callable[[], int]]:
        """Writes as it goes: a piece is valid only until the next one is asked for."""
        at = 0
        for data in self.stream:
            write(at, data)
            at += data.size
            yield partial(int, data.size)


@dataclass(frozen=True, slots=True)
class Kept(Work):
    """A tensor of an artifact as it is, each byte read once: checked as deep verification does, and copied.

    Attributes:
        tensor: The tensor, whose parts make one payload.
    """

    tensor: NinferTensor

    def tasks(self, write: Write) -> Iterator[Callable[[], int]]:
        """Writes as it checks; one task tells that all is done.

        Raises:
            ArtifactError: A word is illegal, or padding is not canonical.
        """
        tensor = self.tensor

        def copy(offset: int, out: npt.NDArray[np.uint8]) -> None:
            tensor.read_into(offset, out)
            write(offset, out)

        for faults in LAYOUTS[tensor.layout].faults(copy, tensor.format, tensor.stored_shape, tensor.divisors):
            fault = faults.first[0]
            path, offset = tensor.locate(fault.offset) or ("the payload", fault.offset)
            raise ArtifactError(
                f"{fault.problem}, and the words were to be kept as they are",
                where=", ".join(filter(None, (str(path), f"tensor {tensor.name!r}", fault.where, f"byte {offset}"))),
                expected=fault.expected,
                found=fault.found,
                hint="verify --deep lists everything that is wrong; compare the file with the original's",
            )
        yield partial(int, tensor.nbytes)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of an object that one job makes.

    Attributes:
        first: The first of them.
        request: The rows, as a request of their own.
    """

    first: int
    request: Request


@dataclass(frozen=True, slots=True)
class Encoded(Work):
    """A method's words, placed by a layout.

    Attributes:
        method: The method.
        segments: The object's rows; they cover it.
        layout: The object's layout.
        shape: The object's shape.
        divisors: The object's number of divisors.
    """

    method: Method
    segments: tuple[Segment, ...]
    layout: Layout
    shape: tuple[int, ...]
    divisors: int

    def tasks(self, write: Write) -> Iterator[Callable[[], int]]:
        """One task a chunk of rows or a part of a row, then one for the zeros between planes."""
        for segment in self.segments:
            if self._cut(segment.request):
                yield from self._windows(write, segment)
                continue
            job: Job = self._guarded(segment.request, 0, partial(self.method.start, segment.request))
            columns = max(1, segment.request.columns)
            rows = max(1, CHUNK_VALUES // columns)
            if segment.request.format.category == "block-scaled":
                rows = max(_TILE_ROWS, rows // _TILE_ROWS * _TILE_ROWS)
            for first, end in job.chunks(rows):
                yield self._task(write, job, segment.first, first, end)
        format = self.segments[0].request.format
        for offset, count in self.layout.gaps(format, self.shape, self.divisors):
            yield partial(_write_zeros, write, offset, count)

    def _task(self, write: Write, job: Job, start: int, first: int, end: int) -> Callable[[], int]:
        def task() -> int:
            written = 0
            for offset, data in self._placed(job, (first, end), self.shape, start + first, self.divisors):
                write(offset, data)
                written += data.size
            return written

        return task

    def _placed(
        self, job: Job, rows: tuple[int, int], shape: tuple[int, ...], first: int, divisors: int
    ) -> Iterable[tuple[int, npt.NDArray[np.uint8]]]:
        """Some rows of a job as row `first` and those behind it of an object: at once, or by way of words."""
        packed: list[tuple[int, npt.NDArray[np.uint8]]] | None = self._guarded(
            job.request, rows[0], lambda: packed_rows(job, rows, self.layout, shape, first, divisors)
        )
        if packed is not None:
            return packed
        # A user's own method may answer any call in its own way; its words are looked through where they arrive.
        read = job.rows if self.method.parameters is None else partial(by_rows, job.rows)
        words: Words = self._guarded(job.request, rows[0], partial(read, *rows))
        return self.layout.place(words, shape, first, divisors)

    def _cut(self, request: Request) -> bool:
        return (
            request.columns > max(CHUNK_VALUES, _WINDOW_COLUMNS)
            and self.method.by_column
            and isinstance(self.layout, RowPlaneLayout)
            and all(source.window is not None for source in request.inputs)
        )

    def _windows(self, write: Write, segment: Segment) -> Iterator[Callable[[], int]]:
        """Tasks for parts of rows, each with a request of its own."""
        request = segment.request
        step = max(_WINDOW_COLUMNS, CHUNK_VALUES // _WINDOW_COLUMNS * _WINDOW_COLUMNS)
        for row in range(request.rows):
            (span,) = request.spans(row, row + 1)
            for begin in range(0, request.columns, step):
                part = (begin, min(begin + step, request.columns))
                yield partial(self._window, write, request, span, segment.first + row, part)

    def _window(self, write: Write, request: Request, span: Span, row: int, part: tuple[int, int]) -> int:
        """Some columns of one row of the object, which lie one after another in each plane."""
        some = _part(self.method, request, span, part)
        job: Job = self._guarded(some, 0, partial(self.method.start, some))
        layout = cast("RowPlaneLayout", self.layout)
        planes = (layout.planes(request.format, shape) for shape in ((1, part[0]), self.shape))
        written = 0
        for (_, data), before, target in zip(self._placed(job, (0, 1), some.shape, 0, 1), *planes, strict=True):
            write(target.offset + row * target.row_bytes + before.row_bytes, data)
            written += data.size
        return written

    def _guarded(self, request: Request, row: int, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the call gives
        """Errors of a user's own method become one of ours and name the parameter; those of ours stay what they are."""
        try:
            return call()
        except QuantformError as error:
            if isinstance(error.found, str):
                # How many more there are in the same chunk says nothing of the tensor.
                error.found = _COUNT.sub("", error.found)
            place = _place(request, row)
            if self.method.parameters is None and place not in (error.where or ""):
                error.at(place)
            if self.method.parameters is None and isinstance(error, (ArgumentError, UnknownNameError)):
                raise as_recipe_error(error) from error
            raise
        except (Exception, SystemExit) as error:
            if self.method.parameters is not None:
                raise
            raise RecipeError(
                f"the method failed: {type(error).__name__}: {error}",
                where=f"{_place(request, row)}, {_line(error, self.method.name)}",
            ) from error


def _part(method: Method, request: Request, span: Span, part: tuple[int, int]) -> Request:
    """A request for some columns of the one row of a span."""
    begin, end = part
    source = span.input
    read = cast("Callable[[int, int, int], npt.NDArray[Any]]", source.window)
    row, column = span.place
    window = Input(
        name=source.name,
        shape=(1, end - begin),
        values=lambda first, last: read(span.first, begin, end)[first:last],
        place=(row, column + begin),
    )
    parameters = dict(request.parameters)
    for parameter in method.parameters or ():
        if parameter.per_column and parameters.get(parameter.name) is not None:
            parameters[parameter.name] = np.asarray(parameters[parameter.name])[begin:end]
    return replace(request, shape=(1, end - begin), inputs=(window,), parameters=parameters)


def _place(request: Request, row: int) -> str:
    """The parameter that a row belongs to."""
    return next(request.spans(row, row + 1)).input.name if request.rows else request.inputs[0].name


def _line(error: BaseException, name: str) -> str:
    """The method, and the line of the error's innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return name
    return f"{name}, {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"


def _write_zeros(write: Write, offset: int, count: int) -> int:
    zeros: npt.NDArray[np.uint8] = np.zeros(min(count, _ZEROS), np.uint8)
    for at in range(0, count, _ZEROS):
        write(offset + at, zeros[: count - at])
    return count
