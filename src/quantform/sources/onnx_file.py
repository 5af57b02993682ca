"""One ONNX file: the message in it, and the bytes that its initializers stand for, wherever they lie.

Nothing of an initializer's external data is touched before it is asked for; where it lies is checked twice, as text
when the model is opened, and as a place in the file system when it is read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, numpy_helper

from quantform._files import MappedFile
from quantform._sizes import ceil_div, product
from quantform._spans import Span, moved
from quantform.errors import ChangedFileError, FileError, TruncatedFileError
from quantform.sources._pool import FilePool

__all__ = [
    "MESSAGE_MAX",
    "SCALAR_TYPES",
    "DataType",
    "InitializerBytes",
    "constant_shape",
    "data_type",
    "initializer_bytes",
    "read_model",
    "stored_integers",
    "tensors_of",
]

Bytes = npt.NDArray[np.uint8]

MESSAGE_MAX = 2**31 - 1
"""The most bytes that a protobuf message can have."""

_COUNT_MAX = 2**60 - 1  # so that eight bytes an element still make an array
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DataType:
    """One of ONNX's element types.

    Attributes:
        name: ONNX's name, `"FLOAT16"`.
        bits: Bits of an element in raw data; 0 for texts.
        scalar: The name of the plain number type; None where this package has none.
    """

    name: str
    bits: int
    scalar: str | None = None

    @property
    def format(self) -> str:
        """What a tensor of the type is called: the scalar's name, or `"onnx:INT4"`."""
        return self.scalar or f"onnx:{self.name}"


_DATA_TYPES = {
    getattr(TensorProto, record.name): record
    for record in (
        DataType("FLOAT", 32, "fp32"),
        DataType("FLOAT16", 16, "fp16"),
        DataType("BFLOAT16", 16, "bf16"),
        DataType("DOUBLE", 64, "fp64"),
        DataType("INT8", 8, "int8"),
        DataType("UINT8", 8, "uint8"),
        DataType("INT16", 16, "int16"),
        DataType("UINT16", 16, "uint16"),
        DataType("INT32", 32, "int32"),
        DataType("UINT32", 32, "uint32"),
        DataType("INT64", 64, "int64"),
        DataType("UINT64", 64, "uint64"),
        DataType("BOOL", 8, "bool"),
        DataType("FLOAT8E4M3FN", 8, "e4m3fn"),
        DataType("FLOAT8E4M3FNUZ", 8, "e4m3fnuz"),
        DataType("FLOAT8E5M2", 8, "e5m2"),
        DataType("FLOAT8E5M2FNUZ", 8, "e5m2fnuz"),
        DataType("FLOAT8E8M0", 8, "e8m0"),
        DataType("FLOAT6E2M3", 6, "e2m3"),
        DataType("FLOAT6E3M2", 6, "e3m2"),
        DataType("FLOAT4E2M1", 4, "e2m1"),
        DataType("COMPLEX64", 64),
        DataType("COMPLEX128", 128),
        DataType("INT4", 4),
        DataType("UINT4", 4),
        DataType("INT2", 2),
        DataType("UINT2", 2),
        DataType("STRING", 0),
    )
    if hasattr(TensorProto, record.name)
}

SCALAR_TYPES: dict[str, int] = {
    record.scalar: number for number, record in _DATA_TYPES.items() if record.scalar is not None
}
"""ONNX's number for each plain number type that it has."""


def data_type(number: int, where: str) -> DataType:
    """The element type with ONNX's number.

    Raises:
        FileError: There is none.
    """
    found = _DATA_TYPES.get(number)
    if found is None:
        raise FileError("the element type is unknown", where=where, expected="a type of ONNX", found=number)
    return found


def stored_integers(proto: onnx.TensorProto) -> tuple[int, ...]:
    """The INT64 numbers of an initializer in the model itself, as a shape is; none where it is something else."""
    if proto.data_type != TensorProto.INT64 or proto.data_location == TensorProto.EXTERNAL:
        return ()
    try:
        return tuple(numpy_helper.to_array(proto).reshape(-1).tolist())
    except (ValueError, TypeError):
        return ()


def constant_shape(proto: onnx.TensorProto, reshape: onnx.NodeProto) -> tuple[int, ...]:
    """The dimensions that an initializer has for a Reshape; none where they are not all there."""
    shape = stored_integers(proto)
    literal_zeros = any(attribute.name == "allowzero" and attribute.i for attribute in reshape.attribute)
    return shape if all(dimension >= (not literal_zeros) for dimension in shape) else ()


