"""What a recipe sees: the parameters of a model by name, its configuration, and further sources by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from quantform._registry import near_matches
from quantform._scalars import SCALARS
from quantform.errors import ArgumentError, FileError, UnknownNameError
from quantform.sources import GGUFSource, NinferSource, Source, Tensor, open_source
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import Checkpoint
from quantform.sources.safetensors import SafetensorsSource

__all__ = ["INPUT", "Model", "Parameter", "Sources", "logical"]

INPUT = "input"
"""What the one input of a matrix is called where the source gives it no name."""


def logical(source: Source[Any]) -> Source[Any]:
    """`source` with its quantized weights put together, where it keeps them as several plain tensors."""
    return Checkpoint(source) if isinstance(source, (SafetensorsSource, ArraySource)) else source


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One parameter of a model.

    Attributes:
        name: Its logical name.
        source: The tensor that it comes from unless a recipe names another.
        component: The component of the artifact that it belongs to.
        inputs: What it is multiplied with, by name; none for vectors and integers. Only a `.ninfer` source names
            inputs; elsewhere a matrix has one, `"input"`.
    """

    name: str
    source: Tensor
    component: str
    inputs: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in C order, last axis fastest."""
        return self.source.shape

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows and columns of numbers with a fraction: what formats are chosen for."""
        scalar = SCALARS.get(self.source.format)
        return len(self.shape) > 1 and (scalar is None or scalar.is_float)


class Model:
    """The parameters of one or more sources.

    Parameters of the first component keep their names; those of another are called `COMPONENT/NAME`. Tensors without
    elements are no parameters.

    Args:
        components: Component id to source, the main one first; see `logical`.

    Attributes:
        components: The same.
        parameters: Name to parameter, in the order in which they are stored.
        empty: Names of the tensors without elements.
    """

    def __init__(self, components: Mapping[str, Source[Any]]) -> None:
        self.components = dict(components)
        parameters: dict[str, Parameter] = {}
        empty: list[str] = []
        for number, (component, source) in enumerate(self.components.items()):
            inputs = _inputs(source)
            for tensor in _in_file_order(source):
                name = f"{component}/{tensor.name}" if number else tensor.name
                if 0 in tensor.shape:
                    empty.append(name)
                    continue
                known = inputs.get(tensor.name, (INPUT,))
                parameter = Parameter(name, tensor, component, known)
                if not parameter.is_matrix and tensor.name not in inputs:
                    parameter = Parameter(name, tensor, component, ())
                if parameters.setdefault(name, parameter) is not parameter:
                    raise ArgumentError("two parameters have one name", found=repr(name))
        self.parameters: Mapping[str, Parameter] = MappingProxyType(parameters)
        self.empty = tuple(empty)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the main component: `config.json`, GGUF's metadata, or a `.ninfer`'s own."""
        source = next(iter(self.components.values()))
        if isinstance(source, NinferSource):
            component = source.components.get("text") or next(iter(source.components.values()))
            return component.config
        return source.config if isinstance(source, Checkpoint) else source.metadata

    def __repr__(self) -> str:
        return f"<Model of {len(self.parameters)} parameters>"


class Sources(Mapping[str, Source[Any]]):
    """Further sources by name, opened when they are first asked for and closed together.

    A context manager.

    Args:
        paths: Name to path, or to NumPy arrays by name.
    """

    def __init__(self, paths: Mapping[str, Any]) -> None:
        self._paths = dict(paths)
        self._open: dict[str, Source[Any]] = {}
        self._stack = ExitStack()

    @property
    def opened(self) -> Mapping[str, Source[Any]]:
        """Those that were asked for."""
        return self._open

    def __getitem__(self, name: str) -> Source[Any]:
        if name not in self._paths:
            hint = near_matches(str(name), self._paths) if self._paths else None
            raise UnknownNameError(
                f"no source is called {name!r}", hint=hint or f"Provide one with --source {name}=PATH"
            )
        if name not in self._open:
            given = self._paths[name]
            source: Source[Any] = ArraySource(given) if isinstance(given, Mapping) else open_source(given)
            self._stack.callback(source.close)
            self._open[name] = logical(source)
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _inputs(source: Source[Any]) -> Mapping[str, tuple[str, ...]]:
    """The inputs that the source names, by parameter."""
    if not isinstance(source, NinferSource):
        return {}
    inputs: dict[str, tuple[str, ...]] = {}
    for use in source.uses:
        inputs[use.parameter] = (*inputs.get(use.parameter, ()), use.input)
    return inputs


def _in_file_order(source: Source[Any]) -> Iterator[Tensor]:
    """Tensors as they lie in their files, so that reading is sequential."""
    if not isinstance(source, GGUFSource):
        yield from source.values()
        return
    for shard in source.shards:
        yield from sorted(shard.tensors, key=lambda tensor: tensor.offset)


def same_shape(parameter: Parameter, tensor: Tensor, where: str) -> Tensor:
    """`tensor` itself, once it is known to have the parameter's shape.

    Raises:
        FileError: It has another.
    """
    if tensor.shape != parameter.shape:
        raise FileError(
            "the source has another shape than the parameter",
            where=where,
            expected=list(parameter.shape),
            found=f"{list(tensor.shape)} of {tensor.name!r}",
        )
    return tensor
