"""All rules and all vectors, by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from quantform._registry import Registry, near_matches
from quantform.errors import UnknownNameError
from quantform.formats import FORMATS
from quantform.methods import METHODS
from quantform.packed import PROFILES
from quantform.testing import encoder_vectors as encoders
from quantform.testing.ninfer_vectors import NINFER_RULES, ninfer_vectors
from quantform.testing.outputs import OUTPUT_RULES
from quantform.testing.packed_vectors import PACKED_RULES, packed_vectors
from quantform.testing.rules import Rule
from quantform.testing.vectors import EncoderVector, Vector

__all__ = ["RULES", "encoder_vectors", "format_names", "vectors"]

RULES: Registry[Rule] = Registry(
    "rule", (*PACKED_RULES, *NINFER_RULES, *OUTPUT_RULES, *encoders.ENCODER_RULES), key=lambda rule: rule.identifier
)
"""Every rule by its identifier."""


def format_names(formats: str | Iterable[str] | None = None) -> tuple[str, ...]:
    """The profiles and numeric formats that are meant, in the order of the registries.

    Args:
        formats: A name or a shell pattern, or several; None is all of them.

    Raises:
        UnknownNameError: One matches nothing.
    """
    names = (*PROFILES, *FORMATS)
    if formats is None:
        return names
    patterns = [formats] if isinstance(formats, str) else list(formats)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UnknownNameError(
                f"no packed profile or format is called {pattern!r}", hint=near_matches(pattern, names)
            )
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def vectors(formats: str | Iterable[str] | None = None) -> Iterator[Vector]:
    """The vectors for decoders of some profiles and formats; see `format_names`."""
    for name in format_names(formats):
        yield from packed_vectors(name) if name in PROFILES else ninfer_vectors(name)


def encoder_vectors(formats: str | Iterable[str] | None = None) -> Iterator[EncoderVector]:
    """The vectors for encoders of some formats, method by method; see `format_names`."""
    names = [name for name in format_names(formats) if name in FORMATS]
    for method in METHODS:
        for name in names:
            yield from encoders.encoder_vectors(method, name)
