"""What a conversion did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantform._sizes import counted

__all__ = ["Report"]


@dataclass(slots=True)
class Report:
    """What a conversion did.

    Attributes:
        files: The files written and their sizes in bytes, the one to open first.
        tensors: How many tensors took each way, `"import_encoded to gguf_q4_k"`.
        notes: Lines for people about what is not plain copying.
    """

    files: list[tuple[Path, int]]
    tensors: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "files": [{"path": str(path), "bytes": size} for path, size in self.files],
            "tensors": dict(self.tensors),
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """The report for people."""
        return [*(f"{counted(count, 'tensor')}: {way}" for way, count in self.tensors.items()), *self.notes]
