"""Rows of an object straight from values, as its layout has them, where a method's compiled kernel can make them.

What comes out is what the layout makes of the job's words, byte for byte: only the way is shorter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantform.layouts import Layout
from quantform.methods import Job
from quantform.methods.kernel import ValuesJob

__all__ = ["packed_rows"]


def packed_rows(
    job: Job, rows: tuple[int, int], layout: Layout, shape: tuple[int, ...], first: int, divisors: int = 1
) -> list[tuple[int, npt.NDArray[np.uint8]]] | None:
    """What `layout.place(job.rows(*rows), shape, first, divisors)` gives, without words in between.

    Args:
        job: A started method.
        rows: First row and end, among the job's.
        layout: The object's layout.
        shape: The object's shape.
        first: The first row's number in the object.
        divisors: The object's number of divisors.

    Returns:
        Offsets in the payload with the bytes from there on; None where there is no kernel for this, or where it met
        something that only the longer way can name.
    """
    if not isinstance(job, ValuesJob) or job.kernel is None or job.kernel.layout != layout.name:
        return None
    spans = layout.spans(job.request.format, shape, first, first + rows[1] - rows[0], divisors)
    planes = [np.empty(size, np.uint8) for _, size in spans]
    if not job.pack(*rows, planes):
        return None
    return [(offset, plane) for (offset, _), plane in zip(spans, planes, strict=True) if plane.size]
