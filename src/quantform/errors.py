"""Everything quantform raises on purpose.

```
QuantformError
├── ArgumentError        (ValueError)       an argument does not fit: a shape, dtype, range, option
├── UnknownNameError     (LookupError)      no such profile, format, layout, tensor, ...; lists near matches
├── UnsupportedError                        a known thing that cannot be done, and what to do instead
├── ValuesError          (ValueError)       source values that a method cannot encode: not finite, out of range
├── WordsError           (ValueError)       codes or scales that the format does not admit
├── RecipeError          (ValueError)       a recipe is wrong: its code, its form, or what it asks for
├── FileError                               the bytes of a file are wrong
│   ├── TruncatedFileError                  the file ends before what it declares
│   ├── ChangedFileError                    the file is not any more what it was when it was opened
│   ├── GGUFError                           a GGUF file breaks its own rules
│   └── ArtifactError                       a .ninfer artifact breaks its own rules
├── OutputExistsError    (FileExistsError)  refusing to overwrite
├── ConformanceError     (AssertionError)   code under test breaks a rule of the conformance kit
└── MissingExtraError    (ImportError)      an optional dependency is absent; names the extra to install
```

Each error is one sentence of what is wrong followed, where they are known, by *where* it is (file, tensor, row, column,
byte), what was *expected*, what was *found*, and a *hint* of what to do. The same four are attributes.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "ChangedFileError",
    "ConformanceError",
    "FileError",
    "GGUFError",
    "MissingExtraError",
    "OutputExistsError",
    "QuantformError",
    "RecipeError",
    "TruncatedFileError",
    "UnknownNameError",
    "UnsupportedError",
    "ValuesError",
    "WordsError",
]


class QuantformError(Exception):
    """The base of every error that quantform raises on purpose.

    Args:
        problem: What is wrong, a phrase without a final full stop.
        where: File, tensor, row, column or byte, from the outside in.
        expected: What would have been right.
        found: What was there.
        hint: What the reader can do, a full sentence without its full stop.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(problem)

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.found is not None:
            text += f"{',' if self.expected is not None else ';'} found {self.found}"
        if self.hint is not None:
            text += f". {self.hint}"
        return text

    def at(self, where: str) -> QuantformError:
        """Put an outer place before the one already known and return the same error."""
        self.where = f"{where}, {self.where}" if self.where else where
        return self


class ArgumentError(QuantformError, ValueError):
    """An argument does not fit: a shape, a dtype, a range, an option."""


class UnknownNameError(QuantformError, LookupError):
    """A name is not in a closed set; the message lists near matches."""


class UnsupportedError(QuantformError):
    """A known thing cannot be done here; the hint says what can."""


class ValuesError(QuantformError, ValueError):
    """Source values that a method cannot encode: not finite, out of range, no integers."""


class WordsError(QuantformError, ValueError):
    """Codes, scales or divisors that the format does not admit."""


class RecipeError(QuantformError, ValueError):
    """A recipe is wrong: its code, its form, or what it asks for; names its file and line."""


class FileError(QuantformError):
    """The bytes of a file are wrong."""


class TruncatedFileError(FileError):
    """A file ends before what it declares."""

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = "The download or copy may be incomplete: continue it, or fetch the file again",
    ) -> None:
        super().__init__(problem, where=where, expected=expected, found=found, hint=hint)


class ChangedFileError(FileError):
    """A file is not any more what it was when it was opened: shorter, another one, or gone.

    Args:
        problem: See `QuantformError`, as the others.
        where: See there.
        expected: See there.
        found: See there.
        hint: See there.
        file: The file.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = "Another program writes to it; wait until that is done",
        file: Path | None = None,
    ) -> None:
        super().__init__(problem, where=where, expected=expected, found=found, hint=hint)
        self.file = file


class GGUFError(FileError):
    """A GGUF file breaks the rules of its format."""


class ArtifactError(FileError):
    """A `.ninfer` artifact breaks the rules of its container."""


class OutputExistsError(QuantformError, FileExistsError):
    """An output path exists already and nobody said to replace it."""


class ConformanceError(QuantformError, AssertionError):
    """Code under test breaks a rule of the conformance kit; says which, where, expected and found."""


class MissingExtraError(QuantformError, ImportError):
    """An optional dependency is absent; the hint names the extra to install."""
