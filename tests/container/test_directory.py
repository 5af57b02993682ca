"""The closed schema: a table of broken directories, each with the JSON path that the error must name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer_builder as build
from quantform._strict_json import MAX_DEPTH
from quantform.container import Artifact, Component, Directory, FileRecord, IndexedProposal, ResourceRecord
from quantform.container.directory import encode_directory, parse_directory
from quantform.errors import ArgumentError, ArtifactError

U64 = 2**64 - 1
Change = Callable[[dict[str, Any]], object]


def _set(*keys: Any, value: Any) -> Change:
    def change(directory: dict[str, Any]) -> None:
        target: Any = directory
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def _del(*keys: Any) -> Change:
    def change(directory: dict[str, Any]) -> None:
        target: Any = directory
        for key in keys[:-1]:
            target = target[key]
        del target[keys[-1]]

    return change


def _second_file(**members: Any) -> Change:
    record = {"path": "second", "payload_bytes": 1, **members}
    return lambda directory: directory["files"].append(record)


BROKEN: dict[str, tuple[Change, str, str]] = {
    # root
    "no components": (_del("components"), "$", "'components' is missing"),
    "no objects": (_del("objects"), "$", "'objects' is missing"),
    "no bindings": (_del("bindings"), "$", "'bindings' is missing"),
    "no uses": (_del("uses"), "$", "'uses' is missing"),
    "no files": (_del("files"), "$", "'files' is missing"),
    "unknown root member": (_set("object", value=[]), "$.object", "unknown member. Did you mean 'objects'"),
    "null root member": (_set("metadata", value=None), "$.metadata", "is null"),
    "objects is an object": (_set("objects", value={}), "$.objects", "expected array, found an object"),
    "objects is empty": (_set("objects", value=[]), "$.objects", "empty"),
    "bindings is an array": (_set("bindings", value=[]), "$.bindings", "expected object"),
    "uses is a string": (_set("uses", value="x"), "$.uses", 'expected array, found "x"'),
    "files is empty": (_set("files", value=[]), "$.files", "empty"),
    "components is empty": (_set("components", value={}), "$.components", "no component"),
    "provenance is an array": (_set("provenance", value=[]), "$.provenance", "expected object"),
    "empty public name": (_set("metadata", "name", value=""), "$.metadata.name", "nonempty string"),
    "public name is a number": (_set("metadata", "name", value=3), "$.metadata.name", "found 3"),
    # files
    "entry with a path": (_set("files", 0, "path", value="m"), "$.files[0].path", "no path"),
    "file without path": (_del("files", 0, "path"), "$.files[0]", "'path' is missing"),
    "part without name": (_second_file(path=None), "$.files[1].path", "only the entry"),
    "part name empty": (_second_file(path=""), "$.files[1].path", "not the name of a file"),
    "part name dot": (_second_file(path="."), "$.files[1].path", "not the name of a file"),
    "part name dots": (_second_file(path=".."), "$.files[1].path", "not the name of a file"),
    "part name slash": (_second_file(path="../x"), "$.files[1].path", "not the name of a file"),
    "part name backslash": (_second_file(path="a\\b"), "$.files[1].path", "not the name of a file"),
    "part name NUL": (_second_file(path="a\0b"), "$.files[1].path", "not the name of a file"),
    "part name of the entry": (_second_file(path="m.ninfer"), "$.files[1].path", "another file"),
    "part name twice": (
        lambda directory: [_second_file()(directory), _second_file()(directory)],
        "$.files[2].path",
        "another file",
    ),
    "no payload in a file": (_set("files", 0, "payload_bytes", value=0), "$.files[0].payload_bytes", "int >= 1"),
    "payload is a float": (_set("files", 0, "payload_bytes", value=1024.0), "$.files[0].payload_bytes", "found 1024.0"),
    "payload leaves U64": (_set("files", 0, "payload_bytes", value=U64 + 1), "$.files[0].payload_bytes", "64 bits"),
    "file leaves U64": (_set("files", 0, "payload_bytes", value=U64), "$.files[0].payload_bytes", "64 bits"),
    "sum leaves U64": (
        lambda directory: [
            _set("files", 0, "payload_bytes", value=2**63)(directory),
            _second_file(payload_bytes=2**63)(directory),
        ],
        "$.files[1].payload_bytes",
        "64 bits",
    ),
    "unknown file member": (_set("files", 0, "sha", value="x"), "$.files[0].sha", "unknown member"),
    # objects
    "object is null": (_set("objects", 0, value=None), "$.objects[0]", "expected object, found null"),
    "no kind": (_del("objects", 0, "kind"), "$.objects[0]", "'kind' is missing"),
    "unknown kind": (_set("objects", 0, "kind", value="blob"), "$.objects[0].kind", "tensor or resource"),
    "kind is an array": (_set("objects", 0, "kind", value=[]), "$.objects[0].kind", "an array of 0"),
    "unknown tensor member": (_set("objects", 0, "encoding", value="x"), "$.objects[0].encoding", "unknown member"),
    "odd member name": (_set("objects", 0, "a b", value=1), '$.objects[0]["a b"]', "unknown member"),
    "no layout": (_del("objects", 0, "layout"), "$.objects[0]", "'layout' is missing"),
    "null divisors": (_set("objects", 0, "divisors", value=None), "$.objects[0].divisors", "is null"),
    "id is a number": (_set("objects", 0, "id", value=1), "$.objects[0].id", "expected str, found 1"),
    "id is empty": (_set("objects", 0, "id", value=""), "$.objects[0].id", "empty or holds U+0000"),
    "id with NUL": (_set("objects", 0, "id", value="a\0"), "$.objects[0].id", "empty or holds U+0000"),
    "format is empty": (_set("objects", 0, "format", value=""), "$.objects[0].format", "empty"),
    "id twice": (_set("objects", 2, "id", value="a"), "$.objects[2].id", "two objects have one id"),
    "shape is null": (_set("objects", 0, "shape", value=None), "$.objects[0].shape", "is null"),
    "shape of rank 17": (_set("objects", 0, "shape", value=[1] * 17), "$.objects[0].shape", "length <= 16"),
    "zero dimension": (_set("objects", 0, "shape", value=[4, 0]), "$.objects[0].shape[1]", "int >= 1, found 0"),
    "boolean dimension": (
        _set("objects", 0, "shape", value=[True]),
        "$.objects[0].shape[0]",
        "expected int, found true",
    ),
    "float dimension": (_set("objects", 0, "shape", value=[4.0]), "$.objects[0].shape[0]", "expected int, found 4.0"),
    "elements leave U64": (_set("objects", 0, "shape", value=[2**32, 2**32]), "$.objects[0].shape", "64 bits"),
    "negative offset": (_set("objects", 0, "offset", value=-1), "$.objects[0].offset", "int >= 0, found -1"),
    "boolean offset": (_set("objects", 0, "offset", value=False), "$.objects[0].offset", "expected int, found false"),
    "offset is text": (_set("objects", 0, "offset", value="0"), "$.objects[0].offset", 'expected int, found "0"'),
    "no bytes": (_set("objects", 0, "bytes", value=0), "$.objects[0].bytes", "int >= 1, found 0"),
    "overlap": (_set("objects", 1, "offset", value=255), "$.objects[1].offset", "at least 256, found 255"),
    "falling offsets": (_set("objects", 2, "offset", value=0), "$.objects[2].offset", "at least 384"),
    "beyond the payload": (_set("objects", 2, "bytes", value=641), "$.objects[2]", "exceeds payload"),
    "end leaves U64": (_set("objects", 2, "bytes", value=U64), "$.objects[2]", "exceeds payload"),
    "end far beyond U64": (_set("objects", 2, "offset", value=10**4000), "$.objects[2]", "exceeds payload"),
    "divisors of bf16": (_set("objects", 0, "divisors", value=2), "$.objects[0].divisors", "has no divisors"),
    "zero divisors": (_set("objects", 0, "divisors", value=0), "$.objects[0].divisors", "int >= 1"),
    "resource encoding": (_set("objects", 2, "encoding", value="zip"), "$.objects[2].encoding", "raw_bytes_v1"),
    "resource with shape": (_set("objects", 2, "shape", value=[5]), "$.objects[2].shape", "unknown member"),
    # components
    "component is a string": (_set("components", "text", value="x"), "$.components.text", "expected object"),
    "no config": (_del("components", "text", "config"), "$.components.text", "'config' is missing"),
    "config is null": (_set("components", "text", "config", value=None), "$.components.text.config", "is null"),
    "config is an array": (_set("components", "text", "config", value=[]), "$.components.text.config", "object"),
    "component id empty": (_set("components", "", value={"config": {}}), '$.components[""]', "an id is empty"),
    "no such target": (
        _set("components", "mtp", "target", value="test"),
        "$.components.mtp.target",
        "no such component; found \"test\". Did you mean 'text'",
    ),
    "null target": (_set("components", "mtp", "target", value=None), "$.components.mtp.target", "is null"),
    "no such resource": (
        _set("components", "text", "resources", "template", value="chot"),
        "$.components.text.resources.template",
        "no such object",
    ),
    "resource is a tensor": (
        _set("components", "text", "resources", "template", value="a"),
        "$.components.text.resources.template",
        "not a resource",
    ),
    "resource id is a number": (
        _set("components", "text", "resources", "template", value=7),
        "$.components.text.resources.template",
        "found 7",
    ),
    "resources is null": (_set("components", "text", "resources", value=None), "$.components.text.resources", "null"),
    "proposal elsewhere": (
        _set("components", "mtp", "proposal", value={"domain": "full"}),
        "$.components.mtp.proposal",
        "only component 'text'",
    ),
    "proposal domain": (
        _set("components", "text", "proposal", value={"domain": "half"}),
        "$.components.text.proposal.domain",
        "full or indexed",
    ),
    "full proposal with rows": (
        _set("components", "text", "proposal", value={"domain": "full", "rows": 1}),
        "$.components.text.proposal",
        "unknown field 'rows'",
    ),
    "indexed proposal without rows": (
        _set("components", "text", "proposal", value={"domain": "indexed"}),
        "$.components.text.proposal",
        "missing required field 'rows'",
    ),
    "indexed proposal of zero rows": (
        _set("components", "text", "proposal", value={"domain": "indexed", "rows": 0}),
        "$.components.text.proposal.rows",
        "int >= 1, found 0",
    ),
    "indexed proposal beyond U64": (
        _set("components", "text", "proposal", value={"domain": "indexed", "rows": U64 + 1}),
        "$.components.text.proposal.rows",
        "64 bits",
    ),
    # bindings
    "binding name empty": (_set("bindings", "", value={"object": "a"}), '$.bindings[""]', "an id is empty"),
    "binding of nothing": (_set("bindings", "w", value={}), "$.bindings.w", "found neither"),
    "binding of both": (
        _set("bindings", "w", "parts", value=[{"object": "a", "range": [0, 1]}]),
        "$.bindings.w",
        "found both",
    ),
    "binding is an array": (_set("bindings", "w", value=[]), "$.bindings.w", "expected object"),
    "binding to nothing": (_set("bindings", "w", "object", value="z"), "$.bindings.w.object", "no such object"),
    "binding to a resource": (_set("bindings", "w", "object", value="chat"), "$.bindings.w.object", "not a tensor"),
    "dotted name in a path": (
        _set("bindings", "blk.0.norm", "object", value="z"),
        '$.bindings["blk.0.norm"].object',
        "no such object",
    ),
    "no parts": (_set("bindings", "w.top", "parts", value=[]), '$.bindings["w.top"].parts', "empty"),
    "part of nothing": (
        _set("bindings", "w.top", "parts", 0, "object", value="z"),
        '$.bindings["w.top"].parts[0].object',
        "no such object",
    ),
    "empty range": (
        _set("bindings", "w.top", "parts", 0, "range", value=[5, 5]),
        '$.bindings["w.top"].parts[0].range',
        "0 <= begin < end <= 128, found [5, 5]",
    ),
    "range beyond the object": (
        _set("bindings", "w.top", "parts", 0, "range", value=[0, 129]),
        '$.bindings["w.top"].parts[0].range',
        "0 <= begin < end <= 128, found [0, 129]",
    ),
    "range of three": (
        _set("bindings", "w.top", "parts", 0, "range", value=[0, 1, 2]),
        '$.bindings["w.top"].parts[0].range',
        "array of length 2",
    ),
    "negative range": (
        _set("bindings", "w.top", "parts", 0, "range", value=[-1, 2]),
        '$.bindings["w.top"].parts[0].range[0]',
        "int >= 0",
    ),
    "range of floats": (
        _set("bindings", "w.top", "parts", 0, "range", value=[0, 1.0]),
        '$.bindings["w.top"].parts[0].range[1]',
        "found 1.0",
    ),
    # uses
    "use of nothing": (_set("uses", 0, "parameter", value="W"), "$.uses[0].parameter", "no such binding"),
    "use without input": (_del("uses", 0, "input"), "$.uses[0]", "'input' is missing"),
    "input is empty": (_set("uses", 0, "input", value=""), "$.uses[0].input", "an id is empty"),
    "pair twice": (_set("uses", 1, "input", value="x"), "$.uses[1]", "occurs twice; found the same pair in $.uses[0]"),
    "unknown policy": (
        _set("uses", 0, "activation_policy", value="a16only"),
        "$.uses[0].activation_policy",
        'A16Only or AllowA8 or AllowA4, found "a16only"',
    ),
    "null policy": (_set("uses", 0, "activation_policy", value=None), "$.uses[0].activation_policy", "is null"),
    "unknown role": (
        _set("uses", 1, "auxiliaries", value={"signs": {"object": "b"}}),
        "$.uses[1].auxiliaries.signs",
        "the role is not known",
    ),
    "auxiliary of nothing": (
        _set("uses", 1, "auxiliaries", value={"input_columns": {"object": "z"}}),
        "$.uses[1].auxiliaries.input_columns.object",
        "no such object",
    ),
    "auxiliaries is null": (_set("uses", 1, "auxiliaries", value=None), "$.uses[1].auxiliaries", "is null"),
    "null in an auxiliary": (
        _set("uses", 1, "auxiliaries", value={"input_columns": {"object": "b", "parts": None}}),
        "$.uses[1].auxiliaries.input_columns.parts",
        "is null",
    ),
    "use is a number": (_set("uses", 0, value=1), "$.uses[0]", "expected object, found 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_directories(tmp_path: Path, case: str) -> None:
    change, path, message = BROKEN[case]
    directory = build.small_directory()
    change(directory)
    file = build.Artifact(directory=directory).write(tmp_path / "m.ninfer")
    with pytest.raises(ArtifactError) as caught:
        Artifact(file)
    assert caught.value.where == f"{file}, {path}"
    assert message in str(caught.value)


def _text(change: Callable[[str], str]) -> bytes:
    return change(json.dumps(build.small_directory())).encode()


def _config(value: str) -> bytes:
    return _text(lambda text: text.replace('{"layers": 1}', f'{{"layers": {value}}}'))


BROKEN_JSON: dict[str, tuple[bytes, str, str]] = {
    "not JSON": (b"{", "JSON character 1", "not JSON"),
    "white space only": (b"   ", "JSON character 3", "not JSON"),
    "an array": (b"[]", "$", "expected object, found an array of 0"),
    "null": (b"null", "$", "expected object, found null"),
    "not UTF-8": (_config('"x"').replace(b"x", b"\xff"), "JSON byte", "not UTF-8"),
    "overlong UTF-8": (_config('"x"').replace(b'"x"', b'"\xc0\x80"'), "JSON byte", "not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "JSON character 0", "not JSON"),
    "something after": (_text(lambda text: text + "x"), "JSON character", "not JSON"),
    "NUL after": (_text(lambda text: text + "\0"), "JSON character", "not JSON"),
    "NaN": (_config("NaN"), "$.components.text.config.layers", "not a number of JSON; found NaN"),
    "infinity": (_config("-Infinity"), "$.components.text.config.layers", "found -Infinity"),
    "number out of range": (_config("1e400"), "$.components.text.config.layers", "out of range; found 1e400"),
    "endless integer": (_config("9" * 10_000), "m.ninfer", "thousands of digits"),
    "half a surrogate pair": (_config('["\\ud800"]'), "$.components.text.config.layers[0]", "U+D800"),
    "half a surrogate in a name": (_config('{"\\uDC00": 1}'), "$.components.text.config.layers", "U+DC00"),
    "root member twice": (
        _text(lambda text: text[:-1] + ', "uses": []}'),
        "$",
        'occurs twice in one object; found "uses"',
    ),
    "deep member twice": (_config('[{"b": [0, {"a": 1, "a": 1}]}]'), "$.components.text.config.layers[0].b[1]", '"a"'),
    "escaped member twice": (_config('{"a": 1, "\\u0061": 1}'), "$.components.text.config.layers", '"a"'),
    "binding twice": (
        _text(lambda text: text.replace('"w.top"', '"w"')),
        "$.bindings",
        'a member occurs twice in one object; found "w"',
    ),
    "nested deeply": (_config("[" * 200 + "]" * 200), "m.ninfer", "nests too deeply"),
    "nested beyond recursion": (_config("[" * 100_000 + "]" * 100_000), "m.ninfer", "nests too deeply"),
    "objects nested beyond recursion": (_config('{"a":' * 50_000 + "0" + "}" * 50_000), "m.ninfer", "nests too deeply"),
}


@pytest.mark.parametrize("case", BROKEN_JSON)
def test_broken_json(tmp_path: Path, case: str) -> None:
    text, place, message = BROKEN_JSON[case]
    file = build.Artifact(json=text).write(tmp_path / "m.ninfer")
    with pytest.raises(ArtifactError) as caught:
        Artifact(file)
    where = caught.value.where or ""
    assert where.startswith(str(file))
    assert place in where
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 500


@pytest.mark.parametrize(
    "change",
    [
        _set("components", "text", "config", value={"deep": json.loads("[" * (MAX_DEPTH - 4) + "]" * (MAX_DEPTH - 4))}),
        _set("components", "text", "config", value={"number": 10**40, "real": 1.5, "none": None, "text": "\U0001f600"}),
        _set("components", value={"ngram": {"config": {}}}),
        _set("components", "text", "proposal", value={"domain": "indexed", "rows": U64}),
        _set("objects", 0, "shape", value=[]),
        _set("objects", 0, "shape", value=[1] * 15 + [U64]),
        _set("objects", 0, "format", value="of another time"),
        _set("uses", value=[]),
        _set("bindings", "w", value={"parts": [{"object": "a", "range": [3, 9]}, {"object": "a", "range": [0, 128]}]}),
        _del("metadata"),
        _del("provenance"),
        _set("objects", 2, "bytes", value=640),
    ],
)
def test_directories_that_are_right(tmp_path: Path, change: Change) -> None:
    directory = build.small_directory()
    directory["uses"] = []
    del directory["bindings"]["w.top"]
    del directory["components"]["mtp"]
    change(directory)
    with Artifact(build.Artifact(directory=directory).write(tmp_path / "m.ninfer")) as artifact:
        assert artifact.objects


def _parse(raw: bytes) -> Directory:
    return parse_directory(raw, where="m.ninfer", entry_name="m.ninfer")


def test_encoding_is_compact_and_in_order() -> None:
    directory = Directory(
        components={"text": Component(config={"é": 1.5, "on": True}, proposal=IndexedProposal(rows=3))},
        objects=(ResourceRecord(id="r", encoding="raw_bytes_v1", offset=0, nbytes=2),),
        bindings={},
        uses=(),
        files=(FileRecord(path=None, payload_bytes=2),),
    )
    assert encode_directory(directory).decode() == (
        '{"components":{"text":{"config":{"é":1.5,"on":true},"proposal":{"rows":3,"domain":"indexed"}}},'
        '"objects":[{"id":"r","encoding":"raw_bytes_v1","offset":0,"bytes":2,"kind":"resource"}],'
        '"bindings":{},"uses":[],"files":[{"path":null,"payload_bytes":2}]}'
    )
    assert _parse(encode_directory(directory)) == directory


def test_parsing_and_encoding_are_inverse() -> None:
    raw = json.dumps(build.small_directory()).encode()
    directory = _parse(raw)
    assert json.loads(encode_directory(directory)) == build.small_directory()
    assert _parse(encode_directory(directory)) == directory


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON_VALUES))
def test_open_content_passes_unchanged(config: dict[str, Any]) -> None:
    directory = build.small_directory()
    directory["components"]["text"]["config"] = config
    parsed = _parse(json.dumps(directory).encode())
    assert repr(parsed.components["text"].config) == repr(config)
    assert repr(_parse(encode_directory(parsed)).components["text"].config) == repr(config)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, "\ud800", [10**5000]])
def test_what_json_cannot_hold_is_refused_when_encoded(value: object) -> None:
    directory = _parse(json.dumps(build.small_directory()).encode())
    directory.components["text"].config["x"] = value
    with pytest.raises(ArgumentError, match="not JSON"):
        encode_directory(directory)


def test_endless_nesting_is_refused_when_encoded() -> None:
    directory = _parse(json.dumps(build.small_directory()).encode())
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    directory.components["text"].config["x"] = deep
    with pytest.raises(ArgumentError, match="not JSON"):
        encode_directory(directory)
    circle: list[Any] = []
    circle.append(circle)
    directory.components["text"].config["x"] = circle
    with pytest.raises(ArgumentError, match="not JSON"):
        encode_directory(directory)


@given(st.data())
def test_any_value_anywhere_gives_a_directory_or_an_error_of_ours(data: st.DataObject) -> None:
    directory = build.small_directory()
    target: Any = directory
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        inner = target[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        target = inner
    target[key] = data.draw(
        JSON_VALUES | st.sampled_from([0, 1, 2, 127, 128, 255, 256, 1024, U64, U64 + 1, "a", "b", "chat", "text", "w"])
    )
    where: str | None = "m.ninfer, $"
    try:
        _parse(json.dumps(directory).encode())
    except ArtifactError as error:
        where = error.where
    assert (where or "").startswith("m.ninfer, $")
