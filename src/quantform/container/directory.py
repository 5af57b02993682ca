"""The directory of an artifact: a closed schema, read strictly and written compactly.

`parse_directory` checks everything that can be checked without knowing a model, a format or a layout and without
touching a payload: members and their types, integers, ranges, order, overlap, ids and references. What an object's
`format`, `layout`, `bytes` and alignment mean together is checked when the object is used, so that artifacts with
formats of a later time can still be listed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from quantform._registry import near_matches
from quantform._sizes import U64_MAX, product
from quantform._strict_json import member_path, parse_json, shorten
from quantform.container.header import PAGE, entry_payload_start
from quantform.errors import ArgumentError, ArtifactError

__all__ = [
    "ACTIVATION_POLICIES",
    "AUXILIARY_ROLES",
    "Binding",
    "Component",
    "Directory",
    "FileRecord",
    "FullProposal",
    "IndexedProposal",
    "ObjectRecord",
    "Part",
    "ResourceRecord",
    "TensorRecord",
    "Use",
    "encode_directory",
    "parse_directory",
]

ACTIVATION_POLICIES = ("A16Only", "AllowA8", "AllowA4")
AUXILIARY_ROLES = ("activation_input_divisor", "hadamard_signs", "input_columns")
MAX_RANK = 16

Unsigned = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class FullProposal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="domain", tag="full"):
    """A proposal head over the whole vocabulary."""


class IndexedProposal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="domain", tag="indexed"):
    """A proposal head over `rows` chosen entries of the vocabulary."""

    rows: Positive


class Component(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of the artifact.

    Attributes:
        config: What the model's program needs to know; open content.
        target: The component that this one drafts for or belongs to.
        resources: Role to the id of a resource object.
        proposal: Of component `text` only.
    """

    config: dict[str, Any]
    target: str | None = None
    resources: dict[str, str] = {}
    proposal: FullProposal | IndexedProposal | None = None


class TensorRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="tensor"):
    """One stored tensor; `nbytes` is the directory's `bytes`, `offset` counts from the start of the payload."""

    id: str
    shape: Annotated[tuple[Positive, ...], Meta(max_length=MAX_RANK)]
    format: str
    layout: str
    offset: Unsigned
    nbytes: Positive = field(name="bytes")
    divisors: Positive = 1

    @property
    def elements(self) -> int:
        """Logical elements: padding and scales are none."""
        return product(self.shape)


class ResourceRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="resource"):
    """One stored byte string."""

    id: str
    encoding: Literal["raw_bytes_v1"]
    offset: Unsigned
    nbytes: Positive = field(name="bytes")


ObjectRecord = TensorRecord | ResourceRecord


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Elements `[begin, end)` of an object, in C order."""

    object: str
    range: tuple[Unsigned, Unsigned]


class Binding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a parameter is made of: one whole object of the parameter's own shape, or parts that are joined."""

    object: str | None = None
    parts: tuple[Part, ...] | None = None


