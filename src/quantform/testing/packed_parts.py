"""The packed profiles taken apart: which bits of a block say what, and what the others hold while these are looked at.

One `Bench` a profile. Its `rest` makes every value 1 (grids: a point of the grid times 1), so that what a decoder gets
wrong about one part shows in the vectors of that part, and in few others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantform._registry import Registry

__all__ = ["BENCHES", "Bench", "Part"]

Settings = Mapping[str, bytes]
"""Bytes by field, repeated to the field's length."""

_ONE16, _ZERO16 = b"\x00\x3c", b"\0\0"
_ONE32 = b"\x00\x00\x80\x3f"


@dataclass(frozen=True, slots=True)
class Part:
    """Bits of a block that say one thing.

    Attributes:
        name: What rules call it.
        says: What each item of it is worth.
        order: Which value an item belongs to; empty where the block has only one.
        within: The field that it lies in; by default the one of its name.
        mask: Which bits of that field, repeated to its length.
        width: Bits of an item: which bytes make all items alike.
        beside: What other fields hold meanwhile, where `rest` would hide this part.
        ignored: Whether the values do not depend on it.
    """

    name: str
    says: str
    order: str = ""
    within: str = ""
    mask: bytes = b"\xff"
    width: int = 4
    beside: Settings = field(default_factory=dict)
    ignored: bool = False

    @property
    def place(self) -> str:
        """The field's name."""
        return self.within or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How a profile's parts are looked at one by one.

    Attributes:
        identifier: The profile's.
        scale: What the field `d` (`d` of IQ1_M, gathered from four words) multiplies; empty where there is none.
        rest: What every field holds.
        parts: The parts, in the order in which a decoder needs them.
        offset: The field added or subtracted, and what the text says of it.
        minus: What turns the values at rest to the other sign; empty where nothing does.
        zero: What makes every code zero; empty where no code is.
        local: What makes zeros by the scales of groups: those that are zero, under negative codes or beside minima of
            zero, and negative ones over zero codes.
        seven: What makes half of the values at rest seven times as large; empty where no sum is rounded.
        overflow: Words of the scale under which products leave binary32, and the codes; empty where none can.
        grid: What the text says of the codebook, and of the rows beyond 256 if their bits lie elsewhere.
    """

    identifier: str
    scale: str = "multiplies every code of the block"
    rest: Settings
    parts: tuple[Part, ...]
    offset: tuple[str, str] | None = None
    offset_rest: Settings = field(default_factory=dict)
    minus: Settings = field(default_factory=dict)
    zero: Settings = field(default_factory=dict)
    local: tuple[Settings, ...] = ()
    seven: Settings = field(default_factory=dict)
    overflow: tuple[tuple[int, ...], Settings] | None = None
    grid: tuple[str, str] | None = None


_HALVES = "The low nibbles of the bytes come first, then their high nibbles"
_PLANES32 = "Of 32 bytes at a time, the lowest bits of all come first, then the next above"
_NIBBLES32 = "Of 32 bytes at a time, the low nibbles come first, then the high ones"
_FIFTH = "A set bit adds 16 to the code"
_BIT_J = "Bit j of the little-endian 32-bit mask belongs to value j"
_IQ4 = "A nibble is an index into the 16 values of the IQ4_NL table"
_PARITY = "Seven stored signs, lowest bit first; the eighth makes the number of minus signs even"
_LANES4 = "Four fields of seven bits, the lowest for the first lane of the group"
_SIX_BITS = (
    "The first four are six bits of a byte; the others have four bits in the last bytes, two in the tops of the first"
)

_SCALES_AND_MINIMA = (
    Part(
        "scales",
        "A scale is six unsigned bits that multiply d",
        _SIX_BITS,
        mask=b"\xff" * 4 + b"\x00" * 4 + b"\x0f" * 4,
        width=1,
    ),
    Part(
        "minima",
        "A minimum is six unsigned bits that multiply dmin, and the product is subtracted",
        _SIX_BITS,
        within="scales",
        mask=b"\x00" * 4 + b"\xff" * 4 + b"\xf0" * 4,
        width=1,
        beside={"d": _ZERO16, "dmin": _ONE16},
    ),
)

_LEGACY = (
    Bench(
        identifier="gguf:q4_0",
        rest={"d": _ONE16, "q": b"\x99"},
        parts=(Part("q", "A value is d times its nibble less 8", _HALVES),),
        minus={"q": b"\x00"},
        zero={"q": b"\x88"},
    ),
    Bench(
        identifier="gguf:q4_1",
        rest={"d": _ONE16, "m": _ZERO16, "q": b"\x11"},
        parts=(Part("q", "A value is d times its unsigned nibble, plus m", _HALVES),),
        offset=("m", "is added to every product"),
        zero={"q": b"\x00"},
        seven={"q": b"\x71"},
    ),
    Bench(
        identifier="gguf:q5_0",
        rest={"d": _ONE16, "high": b"\xff", "q": b"\x11"},
        parts=(
            Part("q", "The nibble is the low four bits of a code; a value is d times the code less 16", _HALVES),
            Part("high", _FIFTH, _BIT_J, width=1),
        ),
        minus={"high": b"\x00"},
        zero={"q": b"\x00"},
    ),
    Bench(
        identifier="gguf:q5_1",
        rest={"d": _ONE16, "m": _ZERO16, "high": b"\x00", "q": b"\x11"},
        parts=(
            Part("q", "The nibble is the low four bits of an unsigned code; a value is d times it, plus m", _HALVES),
            Part("high", _FIFTH, _BIT_J, width=1),
        ),
        offset=("m", "is added to every product"),
        zero={"q": b"\x00"},
        seven={"q": b"\x71"},
    ),
    Bench(
        identifier="gguf:q8_0",
        rest={"d": _ONE16, "q": b"\x01"},
        parts=(Part("q", "A code is a signed byte, -128 among them", "Bytes in the order of the values", width=8),),
        minus={"q": b"\xff"},
        zero={"q": b"\x00"},
    ),
    Bench(
        identifier="gguf:q8_1",
        rest={"d": _ONE16, "s": _ZERO16, "q": b"\x01"},
        parts=(
            Part("q", "A code is a signed byte, -128 among them", "Bytes in the order of the values", width=8),
            Part("s", "The cached sum does not enter, whatever it holds", ignored=True),
        ),
        minus={"q": b"\xff"},
        zero={"q": b"\x00"},
    ),
    Bench(
        identifier="gguf:q8_k",
        rest={"d": _ONE32, "q": b"\x01", "sums": b"\x00"},
        parts=(
            Part("q", "A code is a signed byte, -128 among them", "Bytes in the order of the values", width=8),
            Part("sums", "The cached sums do not enter, whatever they hold", ignored=True),
        ),
        minus={"q": b"\xff"},
        zero={"q": b"\x00"},
        overflow=(
            # The last two times 123 and 127 are just below and just above what still rounds to the largest number.
            (0x7F7FFFFF, 0xFF7FFFFF, 0x7C053408, 0x7C010204),
            {"q": b"\x01\x02\x7b\x7f\x80\x85\xfe\xff"},
        ),
    ),
    Bench(
        identifier="gguf:iq4_nl",
        rest={"d": _ONE16, "q": b"\x88"},
        parts=(Part("q", _IQ4, _HALVES),),
        minus={"q": b"\x00"},
    ),
    Bench(
        identifier="gguf:q1_0",
        scale="is the value of a set bit, and -d that of a clear one",
        rest={"d": _ONE16, "q": b"\xff"},
        parts=(Part("q", "A set bit is d, a clear one -d", "Eight values a byte, the lowest bit first", width=1),),
        minus={"q": b"\x00"},
    ),
    Bench(
        identifier="gguf:q2_0",
        rest={"d": _ONE16, "q": b"\xaa"},
        parts=(
            Part("q", "A value is d times its code less 1; code 3 is 2", "Four a byte, the lowest bits first", width=2),
        ),
        minus={"q": b"\x00"},
        zero={"q": b"\x55"},
    ),
)

_KQUANTS = (
    Bench(
        identifier="gguf:q2_k",
        rest={"d": _ONE16, "dmin": _ZERO16, "scales": b"\x11", "q": b"\x55"},
        parts=(
            Part("q", "A code is two unsigned bits", _PLANES32, width=2),
            Part("scales", "The low nibble multiplies d", "One byte for every 16 values", mask=b"\x0f"),
            Part(
                "minima",
                "The high nibble multiplies dmin, and the product is subtracted",
                "One byte for every 16 values",
                within="scales",
                mask=b"\xf0",
                beside={"d": _ZERO16, "dmin": _ONE16},
            ),
        ),
        offset=("dmin", "multiplies every minimum, which is subtracted"),
        offset_rest={"d": _ZERO16},
        zero={"q": b"\x00"},
        local=({"scales": b"\x00"},),
        seven={"scales": b"\x11\x17"},
    ),
    Bench(
        identifier="gguf:q3_k",
        rest={"d": _ONE16, "mask": b"\xff", "q": b"\x55", "scales": b"\x11" * 8 + b"\xaa" * 4},
        parts=(
            Part("q", "Two low bits of a code; with the mask's bit clear, 4 is subtracted", _PLANES32, width=2),
            Part("mask", "A clear bit subtracts 4 from the code", _PLANES32, width=1),
            Part(
                "scales",
                "A scale is six bits less 32",
                "Low nibbles of 8 bytes, then high ones; two bits more from 4 bytes, plane by plane",
                width=1,
            ),
        ),
        minus={"mask": b"\x00"},
        zero={"q": b"\x00"},
        local=(
            {"mask": b"\x00", "scales": b"\x00" * 8 + b"\xaa" * 4},
            {"q": b"\x00", "scales": b"\xff" * 8 + b"\x55" * 4},
        ),
    ),
    Bench(
        identifier="gguf:q4_k",
        rest={"d": _ONE16, "dmin": _ZERO16, "scales": b"\x01" * 8 + b"\x11" * 4, "q": b"\x11"},
        parts=(
            Part("q", "A code is an unsigned nibble", _NIBBLES32),
            *_SCALES_AND_MINIMA,
        ),
        offset=("dmin", "multiplies every minimum, which is subtracted"),
        offset_rest={"d": _ZERO16},
        zero={"q": b"\x00"},
        local=({"scales": b"\x00"},),
        seven={"q": b"\x71"},
    ),
    Bench(
        identifier="gguf:q5_k",
        rest={"d": _ONE16, "dmin": _ZERO16, "scales": b"\x01" * 8 + b"\x11" * 4, "high": b"\x00", "q": b"\x11"},
        parts=(
            Part("q", "The nibble is the low four bits of an unsigned code", _NIBBLES32),
            Part("high", _FIFTH, _PLANES32, width=1),
            *_SCALES_AND_MINIMA,
        ),
        offset=("dmin", "multiplies every minimum, which is subtracted"),
        offset_rest={"d": _ZERO16},
        zero={"q": b"\x00"},
        local=({"scales": b"\x00"},),
        seven={"q": b"\x71"},
    ),
    Bench(
        identifier="gguf:q6_k",
        rest={"d": _ONE16, "low": b"\x11", "high": b"\xaa", "scales": b"\x01"},
        parts=(
            Part(
                "low",
                "The nibble is the low four bits of a code; the code less 32 is multiplied",
                "Of 64 bytes at a time, the low nibbles come first, then the high ones",
            ),
            Part("high", "Two bits above the nibble's four", _PLANES32, width=2),
            Part("scales", "A scale is a signed byte", "One for every 16 values", width=8),
        ),
        minus={"scales": b"\xff"},
        zero={"low": b"\x00"},
        local=({"high": b"\x55", "scales": b"\x00"}, {"low": b"\x00", "scales": b"\xff"}),
    ),
    Bench(
        identifier="gguf:iq4_xs",
        rest={"d": _ONE16, "high": b"\xaa\xaa", "scales": b"\x11", "q": b"\x88"},
        parts=(
            Part("q", _IQ4, "Of 16 bytes at a time, the low nibbles come first, then the high ones"),
            Part("scales", "The nibble is the low four bits of a scale; 32 is subtracted from it", "Low nibble first"),
            Part("high", "Two bits above the nibble's four", "Two bits a group, the lowest first", width=2),
        ),
        minus={"q": b"\x00"},
        local=({"scales": b"\x00", "q": b"\x00"},),
    ),
)

_IQUANTS = (
    Bench(
        identifier="gguf:iq2_xxs",
        rest={"d": b"\x00\x48", "q": b"\x00"},
        parts=(
            Part("signs", _PARITY, _LANES4, within="q", mask=b"\0\0\0\0\xff\xff\xff\x0f", width=1),
            Part(
                "scales",
                "The top nibble t of the group's second word makes d * (0.5 + t) * 0.25",
                "One for every 32 values",
                within="q",
                mask=b"\0\0\0\0\0\0\0\xf0",
            ),
        ),
        minus={"q": b"\0\0\0\0\xff\xff\xff\x0f"},
        grid=("Each of the group's four first bytes is a row of iq2xxs_grid, eight values a lane", ""),
    ),
    Bench(
        identifier="gguf:iq2_xs",
        rest={"d": b"\x00\x48", "q": b"\x00", "scales": b"\x00"},
        parts=(
            Part("signs", _PARITY, "The upper seven bits of each lane's word", within="q", mask=b"\x00\xfe", width=1),
            Part("scales", "A nibble t makes d * (0.5 + t) * 0.25", "One for every 16 values, the low nibble first"),
        ),
        minus={"q": b"\x00\xfe"},
        grid=("The low nine bits of a lane's word are a row of iq2xs_grid", ""),
    ),
    Bench(
        identifier="gguf:iq3_xxs",
        rest={"d": b"\x00\x44", "q": b"\x00"},
        parts=(
            Part("signs", _PARITY, _LANES4, within="q", mask=b"\0" * 64 + b"\xff\xff\xff\x0f" * 8, width=1),
            Part(
                "scales",
                "The top nibble t of the group's word makes d * (0.5 + t) * 0.5",
                "One for every 32 values",
                within="q",
                mask=b"\0" * 64 + b"\0\0\0\xf0" * 8,
            ),
        ),
        minus={"q": b"\0" * 64 + b"\xff\xff\xff\x0f" * 8},
        grid=("Each of the 64 first bytes is a row of iq3xxs_grid, four values, two rows a lane", ""),
    ),
    Bench(
        identifier="gguf:iq1_s",
        scale="multiplies every odd local scale",
        rest={"d": _ONE16, "q": b"\x00", "high": b"\x00"},
        parts=(
            Part(
                "scales",
                "Bits 12 to 14 of a group's word, t, make d * (2 t + 1)",
                "One for every 32 values",
                within="high",
                mask=b"\x00\x70",
                width=1,
            ),
            Part(
                "shift",
                "Bit 15 clear adds an eighth to every point of the grid; set, it subtracts one",
                "One for every 32 values",
                within="high",
                mask=b"\x00\x80",
                width=1,
            ),
        ),
        grid=(
            "A lane's byte is the low bits of a row of iq1s_grid",
            "Bits 8 to 10 of the row are three bits of the group's word, the lowest for the first lane",
        ),
    ),
    Bench(
        identifier="gguf:iq3_s",
        scale="multiplies every odd local scale",
        rest={"d": _ONE16, "q": b"\x00", "high": b"\x00", "signs": b"\x00", "scales": b"\x00"},
        parts=(
            Part("signs", "A set bit is a minus sign", "One byte a lane, the lowest bit first", width=1),
            Part("scales", "A nibble t makes d * (2 t + 1)", "One for every 32 values, the low nibble first"),
        ),
        minus={"signs": b"\xff"},
        grid=(
            "Each byte is the low bits of a row of iq3s_grid, four values, two rows a lane",
            "Bit 8 of the row is one bit of the group's byte, the lowest first",
        ),
    ),
    Bench(
        identifier="gguf:iq2_s",
        rest={"d": b"\x00\x48", "q": b"\x00", "high": b"\x00", "scales": b"\x00"},
        parts=(
            Part(
                "signs",
                "A set bit is a minus sign",
                "The second 32 bytes, one a lane, the lowest bit first",
                within="q",
                mask=b"\0" * 32 + b"\xff" * 32,
                width=1,
            ),
            Part("scales", "A nibble t makes d * (0.5 + t) * 0.25", "One for every 16 values, the low nibble first"),
        ),
        minus={"q": b"\0" * 32 + b"\xff" * 32},
        grid=(
            "A lane's byte is the low bits of a row of iq2s_grid",
            "Bits 8 and 9 of the row are two bits of the group's byte, the lowest for the first lane",
        ),
    ),
    Bench(
        identifier="gguf:iq1_m",
        scale="gathered from the top nibbles of the four scale words, multiplies every odd local scale",
        rest={"q": b"\x00", "high": b"\x00", "scales": b"\0\0\0\0\0\xc0\0\x30"},
        parts=(
            Part(
                "scales",
                "Three bits t make d * (2 t + 1)",
                "One for every 16 values, four in the low 12 bits of each word",
                mask=b"\xff\x0f",
                width=1,
            ),
            Part(
                "shift",
                "The top bit of a lane's nibble clear adds an eighth to the grid; set, it subtracts one",
                "One a lane, the low nibble first",
                within="high",
                mask=b"\x88",
                width=1,
            ),
        ),
        grid=(
            "A lane's byte is the low bits of a row of iq1s_grid",
            "Bits 8 to 10 of the row are the low three bits of the lane's nibble",
        ),
    ),
)

_TERNARY = (
    Bench(
        identifier="gguf:tq1_0",
        rest={"q": b"\xff", "high": b"\xff", "d": _ONE16},
        parts=(
            Part(
                "q",
                "A byte has five digits: three times the byte, after a power of three that wraps, has one above bit 7",
                "Of 32 bytes, then of 16: all first digits, then all second ones",
                width=8,
            ),
            Part("high", "A byte has four digits", "All first digits of the four bytes, then all second ones", width=8),
        ),
        minus={"q": b"\x00", "high": b"\x00"},
        zero={"q": b"\x80", "high": b"\x80"},
    ),
    Bench(
        identifier="gguf:tq2_0",
        rest={"q": b"\xaa", "d": _ONE16},
        parts=(Part("q", "A value is d times its code less 1; code 3 is 2", _PLANES32, width=2),),
        minus={"q": b"\x00"},
        zero={"q": b"\x55"},
    ),
)

_FP4 = (
    Bench(
        identifier="gguf:mxfp4",
        scale="",
        rest={"exponent": b"\x7f", "q": b"\x22"},
        parts=(
            Part("q", "A nibble is an E2M1 code; codes 0 and 8 are both positive zero", _HALVES),
            Part(
                "exponent",
                "A byte e is 2^(e - 127), halved under doubled codes: finite for 255, subnormal for 0 and 1",
                width=0,
                beside={"q": b"\x11"},
            ),
        ),
        minus={"q": b"\xaa"},
        overflow=((0xFE,), {"q": bytes(range(0x01, 0x100, 0x11))}),
        zero={"q": b"\x08"},
    ),
    Bench(
        identifier="gguf:nvfp4",
        scale="",
        rest={"scales": b"\x38", "q": b"\x22"},
        parts=(
            Part(
                "q",
                "A nibble is an E2M1 code; codes 0 and 8 are both positive zero",
                "Of 8 bytes at a time, the low nibbles come first, then the high ones",
            ),
            Part(
                "scales",
                "An unsigned E4M3 byte; bytes 0 and 127 are zero, and bit 7 does not enter otherwise",
                "One for every 16 values",
                width=0,
            ),
        ),
        minus={"q": b"\xaa"},
        zero={"q": b"\x08"},
    ),
)

BENCHES: Registry[Bench] = Registry(
    "bench", (*_LEGACY, *_KQUANTS, *_IQUANTS, *_TERNARY, *_FP4), key=lambda bench: bench.identifier
)
"""One for each profile."""
