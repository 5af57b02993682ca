"""The tensor types that GGUF files number: packed profiles, plain numbers, and those known by name only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantform._scalars import SCALARS, Scalar
from quantform.packed import PROFILES, Profile
from quantform.packed.outside import OUTSIDE_PROFILES

__all__ = ["GGMLType", "ggml_type"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GGMLType:
    """What a type number stands for.

    A type is `settled` when every program means the same block by its number. Numbers that are not may carry blocks of
    another size than ours; a file's own spans then have to agree before its size is believed.

    Attributes:
        id: The number.
        name: ggml's name for it, or the program's that uses it: `"Q4_K"`.
        format: The packed profile, the scalar type, or `"ggml:142"` where neither exists.
        values: Values a block; None where the geometry is unknown.
        bytes: Bytes a block; None where the geometry is unknown.
        settled: Whether the geometry is beyond doubt.
        profile: The block's record: a packed profile, or one of those outside ggml.
        scalar: The plain number type.
        remedy: What to do with a tensor that cannot be decoded, a sentence without its full stop.
    """

    id: int
    name: str
    format: str
    values: int | None = None
    bytes: int | None = None
    settled: bool = True
    profile: Profile | None = None
    scalar: Scalar | None = None
    remedy: str = ""

    @property
    def decodable(self) -> bool:
        """Whether there is a decoder: for plain numbers and the packed profiles, not for blocks outside ggml."""
        return self.scalar is not None or (self.profile is not None and self.profile.identifier in PROFILES)

    @property
    def order(self) -> npt.NDArray[np.intp] | None:
        """Where each byte of a little-endian block stands in a big-endian one; None where the two are the same.

        Derived from the types of the block's fields: a field of n bytes is reversed in place, single bytes stay.
        """
        if self.profile is not None:
            block = self.profile.block
            fields = [block.fields[name][:2] for name in block.names or ()] if block.fields else []
            places = np.arange(block.itemsize, dtype=np.intp)
            for dtype, offset in fields:
                width = dtype.base.itemsize
                part = places[offset : offset + dtype.itemsize].reshape(-1, width)
                part[:] = part[:, ::-1].copy()
        elif self.scalar is not None:
            places = np.arange(self.scalar.nbytes, dtype=np.intp)[::-1]
        else:
            return None
        return None if (places == np.arange(places.size)).all() else places


_SCALAR_TYPES = {
    "F32": (0, "fp32"),
    "F16": (1, "fp16"),
    "I8": (24, "int8"),
    "I16": (25, "int16"),
    "I32": (26, "int32"),
    "I64": (27, "int64"),
    "F64": (28, "fp64"),
    "BF16": (30, "bf16"),
}

# Both numbers were used by forks, for blocks of other sizes, before ggml gave them to these types.
_UNSETTLED = frozenset({"gguf:q1_0", "gguf:q2_0"})

_REMOVED = {
    "Q4_2": (4, "Export the model again in a current type"),
    "Q4_3": (5, "Export the model again in a current type"),
    "Q4_0_4_4": (31, "Quantize the model again as Q4_0, which replaced it"),
    "Q4_0_4_8": (32, "Quantize the model again as Q4_0, which replaced it"),
    "Q4_0_8_8": (33, "Quantize the model again as Q4_0, which replaced it"),
    "IQ4_NL_4_4": (36, "Quantize the model again as IQ4_NL, which replaced it"),
    "IQ4_NL_4_8": (37, "Quantize the model again as IQ4_NL, which replaced it"),
    "IQ4_NL_8_8": (38, "Quantize the model again as IQ4_NL, which replaced it"),
}


def _table() -> dict[int, GGMLType]:
    records = [
        GGMLType(
            id=profile.ggml_type,
            name=profile.name,
            format=identifier,
            values=profile.values,
            bytes=profile.bytes,
            settled=identifier not in _UNSETTLED,
            profile=profile,
        )
        for identifier, profile in PROFILES.items()
    ]
    for name, (number, scalar_name) in _SCALAR_TYPES.items():
        scalar = SCALARS[scalar_name]
        records.append(GGMLType(id=number, name=name, format=scalar_name, values=1, bytes=scalar.nbytes, scalar=scalar))
    records += [
        GGMLType(
            id=number,
            name=name,
            format=f"ggml:{number}",
            settled=False,
            remedy=f"The type was removed from ggml. {remedy}",
        )
        for name, (number, remedy) in _REMOVED.items()
    ]
    records += [
        GGMLType(
            id=profile.ggml_type,
            name=profile.name,
            format=f"ggml:{profile.ggml_type}",
            values=profile.values,
            bytes=profile.bytes,
            settled=False,
            profile=profile,
            remedy="The type belongs to another program and is not in ggml. Take its words, or export the model in a "
            "type of ggml",
        )
        for profile in OUTSIDE_PROFILES.values()
    ]
    return {record.id: record for record in records}


_TYPES = _table()


def ggml_type(number: int) -> GGMLType:
    """What a type number stands for; a number that nobody knows gets a record that says so."""
    return _TYPES.get(number) or GGMLType(
        id=number,
        name=f"type {number}",
        format=f"ggml:{number}",
        settled=False,
        remedy="The number is unknown: a newer or another program wrote the file. Export the model in a type of ggml",
    )