class Use(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a parameter meets one of its inputs."""

    parameter: str
    input: str
    activation_policy: Literal["A16Only", "AllowA8", "AllowA4"] | None = None
    auxiliaries: dict[str, Binding] = {}


class FileRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the artifact; the entry has no path."""

    path: str | None
    payload_bytes: Positive


class Directory(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole directory, checked."""

    components: dict[str, Component]
    objects: tuple[ObjectRecord, ...]
    bindings: dict[str, Binding]
    uses: tuple[Use, ...]
    metadata: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None
    files: tuple[FileRecord, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload."""
        return sum(file.payload_bytes for file in self.files)


class _Place(NamedTuple):
    """A place in the directory of a file, to blame; its path is spelled out only when it is."""

    file: str
    outer: _Place | None = None
    key: str | int = "$"

    def __truediv__(self, key: str | int) -> _Place:
        return _Place(self.file, self, key)

    @property
    def path(self) -> str:
        if self.outer is None:
            return "$"
        return f"{self.outer.path}[{self.key}]" if isinstance(self.key, int) else member_path(self.outer.path, self.key)

    def error(
        self, problem: str, *, expected: object = None, found: object = None, hint: str | None = None
    ) -> ArtifactError:
        return ArtifactError(problem, where=f"{self.file}, {self.path}", expected=expected, found=found, hint=hint)


def parse_directory(raw: bytes, *, where: str, entry_name: str) -> Directory:
    """The directory in `raw`, once it is known to obey the schema.

    Args:
        raw: UTF-8 JSON; trailing white space is part of it.
        where: The entry file, for errors.
        entry_name: The entry's file name, which no part may bear.

    Raises:
        ArtifactError: With the JSON path of the first fault.
    """
    root = _Place(where)
    document = parse_json(raw, where, what="directory", error=ArtifactError)
    _check_members(document, Directory, root, nullable=())
    files = tuple(
        _record(value, FileRecord, place, nullable=("path",)) for value, place in _items(document, "files", root)
    )
    payload_bytes = _check_files(files, root / "files", entry_payload_start(len(raw)), entry_name)
    objects = tuple(_object(value, place) for value, place in _items(document, "objects", root))
    records = _check_objects(objects, root / "objects", payload_bytes)
    components = {
        name: _component(value, place, records) for name, value, place in _members(document, "components", root)
    }
    _check_components(components, root / "components")
    bindings = {name: _binding(value, place, records) for name, value, place in _members(document, "bindings", root)}
    uses = tuple(_use(value, place, records) for value, place in _items(document, "uses", root, empty=True))
    _check_uses(uses, root / "uses", bindings)
    metadata = _open_object(document, "metadata", root)
    if metadata is not None and "name" in metadata:
        name = metadata["name"]
        if not isinstance(name, str) or not name:
            raise (root / "metadata" / "name").error("the public name is not a nonempty string", found=_show(name))
    return Directory(
        components=components,
        objects=objects,
        bindings=bindings,
        uses=uses,
        metadata=metadata,
        provenance=_open_object(document, "provenance", root),
        files=files,
    )


def encode_directory(directory: Directory) -> bytes:
    """Compact UTF-8 JSON of a directory, `files` last.

    Raises:
        ArgumentError: Open content holds what JSON cannot: NaN, infinities, bytes, half surrogates, endless nesting.
    """
    try:
        text = json.dumps(
            directory, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True
        )
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            "config, metadata or provenance is not JSON",
            found=shorten(str(error)),
            hint="Use strings, numbers, lists, dicts",
        ) from None


@functools.cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, str, object], ...]:
    """`(attribute, member, value that is left out)` of a record."""
    fields = []
    for one in msgspec.structs.fields(kind):
        default: object = one.default_factory() if callable(one.default_factory) else one.default
        fields.append((one.name, one.encode_name, default))
    return tuple(fields)


def _plain(record: object) -> dict[str, Any]:
    if not isinstance(record, Struct):
        raise TypeError(f"{type(record).__name__} {shorten(repr(record))}")
    members = {
        member: value
        for name, member, default in _fields(type(record))
        if (value := getattr(record, name)) is not default and value != default
    }
    config = record.__struct_config__
    if config.tag_field is not None:
        members[config.tag_field] = config.tag
    return members


# --- one record ---------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=Struct)
_MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_CHOICES = {
    "activation_policy": " or ".join(ACTIVATION_POLICIES),
    "encoding": "raw_bytes_v1",
    "domain": "full or indexed",
}


def _record(value: object, kind: type[T], place: _Place, *, nullable: tuple[str, ...] = ()) -> T:
    """`value` as a record, with msgspec's complaint made one of ours."""
    _check_members(value, kind, place, nullable)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _translated(str(error), value, place) from None


