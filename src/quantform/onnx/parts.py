"""What stands for tensors of a GGUF model in a graph: initializers, the nodes that decode them, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantform._sizes import product, read_pieces
from quantform.onnx.storage import Blob, copied
from quantform.packed import PROFILES
from quantform.packed.linear import LINEAR, Linear
from quantform.sources import GGUFTensor
from quantform.sources.onnx_file import SCALAR_TYPES
from quantform.sources.onnx_linear import zero_points

__all__ = ["IR_VERSION", "OPSET", "Parts"]

Bytes = npt.NDArray[np.uint8]

OPSET = 29
"""The first version of ONNX's operators that has `DequantizePacked`."""

IR_VERSION = 10
"""The first version of ONNX's format that has calls of functions with overloads, which lowered models have."""


class Parts:
    """Nodes and initializers of a graph in the making.

    Args:
        taken: Names that values of the graph have already.

    Attributes:
        nodes: In an order in which each one's inputs come before it; each has its output's name.
        initializers: Those without elements have their data; `blobs` has that of the others.
        blobs: The bytes of initializers.
        opset: The first version of ONNX's operators that has all nodes but `DequantizePacked`.
        ir_version: The first version of ONNX's format that has everything here.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.blobs: list[Blob] = []
        self.opset = 14
        self.ir_version = IR_VERSION
        self._taken = set(taken)
        self._payloads: dict[str, str] = {}
        self._points: dict[tuple[str, tuple[int, ...]], str] = {}

    @property
    def has_packed(self) -> bool:
        """Whether there are `DequantizePacked` nodes."""
        return bool(self._payloads)

    def plain(self, tensor: GGUFTensor) -> int:
        """Plain numbers under the tensor's own name; gives ONNX's number of their type."""
        kind = SCALAR_TYPES[tensor.format]
        self._initializer(tensor, tensor.name, kind, tensor.shape)
        return kind

    def packed(
        self, tensor: GGUFTensor, output: str, *, output_type: int = TensorProto.FLOAT, transpose: bool = False
    ) -> None:
        """Packed blocks as `NAME.packed`, and the nodes that make a value called `output` of them.

        Where the tensor's rows are not those of its logical shape, a Reshape follows the operator; where the graph
        wants columns first, a Transpose.
        """
        payload = self._payloads.get(tensor.name)
        if payload is None:
            payload = self._payloads[tensor.name] = self.fresh(f"{tensor.name}.packed")
            self._initializer(tensor, payload, TensorProto.UINT8, (tensor.nbytes,))
        whole = bool(tensor.shape) and tensor.shape[-1] % PROFILES[tensor.format].values == 0
        shape = tensor.shape if whole else tensor.stored_shape
        decoded = output
        if not whole or transpose:
            decoded = self.fresh(tensor.name if whole else f"{tensor.name}.blocks")
        node = helper.make_node("DequantizePacked", [payload], [decoded], decoded)
        for name, value in (("format", tensor.format), ("shape", list(shape)), ("output_dtype", output_type)):
            node.attribute.append(helper.make_attribute(name, value))
        self.nodes.append(node)
        if not whole:
            reshaped = self.fresh(f"{tensor.name}.reshaped") if transpose else output
            self._reshape(tensor, decoded, reshaped)
            decoded = reshaped
        if transpose:
            self.nodes.append(helper.make_node("Transpose", [decoded], [output], output, perm=[1, 0]))

    def linear(self, tensor: GGUFTensor, output: str) -> None:
        """Packed blocks as `DequantizeLinear` of `NAME.codes` and `NAME.scales`, with the same values.

        Where minima are added, blocks have an axis of their own until then.
        """
        linear = LINEAR[tensor.format]
        # Two bits came later; before 23, the values have the type of the scales.
        self.opset = max(self.opset, 25 if linear.width == 2 else 23)
        self.ir_version = max(self.ir_version, 13 if linear.width == 2 else IR_VERSION)
        rows, columns = tensor.matrix
        count = rows * (columns // linear.profile.values)
        logical = tensor.shape if tensor.shape[-1] % linear.profile.values == 0 else tensor.stored_shape
        by_block = (*logical[:-1], logical[-1] // linear.profile.values)
        shape = (*by_block, linear.profile.values) if linear.affine else logical
        scales_shape = (*by_block, 1) if linear.affine else by_block
        reshaped = linear.affine or logical != tensor.shape
        codes, scales = (
            self._part(tensor, which, size * count, kind, dims)
            for which, size, kind, dims in (
                ("codes", linear.code_bytes, getattr(TensorProto, linear.type), shape),
                ("scales", 2, TensorProto.FLOAT16, scales_shape),
            )
        )
        inputs = [codes, scales]
        if linear.zero_point:
            inputs.append(self._zero_points(linear, scales_shape))
        values = self.fresh(f"{tensor.name}.blocks") if reshaped else output
        self.nodes.append(
            helper.make_node(
                "DequantizeLinear",
                inputs,
                [values],
                values,
                axis=-1,
                block_size=linear.profile.values,
                output_dtype=int(TensorProto.FLOAT),
            )
        )
        if linear.affine:
            minima = self._part(tensor, "minima", 2 * count, TensorProto.FLOAT16, scales_shape)
            wide, values, products = self.fresh(f"{minima}.float"), self.fresh(f"{tensor.name}.sums"), values
            self.nodes.append(helper.make_node("Cast", [minima], [wide], wide, to=int(TensorProto.FLOAT)))
            self.nodes.append(helper.make_node("Add", [products, wide], [values], values))
        if reshaped:
            self._reshape(tensor, values, output)

    def fresh(self, name: str) -> str:
        """`name`, or something like it that no value is called yet."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _initializer(self, tensor: GGUFTensor, name: str, kind: int, shape: tuple[int, ...]) -> None:
        proto = TensorProto(name=name, data_type=kind, dims=shape)
        if tensor.nbytes:
            home = None if tensor.big_endian else (tensor.file.path, tensor.offset)
            self.blobs.append(Blob(name, tensor.nbytes, partial(copied, tensor), home))
        else:
            proto.raw_data = b""
        self.initializers.append(proto)

    def _reshape(self, tensor: GGUFTensor, values: str, output: str) -> None:
        wanted = self.fresh(f"{tensor.name}.shape")
        dims = np.asarray(tensor.shape, np.int64)
        self.initializers.append(numpy_helper.from_array(dims, wanted))
        self.nodes.append(helper.make_node("Reshape", [values, wanted], [output], output, allowzero=1))

    def _part(self, tensor: GGUFTensor, which: str, nbytes: int, kind: int, shape: tuple[int, ...]) -> str:
        """An initializer with one part of all blocks: `"codes"`, `"scales"` or `"minima"`."""
        name = self.fresh(f"{tensor.name}.{which}")
        proto = TensorProto(name=name, data_type=kind, dims=shape)
        if nbytes:
            self.blobs.append(Blob(name, nbytes, partial(_cut, tensor, which)))
        else:
            proto.raw_data = b""
        self.initializers.append(proto)
        return name

    def _zero_points(self, linear: Linear, shape: tuple[int, ...]) -> str:
        """The zero points of all weights with scales of that shape, which share them."""
        key = (linear.type, shape)
        if key not in self._points:
            name = self._points[key] = self.fresh(f"zero_points.{linear.type}.{'x'.join(map(str, shape))}")
            proto = TensorProto(name=name, data_type=getattr(TensorProto, linear.type), dims=shape)
            proto.raw_data = zero_points(linear.zero_point, linear.width, product(shape))
            self.initializers.append(proto)
        return self._points[key]


def _cut(tensor: GGUFTensor, which: str) -> Iterator[Bytes]:
    linear = LINEAR[tensor.format]
    for _, blocks in read_pieces(tensor.read_into, tensor.nbytes, linear.profile.bytes):
        if which == "codes":
            yield linear.codes(blocks)
        else:
            yield linear.field(blocks, "d" if which == "scales" else "m")
