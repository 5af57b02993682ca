"""What a conversion method is: one record that turns a source into the words of one format.

The protocol has two steps, so that a converter can stream and still let a method see a whole tensor first:

```python
job = method.start(request)        # checks everything that can be checked early; a whole-tensor pass happens here
for first, end in job.chunks(512):
    words = job.rows(first, end)   # whole rows, in any order; the result does not depend on how they are cut
```

`start` and `rows` hold no state that changes, so that rows may be asked for from several threads when the inputs allow
it. Words that come out are legal in the target format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from quantform._registry import near_matches
from quantform.errors import ArgumentError, QuantformError, UnsupportedError, ValuesError, WordsError
from quantform.formats import Words
from quantform.formats.assemble import join
from quantform.methods.request import Request, Span

__all__ = ["Job", "Method", "Options", "Parameter", "SpanJob", "at_input", "by_rows"]

T = TypeVar("T")

Options = Mapping[str, Any]
"""Every parameter of a method by name, checked, defaults filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a method.

    Attributes:
        name: What a recipe or `quantform.encode` calls it.
        type: What it is, for people: `"boolean"`, `"K numbers"`.
        default: The value where none is given.
        meaning: One sentence for listings.
        check: Takes the given value and the request, gives the value that the method uses.
        per_column: Whether it has one value a column, so that a part of a row takes a part of it.
    """

    name: str
    type: str
    default: object
    meaning: str
    check: Callable[[Any, Request], Any]
    per_column: bool = False


class Job(ABC):
    """A started conversion of one tensor."""

    request: Request

    @property
    def divisors(self) -> int:
        """How many source matrices with divisors of their own the target stacks; 1 in every format but NVFP4."""
        return 1

    @abstractmethod
    def rows(self, first: int, end: int) -> Words:
        """The words of rows `first` to `end`, of shape `[end - first, K]`.

        Raises:
            ArgumentError: The range is empty or leaves the target.
            ValuesError: A source value cannot be encoded; names the input, the row in it and the column.
            WordsError: A source word is not legal in the target format; names the input and where in it.
        """

    def chunks(self, rows: int) -> Iterator[tuple[int, int]]:
        """`(first, end)` of successive pieces of at most `rows` rows that cover the target.

        A piece stays within one divisor's share of the rows; within a share all pieces but the last have `rows` rows.
        """
        if rows < 1:
            raise ArgumentError("a piece has at least one row", found=rows)
        share = self.request.rows // self.divisors
        for start in range(0, self.request.rows, max(share, 1)):
            for first in range(start, start + share, rows):
                yield first, min(first + rows, start + share)

    def words(self) -> Words:
        """All words at once, in the target's own shape."""
        return join(self.request.format, self.request.shape, [self.rows(0, self.request.rows)])


@dataclass(frozen=True, slots=True)
class SpanJob(Job):
    """A job that encodes the rows of each input by themselves."""

    request: Request
    encode: Callable[[Span], Words]

    def rows(self, first: int, end: int) -> Words:
        """See `Job.rows`."""
        parts = [at_input(span, self.encode) for span in self.request.spans(first, end)]
        return join(self.request.format, (end - first, self.request.columns), parts)


def by_rows(work: Callable[[int, int], T], first: int, end: int) -> T:
    """`work(first, end)`, whose error is the one that the first bad row has by itself.

    A check goes through many rows one rule after another: the fault that it names would depend on how many these are.
    """
    try:
        return work(first, end)
    except (ValuesError, WordsError) as error:
        found: QuantformError = error
        good, stop = first, end
        while stop - good > 1:
            middle = (good + stop) // 2
            try:
                work(good, middle)
                good = middle
            except (ValuesError, WordsError):
                stop = middle
        try:
            work(good, stop)
        except (ValuesError, WordsError) as single:
            found = single
        raise found from None


def at_input(span: Span, encode: Callable[[Span], T]) -> T:
    """`encode(span)`, whose errors name the input."""
    try:
        return encode(span)
    except QuantformError as error:
        raise error.at(span.input.name)  # noqa: B904 - the same error, with its outer place


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One conversion method.

    Attributes:
        name: The closed name, `"grouped_absmax"`; for a Python callable, its module and name.
        summary: One sentence for listings.
        takes: What it reads from its inputs: `"values"`, `"words"`, or `"either"`.
        targets: Names of the formats it makes.
        section: Where its arithmetic is defined.
        parameters: What it takes; None lets anything through to a Python callable.
        begin: Starts a checked request.
        by_column: Whether a part of a row that begins at a multiple of 128 columns has the words that it has in the
            whole row.
    """

    name: str
    summary: str
    takes: str
    targets: tuple[str, ...]
    section: str
    parameters: tuple[Parameter, ...] | None = ()
    begin: Callable[[Request, Options], Job]
    by_column: bool = False

    def start(self, request: Request) -> Job:
        """Check a request and start it; see `check`."""
        return self.begin(request, self.check(request))

    def check(self, request: Request) -> Options:
        """Check a request without reading anything, and give the parameters that the method will use.

        Raises:
            UnsupportedError: The method does not make the target format, or an input has not what the method reads.
            UnknownNameError: A parameter does not exist.
            ArgumentError: A shape or a parameter's value does not fit.
        """
        if request.format.name not in self.targets:
            raise UnsupportedError(
                f"{self.name} does not make {request.format}",
                expected=" or ".join(self.targets),
                hint=_others(request),
            )
        options = self._options(request)
        self._check_shape(request)
        request.check()
        for source in request.inputs:
            if self.takes != "either" and getattr(source, self.takes) is None:
                raise UnsupportedError(f"{self.name} needs {self.takes}, and there are none here", where=source.name)
        return options

    def _options(self, request: Request) -> Options:
        if self.parameters is None:
            return request.parameters
        known = {parameter.name: parameter for parameter in self.parameters}
        unknown = sorted(map(str, request.parameters.keys() - known.keys()))
        if unknown:
            raise ArgumentError(
                f"unknown {self.name} parameters: {', '.join(unknown)}",
                hint=near_matches(unknown[0], known) if known else f"{self.name} takes none",
            )
        return {
            name: parameter.check(request.parameters[name], request)
            if name in request.parameters
            else parameter.default
            for name, parameter in known.items()
        }

    def _check_shape(self, request: Request) -> None:
        category, shape = request.format.category, list(request.shape)
        if category == "direct":
            return
        if category in {"block-scaled", "row-scaled"} and len(shape) != 2:
            raise ArgumentError(f"{request.format} holds matrices", expected="shape [N, K]", found=shape)
        if not shape or min(shape) < 1:
            raise ArgumentError(
                f"{request.format} holds tensors with a positive last axis and no empty one", found=f"shape {shape}"
            )

    def __str__(self) -> str:
        return self.name


def _others(request: Request) -> str:
    from quantform.methods.registry import METHODS  # noqa: PLC0415 - the registry is made of these records

    able = [method.name for method in METHODS.values() if request.format.name in method.targets]
    return f"{request.format} is made by {' or '.join(able)}"
