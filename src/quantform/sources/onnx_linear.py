"""Uniform quantization in ONNX graphs where it has the very words of a packed profile: codes and scales.

Only what `quantform convert --qdq` writes is recognized; anything else stays the initializers that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from quantform._sizes import ceil_div, product
from quantform._spans import Span, units_of
from quantform.packed.linear import LINEAR, Linear
from quantform.sources.onnx_contract import STANDARD_DOMAINS
from quantform.sources.onnx_file import Bytes, InitializerBytes

__all__ = ["Blocks", "LinearNode", "linear_nodes", "zero_points"]

_PIECE_BLOCKS = 1 << 15


@dataclass(frozen=True, slots=True)
class LinearNode:
    """A weight of codes and scales.

    Attributes:
        name: What its values are called.
        shape: Their shape.
        linear: How the parts make blocks.
        codes: The name of the initializer with the codes.
        scales: That with the scales.
        minima: That with the minima, where there are any.
        helpers: The names of all initializers but the codes', as often as nodes have them.
    """

    name: str
    shape: tuple[int, ...]
    linear: Linear
    codes: str
    scales: str
    minima: str | None = None
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks(InitializerBytes):
    """The bytes of packed blocks, put together from their parts when they are read.

    Attributes:
        linear: How they are put together.
        nbytes: Bytes of all blocks.
        codes: The codes.
        scales: The scales.
        minima: The minima, where there are any.
    """

    linear: Linear
    nbytes: int
    codes: InitializerBytes
    scales: InitializerBytes
    minima: InitializerBytes | None

    def view(self, first: int, count: int) -> Bytes:
        """See `InitializerBytes`; always a copy."""
        out = np.empty(count, np.uint8)
        self.read_into(first, out)
        out.flags.writeable = False
        return out

    def read_into(self, offset: int, out: Bytes) -> None:
        """See `InitializerBytes`."""
        size, flat, done = self.linear.profile.bytes, out.reshape(-1), 0
        while done < flat.size:
            block, skip = divmod(offset + done, size)
            count = min(_PIECE_BLOCKS, ceil_div(skip + flat.size - done, size))
            part = self._blocks(block, count)[skip : skip + flat.size - done]
            flat[done : done + part.size] = part
            done += part.size

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """Blocks of which a part is stored; all others are worth zeros, whatever their bytes."""
        first, last = begin // self.linear.profile.bytes, ceil_div(end, self.linear.profile.bytes)
        parts = ((self.codes, self.linear.code_bytes), (self.scales, 2), (self.minima, 2))
        spans = (
            span
            for part, size in parts
            if part is not None
            for span in units_of(part.stored_spans(first * size, last * size), size)
        )
        for block, after in units_of(spans, 1):
            yield max(begin, block * self.linear.profile.bytes), min(end, after * self.linear.profile.bytes)

    def check(self) -> None:
        """See `InitializerBytes`."""
        for part in (self.codes, self.scales, self.minima):
            if part is not None:
                part.check()

    def _blocks(self, first: int, count: int) -> Bytes:
        size = self.linear.code_bytes
        minima = None if self.minima is None else self.minima.view(first * 2, count * 2)
        return self.linear.blocks(
            self.codes.view(first * size, count * size), self.scales.view(first * 2, count * 2), minima
        )


def linear_nodes(
    graph: onnx.GraphProto, initializers: Mapping[str, onnx.TensorProto], uses: Mapping[str, int]
) -> Iterator[LinearNode]:
    """The weights in a graph that are codes and scales of packed blocks.

    Args:
        graph: The graph; graphs inside its nodes are not looked into.
        initializers: Its initializers.
        uses: How often each value is used, inside nodes too: what others see as well is no step of a weight.
    """
    after: dict[str, onnx.NodeProto] = {}
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            after.setdefault(name, node)
    for node in graph.node:
        if not _is(node, "DequantizeLinear"):
            continue
        found = _linear(node, initializers)
        if found is not None and found.linear.affine:
            found = _affine(found, after, made, initializers, uses)
        if found is not None:
            yield found


def _is(node: onnx.NodeProto, operator: str) -> bool:
    """Whether a node is ONNX's own operator of that name, not another's, and has one output."""
    return node.op_type == operator and node.domain in STANDARD_DOMAINS and len(node.output) == 1


def _linear(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto]) -> LinearNode | None:
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    parts = [initializers.get(name) for name in node.input]
    if not 2 <= len(parts) <= 3 or any(part is None for part in parts):
        return None
    codes, scales, *points = (part for part in parts if part is not None)
    if scales.data_type != TensorProto.FLOAT16 or attributes.get("output_dtype") != TensorProto.FLOAT:
        return None
    dims = list(codes.dims)
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    if not dims or axis not in {-1, len(dims) - 1} or block < 1 or dims[-1] % block:
        return None
    if list(scales.dims) != [*dims[:-1], dims[-1] // block] or min(dims) < 0:
        return None
    for linear in LINEAR.values():
        if codes.data_type != getattr(TensorProto, linear.type, None) or linear.profile.values != block:
            continue
        if bool(points) != bool(linear.zero_point) or not all(
            _are_all(linear.zero_point, part, scales, codes, linear.width) for part in points
        ):
            continue
        return LinearNode(
            node.output[0],
            tuple(dims),
            linear,
            codes.name,
            scales.name,
            helpers=(scales.name, *(part.name for part in points)),
        )
    return None


def _are_all(value: int, part: onnx.TensorProto, scales: onnx.TensorProto, codes: onnx.TensorProto, width: int) -> bool:
    """Whether zero points are all the same value, in the model itself."""
    if list(part.dims) != list(scales.dims) or part.data_type != codes.data_type or not part.HasField("raw_data"):
        return False
    return part.raw_data == zero_points(value, width, product(part.dims))


def zero_points(value: int, width: int, count: int) -> bytes:
    """`count` times the code `value` as raw data; nothing after the last one but zeros."""
    whole, rest = divmod(count * width, 8)
    pattern = sum(value << shift for shift in range(0, 8, width))
    return bytes([pattern]) * whole + bytes([pattern & (1 << rest) - 1]) * (rest > 0)


def _affine(
    found: LinearNode,
    after: Mapping[str, onnx.NodeProto],
    made: Mapping[str, onnx.NodeProto],
    initializers: Mapping[str, onnx.TensorProto],
    uses: Mapping[str, int],
) -> LinearNode | None:
    """The weight whose codes times scales, a block a row, a minimum is added to: `Add(found, Cast(minima))`."""
    add = after.get(found.name)
    if add is None or not _is(add, "Add") or len(add.input) != 2 or any(uses[name] != 1 for name in add.input):
        return None
    cast = made.get(add.input[1])
    if add.input[0] != found.name or cast is None or not _is(cast, "Cast") or len(cast.input) != 1:
        return None
    minima, scales = initializers.get(cast.input[0]), initializers[found.scales]
    to = [attribute.i for attribute in cast.attribute if attribute.name == "to"]
    fits = (
        minima is not None
        and to == [TensorProto.FLOAT]
        and minima.data_type == TensorProto.FLOAT16
        and list(minima.dims) == list(scales.dims)
        and found.shape[-1] == found.linear.profile.values
    )
    if minima is None or not fits:
        return None
    return replace(found, name=add.output[0], minima=minima.name, helpers=(*found.helpers, minima.name))
