"""Writing the body of a function: standard operators on blocks, and the constants that they share.

A runtime's time to load grows faster than the nodes of all calls together, so bodies are short, and what is odd in them
has that reason: binary16 numbers are looked up by their two bytes; codes of the K-quants stay behind a mask in their
byte, and the scale takes the power of two back (products of the block's scale and a local one have so few bits that
this is exact); fields that cross bytes are sums over bytes. No operator is younger than opset 18.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

__all__ = ["Array", "Body", "Maker", "by_plane", "contributions", "half_table", "masks", "rows"]

Array = npt.NDArray[Any]


@functools.cache
def half_table() -> Array:
    """Every binary16 number widened, float32 `[256, 256, 1]`, by its first byte and its second."""
    words = np.arange(256, dtype=np.uint16)[:, None] | np.arange(256, dtype=np.uint16) << 8
    return words.view(np.float16).astype(np.float32)[:, :, None]


def by_plane(values: Array) -> Array:
    """A table float32 `[256]` for nibbles that were left in their place: both `[v]` and `[16 * v]` are `values[v]`."""
    table = np.zeros(256, np.float32)
    table[:16] = table[::16] = values
    return table


def rows(width: int, values: Array | Sequence[float], dtype: npt.DTypeLike = np.float32) -> Array:
    """A table `[256, 8 / width]` of what the codes of `width` bits in each byte stand for, lowest first."""
    codes = np.arange(256)[:, None] >> np.arange(0, 8, width) & (1 << width) - 1
    table: Array = np.asarray(values, dtype)[codes]
    return table


def masks(width: int, *shape: int) -> Array:
    """The masks of all codes of `width` bits in a byte, lowest first, uint8 of `shape`."""
    return (np.uint8((1 << width) - 1) << np.arange(0, 8, width, dtype=np.uint8)).reshape(shape)


def contributions(
    members: Iterable[tuple[int, int, int, float]], *entry: int, dtype: npt.DTypeLike = np.int64
) -> Array:
    """A table for `Body.summed`, `[k, 256, *entry]`, of numbers whose bits lie in several bytes.

    Args:
        members: `(byte, number, mask, weight)`: what `byte` has of `number` behind `mask` counts `weight`, where the
            lowest bit of the mask counts as one.
        entry: How the numbers are arranged.
        dtype: Of the numbers; all sums must be exact in it.
    """
    listed = list(members)
    table = np.zeros((1 + max(byte for byte, _, _, _ in listed), 256, math.prod(entry)), dtype)
    for byte, number, mask, weight in listed:
        table[byte, :, number] += ((np.arange(256) & mask) // (mask & -mask) * weight).astype(dtype)
    return table.reshape(-1, 256, *entry)


class Body:
    """The nodes of one function, and its inputs: the payload `x`, then constants.

    Attributes:
        nodes: In order.
        constants: The arrays that a call must pass after `x`, by parameter.
    """

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def op(self, kind: str, *inputs: str | Array, outputs: int = 1, **attributes: Any) -> Any:  # noqa: ANN401
        """Add a node; arrays become constants. The name of its output, or a list of names."""
        names = [f"{kind.lower()}_{len(self.nodes)}" + "_" * which for which in range(outputs)]
        arguments = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(helper.make_node(kind, arguments, names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Array) -> str:
        """The parameter of a constant; equal ones are one."""
        key = (array.dtype.str, array.shape, array.tobytes())
        name = self._names.setdefault(key, f"c{len(self._names)}")
        self.constants[name] = array
        return name

    def blocks(self, *sizes: int, rank: int = 2, kind: int = TensorProto.UINT8) -> list[str]:
        """The payload as blocks, cut into parts of `sizes` bytes: each `[n, 1, ..., 1, size]` of `rank`.

        Where all parts are indices, `kind` INT64 converts them at once.
        """
        whole = self.reshape("x", *[1] * (rank - 2), sum(sizes))
        if kind != TensorProto.UINT8:
            whole = self.cast(whole, kind)
        return self.split(whole, *sizes, axis=rank - 1)

    def split(self, value: str, *sizes: int, axis: int) -> list[str]:
        """`value` cut along `axis`."""
        names: list[str] = self.op("Split", value, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)
        return names

    def reshape(self, value: str, *shape: int) -> str:
        """`value` as `[n, *shape]`."""
        name: str = self.op("Reshape", value, np.array([-1, *shape], np.int64))
        return name

    def cast(self, value: str, kind: int) -> str:
        """`value` converted."""
        name: str = self.op("Cast", value, to=kind)
        return name

    def floats(self, value: str) -> str:
        """`value` as binary32 numbers."""
        return self.cast(value, TensorProto.FLOAT)

    def half(self, value: str) -> str:
        """Bytes `[..., 2]` as binary16 numbers widened, `[..., 1]`."""
        return self.half_at(self.cast(value, TensorProto.INT64))

    def half_at(self, value: str) -> str:
        """As `half` of bytes that are int64 already."""
        name: str = self.op("GatherND", half_table(), value)
        return name

    def gather(self, table: Array, index: str) -> str:
        """Rows of a table, by int32 or int64."""
        name: str = self.op("Gather", table, index)
        return name

    def lookup(self, table: Array, value: str) -> str:
        """Rows of a table, by bytes."""
        return self.gather(table, self.cast(value, TensorProto.INT32))

    def masked(self, value: str, mask: Array) -> str:
        """Bytes `[..., 1, k]` with masks `[m, 1]`, or whatever else broadcasts: uint8."""
        name: str = self.op("BitwiseAnd", value, mask)
        return name

    def multiply(self, left: str, right: str | Array) -> str:
        """The product."""
        name: str = self.op("Mul", left, right)
        return name

    def add(self, left: str, right: str | Array) -> str:
        """The sum."""
        name: str = self.op("Add", left, right)
        return name

    def subtract(self, left: str, right: str | Array) -> str:
        """The difference."""
        name: str = self.op("Sub", left, right)
        return name

    def weighted(self, value: str, mask: Array, weight: Array) -> str:
        """Masked bytes times weights: float32."""
        return self.multiply(self.floats(self.masked(value, mask)), weight.astype(np.float32))

    def planes(self, value: str, width: int, *shape: int) -> str:
        """All codes of `width` bits, lowest first, on an axis of `shape` that is 1 in bytes `[n, *shape]`: uint8."""
        shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(shape)
        moved = self.op("BitShift", value, shifts, direction="RIGHT")
        return self.masked(moved, np.array((1 << width) - 1, np.uint8))

    def summed(self, value: str, table: Array) -> str:
        """The sum of the entries `table[j, byte]` over the bytes j of the last axis.

        Args:
            value: int64 `[..., k]`.
            table: `[k, 256, *entry]`, as `contributions` makes it.

        Returns:
            `[..., *entry]`.
        """
        count, _, *entry = table.shape
        index = self.add(value, 256 * np.arange(count))
        name: str = self.op(
            "ReduceSum", self.gather(table.reshape(-1, *entry), index), np.array([-1 - len(entry)]), keepdims=0
        )
        return name


Maker = Callable[[Body], str]
"""Writes a decoder of blocks into a body and returns its values, binary32 in the order of the block, any shape."""
