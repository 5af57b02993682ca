"""What a checkpoint's `quantization_config` says of each module's weight.

Tensors tell that a weight is quantized; the config tells what its scales mean, and may contradict them. Programs write
it in several dialects (`quant_method`): compressed-tensors with config groups, ModelOpt with an algorithm or groups,
and the FP8 configs of transformers. Methods beyond these are known by name, so that their tensors are never misread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantform.errors import FileError, QuantformError
from quantform.sources.conventions.patterns import Pattern, compile_glob, compile_regex

__all__ = ["QuantizationConfig", "Scheme", "find_config"]

Json = Mapping[str, Any]

_STRATEGIES = {"tensor", "channel", "group", "block", "tensor_group"}
_READABLE = {"compressed-tensors", "modelopt", "modelopt_fp4", "fp8", "fbgemm_fp8"}
_BLOCK_128 = (128, 128)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one module's weight is stored.

    Attributes:
        bits: Bits of a code.
        kind: `"float"` or `"int"`.
        strategy: `"tensor"`, `"channel"`, `"group"`, `"block"` or `"tensor_group"`.
        group_size: Columns under one scale, for the two group strategies.
        block: Rows and columns under one scale, for blocks.
        origin: The member of the config that says so.
    """

    bits: int
    kind: str
    strategy: str
    group_size: int | None = None
    block: tuple[int, int] | None = None
    origin: str = ""

    def __str__(self) -> str:
        size = f" of {self.group_size}" if self.group_size else f" of {list(self.block)}" if self.block else ""
        return f"{self.bits}-bit {self.kind}, strategy {self.strategy}{size}"


_PRESETS: dict[str, Scheme | None] = {
    "UNQUANTIZED": None,
    "FP8": Scheme(8, "float", "tensor"),
    "FP8_DYNAMIC": Scheme(8, "float", "channel"),
    "FP8_BLOCK": Scheme(8, "float", "block", block=_BLOCK_128),
    "NVFP4": Scheme(4, "float", "tensor_group", 16),
    "NVFP4A16": Scheme(4, "float", "tensor_group", 16),
    "MXFP4": Scheme(4, "float", "group", 32),
    "MXFP4A16": Scheme(4, "float", "group", 32),
    "MXFP4XFP8": Scheme(4, "float", "group", 32),
    "MXFP6A8": Scheme(6, "float", "group", 32),
    "MXFP6A16": Scheme(6, "float", "group", 32),
    "MXFP8": Scheme(8, "float", "group", 32),
    "MXFP8A16": Scheme(8, "float", "group", 32),
    "INT8": Scheme(8, "int", "channel"),
}
_PRESETS |= {
    f"W{bits}A{inputs}": Scheme(bits, "int", "group", 128) for bits in range(2, 9) for inputs in (4, 8, 16)
} | {"W4A16_ASYM": Scheme(4, "int", "group", 128), "W4AFP8": Scheme(4, "int", "group", 128)}

