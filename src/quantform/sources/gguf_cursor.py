"""A bounded walk through the header of one GGUF file: nothing is read or looped over before it is known to fit."""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING

from quantform.errors import GGUFError, TruncatedFileError

if TYPE_CHECKING:
    from quantform._files import MappedFile

__all__ = ["ARRAY_STEPS", "NAME_BYTES", "WALK_LIMIT", "Cursor"]

NAME_BYTES = 2**16 - 1
"""The longest metadata key that the format allows; tensor names get the same bound."""

WALK_LIMIT = 1 << 24
"""Steps that a header may take, a string being one: a sparse file can claim any number of them."""

ARRAY_STEPS = 32
"""What an array within an array counts as, since stepping over it takes as long."""


class Cursor:
    """A position in a file's header and what is being read there.

    Attributes:
        file: The file.
        at: The next byte.
        big_endian: The byte order of every number.
        within: What the bytes belong to, for errors: `"metadata key 'general.name'"`.
    """

    __slots__ = ("_buffer", "_u32", "_u64", "_walked", "at", "big_endian", "file", "within")

    def __init__(self, file: MappedFile, at: int, *, big_endian: bool) -> None:
        order = ">" if big_endian else "<"
        self.file = file
        self.at = at
        self.big_endian = big_endian
        self.within = ""
        self._buffer = file.buffer()
        self._u32 = struct.Struct(f"{order}I")
        self._u64 = struct.Struct(f"{order}Q")
        self._walked = 0

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file.size - self.at

    def where(self) -> str:
        """File, subject and byte, as errors name them."""
        subject = f"{self.within}, " if self.within else ""
        return f"{self.file.path}, {subject}byte {self.at}"

    def require(self, count: int, what: str) -> None:
        """Check that `count` bytes follow.

        Raises:
            TruncatedFileError: Fewer do.
        """
        if count > self.remaining:
            raise TruncatedFileError(
                f"{what} ends beyond the file",
                where=self.where(),
                expected=f"{count} bytes",
                found=f"{max(self.remaining, 0)} bytes before the end of the file",
            )

    def u32(self, what: str) -> int:
        """An unsigned 32-bit integer."""
        self.require(4, what)
        (value,) = self._u32.unpack_from(self._buffer, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        """An unsigned 64-bit integer."""
        self.require(8, what)
        (value,) = self._u64.unpack_from(self._buffer, self.at)
        self.at += 8
        return int(value)

    def name(self, what: str) -> str:
        """A key or a tensor name: UTF-8 of at most `NAME_BYTES` bytes without NUL.

        Raises:
            GGUFError: It is longer, no UTF-8, or holds a NUL, at which programs in C would cut it.
        """
        start = self.at
        length = self.u64(f"the length of {what}")
        self.require(length, what)
        if length > NAME_BYTES:
            raise GGUFError(
                f"{what} is too long",
                where=f"{self.file.path}, byte {start}",
                expected=f"at most {NAME_BYTES} bytes",
                found=f"{length} bytes",
            )
        data = self._buffer[self.at : self.at + length]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(
                f"{what} is not UTF-8", where=f"{self.file.path}, byte {self.at + error.start}", found=repr(data[:80])
            ) from None
        if "\0" in text:
            raise GGUFError(
                f"{what} holds a NUL character", where=f"{self.file.path}, byte {self.at}", found=repr(text[:80])
            )
        self.at += length
        return text

    def skip(self, count: int, what: str) -> None:
        """Step over `count` bytes that must be there."""
        self.require(count, what)
        self.at += count

    def count_steps(self, count: int, what: str) -> None:
        """Account for `count` steps over `what`.

        Raises:
            GGUFError: The header holds more than `WALK_LIMIT` of them.
        """
        self._walked += count
        if self._walked > WALK_LIMIT:
            raise GGUFError(
                f"the metadata holds too many {what}",
                where=self.where(),
                expected=f"at most {WALK_LIMIT} in a file, an inner array being {ARRAY_STEPS}",
                found=self._walked,
            )

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings without making any of them; their lengths alone are read.

        Raises:
            TruncatedFileError: One of them ends beyond the file.
        """
        what = f"an array of {count} strings"
        self.require(8 * count, what)
        self.count_steps(count, "strings and inner arrays")
        at, buffer, unpack = self.at, self._buffer, self._u64.unpack_from
        try:
            # A vocabulary has hundreds of thousands of strings: the reads themselves notice the end of the file.
            for _ in repeat(None, count):
                at += unpack(buffer, at)[0] + 8
        except (struct.error, OverflowError):
            at = self.file.size + 1
        if at > self.file.size:
            raise TruncatedFileError(f"{what} ends beyond the file", where=self.where())
        self.at = at
