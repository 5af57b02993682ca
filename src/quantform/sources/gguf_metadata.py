"""The metadata of one GGUF file: typed values behind string keys, decoded when they are asked for.

Opening a file steps over the values and checks that they lie in it. A value is read from the mapped file each time it
is looked up, so that a vocabulary of any size costs nothing until somebody wants it. What only a reader of the value
can notice is an error of that read, not of opening the file: a string that is not UTF-8, a boolean that is neither 0
nor 1. The bytes stay available through `raw`.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from quantform._registry import near_matches
from quantform._sizes import PIECE_BYTES, human_bytes
from quantform.errors import ArgumentError, GGUFError, UnknownNameError, UnsupportedError
from quantform.sources.gguf_cursor import ARRAY_STEPS, Cursor

if TYPE_CHECKING:
    from quantform._files import MappedFile

__all__ = ["GGUFArray", "GGUFField", "GGUFMetadata", "ValueType", "read_field"]

_NESTING = 16
_COPIED_BYTES = 1 << 20  # of an array of strings at a time
_BROKEN_TEXT = "Export the model again; in Python, `raw` of the metadata or the array has the bytes"


@dataclass(frozen=True, slots=True)
class ValueType:
    """One of GGUF's value types.

    Attributes:
        id: Its number in files.
        name: What it is called: `"uint32"`, `"string"`, `"array"`.
        dtype: NumPy's type of a number, in native order; None for strings and arrays.
    """

    id: int
    name: str
    dtype: np.dtype[Any] | None = None

    @property
    def smallest(self) -> int:
        """The fewest bytes that a value takes: a number's own, a string's length, an array's type and length."""
        if self.dtype is not None:
            return self.dtype.itemsize
        return 8 if self is _STRING else 12


_STRING = ValueType(8, "string")
_ARRAY = ValueType(9, "array")
_BOOL = ValueType(7, "bool", np.dtype(np.bool_))

_VALUE_TYPES = {
    record.id: record
    for record in (
        ValueType(0, "uint8", np.dtype(np.uint8)),
        ValueType(1, "int8", np.dtype(np.int8)),
        ValueType(2, "uint16", np.dtype(np.uint16)),
        ValueType(3, "int16", np.dtype(np.int16)),
        ValueType(4, "uint32", np.dtype(np.uint32)),
        ValueType(5, "int32", np.dtype(np.int32)),
        ValueType(6, "float32", np.dtype(np.float32)),
        _BOOL,
        _STRING,
        _ARRAY,
        ValueType(10, "uint64", np.dtype(np.uint64)),
        ValueType(11, "int64", np.dtype(np.int64)),
        ValueType(12, "float64", np.dtype(np.float64)),
    )
}


@dataclass(frozen=True, slots=True)
class GGUFField:
    """Where one metadata value lies and what it is; nothing of it has been decoded.

    Attributes:
        type: The value's type.
        element: An array's element type, else None.
        count: An array's length, else 1.
        offset: First byte of the value in the file; of the first element, for an array.
        nbytes: Bytes from there on.
    """

    type: ValueType
    element: ValueType | None
    count: int
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        """`"uint32"`, `"string"`, `"array of float32"`."""
        return self.type.name if self.element is None else f"array of {self.element.name}"


def read_field(cursor: Cursor) -> GGUFField:
    """The type of the value at the cursor and its place; moves past it.

    Raises:
        GGUFError: The type or an element type is unknown, or arrays are nested too deep.
        TruncatedFileError: The value does not lie in the file.
    """
    kind = _value_type(cursor, "the value")
    if kind is _ARRAY:
        return _array_field(cursor)
    start = cursor.at
    _skip(cursor, kind, 1, 0)
    return GGUFField(kind, None, 1, start, cursor.at - start)


def _value_type(cursor: Cursor, what: str) -> ValueType:
    start = cursor.at
    number = cursor.u32(f"the type of {what}")
    found = _VALUE_TYPES.get(number)
    if found is None:
        cursor.at = start
        raise GGUFError(
            f"the type of {what} is unknown",
            where=cursor.where(),
            expected=f"0 to {max(_VALUE_TYPES)}",
            found=number,
        )
    return found