def read_model(path: Path) -> onnx.ModelProto:
    """The message in a file, with its initializers' external data left where it is.

    Raises:
        FileError: The file cannot be read, or is no ONNX model, or has texts that are not UTF-8.
    """
    with MappedFile(path) as file:
        if file.size > MESSAGE_MAX:
            raise FileError(
                "no ONNX model is that long",
                where=str(path),
                expected=f"at most {MESSAGE_MAX} bytes, protobuf's limit",
                found=f"{file.size} bytes",
                hint="A larger model keeps its weights as external data",
            )
        data = file.view(0, file.size)
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data.data)
    except DecodeError as error:
        raise FileError(
            "not an ONNX model, or not all of one",
            where=str(path),
            found=str(error),
            hint="The file may be damaged or incomplete: compare its size with the original's",
        ) from None
    if not model.HasField("graph"):
        raise FileError(
            "not an ONNX model",
            where=str(path),
            expected="a message with a graph",
            found=f"{data.size} bytes without one",
        )
    for place, value in _broken_texts(model):
        raise FileError("a text of the model is not UTF-8", where=f"{path}, {place}", found=repr(value[:80]))
    return model


def _broken_texts(model: onnx.ModelProto) -> Iterator[tuple[str, bytes]]:
    """Where the model has a text that is none, and what is there: in nodes, functions, graphs inside nodes, anywhere.

    Descriptions may be anything: nobody goes by them.
    """
    rest: list[tuple[str, Message]] = [("", model)]
    while rest:
        place, message = rest.pop()
        for name in _fields_with_texts(message.DESCRIPTOR):
            value = getattr(message, name)
            if isinstance(value, Message):
                if message.HasField(name):
                    rest.append((f"{place}{name}.", value))
            elif isinstance(value, bytes):
                yield place + name, value
            elif not isinstance(value, str):
                for index, one in enumerate(value):
                    if isinstance(one, Message):
                        rest.append((f"{place}{name}[{index}].", one))
                    elif isinstance(one, bytes):
                        yield f"{place}{name}[{index}]", one


@cache
def _fields_with_texts(kind: Descriptor) -> tuple[str, ...]:
    """The fields of a message that are texts or messages; others may be gigabytes, and are left alone."""
    return tuple(
        field.name
        for field in kind.fields
        if field.message_type is not None or (field.type == field.TYPE_STRING and field.name != "doc_string")
    )


def tensors_of(message: Message) -> Iterator[TensorProto]:
    """Every tensor in a message, also those of graphs in nodes, of functions, of attributes, and of sparse tensors."""
    rest = [message]
    while rest:
        one = rest.pop()
        if isinstance(one, TensorProto):
            yield one
            continue
        for field, value in one.ListFields():
            if field.message_type is not None:
                rest.extend([value] if isinstance(value, Message) else value)


class InitializerBytes(ABC):
    """The bytes of one initializer, as its raw data has or would have them.

    Attributes:
        nbytes: How many there are, by type and shape.
    """

    nbytes: int

    @abstractmethod
    def view(self, first: int, count: int) -> Bytes:
        """`count` of them from `first` on, without a copy where they are stored like that; the caller's range is right.

        Raises:
            FileError: They are not there.
        """

    @abstractmethod
    def read_into(self, offset: int, out: Bytes) -> None:
        """Fill `out`, contiguous, from `offset` on; the caller has checked the range."""

    def locate(self, offset: int) -> tuple[Path, int] | None:  # noqa: ARG002
        """See `Tensor.locate`."""
        return None

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        """See `Tensor.stored_spans`."""
        yield begin, end

    @abstractmethod
    def check(self) -> None:
        """Look whether they are there.

        Raises:
            FileError: They are not.
        """


@dataclass(frozen=True)
class _InMessage(InitializerBytes):
    """Bytes that stand in the model itself."""

    proto: onnx.TensorProto
    nbytes: int
    where: str

    def view(self, first: int, count: int) -> Bytes:
        return self._bytes[first : first + count]

    def read_into(self, offset: int, out: Bytes) -> None:
        out.reshape(-1)[:] = self._bytes[offset : offset + out.nbytes]

    def check(self) -> None:
        _ = self._bytes

    @cached_property
    def _bytes(self) -> Bytes:
        proto = self.proto
        if proto.data_type == TensorProto.STRING:
            return np.frombuffer(b"".join(proto.string_data), np.uint8)
        if proto.HasField("raw_data"):
            data = np.frombuffer(proto.raw_data, np.uint8)
        else:  # one of the lists of numbers
            try:
                values = np.ascontiguousarray(numpy_helper.to_array(proto))
                data = np.frombuffer(numpy_helper.from_array(values).raw_data, np.uint8)
            except (ValueError, TypeError, OverflowError) as error:
                raise FileError("the values do not fit the type and shape", where=self.where, found=error) from None
        if data.size != self.nbytes:
            raise FileError(
                "the data has the wrong length",
                where=self.where,
                expected=f"{self.nbytes} bytes for {data_type(proto.data_type, self.where).name} {list(proto.dims)}",
                found=f"{data.size} bytes",
            )
        return data


