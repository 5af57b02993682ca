"""Words to bytes: one file per registered storage layout."""

from __future__ import annotations

from quantform._registry import Registry
from quantform.layouts.contiguous import ContiguousLayout
from quantform.layouts.gguf_blocks import GgufBlocksLayout
from quantform.layouts.layout import Layout, Payload, Plane, ReadInto, RowPlaneLayout
from quantform.layouts.raw_bytes import RawBytesLayout

__all__ = ["LAYOUTS", "Layout", "Payload", "Plane", "ReadInto", "RowPlaneLayout"]

LAYOUTS: Registry[Layout] = Registry(
    "layout", [ContiguousLayout(), GgufBlocksLayout(), RawBytesLayout()], key=lambda layout: layout.name
)
"""Every registered storage layout."""
