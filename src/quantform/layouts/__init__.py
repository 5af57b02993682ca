"""Words to bytes: one file per registered storage layout."""

from __future__ import annotations

from quantform._registry import Registry
from quantform.layouts.block_scale import BlockScaleLayout
from quantform.layouts.contiguous import ContiguousLayout
from quantform.layouts.faults import Fault, Faults
from quantform.layouts.gguf_blocks import GgufBlocksLayout
from quantform.layouts.layout import Layout, Payload, Plane, ReadInto, RowPlaneLayout, reader_of
from quantform.layouts.raw_bytes import RawBytesLayout
from quantform.layouts.row_interleaved import RowInterleavedLayout
from quantform.layouts.row_scale import RowScaleLayout
from quantform.layouts.row_split import RowSplitLayout

__all__ = ["LAYOUTS", "Fault", "Faults", "Layout", "Payload", "Plane", "ReadInto", "RowPlaneLayout", "reader_of"]

LAYOUTS: Registry[Layout] = Registry(
    "layout",
    [
        ContiguousLayout(),
        RowSplitLayout(),
        BlockScaleLayout(),
        RowScaleLayout(),
        RowInterleavedLayout(),
        GgufBlocksLayout(),
        RawBytesLayout(),
    ],
    key=lambda layout: layout.name,
)
"""Every registered storage layout."""
