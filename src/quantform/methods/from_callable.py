"""Python callables as methods.

A callable takes a `Request` and returns what gives its rows: a function of `(first, end)`, or an object with a method
`rows` of that signature. It may read everything it needs first. What it returns for a range is words of the target
format, of shape `[end - first, K]`, or simpler arrays:

- for a direct format, numbers `[end - first, K]`: those of the target's own type pass bit for bit, others become words
  by the rules of `cast_direct`;
- for a grouped format, codes and scales: int8 `[end - first, K]`, and float16 or their uint16 words
  `[end - first, ceil(K / group)]`;
- for FP8 rows, codes and scales: uint8 E4M3FN words `[end - first, K]`, and numbers of the scale's own type
  `[end - first]` or their uint16 words.

```python
def negated(request):
    inner = METHODS["grouped_absmax"].start(replace(request, parameters={}))

    def rows(first, end):
        words = inner.rows(first, end)
        return replace(words, scales=np.where(words.scales != 0, words.scales ^ 0x8000, words.scales))

    return rows
```

Its output is validated like any other method's, and its result must not depend on how the rows are cut either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from quantform.errors import ArgumentError
from quantform.formats import FORMATS, DirectFormat, DirectWords, GroupedWords, Nvfp4Words, RowScaledWords, Words
from quantform.formats.assemble import row_range
from quantform.formats.fp8_row import RowScaledFormat
from quantform.formats.grouped import GroupedFormat
from quantform.methods.cast_direct import direct_words
from quantform.methods.method import Job, Method, Options, by_rows
from quantform.methods.request import NUMBERS, Request

__all__ = ["RowsOf", "callable_method"]

RowsOf = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class _CallableJob(Job):
    request: Request
    name: str
    read: RowsOf
    divisor: set[int] = field(default_factory=set)

    def rows(self, first: int, end: int) -> Words:
        span = next(self.request.spans(first, end))  # refuses a range that leaves the target
        found = self.read(first, end)
        target, shape = self.request.format, (end - first, self.request.columns)
        if isinstance(target, DirectFormat) and isinstance(found, np.ndarray):
            if found.dtype not in NUMBERS or found.shape != shape:
                raise self._refusal(f"{target.scalar.dtype} {list(shape)}", f"{found.dtype} {list(found.shape)}")
            found = DirectWords(target, shape, direct_words(found, span.place, target.scalar))
        elif isinstance(found, tuple):
            found = self._pair(found, shape)
        if not isinstance(found, Words) or found.format.name != target.name or found.shape != shape:
            what = f"{found.format} {list(found.shape)}" if isinstance(found, Words) else type(found).__name__
            raise self._refusal(f"words of {target} {list(shape)}", what)
        by_rows(partial(_validate, found, span.place[0]), 0, shape[0])
        if isinstance(found, Nvfp4Words):
            self.divisor.update(found.divisors.tolist())
            if len(found.divisors) != 1 or len(self.divisor) != 1:
                words = ", ".join(f"0x{word:08X}" for word in sorted(self.divisor))
                raise self._refusal("one divisor word, the same for all rows", f"{len(found.divisors)} ({words})")
        return found

    def _pair(self, found: tuple[Any, ...], shape: tuple[int, int]) -> Words:
        """The words of a pair of codes and scales."""
        target = self.request.format
        codes, scales = found if len(found) == 2 else (None, None)
        kind: np.dtype[Any]
        scale: np.dtype[Any]
        many: tuple[int, ...]
        if isinstance(target, GroupedFormat):
            kind, scale, many = np.dtype(np.int8), np.dtype(np.float16), (shape[0], target.groups(shape[1]))
        elif isinstance(target, RowScaledFormat):
            kind, scale, many = np.dtype(np.uint8), target.scale.dtype, (shape[0],)
        else:
            raise self._refusal(f"words of {target} {list(shape)}", "a tuple")
        for part, name, dtypes, size in (
            (codes, "codes", (kind,), shape),
            (scales, "scales", (scale, np.dtype(np.uint16)), many),
        ):
            if not isinstance(part, np.ndarray) or part.dtype not in dtypes or part.shape != size:
                what = f"{part.dtype} {list(part.shape)}" if isinstance(part, np.ndarray) else type(part).__name__
                raise self._refusal(f"{name} {' or '.join(map(str, dtypes))} {list(size)}", f"{name} {what}")
        codes, scales = np.ascontiguousarray(codes), np.ascontiguousarray(scales).view(np.uint16)
        if isinstance(target, GroupedFormat):
            return GroupedWords(target, shape, codes, scales)
        return RowScaledWords(target, shape, codes, scales)

    def _refusal(self, expected: str, found: str) -> ArgumentError:
        return ArgumentError(
            "a method's rows are not what was asked for", where=self.name, expected=expected, found=found
        )


def _validate(words: Words, place: int, first: int, end: int) -> None:
    """Check some rows of words, the first row of all of which is called `place`."""
    whole = (first, end) == (0, words.shape[0])
    (words if whole else row_range(words, first, end)).validate(place + first)


def callable_method(function: Callable[[Request], Any]) -> Method:
    """A method of a Python callable, for any format; its name for provenance is `module:qualified name`."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"

    def begin(request: Request, options: Options) -> Job:  # noqa: ARG001 - the callable finds them in its request
        made = function(request)
        read = getattr(made, "rows", made)
        if not callable(read):
            raise ArgumentError(
                "a method gave nothing that gives rows",
                where=name,
                expected="a function of (first, end), or an object with such a method `rows`",
                found=type(made).__name__,
            )
        return _CallableJob(request, name, read)

    return Method(
        name=name,
        summary=(getattr(function, "__doc__", None) or "A Python callable.").strip().partition("\n")[0],
        takes="either",
        targets=tuple(FORMATS),
        section="2",
        parameters=None,
        begin=begin,
    )
