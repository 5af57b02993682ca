"""Whether an artifact is all that a producer owes, decided from the texts and from nothing else, one word at a time.

It answers yes or no for the bytes of all files of an artifact, and shares nothing with the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ninfer_oracle import ROW_SPLIT, align

MAX = 2**64 - 1
# block values and bytes (Section 1)
GGUF = {
    "gguf_q8_0": (32, 34),
    "gguf_q4_0": (32, 18),
    "gguf_q5_0": (32, 22),
    "gguf_q2_0": (64, 18),
    "gguf_q2_k": (256, 84),
    "gguf_q3_k": (256, 110),
    "gguf_q4_k": (256, 144),
    "gguf_q5_k": (256, 176),
    "gguf_q6_k": (256, 210),
    "gguf_iq2_xxs": (256, 66),
    "gguf_iq2_xs": (256, 74),
    "gguf_iq3_xxs": (256, 98),
    "gguf_iq1_s": (256, 50),
    "gguf_iq4_nl": (32, 18),
    "gguf_iq3_s": (256, 110),
    "gguf_iq2_s": (256, 82),
    "gguf_iq4_xs": (256, 136),
    "gguf_iq1_m": (256, 56),
}
LAYOUT_OF = {
    **dict.fromkeys(("bf16", "fp32", "int32"), "contiguous_le_v1"),
    **dict.fromkeys(ROW_SPLIT, "row_split_k128_v1"),
    "nvfp4": "block_scale_k16_m128x4_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "fp8_e4m3fn_row_fp16": "row_interleaved_v1",
    **dict.fromkeys(GGUF, "gguf_blocks_v1"),
}
LEGAL_CODES = {"q8_g32_fp16": range(-127, 128), "t2_g128_fp16": range(-1, 2)}


class BrokenError(Exception):
    """A rule is broken."""


def need(holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def why_broken(files: Mapping[str, bytes], entry: str) -> str | None:
    """What is wrong, or None."""
    try:
        _check(files, entry)
    except BrokenError as error:
        return str(error)
    return None


def _check(files: Mapping[str, bytes], entry: str) -> None:
    data = files[entry]
    need(data[:8] == b"NINFER\x00\x03", "magic")
    size = int.from_bytes(data[8:16], "little")
    need(0 < size <= len(data) - 32, "json_bytes")
    directory = _json(data[32 : 32 + size])
    start = align(32 + size, 4096)
    need(not any(data[32 + size : start]), "gap before the payload")
    _members(directory, {"components", "objects", "bindings", "uses", "files"}, {"metadata", "provenance"})
    payload = b""
    need(isinstance(directory["files"], list) and directory["files"], "files")
    names = {entry}
    for index, file in enumerate(directory["files"]):
        _members(file, {"path", "payload_bytes"}, set(), nullable={"path"})
        count, name = file["payload_bytes"], file["path"]
        need(_integer(count, 1), "payload_bytes")
        if index == 0:
            need(name is None, "the entry's path")
            whole, begin = data, start
        else:
            need(isinstance(name, str) and name not in names and name in files, "a part's name")
            names.add(name)
            whole, begin = files[name], 4096
            need(whole[:8] == b"NINPRT\x00\x03", "part magic")
            need(whole[8:16] == index.to_bytes(8, "little"), "part index")
            need(whole[16:32] == data[16:32], "part id")
            need(not any(whole[32:4096]), "part gap")
        need(len(whole) == begin + count, "file length")
        payload += whole[begin:]
    records = _objects(directory["objects"], payload)
    _references(directory, records, payload)


def _json(raw: bytes) -> Any:
    def pairs(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        need(len({name for name, _ in items}) == len(items), "a member twice")
        return dict(items)

    def constant(name: str) -> None:
        raise BrokenError(name)

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except ValueError as error:
        raise BrokenError(f"JSON: {error}") from None


def _members(value: Any, required: set[str], optional: set[str], nullable: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    need(isinstance(value, dict), "not an object")
    need(required <= set(value) <= required | optional, f"members {sorted(value)}")
    for name, member in value.items():
        need(member is not None or name in nullable, f"{name} is null")
    for name in {"metadata", "provenance", "config"} & set(value):
        need(isinstance(value[name], dict), name)


def _integer(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX


def _id(value: Any) -> None:
    need(isinstance(value, str) and value and "\0" not in value, "id")


def _objects(values: Any, payload: bytes) -> dict[str, dict[str, Any]]:
    need(isinstance(values, list) and values, "objects")
    records: dict[str, dict[str, Any]] = {}
    end = 0
    for value in values:
        need(isinstance(value, dict) and value.get("kind") in {"tensor", "resource"}, "kind")
        if value["kind"] == "tensor":
            _members(value, {"id", "kind", "shape", "format", "layout", "offset", "bytes"}, {"divisors"})
        else:
            _members(value, {"id", "kind", "encoding", "offset", "bytes"}, set())
            need(value["encoding"] == "raw_bytes_v1", "encoding")
        _id(value["id"])
        need(value["id"] not in records, "two objects have one id")
        records[value["id"]] = value
        offset, count = value["offset"], value["bytes"]
        need(_integer(offset, end) and _integer(count, 1) and offset + count <= len(payload), "range")
        need(not any(payload[end:offset]), "gap between objects")
        end = offset + count
        if value["kind"] == "tensor":
            _tensor(value, payload[offset:end])
    need(not any(payload[end:]), "tail")
    return records


def _tensor(record: dict[str, Any], data: bytes) -> None:
    shape, name, divisors = record["shape"], record["format"], record.get("divisors", 1)
    need(isinstance(shape, list) and len(shape) <= 16 and all(_integer(one, 1) for one in shape), "shape")
    need(isinstance(name, str) and LAYOUT_OF.get(name) == record["layout"], "format and layout")
    need(_integer(divisors, 1) and (divisors == 1 or name == "nvfp4"), "divisors")
    need(record["offset"] % 256 == 0, "alignment")
    if record["layout"] == "contiguous_le_v1":
        count = 1
        for dimension in shape:
            count *= dimension
        need(len(data) == count * (2 if name == "bf16" else 4), "size")
        return
    need(len(shape) == 2, "rank")
    rows, columns = shape
    if name in ROW_SPLIT:
        _row_split(name, rows, columns, data)
    elif name == "nvfp4":
        _nvfp4(rows, columns, divisors, data)
    elif name in GGUF:
        values, size = GGUF[name]
        need(columns % values == 0 and len(data) == rows * columns // values * size, "size")
    else:
        _fp8(name, rows, columns, data)


def _row_split(name: str, rows: int, columns: int, data: bytes) -> None:
    bits, group, base, high, added = ROW_SPLIT[name]
    groups = align(columns, 128) // group
    high_offset = align(rows * groups * base, 256)
    scale_offset = high_offset + align(rows * groups * high, 256)
    need(len(data) == scale_offset + rows * groups * 2, "size")
    need(not any(data[rows * groups * base : high_offset]), "gap")
    need(not any(data[high_offset + rows * groups * high : scale_offset]), "gap")
    for row in range(rows):
        for g in range(groups):
            at = row * groups + g
            scale = int.from_bytes(data[scale_offset + 2 * at :][:2], "little")
            if g * group >= columns:
                need(scale == 0, "scale past the last group")
            need(scale & 0x7C00 != 0x7C00, "scale not finite")
            need(added or scale != 0x8000, "negative zero scale")
            codes = data[at * base : (at + 1) * base]
            stream = data[high_offset + at * high : high_offset + (at + 1) * high]
            for lane in range(group):
                u = codes[lane * min(bits, 8) // 8] if bits == 8 else 0
                if bits == 2:
                    u = codes[lane // 4] >> lane % 4 * 2 & 3
                elif bits < 8:
                    u = codes[lane // 2] >> lane % 2 * 4 & 15
                    for bit in range(4, bits):
                        t = lane * (bits - 4) + bit - 4
                        u |= (stream[t // 8] >> t % 8 & 1) << bit
                q = u - added if added else u - (1 << bits if u >> bits - 1 else 0)
                if g * group + lane >= columns:
                    need(q == 0, "code past the last column")
                need(q in LEGAL_CODES.get(name, range(-128, 128)), "code")
                need(added or scale or q == 0, "code under a zero scale")


def _nvfp4(rows: int, columns: int, divisors: int, data: bytes) -> None:
    need(rows % 128 == 0 and columns % 64 == 0 and rows % (128 * divisors) == 0, "tiles")
    scale_offset = align(rows * columns // 2, 256)
    end = scale_offset + rows * columns // 16
    need(len(data) == end + 4 * divisors, "size")
    need(all(word < 0x7F for word in data[scale_offset:end]), "scale")
    need(not any(data[rows * columns // 2 : scale_offset]), "gap")
    for at in range(end, len(data), 4):
        need(0 < int.from_bytes(data[at : at + 4], "little") < 0x7F800000, "divisor")


def _fp8(name: str, rows: int, columns: int, data: bytes) -> None:
    half = name.endswith("fp16")
    plane = 0 if half else align(rows * columns, 256)
    need(len(data) == (rows * (columns + 2) if half else plane + 2 * rows), "size")
    need(half or not any(data[rows * columns : plane]), "gap")
    for row in range(rows):
        codes = data[row * (columns + 2) :][:columns] if half else data[row * columns :][:columns]
        word = data[row * (columns + 2) + columns :][:2] if half else data[plane + 2 * row :][:2]
        scale = int.from_bytes(word, "little")
        need(scale < (0x7C00 if half else 0x7F80), "scale")
        for code in codes:
            need(code & 0x7F != 0x7F, "code")
            need(scale or code & 0x7F == 0, "code under a zero scale")


def _references(directory: dict[str, Any], records: dict[str, dict[str, Any]], payload: bytes) -> None:
    components = directory["components"]
    need(isinstance(components, dict) and components, "components")
    for name, component in components.items():
        _id(name)
        _members(component, {"config"}, {"target", "resources", "proposal"})
        need(component.get("target", name) in components, "target")
        need(isinstance(component.get("resources", {}), dict), "resources")
        for role, id in component.get("resources", {}).items():
            _id(role)
            need(isinstance(id, str) and records.get(id, {}).get("kind") == "resource", "resource")
        if "proposal" in component:
            need(name == "text", "proposal")
            proposal = component["proposal"]
            _members(proposal, {"domain"}, {"rows"})
            if proposal["domain"] == "indexed":
                need(_integer(proposal.get("rows"), 1), "proposal rows")
            else:
                need(proposal == {"domain": "full"}, "proposal")
    name = directory.get("metadata", {}).get("name", "-")
    need(isinstance(name, str) and name, "the public name")
    bindings = directory["bindings"]
    need(isinstance(bindings, dict), "bindings")
    for name, binding in bindings.items():
        _id(name)
        list(_spans(binding, records))
    need(isinstance(directory["uses"], list), "uses")
    pairs = set()
    for use in directory["uses"]:
        _members(use, {"parameter", "input"}, {"activation_policy", "auxiliaries"})
        _id(use["input"])
        need(isinstance(use["parameter"], str) and use["parameter"] in bindings, "parameter")
        need(use.get("activation_policy", "A16Only") in {"A16Only", "AllowA8", "AllowA4"}, "policy")
        need((use["parameter"], use["input"]) not in pairs, "a use twice")
        pairs.add((use["parameter"], use["input"]))
        need(isinstance(use.get("auxiliaries", {}), dict), "auxiliaries")
        held = [records[id] for id, _, _ in _spans(bindings[use["parameter"]], records)]
        for role, binding in use.get("auxiliaries", {}).items():
            _auxiliary(role, binding, records, held, payload)


def _spans(binding: Any, records: dict[str, dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    _members(binding, set(), {"object", "parts"})
    need(len(binding) == 1, "object or parts")
    parts = binding.get("parts", [{"object": binding.get("object"), "range": None}])
    need(isinstance(parts, list) and parts, "parts")
    for part in parts:
        if "parts" in binding:
            _members(part, {"object", "range"}, set())
        record = records.get(part["object"], {}) if isinstance(part["object"], str) else {}
        need(record.get("kind") == "tensor", "a bound tensor")
        elements = 1
        for dimension in record["shape"]:
            elements *= dimension
        span = part["range"] if "parts" in binding else [0, elements]
        need(isinstance(span, list) and len(span) == 2 and _integer(span[0], 0) and _integer(span[1], 0), "range")
        need(span[0] < span[1] <= elements, "range")
        yield part["object"], span[0], span[1]


def _auxiliary(
    role: str, binding: Any, records: dict[str, dict[str, Any]], held: list[dict[str, Any]], payload: bytes
) -> None:
    wanted = {"activation_input_divisor": "fp32", "hadamard_signs": "bf16", "input_columns": "int32"}
    need(role in wanted, "role")
    spans = list(_spans(binding, records))
    need(all(records[id]["format"] == wanted[role] for id, _, _ in spans), "auxiliary format")
    columns = {record["shape"][-1] for record in held}
    need(len(columns) == 1, "rows of one length")
    (k,) = columns
    words: list[int] = []
    for id, begin, end in spans:
        width = 2 if role == "hadamard_signs" else 4
        at = records[id]["offset"]
        words += [int.from_bytes(payload[at + width * i :][:width], "little") for i in range(begin, end)]
    if "object" in binding:
        shape = records[binding["object"]]["shape"]
        need(shape == ([] if role == "activation_input_divisor" else [k]), "auxiliary shape")
    if role == "activation_input_divisor":
        need(len(words) == 1 and 0 < words[0] < 0x7F800000, "divisor")
    elif role == "hadamard_signs":
        need(len(words) == k and k % 1024 == 0 and set(words) <= {0x3F80, 0xBF80}, "signs")
    else:
        need(all(record["format"] in GGUF for record in held), "columns of blocks")
        need(sorted(words) == list(range(k)), "permutation")
