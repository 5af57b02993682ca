"""Values before they are rounded to binary32: what a decoder makes other types of that leaves binary32 out."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from quantform.formats import FORMATS, GgufFormat, Nvfp4Format, Nvfp4Words, RowScaledFormat, RowScaledWords
from quantform.packed import PROFILES, Profile
from quantform.testing.ninfer_vectors import family_of
from quantform.testing.packed_parts import BENCHES
from quantform.testing.vectors import Vector

__all__ = ["unrounded"]

Values = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=4)
def unrounded(vector: Vector) -> tuple[str, Values] | None:
    """The rule that says that values are binary32 numbers, and the values in binary64 without that rounding.

    They are exact but for the quotients of `nvfp4`, which are rounded to binary64. None where binary32 has all values
    that the format can have.
    """
    record = FORMATS.get(vector.format)
    if record is None or isinstance(record, GgufFormat):
        profile = PROFILES[vector.format] if record is None else record.profile
        values = _packed(profile, vector.payload)
        return None if values is None else ("packed.binary32", values.reshape(vector.shape))
    rule, words = f"{family_of(record)}.binary32", vector.words
    with np.errstate(all="ignore"):
        if isinstance(record, Nvfp4Format):
            ones = np.full_like(words["divisors"], 0x3F800000)
            products = Nvfp4Words(record, vector.shape, words["codes"], words["scales"], ones).decode("float64")
            divisors = words["divisors"].view(np.float32).astype(np.float64)
            return rule, products / np.repeat(divisors, vector.shape[0] // vector.divisors)[:, None]
        if isinstance(record, RowScaledFormat) and record.scale.name == "bf16":
            ones = np.full_like(words["scales"], 0x3F80)
            codes = RowScaledWords(record, vector.shape, words["codes"], ones).decode("float64")
            return rule, codes * words["scales"].view(record.scale.dtype).astype(np.float64)[:, None]
    return None


def _packed(profile: Profile, payload: npt.NDArray[np.uint8]) -> Values | None:
    bench, blocks = BENCHES[profile.identifier], payload.view(profile.block)

    def decoded(name: str, value: float) -> Values:
        """The values with one field changed; each is exact."""
        changed = blocks.copy()
        changed[name] = value
        return profile.decode(changed).astype(np.float64)

    with np.errstate(all="ignore"):
        if bench.offset:
            return decoded(bench.offset[0], 0) + decoded("d", 0)
        if bench.overflow and "d" in bench.rest:
            return decoded("d", 1) * blocks["d"].astype(np.float64)[:, None]
        if bench.overflow:
            return decoded("exponent", 127) * 2.0 ** (blocks["exponent"].astype(np.float64)[:, None] - 127)
    return None
