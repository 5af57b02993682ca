"""How checkpoints keep quantized weights in several plain tensors, and what those mean together."""

from __future__ import annotations

from quantform.sources.conventions.assemble import is_code
from quantform.sources.conventions.checkpoint import Checkpoint, Dropped
from quantform.sources.conventions.config import QuantizationConfig, Scheme
from quantform.sources.conventions.nvfp4 import Nvfp4Weight
from quantform.sources.conventions.part_rules import PairRule, PartRule
from quantform.sources.conventions.scaled import RowScaledWeight, ScaledWeight
from quantform.sources.conventions.weight import BrokenWeight, QuantizedWeight, UnsupportedWeight

__all__ = [
    "BrokenWeight",
    "Checkpoint",
    "Dropped",
    "Nvfp4Weight",
    "PairRule",
    "PartRule",
    "QuantizationConfig",
    "QuantizedWeight",
    "RowScaledWeight",
    "ScaledWeight",
    "Scheme",
    "UnsupportedWeight",
    "is_code",
]