def _array_field(cursor: Cursor, depth: int = 1) -> GGUFField:
    element = _value_type(cursor, "an array's elements")
    count = cursor.u64("the length of an array")
    start = cursor.at
    _skip(cursor, element, count, depth)
    return GGUFField(_ARRAY, element, count, start, cursor.at - start)


def _skip(cursor: Cursor, kind: ValueType, count: int, depth: int) -> None:
    if kind.dtype is not None:
        cursor.skip(
            count * kind.smallest, f"an array of {count} {kind.name}" if depth else f"a value of type {kind.name}"
        )
    elif kind is _STRING:
        if depth:
            cursor.skip_strings(count)
        else:
            cursor.skip(cursor.u64("the length of a string"), "a string")
    else:
        cursor.require(count * kind.smallest, f"an array of {count} arrays")
        cursor.count_steps(count * ARRAY_STEPS, "strings and inner arrays")
        if depth == _NESTING:
            raise GGUFError("arrays are nested too deep", where=cursor.where(), expected=f"at most {_NESTING} levels")
        for _ in range(count):
            _array_field(cursor, depth + 1)


@dataclass(frozen=True, slots=True)
class _Context:
    """What decoding a value needs to know beside its field."""

    file: MappedFile
    big_endian: bool
    key: str

    def where(self, offset: int) -> str:
        return f"{self.file.path}, metadata key {self.key!r}, byte {offset}"

    def numbers(self, kind: ValueType, offset: int, count: int) -> npt.NDArray[Any]:
        """`count` numbers, a read-only view of the file in its own byte order."""
        if kind.dtype is None:
            raise ArgumentError(f"metadata key {self.key!r} holds no numbers", found=f"elements of type {kind.name}")
        data = self.file.view(offset, count * kind.dtype.itemsize)
        for at, piece in self.pieces(offset, offset + count) if kind is _BOOL else ():
            if (piece > 1).any():
                bad = int(np.argmax(piece > 1))
                raise GGUFError("a boolean is neither 0 nor 1", where=self.where(at + bad), found=int(piece[bad]))
        return data.view(kind.dtype.newbyteorder(">" if self.big_endian else "<"))

    def text(self, data: bytes, offset: int) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(
                "a string is not UTF-8",
                where=self.where(offset + error.start),
                found=repr(data[:80]),
                hint=_BROKEN_TEXT,
            ) from None

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The file's bytes between two offsets, a bounded number at a time; what lies in large holes is left out."""
        for first, last in self.file.stored_spans(begin, end):
            for at in range(first, last, PIECE_BYTES):
                yield at, self.file.view(at, min(PIECE_BYTES, last - at))

    def length(self, offset: int) -> int:
        """The length of a string, which stands at `offset`, before it."""
        return int.from_bytes(self.file.view(offset, 8).tobytes(), "big" if self.big_endian else "little")

    def string_bytes(self, offset: int) -> bytes:
        """The bytes of the string whose length stands at `offset`."""
        return self.copied(offset + 8, self.length(offset))

    def copied(self, offset: int, count: int) -> bytes:
        try:
            return self.file.view(offset, count).tobytes()
        except MemoryError:
            raise UnsupportedError(
                "the value does not fit into memory", where=self.where(offset), found=human_bytes(count)
            ) from None

    def check_text(self, offset: int) -> int:
        """Check a string, however long it is; gives where it ends."""
        at, end = offset + 8, offset + 8 + self.length(offset)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for first, piece in (*self.pieces(at, end), (end, np.zeros(0, np.uint8))):
            data = b"\0" * (first > at) + piece.tobytes()  # a hole is NUL characters, which cannot continue another
            begin = first - (first > at) - len(decoder.getstate()[0])
            try:
                decoder.decode(data, final=first == end)
            except UnicodeDecodeError as error:
                raise GGUFError(
                    "a string is not UTF-8", where=self.where(begin + error.start), hint=_BROKEN_TEXT
                ) from None
            at = first + piece.size
        return end


