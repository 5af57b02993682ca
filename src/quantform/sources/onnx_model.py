"""ONNX models as sources of tensors: their initializers, those of packed blocks as the weights that they are."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from quantform._rows import Rows, as_rows, matrix_shape, runs
from quantform._scalars import SCALARS, Scalar
from quantform._sizes import counted
from quantform._spans import Span, units_of
from quantform.errors import ArgumentError, FileError, UnsupportedError
from quantform.formats import BlockWords, block_format
from quantform.packed.dequantize import payload_bytes
from quantform.sources._pool import FilePool
from quantform.sources._protocol import Source, Tensor, check_range
from quantform.sources._scalar_tensor import ScalarTensor
from quantform.sources.onnx_contract import uses_of
from quantform.sources.onnx_file import InitializerBytes, data_type, initializer_bytes, read_model, tensors_of
from quantform.sources.onnx_linear import Blocks, LinearNode, linear_nodes
from quantform.sources.onnx_nodes import PackedNode, Reshapes, packed_nodes

__all__ = ["OnnxPacked", "OnnxPlain", "OnnxSource"]

_Bytes = npt.NDArray[np.uint8]


class _OfModel(Tensor):
    """What both kinds of tensor have: bytes, and the model that they are of."""

    _model: Path
    _data: InitializerBytes

    def check(self) -> None:
        """Check that the bytes are there, where the model says, and can be decoded.

        Raises:
            FileError: They are not there.
            UnsupportedError: The type is not one that this package decodes.
        """
        self._data.check()

    def payload(self) -> _Bytes:
        """The stored bytes, uint8 `[nbytes]`, read-only; a copy only where the model lists numbers one by one.

        Raises:
            FileError: They are not there.
        """
        return self._data.view(0, self.nbytes)

    def read_into(self, offset: int, out: _Bytes) -> None:
        """Fill `out`, contiguous, with the payload's bytes from `offset` on.

        Raises:
            ArgumentError: The range does not lie in the tensor.
            FileError: The bytes are not there.
        """
        check_range(offset, out.nbytes, self.nbytes, self._where())
        self._data.read_into(offset, out)

    def locate(self, offset: int) -> tuple[Path, int] | None:
        """See `Tensor.locate`."""
        return self._data.locate(offset)

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """See `Tensor.stored_spans`."""
        return self._data.stored_spans(begin, end)

    def _where(self) -> str:
        return f"{self._model}, tensor {self.name!r}"


class OnnxPlain(_OfModel, ScalarTensor):
    """An initializer of plain numbers.

    Attributes:
        name: Its name.
        shape: Its shape.
        format: A scalar type's name (`"fp16"`), or `"onnx:INT4"` where this package does not decode the type.
        dtype_name: ONNX's name of the type.
        nbytes: Bytes of its raw data.
    """

    def __init__(self, model: Path, proto: onnx.TensorProto, data: InitializerBytes) -> None:
        self._model = model
        self._data = data
        self.name = proto.name
        self.shape = tuple(proto.dims)
        record = data_type(proto.data_type, self._where())
        self._scalar = None if record.scalar is None else SCALARS[record.scalar]
        self.dtype_name = record.name
        self.format = record.format
        self.nbytes = data.nbytes

    def check(self) -> None:
        """See `_OfModel.check`."""
        self._known()

    def _known(self) -> Scalar:
        self._data.check()  # before anything is allocated for it
        return super()._known()


class OnnxPacked(_OfModel):
    """Packed blocks and the node that decodes them: a quantized weight.

    Rows are those of the stored shape, whose last dimension is whole blocks; `shape` differs from it only where a
    Reshape follows the node and gives the values another last dimension.

    Attributes:
        name: The name of the values: the node's output, or that of the Reshape.
        shape: The shape of the values.
        format: The packed profile, `"gguf:q4_k"`.
        nbytes: Bytes of the blocks.
        stored_shape: The shape of the blocks.
        output_type: The type in which the graph has the values, `"float32"`; `decode` gives whichever is asked for.
        initializer: The name of the blocks in the graph.
    """

    def __init__(self, model: Path, node: PackedNode, data: InitializerBytes) -> None:
        self._model = model
        self._data = data
        self._record = block_format(node.profile)
        self.name = node.name
        self.shape = node.shape
        self.stored_shape = node.stored_shape
        self.format = node.profile.identifier
        self.nbytes = node.nbytes
        self.output_type = node.output_type
        self.initializer = node.payload

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the stored shape, which `rows` arguments count."""
        return matrix_shape(self.stored_shape)

    def words(self, rows: Rows | None = None) -> BlockWords:
        """The blocks of all rows (in the stored shape) or of some (shape `[len(rows), K]`).

        All rows and slices are views; other choices copy their rows and nothing else.

        Raises:
            ArgumentError: A row is outside the tensor.
            FileError: The bytes are not there.
            UnsupportedError: No array has so many rows.
        """
        count, columns = self.matrix
        size = self._record.row_bytes(columns)
        try:
            chosen = range(count) if rows is None else as_rows(rows, count)
            if isinstance(chosen, range) and chosen.step == 1:
                blocks = self._data.view(chosen.start * size, len(chosen) * size).reshape(len(chosen), size)
            else:
                blocks = np.empty((len(chosen), size), np.uint8)
                done = 0
                for first, end in runs(chosen):
                    self._data.read_into(first * size, blocks[done : done + end - first])
                    done += end - first
        except ArgumentError as error:
            raise error.at(self._where()) from None
        except (ValueError, OverflowError, MemoryError):
            raise UnsupportedError(
                "the rows do not fit into an array", where=self._where(), found=list(self.stored_shape)
            ) from None
        return BlockWords(self._record, self.stored_shape if rows is None else (len(chosen), columns), blocks)

    def decode(self, dtype: npt.DTypeLike | None = None, rows: Rows | None = None) -> npt.NDArray[np.generic]:
        """The values, decoded exactly and converted once; see `Tensor.decode`.

        Raises:
            ArgumentError: A row is outside the tensor, or `dtype` is no output type.
            UnsupportedError: The values fit no array.
        """
        try:
            values = self.words(rows).decode(dtype)
        except ArgumentError as error:
            raise error if error.where else error.at(self._where()) from None
        return values.reshape(self.shape) if rows is None else values


