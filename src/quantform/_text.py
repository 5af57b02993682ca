"""Text of files made safe to show."""

from __future__ import annotations

import re

__all__ = ["shortened", "visible"]

# Controls; what is invisible, joins or reorders; halves of surrogate pairs; notes and tags that no font shows.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` with control, invisible, reordering and half characters escaped, so that it moves nothing but itself."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, three dots in the place of its middle."""
    if len(text) <= most:
        return text
    head = (most - 3) // 2
    return f"{text[:head]}...{text[len(text) - (most - 3 - head) :]}"