class GGUFArray(Sequence[Any]):
    """An array in a file's metadata: a lazy, read-only sequence.

    An element is an int, float, bool, str or, in a nested array, a `GGUFArray`; a slice is a list of them.

    Attributes:
        element_type: The name of the element type: `"float32"`, `"string"`, `"array"`.
    """

    def __init__(self, context: _Context, field: GGUFField) -> None:
        self._context = context
        self._field = field
        self._kind = field.element or field.type
        self._places = array("q")
        self._next = field.offset
        self.element_type = self._kind.name

    def __len__(self) -> int:
        return self._field.count

    @overload
    def __getitem__(self, index: int) -> Any: ...  # noqa: ANN401 - any of the value types
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """One element, or a list of those of a slice.

        Raises:
            GGUFError: A string is not UTF-8, or a boolean is neither 0 nor 1.
        """
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            if self._kind.dtype is not None:
                return self.numpy()[index].tolist()
            return [self._element(number) for number in chosen]
        return self._element(self._position(index))

    def __iter__(self) -> Iterator[Any]:
        if self._kind.dtype is not None:
            yield from self.numpy().tolist()
        elif self._kind is _STRING:
            yield from self._strings()
        else:
            for number in range(len(self)):
                yield self._element(number)

    def numpy(self) -> npt.NDArray[Any]:
        """The numbers `[n]`: a read-only view of the file, in the file's byte order and possibly unaligned.

        Raises:
            ArgumentError: The elements are strings or arrays.
            GGUFError: A boolean is neither 0 nor 1.
        """
        return self._context.numbers(self._kind, self._field.offset, self._field.count)

    def raw(self, index: int) -> bytes:
        """The bytes of one string, whether UTF-8 or not.

        Raises:
            ArgumentError: The elements are not strings.
        """
        if self._kind is not _STRING:
            raise ArgumentError(f"the elements are of type {self.element_type}", expected="strings")
        return self._context.string_bytes(self._place(self._position(index)))

    def check(self) -> None:
        """Read all of it, in bounded memory, so that texts and booleans are checked; other numbers may be any.

        Raises:
            GGUFError: A string is not UTF-8, or a boolean is neither 0 nor 1.
        """
        if self._kind.dtype is not None:
            self.numpy()
        elif self._kind is not _STRING:
            for number in range(len(self)):
                self._element(number).check()
        else:
            self._check_strings()

    def tolist(self) -> list[Any]:
        """Everything as plain Python values, nested arrays as nested lists."""
        return [item.tolist() if isinstance(item, GGUFArray) else item for item in self]

    def __repr__(self) -> str:
        return f"<GGUFArray of {len(self)} {self.element_type}>"

    def _strings(self) -> Iterator[str]:
        """All strings from one copy of their bytes."""
        context, start = self._context, self._field.offset
        data = context.copied(start, self._field.nbytes)
        order: Literal["big", "little"] = "big" if context.big_endian else "little"
        at = 0
        for _ in range(len(self)):
            first = at + 8
            at = first + int.from_bytes(data[at:first], order)
            yield context.text(data[first:at], start + first)

    def _check_strings(self) -> None:
        """Strings from copies of as many as fit; a longer one by itself."""
        context, at, end = self._context, self._field.offset, self._field.offset + self._field.nbytes
        order: Literal["big", "little"] = "big" if context.big_endian else "little"
        data, start = b"", at
        for _ in range(len(self)):
            first = at - start + 8
            last = first + int.from_bytes(data[first - 8 : first], order)
            if not first <= last <= len(data) and not (data and start == at):
                data, start = context.copied(at, min(_COPIED_BYTES, end - at)), at
                first, last = 8, 8 + int.from_bytes(data[:8], order)
            if last > len(data):
                at = context.check_text(at)
            else:
                context.text(data[first:last], start + first)
                at = start + last

    def _position(self, index: int) -> int:
        try:
            return range(len(self))[index]
        except IndexError:  # the sequence protocol needs this type; iteration ends by it
            raise IndexError(f"index {index} is outside an array of {len(self)}") from None

    def _element(self, number: int) -> Any:  # noqa: ANN401 - any of the value types
        kind, context = self._kind, self._context
        if kind.dtype is not None:
            offset = self._field.offset + number * kind.dtype.itemsize
            return context.numbers(kind, offset, 1)[0].item()
        place = self._place(number)
        if kind is _STRING:
            return context.text(context.string_bytes(place), place + 8)
        return GGUFArray(context, _array_field(self._cursor(place)))

    def _place(self, number: int) -> int:
        """Where a string or an inner array begins: all up to the farthest one asked for are noted, 8 bytes each."""
        places = self._places
        if len(places) <= number:
            # Walking a mapping whose file has shrunk would end the process; taking a view looks at its size first.
            self._context.file.view(self._field.offset, self._field.nbytes)
            cursor = self._cursor(self._next)
            while len(places) <= number:
                places.append(cursor.at)
                if self._kind is _STRING:
                    cursor.skip(cursor.u64("the length of a string"), "a string")
                else:
                    _array_field(cursor)
            self._next = cursor.at
        return places[number]

    def _cursor(self, offset: int) -> Cursor:
        cursor = Cursor(self._context.file, offset, big_endian=self._context.big_endian)
        cursor.within = f"metadata key {self._context.key!r}"
        return cursor


