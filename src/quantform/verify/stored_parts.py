"""What is compared of two checkpoints: the tensors that their files have, not the weights that these make up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantform.sources import Checkpoint, Source, Tensor
from quantform.sources.conventions import BrokenWeight, QuantizedWeight

__all__ = ["Tensors", "stored_tensors"]

Tensors = Mapping[str, Tensor]
"""Tensors of one file by name."""


def stored_tensors(source: Source[Any], origin: Source[Any]) -> tuple[Tensors, Tensors]:
    """The tensors of both files that are compared.

    Of two checkpoints, these are the stored tensors: a weight's codes, scales and whatever else belongs to it, and what
    no weight needs. A weight whose codes the other one has in another type or shape, or elsewhere, is stored in another
    form there, and is compared as the weight that it is. Where there is such a weight, tensors of one file that no
    weight needs belong to that form.
    """
    if source.kind != "safetensors" or origin.kind != "safetensors":
        return source, origin
    others = {*_other_forms(source, origin), *_other_forms(origin, source)}
    return _chosen(source, origin, others), _chosen(origin, source, others)


def _plain(source: Source[Any]) -> Tensors:
    return source.source if isinstance(source, Checkpoint) else source


def _weights(source: Source[Any]) -> Mapping[str, QuantizedWeight]:
    return source.weights if isinstance(source, Checkpoint) else {}


def _other_forms(one: Source[Any], two: Source[Any]) -> set[str]:
    """The weights of the one that are whole, and whose codes the other one, which has it whole too, has otherwise."""
    plain, found = _plain(two), set()
    for name, weight in _weights(one).items():
        if name not in two or isinstance(weight, BrokenWeight) or isinstance(two[name], BrokenWeight):
            continue
        codes = next(iter(weight.parts.values()))
        same = plain.get(codes.name)
        if same is None or (same.format, same.shape) != (codes.format, codes.shape):
            found.add(name)
    return found


def _chosen(one: Source[Any], two: Source[Any], others: set[str]) -> Tensors:
    weights, plain = _weights(one), _plain(two)
    hidden = {companion for name in others & weights.keys() for companion in weights[name].companions}
    if others and isinstance(one, Checkpoint):
        hidden.update(dropped.name for dropped in one.dropped if dropped.name not in plain)
    stored = {name: tensor for name, tensor in _plain(one).items() if name not in hidden}
    return stored | {name: one[name] for name in others}
