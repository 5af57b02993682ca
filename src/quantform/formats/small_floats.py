"""The values of the 4-bit and 8-bit floating-point codes (Section 3.3), by code word, all exact in binary32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["E2M1", "E4M3FN"]


def _table(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    table = np.asarray(values, np.float32)
    table.flags.writeable = False
    return table


_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

E2M1 = _table([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)])
"""float32 `[16]`; words 0 and 8 are the two zeros."""

E4M3FN = _table(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
"""float32 `[256]`; words 0x7F and 0xFF are NaN."""