def _check_members(value: object, kind: type[Struct], place: _Place, nullable: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise place.error("not an object", expected="object", found=_show(value))
    known = _known(kind)
    for name, member in value.items():
        if name not in known:
            raise (place / name).error("unknown member", hint=_near(name, known))
        if member is None and name not in nullable:
            raise (place / name).error("the member is null", expected="a value, or no such member")
    for name in _required(kind):
        if name not in value:
            raise place.error(f"member {name!r} is missing")


@functools.cache
def _known(kind: type[Struct]) -> tuple[str, ...]:
    tag = kind.__struct_config__.tag_field
    return tuple(one.encode_name for one in msgspec.structs.fields(kind)) + ((tag,) if tag else ())


@functools.cache
def _required(kind: type[Struct]) -> tuple[str, ...]:
    return tuple(one.encode_name for one in msgspec.structs.fields(kind) if one.required)


def _translated(message: str, value: Any, place: _Place) -> ArtifactError:  # noqa: ANN401 - any JSON value
    match = _MESSAGE.match(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    found: Any = value
    last = ""
    for name, index in _STEP.findall(path):
        last = name or last
        place = place / (name or int(index))
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError):
            return place.error(text)
    if text.startswith("Expected "):
        expected = text.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
        return place.error("the value does not fit", expected=expected, found=_show(found))
    if text.startswith("Invalid "):
        return place.error("the value is not known", expected=_CHOICES.get(last), found=_show(found))
    return place.error(shorten(text.replace("`", "'")))


def _show(value: object) -> str:
    """A short JSON picture of a found value."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return shorten(json.dumps(value))


def _near(name: str, known: Iterable[str]) -> str:
    return near_matches(shorten(name), islice(known, 10_000))  # comparing with a million names would take minutes


def _items(
    document: Mapping[str, Any], name: str, root: _Place, *, empty: bool = False
) -> Iterator[tuple[Any, _Place]]:
    values, place = document[name], root / name
    if not isinstance(values, list):
        raise place.error("the value does not fit", expected="array", found=_show(values))
    if not values and not empty:
        raise place.error("the array is empty")
    return ((value, place / index) for index, value in enumerate(values))


def _members(document: Mapping[str, Any], name: str, root: _Place) -> Iterator[tuple[str, Any, _Place]]:
    values, place = document[name], root / name
    if not isinstance(values, dict):
        raise place.error("the value does not fit", expected="object", found=_show(values))
    return ((_id(key, place / key), value, place / key) for key, value in values.items())


def _open_object(document: Mapping[str, Any], name: str, root: _Place) -> dict[str, Any] | None:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise (root / name).error("the value does not fit", expected="object", found=_show(value))
    return value


def _id(value: str, place: _Place) -> str:
    if not value or "\0" in value:
        raise place.error("an id is empty or holds U+0000", found=_show(value))
    return value


def _within_u64(value: int, place: _Place) -> None:
    if value > U64_MAX:
        raise place.error("the integer leaves unsigned 64 bits", found=shorten(str(value)))


# --- files and objects --------------------------------------------------------------------------------------------


def _check_files(files: tuple[FileRecord, ...], place: _Place, entry_start: int, entry_name: str) -> int:
    """Check names and sizes, and return the bytes of the payload."""
    names = {entry_name}
    total = 0
    for index, file in enumerate(files):
        total += file.payload_bytes
        _within_u64(total, place / index / "payload_bytes")
        _within_u64(file.payload_bytes + (PAGE if index else entry_start), place / index / "payload_bytes")
        name, here = file.path, place / index / "path"
        if index == 0:
            if name is not None:
                raise here.error("the first file is the entry and has no path", expected="null", found=_show(name))
            continue
        if name is None:
            raise here.error("only the entry has no path", expected="a file name", found="null")
        if not name or name in {".", ".."} or any(mark in name for mark in "/\\\0"):
            raise here.error("not the name of a file beside the entry", found=_show(name))
        if name in names:
            raise here.error("the name belongs to another file of the artifact", found=_show(name))
        names.add(name)
    return total


def _object(value: object, place: _Place) -> ObjectRecord:
    if not isinstance(value, dict):
        raise place.error("not an object", expected="object", found=_show(value))
    if "kind" not in value:
        raise place.error("member 'kind' is missing")
    kind = value["kind"]
    if kind == "tensor":
        return _record(value, TensorRecord, place)
    if kind == "resource":
        return _record(value, ResourceRecord, place)
    raise (place / "kind").error("the value is not known", expected="tensor or resource", found=_show(kind))


def _check_objects(objects: tuple[ObjectRecord, ...], place: _Place, payload_bytes: int) -> dict[str, ObjectRecord]:
    """Check ids, shapes and ranges, and return the objects by id."""
    records: dict[str, ObjectRecord] = {}
    end = 0
    for index, record in enumerate(objects):
        here = place / index
        if _id(record.id, here / "id") in records:
            raise (here / "id").error("two objects have one id", found=_show(record.id))
        records[record.id] = record
        if record.offset < end:
            raise (here / "offset").error(
                "the object begins before the previous one ends", expected=f"at least {end}", found=record.offset
            )
        end = record.offset + record.nbytes
        if end > payload_bytes:
            raise here.error(
                "the object exceeds payload", expected=f"an end of at most {payload_bytes}", found=shorten(str(end))
            )
        if isinstance(record, TensorRecord):
            _check_tensor(record, here)
    return records


def _check_tensor(record: TensorRecord, place: _Place) -> None:
    _id(record.format, place / "format")
    _id(record.layout, place / "layout")
    _within_u64(record.elements, place / "shape")
    _within_u64(record.divisors, place / "divisors")
    if record.divisors > 1 and record.format != "nvfp4":
        raise (place / "divisors").error(
            f"format {shorten(record.format)} has no divisors", expected="1, or format nvfp4", found=record.divisors
        )


# --- components, bindings, uses -----------------------------------------------------------------------------------


def _component(value: object, place: _Place, records: Mapping[str, ObjectRecord]) -> Component:
    if isinstance(value, dict) and isinstance(roles := value.get("resources"), dict):
        for role, target in roles.items():
            here = place / "resources" / role
            _id(role, here)
            if not isinstance(target, str):
                raise here.error("the value does not fit", expected="str", found=_show(target))
            _resolved(target, ResourceRecord, here, records)
    component = _record(value, Component, place)
    if isinstance(component.proposal, IndexedProposal):
        _within_u64(component.proposal.rows, place / "proposal" / "rows")
    return component


def _check_components(components: Mapping[str, Component], place: _Place) -> None:
    if not components:
        raise place.error("there is no component")
    for name, component in components.items():
        if component.target is not None and component.target not in components:
            raise (place / name / "target").error(
                "there is no such component",
                found=_show(component.target),
                hint=_near(component.target, components),
            )
        if component.proposal is not None and name != "text":
            raise (place / name / "proposal").error("only component 'text' has a proposal")


def _binding(value: object, place: _Place, records: Mapping[str, ObjectRecord]) -> Binding:
    binding = _record(value, Binding, place)
    if (binding.object is None) == (binding.parts is None):
        raise place.error(
            "a binding has one of two members",
            expected="'object' or 'parts'",
            found="both" if binding.object else "neither",
        )
    if binding.object is not None:
        _resolved(binding.object, TensorRecord, place / "object", records)
    if binding.parts is not None:
        if not binding.parts:
            raise (place / "parts").error("the array is empty")
        total = 0
        for index, part in enumerate(binding.parts):
            here = place / "parts" / index
            elements = _resolved(part.object, TensorRecord, here / "object", records).elements
            begin, end = part.range
            if not begin < end <= elements:
                raise (here / "range").error(
                    "the range is not within the object",
                    expected=f"0 <= begin < end <= {elements}",
                    found=shorten(f"[{begin}, {end}]"),
                )
            total += end - begin
        _within_u64(total, place / "parts")
    return binding


R = TypeVar("R", TensorRecord, ResourceRecord)


def _resolved(id: str, kind: type[R], place: _Place, records: Mapping[str, ObjectRecord]) -> R:
    record = records.get(id)
    if record is None:
        raise place.error("there is no such object", found=_show(id), hint=_near(id, records))
    if not isinstance(record, kind):
        wanted = kind.__struct_config__.tag
        raise place.error(f"the object is not a {wanted}", found=_show(id))
    return record


def _use(value: object, place: _Place, records: Mapping[str, ObjectRecord]) -> Use:
    if isinstance(value, dict) and isinstance(roles := value.get("auxiliaries"), dict):
        for role, binding in roles.items():
            here = place / "auxiliaries" / role
            if role not in AUXILIARY_ROLES:
                raise here.error("the role is not known", expected=" or ".join(AUXILIARY_ROLES), found=_show(role))
            _binding(binding, here, records)
    return _record(value, Use, place)


def _check_uses(uses: tuple[Use, ...], place: _Place, bindings: Mapping[str, Binding]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for index, use in enumerate(uses):
        here = place / index
        _id(use.input, here / "input")
        if use.parameter not in bindings:
            raise (here / "parameter").error(
                "there is no such binding",
                found=_show(use.parameter),
                hint=_near(use.parameter, bindings),
            )
        first = seen.setdefault((use.parameter, use.input), index)
        if first != index:
            raise here.error("the pair of parameter and input occurs twice", found=f"the same pair in $.uses[{first}]")
