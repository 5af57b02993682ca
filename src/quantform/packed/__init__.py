"""The 27 packed block profiles of the operator `DequantizePacked`: records, codebooks, readable decoders."""

from __future__ import annotations

from quantform.packed.dequantize import dequantize_packed, payload_bytes
from quantform.packed.profiles import Profile
from quantform.packed.registry import PROFILES

__all__ = ["PROFILES", "Profile", "dequantize_packed", "payload_bytes"]
