"""What a conversion will do, decided before any weight is read: every object, binding and use, and its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quantform._sizes import counted, human_bytes
from quantform.container import Binding, Use
from quantform.convert.work import Work

__all__ = ["Fragment", "ObjectPlan", "Plan"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some of a parameter as one object holds it.

    Attributes:
        parameter: The parameter's name.
        shape: What is held of it: its own shape, or that of some leading rows.
        rows: `(begin, end)` along its first axis where it is split; None for all of it.
        source: What it is stored as in the source: `"safetensors F32"`.
        elements: `(begin, end)` in the object.
    """

    parameter: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None
    source: str
    elements: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """One tensor object to be written.

    Attributes:
        id: Its id.
        shape: Its shape.
        format: Its format's name.
        layout: Its layout's name.
        divisors: Its number of divisors.
        nbytes: Its bytes.
        method: The method that makes its words; None for auxiliaries.
        parameters: The method's parameters as provenance records them.
        fragments: What it holds, in order.
        work: Makes its bytes.
    """

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    divisors: int
    nbytes: int
    method: str | None
    parameters: Mapping[str, Any]
    fragments: tuple[Fragment, ...]
    work: Work


@dataclass(slots=True, kw_only=True)
class Plan:
    """A whole conversion.

    Attributes:
        source: The path of the main source.
        recipe: The recipe's name, or None.
        objects: The tensors to be written, in order.
        bindings: Parameter name to what it is made of.
        uses: How parameters are used.
        shapes: Shapes of the parameters that their bindings do not say.
        resource_bytes: Bytes of the resources that go along.
        notes: Lines for people about what is not as they may expect.
    """

    source: str
    recipe: str | None
    objects: list[ObjectPlan]
    bindings: dict[str, Binding]
    uses: list[Use]
    shapes: dict[str, list[int]]
    resource_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(planned.nbytes for planned in self.objects)

    def ways(self) -> Counter[str]:
        """How many fragments take each way: `"import_encoded to gguf_q4_k"`."""
        return Counter(f"{planned.method} to {planned.format}" for planned in self.objects for _ in planned.fragments)

    def rows(self) -> list[tuple[str, ...]]:
        """One row of texts for each fragment, as `header` names them."""
        rows: list[tuple[str, ...]] = []
        for planned in self.objects:
            for number, fragment in enumerate(planned.fragments):
                name = fragment.parameter
                if fragment.rows is not None:
                    name += f"[{fragment.rows[0]}:{fragment.rows[1]}]"
                size = human_bytes(planned.nbytes) if number == 0 else "together"
                shape = "x".join(map(str, fragment.shape)) or "scalar"
                rows.append((name, shape, fragment.source, planned.method or "", planned.format, planned.layout, size))
        return rows

    header = ("parameter", "shape", "source", "method", "format", "layout", "size")

    def lines(self) -> list[str]:
        """Notes and totals for people."""
        resources = f", resources {human_bytes(self.resource_bytes)}" if self.resource_bytes else ""
        total = f"{counted(len(self.objects), 'object')}, {human_bytes(self.tensor_bytes)}{resources}"
        return [*self.notes, total]

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "source": self.source,
            "recipe": self.recipe,
            "objects": [
                {
                    "id": planned.id,
                    "shape": list(planned.shape),
                    "format": planned.format,
                    "layout": planned.layout,
                    "divisors": planned.divisors,
                    "bytes": planned.nbytes,
                    "method": planned.method,
                    "parameters": dict(planned.parameters),
                    "fragments": [
                        {
                            "parameter": fragment.parameter,
                            "shape": list(fragment.shape),
                            "rows": list(fragment.rows) if fragment.rows is not None else None,
                            "source": fragment.source,
                        }
                        for fragment in planned.fragments
                    ],
                }
                for planned in self.objects
            ],
            "tensor_bytes": self.tensor_bytes,
            "resource_bytes": self.resource_bytes,
            "notes": self.notes,
        }
