"""What a rule is: one thing that the texts say, and that a decoder can get wrong by itself.

Identifiers are stable: `packed.*` are the operator `DequantizePacked`'s, `grouped.*`, `direct.*`, `nvfp4.*` and
`fp8_row.*` those of the `.ninfer` formats, `layout.*` of the storage layouts, `encode.*` of the methods, and `output.*`
of the conversion from binary32 to the type that was asked for. The lists stand beside the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DECISIONS", "LAYOUT_TEXT", "OPERATOR", "Rule"]

OPERATOR = "DequantizePacked"
LAYOUT_TEXT = "storage layouts"
DECISIONS = "docs/decisions.md"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        identifier: Its stable name, `"packed.q4_k.scales"`.
        meaning: What it says, one sentence.
        section: Where: a section of the `.ninfer` formats' text, `OPERATOR`, `LAYOUT_TEXT`, or `DECISIONS` for what the
            texts leave open.
    """

    identifier: str
    meaning: str
    section: str
