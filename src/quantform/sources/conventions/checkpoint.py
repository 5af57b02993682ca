"""A checkpoint with its quantized weights put together: each logical weight once, and nothing left unexplained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quantform._sizes import counted
from quantform.errors import FileError
from quantform.sources._protocol import Source, Tensor
from quantform.sources.conventions.assemble import Assembler
from quantform.sources.conventions.config import QuantizationConfig, find_config
from quantform.sources.conventions.weight import BrokenWeight, QuantizedWeight, UnsupportedWeight

__all__ = ["Checkpoint", "Dropped"]

_ACTIVATIONS = "it scales activations, and weights do not depend on it"
_CACHE = "it scales the attention cache, and weights do not depend on it"
_NO_VALUES = "the weight's values do not depend on it here"
_UNQUANTIZED = "the weight that it belongs to is stored unquantized"

_REASONS = {
    **{
        f"{what}_{kind}": _ACTIVATIONS
        for what in ("input", "output")
        for kind in ("scale", "global_scale", "zero_point", "observer")
    },
    **{
        f"{what}_{kind}": _CACHE
        for what in ("k", "v", "q", "kv", "prob", "k_proj", "v_proj")
        for kind in ("scale", "global_scale", "zero_point")
    },
    "prob_output_scale": _CACHE,
    "kv_cache_scaling_factor": _CACHE,
}
_OF_WEIGHTS = ("_scale", "_scale_inv", "_scale_2", "_global_scale", "_zero_point", "_g_idx", "_shape")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A tensor that no weight needs.

    Attributes:
        name: Its name.
        reason: Why it is left out.
    """

    name: str
    reason: str


class Checkpoint(Source[Tensor]):
    """A mapping of logical names to tensors: plain ones as they are, quantized weights put together.

    Only headers and configs are read, and the few numbers that say the shape of packed integers. The tensors that make
    up a quantized weight do not appear by themselves; those that no weight needs are in `dropped`. A weight in a form
    that is not read here is there as an `UnsupportedWeight`, which can be listed and refuses everything else; so is one
    whose tensors do not go together, as a `BrokenWeight`.

    Args:
        source: A source of plain tensors: safetensors or arrays. Closing the checkpoint closes it.
        config: What `config.json` says; None takes the source's own.

    Attributes:
        source: The source.
        config: The model's configuration.
        quantization: The quantization config, or None.
        weights: The quantized weights by name.
        dropped: Tensors that were left out, with the reason.

    Raises:
        FileError: The config is malformed.
        UnsupportedError: The config holds a pattern that is not supported.
    """

    def __init__(self, source: Source[Any], config: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.kind = source.kind
        self.path: Path = source.path
        self.files = source.files
        self.metadata = source.metadata
        document = getattr(source, "document", None)
        if config is None:
            config = getattr(source, "config", {})
        self.config: Mapping[str, Any] = config
        beside = document("hf_quant_config.json") if document is not None else None
        self.quantization: QuantizationConfig | None = find_config(config, beside, str(self.path))
        assembler = Assembler(source, self.quantization)
        weights = assembler.weights()
        self.weights: Mapping[str, QuantizedWeight] = MappingProxyType(weights)
        self.dropped = self._judge(weights) if weights or self.quantization is not None else ()
        first = {weight.companions[0]: weight for weight in weights.values()}
        hidden = {one.name for one in self.dropped}.union(*(weight.companions for weight in weights.values()))
        tensors: dict[str, Tensor] = {}
        for name, tensor in source.items():
            if name in first:
                tensors[first[name].name] = first[name]
            elif name not in hidden:
                tensors[name] = tensor
        self._tensors = tensors

    @property
    def unsupported(self) -> tuple[UnsupportedWeight, ...]:
        """The weights in forms that are not read here."""
        return tuple(weight for weight in self.weights.values() if isinstance(weight, UnsupportedWeight))

    def describe(self) -> str:
        """Number of tensors, of quantized weights among them, and of tensors left out."""
        if not self.weights and not self.dropped:
            return self.source.describe()
        weights = counted(len(self.weights), "quantized weight")
        return f"{self.kind} checkpoint, {counted(len(self), 'tensor')}, {weights}, {len(self.dropped)} left out"

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def _judge(self, weights: dict[str, QuantizedWeight]) -> tuple[Dropped, ...]:
        """What no weight uses and no program needs; a weight that a tensor shows to be broken becomes so."""
        used = {companion for weight in weights.values() for companion in weight.companions}
        dropped = []
        for name, tensor in self.source.items():
            if name in used:
                continue
            try:
                reason = self._reason(name)
            except _Misplaced as misplaced:
                weight = weights.get(misplaced.weight)
                parts = {**(weight.parts if weight is not None else {}), name: tensor}
                weights[misplaced.weight] = BrokenWeight(misplaced.weight, parts, str(self.path), misplaced.error)
                continue
            if reason is not None:
                dropped.append(Dropped(name, reason))
        return tuple(dropped)

    def _reason(self, name: str) -> str | None:
        """Why a tensor outside all weights is dropped; None where it is a tensor like any other.

        Raises:
            _Misplaced: It belongs to a weight that is not there, or that has no use for it.
        """
        module, _, last = name.rpartition(".")
        reason = _REASONS.get(last)
        if reason is not None:
            return reason
        for kind, reason in _REASONS.items():
            if last.endswith(f"_{kind}") and name.removesuffix(f"_{kind}") in self.weights:
                return reason  # of fused experts
        for suffix in _OF_WEIGHTS:
            for ending in (f"_weight{suffix}", suffix):
                if name.endswith(ending) and name.removesuffix(ending) in self.weights:
                    return self._left(name, self.weights[name.removesuffix(ending)], suffix)
            if name.endswith(f"_weight{suffix}") and name.removesuffix(f"_weight{suffix}") in self.source:
                return _UNQUANTIZED
        suffix = next((suffix for suffix in _OF_WEIGHTS if last == f"weight{suffix}"), "")
        if not suffix:
            return None
        owner = f"{module}.weight" if module else "weight"
        if owner in self.source:
            return _UNQUANTIZED
        error = FileError(
            "a tensor belongs to a weight that is not there",
            where=f"{self.path}, tensor {name!r}",
            expected=f"{owner!r} or '{owner}_packed'",
        )
        raise _Misplaced(owner, error)

    def _left(self, name: str, weight: QuantizedWeight, suffix: str) -> str:
        """Why a quantized weight does not need the tensor that its name gives it."""
        if suffix == "_shape" or isinstance(weight, UnsupportedWeight):
            return _NO_VALUES
        error = FileError(
            "a tensor of a quantized weight has no place in its convention",
            where=f"{self.path}, tensor {name!r}",
            expected=f"{weight.convention}: {', '.join(weight.companions)}",
        )
        raise _Misplaced(weight.name, error)


class _Misplaced(Exception):  # noqa: N818 - caught where it is raised, in _judge
    """A tensor that shows that a weight is broken."""

    def __init__(self, weight: str, error: FileError) -> None:
        super().__init__(weight)
        self.weight = weight
        self.error = error