@dataclass(frozen=True, slots=True)
class _External(InitializerBytes):
    """Bytes in a file beside the model."""

    pool: FilePool
    model: Path
    path: Path
    offset: int
    nbytes: int
    where: str

    def view(self, first: int, count: int) -> Bytes:
        self.check()
        with self._file() as file:
            return file.view(self.offset + first, count)

    def read_into(self, offset: int, out: Bytes) -> None:
        self.check()
        with self._file() as file:
            file.read_into(self.offset + offset, out)

    def locate(self, offset: int) -> tuple[Path, int]:
        return self.path, self.offset + offset

    def stored_spans(self, begin: int, end: int) -> Iterator[Span]:
        with self._file() as file:
            yield from moved(file.stored_spans(self.offset + begin, self.offset + end), -self.offset)

    def check(self) -> None:
        try:
            actual = self.path.resolve(strict=True)
            homes = {self.model.parent.resolve(), self.model.resolve().parent}
        except (OSError, RuntimeError, ValueError) as error:
            raise FileError(
                "the external data is not there",
                where=self.where,
                expected=str(self.path),
                found=getattr(error, "strerror", None) or str(error),
                hint="Put the file beside the model",
            ) from None
        # A cache of downloads has the model and its data as links into one other directory, which is as good as none.
        if not any(actual.is_relative_to(home) for home in homes):
            raise FileError(
                "the external data is a link out of the model's directory",
                where=self.where,
                expected=f"a file in {self.model.parent}",
                found=str(actual),
                hint="Copy the file to where the link is",
            )
        with self._file() as file:
            size = file.size
        if self.offset + self.nbytes > size:
            raise TruncatedFileError(
                "the external data ends too early",
                where=self.where,
                expected=f"{self.nbytes} bytes at byte {self.offset} of {self.path.name}",
                found=f"{size} bytes in all",
            )

    @contextmanager
    def _file(self) -> Iterator[MappedFile]:
        """The file; what is wrong with it is wrong with the initializer, unless it was not before."""
        try:
            with self.pool.using(self.path) as file:
                yield file
        except ChangedFileError:
            raise
        except FileError as error:
            raise error.at(self.where) from None


def initializer_bytes(
    proto: onnx.TensorProto, model: Path, pool: FilePool, where: str
) -> tuple[InitializerBytes, Path | None]:
    """The bytes of an initializer and the file that has them, None for the model itself.

    Raises:
        FileError: What the initializer says of itself cannot be: its type, its shape, where its data is.
    """
    record = data_type(proto.data_type, where)
    shape = tuple(proto.dims)
    if any(dimension < 0 for dimension in shape) or product(filter(None, shape)) > _COUNT_MAX:
        raise FileError(
            "the shape cannot be",
            where=where,
            expected="dimensions from 0 on whose product is below 2^60",
            found=list(shape[:8]),
        )
    count = product(shape)
    if proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, ceil_div(count * record.bits, 8), model, pool, where)
    if record.name != "STRING":
        return _InMessage(proto, ceil_div(count * record.bits, 8), where), None
    if len(proto.string_data) != count:
        raise FileError("not as many texts as elements", where=where, expected=count, found=len(proto.string_data))
    return _InMessage(proto, sum(map(len, proto.string_data)), where), None


def _external(
    proto: onnx.TensorProto, nbytes: int, model: Path, pool: FilePool, where: str
) -> tuple[InitializerBytes, Path]:
    entries: dict[str, str] = {}
    for entry in proto.external_data:
        if entry.key in entries:
            raise FileError(f"the external data gives {entry.key!r} twice", where=where)
        entries[entry.key] = entry.value
    if proto.data_type == TensorProto.STRING:
        raise FileError("texts cannot be external data", where=where)
    path = model.parent / _location(entries, where)
    offset = _number(entries, "offset", 0, where)
    length = _number(entries, "length", nbytes, where)
    if length != nbytes:
        raise FileError(
            "the external data has the wrong length",
            where=where,
            expected=f"{nbytes} bytes for {data_type(proto.data_type, where).name} {list(proto.dims)}",
            found=f"{length} bytes",
        )
    return _External(pool, model, path, offset, nbytes, where), path


def _location(entries: Mapping[str, str], where: str) -> PurePosixPath:
    location = entries.get("location", "")
    path = PurePosixPath(location)
    windows = PureWindowsPath(location)
    inside = path.parts and not path.is_absolute() and not windows.drive and not windows.root
    if not inside or ".." in windows.parts or "\0" in location:
        raise FileError(
            "the external data is not a file beside the model",
            where=where,
            expected="a relative path without '..'",
            found=repr(location[:200]) if location else "no location",
        )
    return path


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    value = entries.get(key)
    if value is None:
        return default
    if not _NUMBER.fullmatch(value) or int(value) >= 2**63:
        raise FileError(
            f"the external data's {key} is not a number of bytes",
            where=where,
            expected="0 or more, in decimal digits",
            found=repr(value[:80]),
        )
    return int(value)