class GGUFMetadata(Mapping[str, Any]):
    """The metadata of one file: a read-only mapping in file order whose values are decoded at each look-up.

    A value is an int, float, bool, str or `GGUFArray`.

    Raises:
        UnknownNameError: There is no such key.
        GGUFError: The value's string is not UTF-8, or its boolean neither 0 nor 1.
    """

    def __init__(self, file: MappedFile, fields: Mapping[str, GGUFField], *, big_endian: bool) -> None:
        self._file = file
        self._fields = fields
        self._big_endian = big_endian

    def field(self, key: str) -> GGUFField:
        """The type and place of a value."""
        found = self._fields.get(key)
        if found is None:
            raise UnknownNameError(
                f"no metadata key is called {key!r}",
                where=str(self._file.path),
                hint=near_matches(str(key), self._fields),
            )
        return found

    def raw(self, key: str) -> bytes:
        """A value's bytes as the file has them, without the length of a string, the type and length of an array."""
        field = self.field(key)
        skip = 8 if field.type is _STRING else 0
        return _Context(self._file, self._big_endian, key).copied(field.offset + skip, field.nbytes - skip)

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - int, float, bool, str or GGUFArray
        field = self.field(key)
        context = _Context(self._file, self._big_endian, key)
        if field.type is _ARRAY:
            return GGUFArray(context, field)
        if field.type is _STRING:
            return context.text(self.raw(key), field.offset + 8)
        return context.numbers(field.type, field.offset, 1)[0].item()

    def check(self, key: str) -> None:
        """Read all of a value, in bounded memory, so that texts and booleans are checked.

        Raises:
            GGUFError: A string is not UTF-8, or a boolean is neither 0 nor 1.
        """
        field = self.field(key)
        if field.type is _STRING:
            _Context(self._file, self._big_endian, key).check_text(field.offset)
        elif field.type is _ARRAY:
            self[key].check()
        else:
            _ = self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - Mapping's own signature
        """The value, or `default` where there is no such key."""
        return self[key] if key in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"<GGUFMetadata of {len(self)} keys>"

    def integer(self, key: str) -> int | None:
        """The value of an integer key, whatever its width; None where there is no such key.

        Raises:
            GGUFError: The value is not an integer.
        """
        if key not in self._fields:
            return None
        field = self._fields[key]
        if field.type.dtype is None or field.type.dtype.kind not in "iu":
            raise GGUFError(
                f"metadata key {key!r} has the wrong type",
                where=str(self._file.path),
                expected="an integer",
                found=field.type_name,
            )
        return int(_Context(self._file, self._big_endian, key).numbers(field.type, field.offset, 1)[0])