_ALGORITHMS: dict[str, Scheme | None] = {
    "NO_QUANT": None,
    "FP8": Scheme(8, "float", "tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(8, "float", "channel"),
    "FP8_PB_WO": Scheme(8, "float", "block", block=_BLOCK_128),
    "MXFP8": Scheme(8, "float", "group", 32),
    "NVFP4": Scheme(4, "float", "tensor_group", 16),
    "NVFP4_AWQ": Scheme(4, "float", "tensor_group", 16),
    "W4A16_NVFP4": Scheme(4, "float", "tensor_group", 16),
    "W4A8_NVFP4_FP8": Scheme(4, "float", "tensor_group", 16),
    "MXFP4": Scheme(4, "float", "group", 32),
    "W4A8_MXFP4_FP8": Scheme(4, "float", "group", 32),
    "W4A16_AWQ": Scheme(4, "int", "group", 128),
    "W4A8_AWQ": Scheme(4, "int", "group", 128),
    "W8A16": Scheme(8, "int", "channel"),
    "W4A16": Scheme(4, "int", "channel"),
    "W8A8_SQ_PER_CHANNEL": Scheme(8, "int", "channel"),
    "INT8_SQ": Scheme(8, "int", "channel"),
}
_MIXED = "MIXED_PRECISION"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A scheme, or None for weights left alone, and the modules that it holds for."""

    scheme: Scheme | None
    applies: Callable[[str], bool]


class QuantizationConfig:
    """A resolved config: asked for a module, it gives the module's scheme.

    Args:
        config: The `quantization_config` object.
        where: The file and member that it comes from, for errors.

    Attributes:
        method: Its `quant_method`.
        readable: Whether the method is one whose schemes are known here.

    Raises:
        FileError: A member has the wrong type or an impossible value.
        UnsupportedError: A pattern uses syntax that is not supported.
    """

    def __init__(self, config: Json, where: str) -> None:
        reader = _Reader(config, where)
        self.where = where
        self.method = reader.text(
            "quant_method", "modelopt" if "quant_algo" in config else "compressed-tensors"
        ).lower()
        self.readable = self.method in _READABLE
        self._ignored: list[Callable[[str], bool]] = []
        self._rules: list[_Rule] = []
        if not self.readable:
            return
        if self.method.startswith("modelopt"):
            self._read_modelopt(reader)
        elif self.method == "compressed-tensors":
            self._ignored.append(_targets(reader, "ignore"))
            self._rules = list(_groups(reader.member("config_groups", {})))
        else:
            self._read_fp8(reader)

    def scheme(self, module: str) -> Scheme | None:
        """The scheme of the weight of `module`; None where the config leaves it unquantized."""
        if any(ignored(module) for ignored in self._ignored):
            return None
        rule = next((rule for rule in self._rules if rule.applies(module)), None)
        return rule.scheme if rule is not None else None

    def _read_modelopt(self, reader: _Reader) -> None:
        for member in ("ignore", "exclude_modules"):
            self._ignored.append(_globs(reader, member))
        algorithm = reader.text("quant_algo", "")
        if algorithm == _MIXED:
            layers = reader.member("quantized_layers", {})
            for name in layers.names():
                layer = layers.member(name)
                scheme = _algorithm(layer, layer.text("quant_algo", ""))
                self._rules.append(_Rule(scheme, compile_glob(name).matches))
        elif algorithm:
            self._rules.append(_Rule(_algorithm(reader, algorithm), lambda _: True))
        else:
            self._rules = list(_groups(reader.member("config_groups", {})))

    def _read_fp8(self, reader: _Reader) -> None:
        for member in ("modules_to_not_convert", "ignored_layers"):
            names = reader.texts(member)
            plain = [name for name in names if not name.startswith("re:")]
            self._ignored.append(lambda module, plain=plain: _inside(module, plain))  # type: ignore[misc]
            self._ignored.append(_any(_regexes(reader, member, names)))
        block = reader.block("weight_block_size")
        if block is not None:
            scheme = Scheme(8, "float", "block", block=block, origin=reader.place("weight_block_size"))
        else:
            strategy = "channel" if self.method == "fbgemm_fp8" else "tensor"
            scheme = Scheme(8, "float", strategy, origin=reader.place("quant_method"))
        self._rules.append(_Rule(scheme, lambda _: True))


def find_config(config: Json, beside: Json | None, path: str) -> QuantizationConfig | None:
    """The quantization config of a checkpoint, wherever its program put it.

    Args:
        config: `config.json`.
        beside: ModelOpt's `hf_quant_config.json`, if there is one; used where `config.json` says nothing.
        path: The checkpoint's path, for errors.
    """
    for holder, prefix in ((config, ""), (config.get("text_config"), "text_config.")):
        for member in ("quantization_config", "compression_config"):
            found = holder.get(member) if isinstance(holder, Mapping) else None
            if found is not None:
                where = f"{path}, config.json, {prefix}{member}"
                if not isinstance(found, Mapping):
                    raise FileError("the quantization config is no object", where=where, found=type(found).__name__)
                return QuantizationConfig(found, where) if found else None
    if beside is not None:
        found = beside.get("quantization")
        where = f"{path}, hf_quant_config.json, quantization"
        if not isinstance(found, Mapping):
            raise FileError("the quantization config is no object", where=where, found=type(found).__name__)
        return QuantizationConfig({"quant_method": "modelopt", **found}, where)
    return None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to the members of a JSON object."""

    members: Json
    where: str

    def place(self, name: str) -> str:
        return f"{self.where}.{name}"

    def fail(self, name: str, expected: str) -> FileError:
        return FileError(
            "a member of the quantization config is not what it should be",
            where=self.place(name),
            expected=expected,
            found=repr(self.members.get(name))[:120],
        )

    def names(self) -> list[str]:
        return list(self.members)

    def member(self, name: str, default: Json | None = None) -> _Reader:
        value = self.members.get(name, default)
        if value is None:
            value = default
        if not isinstance(value, Mapping):
            raise self.fail(name, "an object")
        return _Reader(value, self.place(name))

    def text(self, name: str, default: str) -> str:
        value = self.members.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.members.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(name, "a list of strings")
        return value

    def integer(self, name: str, default: int | None) -> int | None:
        value = self.members.get(name)
        if value is None:
            return default
        if type(value) is not int or not -1 <= value < 1 << 31:
            raise self.fail(name, "an integer")
        return value

    def block(self, name: str) -> tuple[int, int] | None:
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            value = [int(part) if part.isascii() and part.isdecimal() else None for part in value[:32].split("x")]
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise self.fail(name, "two positive integers")
        height, width = value
        if type(height) is not int or type(width) is not int or not (0 < height < 1 << 31 and 0 < width < 1 << 31):
            raise self.fail(name, "two positive integers")
        return height, width


def _groups(groups: _Reader) -> Iterable[_Rule]:
    """The rules of config groups, the most specific targets first: names, then patterns, then classes of modules."""
    exact: list[_Rule] = []
    patterns: list[_Rule] = []
    classes: list[_Rule] = []
    for name in groups.names():
        if isinstance(groups.members[name], list):  # a preset's name, and its targets
            scheme = _preset(groups, name)
            targets = groups.texts(name)
            reader = groups
            member = name
        else:
            reader = groups.member(name)
            scheme = _scheme(reader)
            targets = reader.texts("targets")
            member = "targets"
        names = {target for target in targets if not target.startswith("re:") and not _is_class(target)}
        exact.append(_Rule(scheme, names.__contains__))
        patterns.append(_Rule(scheme, _any(_regexes(reader, member, targets))))
        if any(_is_class(target) for target in targets):
            classes.append(_Rule(scheme, lambda _: True))
    if len({rule.scheme for rule in classes}) > 1:
        raise FileError(
            "config groups target several classes of modules with different schemes",
            where=groups.where,
            found=" and ".join(str(rule.scheme or "unquantized") for rule in classes),
            hint="Tensors do not tell their module's class; name the modules in the groups' targets",
        )
    return [*exact, *patterns, *classes[:1]]


def _scheme(group: _Reader) -> Scheme | None:
    if group.members.get("weights") is None:
        return None
    weights = group.member("weights")
    bits = weights.integer("num_bits", 8)
    kind = weights.text("type", "int").lower()
    if bits is None or not 1 <= bits <= 64:
        raise weights.fail("num_bits", "1 to 64")
    if kind not in {"float", "int"}:
        raise weights.fail("type", "'float' or 'int'")
    group_size = weights.integer("group_size", None)
    block = weights.block("block_structure")
    inferred = "tensor" if group_size is None else "channel" if group_size == -1 else "group"
    strategy = weights.text("strategy", "block" if block else inferred).lower()
    if strategy not in _STRATEGIES:
        raise weights.fail("strategy", ", ".join(sorted(_STRATEGIES)))
    if strategy in {"group", "tensor_group"} and (group_size is None or group_size < 1):
        raise weights.fail("group_size", f"a positive integer for strategy {strategy}")
    if strategy == "block" and block is None:
        raise weights.fail("block_structure", "two positive integers for strategy block")
    return Scheme(
        bits,
        kind,
        strategy,
        group_size if strategy in {"group", "tensor_group"} else None,
        block if strategy == "block" else None,
        weights.where,
    )


def _preset(groups: _Reader, name: str) -> Scheme | None:
    if name.upper() not in _PRESETS:
        raise groups.fail(name, "the name of a preset scheme")
    return _PRESETS[name.upper()]


def _algorithm(reader: _Reader, name: str) -> Scheme | None:
    if name.upper() not in _ALGORITHMS:
        raise reader.fail("quant_algo", ", ".join((*_ALGORITHMS, _MIXED)))
    return _ALGORITHMS[name.upper()]


def _is_class(target: str) -> bool:
    """Whether a target is a class of modules, `"Linear"`, and no module's name."""
    return target.isidentifier() and target[0].isupper()


def _targets(reader: _Reader, member: str) -> Callable[[str], bool]:
    targets = reader.texts(member)
    names = {target for target in targets if not target.startswith("re:") and not _is_class(target)}
    match = _any(_regexes(reader, member, targets))
    return lambda module: module in names or match(module)


def _regexes(reader: _Reader, member: str, targets: Iterable[str]) -> list[Pattern]:
    compiled = []
    for target in targets:
        if target.startswith("re:"):
            try:
                compiled.append(compile_regex(target.removeprefix("re:")))
            except QuantformError as error:
                raise error.at(reader.place(member)) from None
    return compiled


def _globs(reader: _Reader, member: str) -> Callable[[str], bool]:
    patterns = reader.texts(member)
    names = {pattern for pattern in patterns if not any(char in pattern for char in "*?[")}
    match = _any([compile_glob(pattern) for pattern in patterns if pattern not in names])
    return lambda module: module in names or match(module)


def _any(patterns: list[Pattern]) -> Callable[[str], bool]:
    return lambda module: any(pattern.matches(module) for pattern in patterns)


def _inside(module: str, names: list[str]) -> bool:
    """Whether one of the names is the module, its last parts, or one of the modules around it."""
    return any(module == name or module.endswith(f".{name}") or module.startswith(f"{name}.") for name in names)
