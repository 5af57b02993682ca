"""`raw_bytes_v1`: the encoding of a resource; its bytes, at least one, nothing added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantform._rows import Rows
from quantform._sizes import fits_u64
from quantform.errors import ArgumentError
from quantform.formats import Format, Words
from quantform.layouts.faults import Faults
from quantform.layouts.layout import Layout, Payload, ReadInto

__all__ = ["RawBytesLayout"]


class RawBytesLayout(Layout):
    """Holds no tensor at all: a resource is a nonempty byte string, stored as it is."""

    name = "raw_bytes_v1"
    formats = ()
    alignment = 1

    def check_size(self, size: int) -> int:
        """The size of a resource's object, which is its own.

        Raises:
            ArgumentError: It is zero or leaves U64.
        """
        if size == 0:
            raise ArgumentError("a resource has no bytes", expected="at least one byte")
        return fits_u64(size, "the size of a resource")

    def check(self, format: str | Format, shape: Sequence[int], divisors: int = 1) -> tuple[Format, tuple[int, ...]]:  # noqa: ARG002
        """Refuse every tensor."""
        raise self._refusal(format)

    def _size(self, format: Format, shape: tuple[int, ...], divisors: int) -> int:  # noqa: ARG002
        raise self._refusal(format)

    def pack(self, words: Words) -> Payload:
        """Refuse every tensor."""
        raise self._refusal(words.format)

    def place(
        self,
        words: Words,
        shape: Sequence[int],  # noqa: ARG002
        first: int,  # noqa: ARG002
        divisors: int = 1,  # noqa: ARG002
    ) -> Iterator[tuple[int, Payload]]:
        """Refuse every tensor."""
        raise self._refusal(words.format)

    def faults(
        self,
        read: ReadInto,  # noqa: ARG002
        format: str | Format,
        shape: Sequence[int],  # noqa: ARG002
        divisors: int = 1,  # noqa: ARG002
        *,
        limit: int = 1,  # noqa: ARG002
    ) -> Iterator[Faults]:
        """Refuse every tensor."""
        raise self._refusal(format)

    def spans(
        self,
        format: str | Format,
        shape: Sequence[int],  # noqa: ARG002
        first: int,  # noqa: ARG002
        end: int,  # noqa: ARG002
        divisors: int = 1,  # noqa: ARG002
    ) -> tuple[tuple[int, int], ...]:
        """Refuse every tensor."""
        raise self._refusal(format)

    def words_of_rows(
        self,
        read: ReadInto,  # noqa: ARG002
        format: str | Format,
        shape: Sequence[int],  # noqa: ARG002
        rows: Rows,  # noqa: ARG002
        divisors: int = 1,  # noqa: ARG002
    ) -> Words:
        """Refuse every tensor."""
        raise self._refusal(format)

    def _unpack(self, data: Payload, format: Format, shape: tuple[int, ...], divisors: int) -> Words:  # noqa: ARG002
        raise self._refusal(format)

    def _refusal(self, format: str | Format) -> ArgumentError:
        return ArgumentError(
            f"layout {self.name} holds resources, not tensors", found=str(format), hint="Name the format's own layout"
        )
