"""Text of files made safe to show."""

from __future__ import annotations

import re

__all__ = ["visible"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with control, reordering and half characters escaped, so that it moves nothing but itself."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