class OnnxSource(Source[OnnxPlain | OnnxPacked]):
    """An open ONNX model: a mapping of names to its weights, in the order of its initializers.

    A `DequantizePacked` node whose blocks are an initializer is one tensor under its output's name, and so are codes
    and scales that hold the words of such blocks; other initializers are tensors by their own. Graphs inside nodes, and
    functions, are not looked into. Opening reads the model's message and none of its external data.

    Args:
        path: The `.onnx` file.

    Attributes:
        kind: `"onnx"`.
        path: The path that was opened.
        files: The model, and each file of external data.
        metadata: The model's `metadata_props`.
        model: The message. To be read only.
        sparse: The names of sparse initializers, which are no tensors here.

    Raises:
        FileError: The file is no ONNX model, or a weight in it cannot be what it declares.
    """

    kind = "onnx"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.model = read_model(self.path)
        self._pool = FilePool()
        self._external: dict[Path, None] = {}
        self._bytes: dict[str, InitializerBytes] = {}
        self.sparse = tuple(proto.values.name for proto in self.model.graph.sparse_initializer)
        self._tensors = {tensor.name: tensor for tensor in self._read()}
        self.files = (self.path, *self._external)
        self.metadata: Mapping[str, str] = MappingProxyType(
            {entry.key: entry.value for entry in self.model.metadata_props}
        )

    @property
    def opset(self) -> int | None:
        """The version of ONNX's own operators; None where the model imports none."""
        return next((entry.version for entry in self.model.opset_import if entry.domain in {"", "ai.onnx"}), None)

    def initializer(self, name: str) -> InitializerBytes:
        """The bytes of an initializer of the graph, whatever its type."""
        return self._bytes[name]

    def unused_spans(self) -> dict[Path, list[Span]]:
        """Of each file of external data, the bytes that no tensor of the model has, not even one inside a node.

        Raises:
            FileError: A file is not there any more.
        """
        used: dict[Path, list[Span]] = {path: [] for path in self._external}
        for proto in tensors_of(self.model):
            try:
                data, _ = initializer_bytes(proto, self.path, self._pool, str(self.path))
            except FileError:  # of none of ours: those were read on opening
                continue
            place = data.locate(0)
            if place is not None and place[0] in used:
                used[place[0]].append((place[1], place[1] + data.nbytes))
        return {path: list(self._outside(path, spans)) for path, spans in used.items()}

    def describe(self) -> str:
        """Version of the format, that of the operators, number of tensors."""
        opset = "" if self.opset is None else f", opset {self.opset}"
        sparse = f", {counted(len(self.sparse), 'sparse initializer')} not listed" if self.sparse else ""
        return f"ONNX, IR version {self.model.ir_version}{opset}, {counted(len(self), 'tensor')}{sparse}"

    def close(self) -> None:
        """Close every file of external data. Arrays that were given out stay valid."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<OnnxSource {str(self.path)!r}, {len(self)} tensors>"

    def _outside(self, path: Path, spans: list[Span]) -> Iterator[Span]:
        """What spans leave of a file."""
        with self._pool.using(path) as file:
            size = file.size
        at = 0
        for begin, end in (*units_of(spans, 1), (size, size)):
            if at < begin:
                yield at, begin
            at = end

    def _read(self) -> Iterator[OnnxPlain | OnnxPacked]:
        graph, where = self.model.graph, str(self.path)
        initializers: dict[str, onnx.TensorProto] = {}
        for proto in graph.initializer:
            if not proto.name or initializers.setdefault(proto.name, proto) is not proto:
                raise FileError("an initializer has no name, or one that another has", where=where, found=proto.name)
            place = f"{where}, initializer {proto.name!r}"
            self._bytes[proto.name], path = initializer_bytes(proto, self.path, self._pool, place)
            if path is not None:
                self._external.setdefault(path)
        weights: dict[str, list[OnnxPacked]] = defaultdict(list)
        explained: Counter[str] = Counter()
        uses = uses_of(graph)
        reshapes = Reshapes(graph, initializers, uses)
        for packed in packed_nodes(graph, initializers, where):
            self._check_payload(packed, initializers[packed.payload])
            node = reshapes.follow(packed)
            weights[node.payload].append(OnnxPacked(self.path, node, self._bytes[node.payload]))
            explained.update((node.payload, *node.helpers))
        for linear in linear_nodes(graph, initializers, uses):
            joined, data = self._joined(linear)
            node = reshapes.follow(joined)
            weights[node.payload].append(OnnxPacked(self.path, node, data))
            explained.update((node.payload, *node.helpers))
        names = Counter([*initializers, *(weight.name for some in weights.values() for weight in some)])
        if names and (common := names.most_common(1)[0])[1] > 1:
            raise FileError("two values of the graph have one name", where=where, found=repr(common[0]))
        for name, proto in initializers.items():
            yield from weights.get(name, ())
            if not explained[name] or uses[name] > explained[name]:  # what others use is a tensor by itself as well
                yield OnnxPlain(self.path, proto, self._bytes[name])

    def _check_payload(self, node: PackedNode, proto: onnx.TensorProto) -> None:
        if proto.data_type != TensorProto.UINT8 or list(proto.dims) != [node.nbytes]:
            raise FileError(
                f"the payload of {node.profile.identifier} {list(node.stored_shape)} has the wrong type or length",
                where=f"{self.path}, initializer {proto.name!r}",
                expected=f"UINT8 [{node.nbytes}]",
                found=f"{data_type(proto.data_type, str(self.path)).name} {list(proto.dims)}",
            )

    def _joined(self, node: LinearNode) -> tuple[PackedNode, Blocks]:
        """Codes and scales as the packed weight that they are."""
        nbytes = payload_bytes(node.linear.profile, node.shape)
        minima = None if node.minima is None else self._bytes[node.minima]
        data = Blocks(node.linear, nbytes, self._bytes[node.codes], self._bytes[node.scales], minima)
        profile, shape = node.linear.profile, node.shape
        return PackedNode(node.name, node.codes, profile, shape, shape, nbytes, "float32", node.helpers), data
