"""How far the tensors of one file are from those of another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np

from quantform._progress import Progress, silent
from quantform._publish import NewFiles
from quantform._registry import near_matches
from quantform._rows import matrix_shape
from quantform._sizes import PIECE_BYTES, pieces
from quantform.compare.measure import Errors, Sums, measure
from quantform.compare.pairing import Names, Side, Tensors, alike, encoding, pairs, read_names, side
from quantform.compare.result import ORDERS, Compared, Comparison, Shapes, Total, Uncompared, check_max_error
from quantform.errors import ArgumentError, QuantformError, UnknownNameError, UnsupportedError
from quantform.sources import Tensor

__all__ = [
    "ORDERS",
    "Compared",
    "Comparison",
    "Errors",
    "Shapes",
    "Side",
    "Total",
    "Uncompared",
    "check_max_error",
    "compare",
]

_PAGES = (".html", ".htm")
_WIDE_INTEGERS = {"int64", "uint64"}


def compare(
    a: Tensors,
    b: Tensors,
    *,
    names: Names | None = None,
    sort: str = "error",
    html: str | os.PathLike[str] | None = None,
    tensor: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Measure how far each tensor of B is from that of the same name in A, the reference.

    Everything is decoded exactly and compared in binary64, a bounded piece at a time; see `Errors` for what is
    measured. The numbers do not depend on pieces, threads or the machine.

    Args:
        a: A file of any kind that `open` knows, an open source, one tensor or array, or a mapping of names to these.
        b: The same; two tensors alone belong together whatever they are called.
        names: What tensors of A are called in B, where they are called otherwise; a mapping or a TOML file.
        sort: The order of the result: `"error"` (the worst first), `"largest"`, `"size"`, `"name"`, `"file"`.
        html: Where to write a report: one page with a table and pictures. Needs the extra `report`.
        tensor: The tensor of A whose codes and scales the report shows; None is the worst of the quantized ones.
        force: Replace an existing report.
        progress: Called as bytes of A are done.

    Raises:
        FileError: A file cannot be opened; what is wrong inside becomes `Comparison.broken`.
        ArgumentError: An argument is nothing that can be compared, the map is wrong, or the report's name does not
            end in `.html` or `.htm`.
        UnknownNameError: There is no such order, or no tensor that the map or `tensor` names.
        MissingExtraError: A report is wanted, and the plotting library is absent.
        OutputExistsError: The report exists already, or is a file that is being read.
    """
    if sort not in ORDERS:
        raise UnknownNameError(f"there is no order {sort!r}", hint=near_matches(sort, ORDERS))
    if html is not None and Path(html).suffix.lower() not in _PAGES:
        raise ArgumentError(
            "the report's name has no suffix of a page",
            where=os.fspath(html),
            expected=" or ".join(_PAGES),
            hint=f"Call it {Path(html).name or 'report'}.html",
        )
    renamed = {} if names is None else read_names(names)
    with ExitStack() as stack:
        side_a, one, files = side(a, stack)
        side_b, two, more = side(b, stack)
        if html is not None:
            from quantform.compare.page import Report  # noqa: PLC0415 - only a report needs the plotting library

            if tensor is not None and tensor not in one:
                raise UnknownNameError(f"no tensor of A is called {tensor!r}", hint=near_matches(tensor, one))
            output = NewFiles([html], force=force, sources=(*files, *more, *_map_file(names)))
            report = Report()
        together, only_a, only_b = pairs(one, two, renamed)
        alone = ({name: one[name].size for name in only_a}, {name: two[name].size for name in only_b})
        found = Comparison(side_a, side_b, [], _total(Sums(), []), *alone)
        total, done, sums = sum(one[name].nbytes for name, _ in together), 0, Sums()
        for name, other in together:
            mine, weight = one[name], max(1, one[name].size)

            def told(elements: int, start: int = done, mine: Tensor = mine, weight: int = weight) -> None:
                progress(start + mine.nbytes * elements // weight, total, mine.name)

            told(0)
            sums += _pair(found, (name, other), (mine, two[other]), told)
            done += mine.nbytes
        progress(total, total, "")
        found.total = _total(sums, found.tensors)
        found.tensors = ORDERS[sort](found.tensors)
        if html is not None:
            page = report.build(found, one, two, tensor)
            _write(output, page)
    return found


def _map_file(names: Names | None) -> tuple[Path, ...]:
    return () if names is None or isinstance(names, Mapping) else (Path(names),)


def _write(files: NewFiles, page: bytes) -> None:
    try:
        files.create([len(page)])
        files.write(0, 0, memoryview(page))
        files.publish()
    except BaseException:
        files.abort()
        raise


def _pair(
    found: Comparison, names: tuple[str, str], tensors: tuple[Tensor, Tensor], told: Callable[[int], None]
) -> Sums:
    """Compare two tensors and add to what was found; gives the sums, which are nothing where that cannot be."""
    one, two = tensors
    try:
        both = alike(one, two)
        if both is None:
            found.shapes.append(Shapes(*names, one.shape, two.shape))
            return Sums()
        one.check()
        two.check()
        equal = _equal_bytes(*both)
        sums = measure(both[0], both[0] if equal else both[1], told)
    except UnsupportedError as error:
        found.unreadable.append(Uncompared(*names, str(error)))
        return Sums()
    except QuantformError as error:
        found.broken.append(Uncompared(*names, str(error)))
        return Sums()
    same: Literal["bytes", "values"] | None = "bytes" if equal else None
    if not equal and not sums.differing and not {one.format, two.format} & _WIDE_INTEGERS:
        same = "values"
    found.tensors.append(
        Compared(
            name=names[0],
            other_name=names[1],
            shape=both[0].shape,
            format=one.format,
            other_format=two.format,
            bytes=one.nbytes,
            other_bytes=two.nbytes,
            same=same,
            **sums.errors(matrix_shape(both[0].shape)[1]).as_fields(),
        )
    )
    return sums


def _total(sums: Sums, tensors: list[Compared]) -> Total:
    return Total(
        tensors=len(tensors),
        weights=sum(one.size for one in tensors),
        bytes=sum(one.bytes for one in tensors),
        other_bytes=sum(one.other_bytes for one in tensors),
        **sums.errors(1).as_fields(),
    )


def _equal_bytes(one: Tensor, two: Tensor) -> bool:
    """Whether both are encoded alike and have equal payloads."""
    if encoding(one) != encoding(two) or one.nbytes != two.nbytes or not (one.joined and two.joined):
        return False
    buffers = np.empty((2, min(PIECE_BYTES, one.nbytes)), np.uint8)
    for offset, count in pieces(one.nbytes, 1):
        left, right = buffers[:, :count]
        one.read_into(offset, left)
        two.read_into(offset, right)
        if not np.array_equal(left, right):
            return False
    return True
