"""Groups for `grouped_search`, each of which needs one of the 68 candidates: without it, another scale wins.

Such groups are rare, and were found by a search. Here stand their numbers, by the rule that a candidate falls under and
in the order of the candidates, and after them those to which one candidate too many would be better than all that there
are: 0.68 or 1.20 of a scale, 1/8 of it, a third neighbour. `_drawn` makes the groups.

Candidates that no entry stands for are those that hardly any group needs, or none: the search begins with the max-abs
scale times 1.00, that times 4 reaches nothing that it does not, and the codes of Q8 end alike on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform.formats import GroupedFormat
from quantform.testing.plain_random import PlainRandom

__all__ = ["SearchGroups", "search_groups"]

F32 = npt.NDArray[np.float32]
Numbers = tuple[int, ...]
Group = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class SearchGroups:
    """One vector's groups.

    Attributes:
        rule: The rule that they are about.
        part: What tells them from others of the rule.
        values: Groups in rows, or all of them in one where each lane has its own importance.
        parameters: Those of the method.
    """

    rule: str
    part: str
    values: F32
    parameters: Mapping[str, Any]


def search_groups(record: GroupedFormat) -> Iterator[SearchGroups]:
    """The groups for a format."""
    for rule, (plain, weighted, tiny) in _NEEDED[record.name].items():
        if plain:
            yield _rows(rule, "", [_drawn(record, "group", number) for number in plain])
        if weighted:
            yield _lanes(rule, "weighted", [_drawn(record, "group", number) for number in weighted])
        if tiny:
            yield _lanes(rule, "tiny", [_drawn(record, "tiny", number) for number in tiny])
    if extremes := [_drawn(record, "group", number) for number in _EXTREMES[record.name]]:
        for values, _ in extremes:
            values[0] = np.abs(values).max()
            values[-1] = -values[0]
        yield _rows("full-range", "first", extremes)
    if negative := [_drawn(record, "group", number) for number in _NEGATIVE[record.name]]:
        yield _lanes("negative-scales", "winners", negative, negative_scales=True)
    yield _rows("rounding", "", [_drawn(record, "group", number) for number in _ROUNDED[record.name]])
    yield _lanes("candidates", "equal", [_even(record, -1), _even(record, 0)])
    yield _lanes("least-squares", "nothing", [_unweighed(record)])
    yield _lanes("sums", "", [_even(record, number) for number in _SUMS[record.name]])


def _rows(rule: str, part: str, groups: Sequence[Group]) -> SearchGroups:
    return SearchGroups(rule, part, np.stack([values for values, _ in groups]).astype(np.float32), {})


def _lanes(rule: str, part: str, groups: Sequence[Group], **more: bool) -> SearchGroups:
    values, weights = (np.concatenate(arrays).astype(np.float32) for arrays in zip(*groups, strict=True))
    return SearchGroups(rule, part, values[None], {"importance": weights, **more})


def _drawn(record: GroupedFormat, part: str, number: int) -> Group:
    """A group and its weights: about normal, or near multiples of a scale that is not the max-abs one.

    Tiny ones have scales of a few of binary16's smallest steps, between which there is nothing.
    """
    random, group = PlainRandom(f"{record.name} {part} {number}"), record.group
    bounds = ((0, 2), (66, 124), (1, 8), (1, 9), (0, 1024))
    grid, percent, peak, dense, fine = (int(random.integers(low, high, 1)[0]) for low, high in bounds)
    values = random.integers(-(1 << 17), 1 << 17, (4, group)).sum(axis=0)
    codes = random.integers(record.qmin, record.qmax + 1, group)
    weights = random.integers(0, 32, group) ** 4 * (random.integers(0, 8, group) < dense) * 2.0**-40
    if grid:
        limit = record.qmax * 102400 + fine
        values = np.clip(codes * percent * 1024 + values // 16, -limit, limit)
        values[0] = limit if peak % 2 else -limit
    else:
        values[0] *= peak
    shift = 28 - record.code_bits + int(random.integers(13, 18, 1)[0]) if part == "tiny" else 0
    return (values * 2.0**-shift).astype(np.float64), weights.astype(np.float64)


def _unweighed(record: GroupedFormat) -> Group:
    """A group whose weighty lane is lost under every candidate: no fit is defined, and a scale of 1 would fit it."""
    values, weights = np.zeros(record.group), np.zeros(record.group)
    values[:2] = 64 * record.qmax, 1
    weights[1] = 1
    return values, weights


def _even(record: GroupedFormat, number: int) -> Group:
    """A group to which 72 and 96, 0.72 and 0.96 of the max-abs scale, are equally good but for rounding.

    The second lane, which weighs most, admits these only; the others are near multiples of the one or of the other.
    Number 0 weighs nothing but that lane, and number -1 nothing at all.
    """
    random, half = PlainRandom(f"{record.name} even {number}"), record.group // 2 - 1
    near = np.repeat([96 - 2.0**-12, 72 + 2.0**-12], half)
    drawn = random.integers(1 << 23, 1 << 24, half) * np.exp2(random.integers(0, 36, half))
    weights = np.concatenate([drawn, np.sort(drawn)]) * min(max(number, 0), 1)
    order = np.argsort(random.integers(0, 1 << 62, 2 * half), kind="stable")
    values = np.concatenate([[100.0 * record.qmax, 288.0], near[order]])
    return values, np.concatenate([[0.0, 2.0**120 if number >= 0 else 0.0], weights[order]])


# fmt: off
# By format and rule: numbers of groups without importance, of groups with it, and of tiny ones with it.
_NEEDED: Mapping[str, Mapping[str, tuple[Numbers, Numbers, Numbers]]] = {
    "q4_g64_fp16": {
        "ratios": ((101972, 51742, 11630, 1233, 3526, 1178, 429, 2442, 1221, 192, 151, 1410, 1313, 6466, 11261, 8446,
            11411, 11801, 212364, 26546, 389560, 214965), (4954, 6641, 4895, 9980, 2625, 8354, 9508, 6096, 1254, 3865,
            4417, 11120, 114, 6831, 18076, 42134, 3374, 12417, 11994, 15291, 53354, 28272, 10924, 51948, 23, 5587),
            ()),
        "full-range": ((98998, 1518, 2140, 4232, 2696, 3931, 523, 2746, 1343, 2927, 8710, 53994, 122838, 51368,
            201568), (4053, 11225, 23660, 4302, 2559, 3731, 169, 9819, 15659, 3000, 12269, 80400, 42630, 7545, 7830,
            3520, 3450, 20842, 104021, 69342, 65867, 746, 5715), ()),
        "powers": ((), (310678, 27690, 814), (62683,)),
        "neighbours": ((13173,), (), (121,)),
        "least-squares": ((14923, 334888, 12518), (2707, 269, 102613, 6699, 609, 814), (65712, 2883)),
        "refit": ((0, 25, 6, 6), (0, 221, 199, 199), ()),
    },
    "q5_g64_fp16": {
        "ratios": ((41843, 2473, 165773, 677, 150, 685, 6, 775, 531, 366, 1420, 20758, 23608, 25970, 11433, 182076,
            4705), (1043, 507, 3033, 217, 1181, 8103, 452, 826, 543, 3644, 1349, 6044, 39, 30, 3639, 5284, 281, 1453,
            587, 3350, 2464, 12680, 8725, 3916, 108, 606), ()),
        "full-range": ((279443, 46781, 1694, 135, 893, 4618, 307, 6992, 40628, 1975, 6877, 371823, 380658), (2087,
            7519, 2554, 4349, 10685, 1051, 1874, 521, 1501, 1234, 886, 1226, 14633, 50254, 13700, 29646, 5220, 75000,
            18093, 40357, 336, 2945, 6336, 132350, 186, 615), ()),
        "powers": ((), (53319, 3769, 725), ()),
        "neighbours": ((195421, 233828, 1429), (161248,), (1035,)),
        "least-squares": ((3269, 4785, 59576, 42430, 7313, 6), (1807, 1295, 14994, 26729, 138132, 126946, 834, 180),
            (91020,)),
        "refit": ((3, 43, 1, 1), (1, 7, 84, 7), ()),
    },
    "q6_g64_fp16": {
        "ratios": ((393, 2, 251, 164, 52, 1123, 1486, 1435, 3935, 10676, 11436, 12221, 2294), (1366, 2333, 167, 38,
            462, 201, 8235, 270, 2145, 3297, 483, 2028, 1430, 180, 48, 2158, 1986, 2309, 115, 1422, 10051, 12679, 9680,
            3545, 45, 20), ()),
        "full-range": ((7948, 552, 248, 1009, 2523, 123, 1879, 652, 60357, 11108, 307450, 191787, 2533), (3835, 2602,
            4138, 3294, 3946, 1262, 5288, 1284, 4687, 20084, 883, 12627, 358, 6516, 246, 146, 2063, 22718, 1293, 17265,
            106, 28999, 3721, 150059, 47729, 85, 4523), ()),
        "powers": ((), (609, 2775, 247), (123537,)),
        "neighbours": ((1629, 9312, 170), (192830, 24489, 669), ()),
        "least-squares": ((3760, 7036, 25330, 14594, 867, 25), (1231, 117, 342781, 1027, 44902, 161920, 5806, 669, 47),
            ()),
        "refit": ((7, 15, 4, 4), (2, 12, 20, 7), ()),
    },
    "q8_g32_fp16": {
        "ratios": ((22958, 186, 305, 367, 481, 1270, 3963, 330325, 5963, 96), (1137, 70, 663, 429, 1076, 1030, 1869,
            381, 863, 904, 227, 214, 185, 876, 426, 257, 20, 948, 15, 3081, 1491, 3949, 405, 168, 71, 149), ()),
        "powers": ((), (30, 884, 80), (8527,)),
        "neighbours": ((3165, 2588, 50), (24767, 16817, 157), (38590,)),
        "least-squares": ((1260, 1834, 1681, 2992, 157, 11), (52, 1, 2086, 3147, 7805, 413, 1152, 157, 16), ()),
        "refit": ((1, 13, 42, 1), (5, 10, 71, 10), ()),
    },
}

_EXTREMES: Mapping[str, Numbers] = {
    "q4_g64_fp16": (0, 25, 32),
    "q5_g64_fp16": (5, 7, 25),
    "q6_g64_fp16": (4, 7, 15),
    "q8_g32_fp16": (),
}
_NEGATIVE: Mapping[str, Numbers] = {
    "q4_g64_fp16": (8221, 8145, 7151, 24323, 6302, 4567, 8462, 5555, 6507, 1856, 2126, 10910, 6378, 1973, 831, 490,
        4183, 430, 6900, 11506, 16269, 8749, 4341, 6, 23, 112),
    "q5_g64_fp16": (9830, 3618, 2628, 2832, 809, 8934, 1806, 3838, 6338, 2077, 4029, 3764, 1705, 2325, 1334, 347, 6320,
        622, 4918, 4930, 5759, 8927, 5363, 10634, 17008, 30, 426, 150),
    "q6_g64_fp16": (624, 959, 2564, 268, 948, 2145, 1786, 5126, 1661, 3461, 3830, 3248, 1687, 8569, 2266, 20, 681,
        1733, 6166, 945, 372, 15631, 1010, 15084, 5135, 7, 65, 12),
    "q8_g32_fp16": (),
}
_ROUNDED: Mapping[str, Numbers] = {
    "q4_g64_fp16": (55959,),
    "q5_g64_fp16": (315936,),
    "q6_g64_fp16": (24180,),
    "q8_g32_fp16": (8434, 32508),
}
_SUMS: Mapping[str, Numbers] = {
    "q4_g64_fp16": (22, 1),
    "q5_g64_fp16": (1, 2),
    "q6_g64_fp16": (7, 1),
    "q8_g32_fp16": (18, 1),
}
# fmt: on
