"""Bytes that must be zeros: each stretch of others is one fault, wherever pieces begin."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantform.layouts import Fault
from quantform.layouts.faults import byte_faults


@given(st.binary(max_size=40), st.lists(st.integers(1, 9), max_size=12), st.integers(1, 9))
def test_stretches_are_one_fault_each(data: bytes, sizes: list[int], limit: int) -> None:
    data = bytes(byte & 1 and byte for byte in data)
    cuts = [0, *(cut for cut in accumulate(sizes) if cut < len(data)), len(data)]
    pieces = [(100 + begin, np.frombuffer(data[begin:end], np.uint8)) for begin, end in pairwise(cuts)]
    found = list(byte_faults(pieces, "not zero", limit, rule="gap"))
    assert sum(faults.count for faults in found) == sum(map(bool, data))
    expected, at = [], 0
    for wrong, stretch in groupby(data, key=bool):
        some = bytes(stretch)
        if wrong:
            expected.append(Fault("gap", "not zero", 100 + at, "0x00", f"0x{some[0]:02X}", count=len(some)))
        at += len(some)
    first = [fault for faults in found for fault in faults.first]
    assert first[:limit] == expected[:limit]
    assert all(faults.count for faults in found)
