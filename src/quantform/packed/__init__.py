"""The 27 packed block profiles of the operator `DequantizePacked`: records, codebooks, readable decoders."""

from __future__ import annotations

from quantform.packed.dequantize import dequantize_packed, dequantize_rows, payload_bytes
from quantform.packed.nonfinite import Field, count_set, nonfinite_scales, nonfinite_values, undefined_scales
from quantform.packed.profiles import Profile
from quantform.packed.registry import PROFILES

__all__ = [
    "PROFILES",
    "Field",
    "Profile",
    "count_set",
    "dequantize_packed",
    "dequantize_rows",
    "nonfinite_scales",
    "nonfinite_values",
    "payload_bytes",
    "undefined_scales",
]
