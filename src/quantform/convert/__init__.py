"""From one file format to another: the one place that sees all stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from quantform import onnx
from quantform._progress import Progress, silent
from quantform._report import Report
from quantform._sizes import counted
from quantform.container import Component
from quantform.convert.artifact import Origin, check_artifact, write_artifact
from quantform.convert.carried import Carried
from quantform.convert.checkpoint_carried import checkpoint_carried
from quantform.convert.gguf_carried import gguf_carried
from quantform.convert.gguf_restore import restore_gguf
from quantform.convert.ninfer_carried import ninfer_carried, take_uses
from quantform.convert.planned import Plan
from quantform.convert.planner import Planner
from quantform.convert.recorded import MAIN
from quantform.errors import ArgumentError, QuantformError, UnknownNameError, UnsupportedError
from quantform.methods import Method, Request
from quantform.recipes import (
    Configure,
    LoadedRecipe,
    Model,
    Recipe,
    Sources,
    as_recipe_error,
    assign_matrices,
    load_recipe,
)
from quantform.recipes.model import logical
from quantform.sources import GGUFSource, NinferSource, Source, open_source
from quantform.sources.arrays import ArraySource
from quantform.sources.conventions import Checkpoint

__all__ = ["Plan", "Report", "convert", "plan"]

Anything = str | os.PathLike[str] | Mapping[str, npt.NDArray[Any]]
_LISTED = 4


def convert(
    source: Anything,
    output: str | os.PathLike[str],
    *,
    recipe: Configure | str | os.PathLike[str] | None = None,
    format: str | None = None,
    method: str | Method | Callable[[Request], Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    imatrix: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    sources: Mapping[str, Anything] | None = None,
    components: Mapping[str, Anything] | None = None,
    fallback: str | None = None,
    max_file_bytes: int | None = None,
    data: str | None = None,
    opset: int | None = None,
    qdq: bool = False,
    threads: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Report:
    """Convert a file; the suffix of `output` says to what.

    To `.ninfer`, every tensor keeps its words where a registered format holds them, unless a format or a recipe says
    otherwise; what else the source has (configuration, tokenizer, templates; of a GGUF every other byte) goes along as
    resources. `.ninfer` to GGUF gives the file back that it was made from, byte for byte. GGUF to ONNX is
    `quantform.onnx.import_gguf`: packed weights stay packed, and where they are. Nothing appears under the
    output's name before it is complete. The result depends neither on `threads` nor on how the work is cut.

    Args:
        source: A GGUF file (any one of a split set), a safetensors file, index or directory, a `.ninfer` entry file, or
            NumPy arrays by name.
        output: `*.ninfer`, `*.gguf` or `*.onnx`.
        recipe: `configure(model, recipe, sources)`, or a file: `"recipe.py"`, `"recipe.py:function"` (it is run) or
            `"recipe.toml"`. What it says replaces what `format` and the arguments beside it say.
        format: The format of every matrix that it can hold; None keeps each one's words.
        method: How the words of `format` are made: a method's name or a Python callable; None takes each matrix's words
            where `format` holds them, else the format's first method.
        parameters: The parameters of `method`.
        imatrix: Importance vectors for `grouped_search`: llama.cpp's file, or the one that `quantform imatrix` makes of
            it, or vectors by parameter name.
        sources: Further sources by name, for the recipe; opened when it asks for them.
        components: Further components of the artifact by name, each from a source of its own; their parameters are
            called `COMPONENT/NAME`.
        fallback: `"bf16"` or `"fp32"`: decode to it those tensors whose words no format holds; None refuses them.
        max_file_bytes: Split a `.ninfer` output into files of at most so many bytes.
        data: Where the weights of an ONNX model are: `"reference"` (in the GGUF file; the default), `"copy"` or
            `"inline"`.
        opset: The version of ONNX's operators, by default the one with `DequantizePacked`.
        qdq: Write an ONNX model with the standard `DequantizeLinear` where that holds a tensor's words.
        threads: How many threads encode; by default `QUANTFORM_THREADS` of the environment, else every CPU.
        force: Replace an existing output, which stays as it is until the new one is complete.
        progress: Called as bytes are written.

    Raises:
        UnsupportedError: Tensors have words that the output cannot hold; lists them and says what to do.
        RecipeError: The recipe is wrong; names its file and line.
        ValuesError: A value cannot be encoded; names parameter, row and column.
        WordsError: A word is not legal in its format; names parameter, row and column or group.
        OutputExistsError: The output exists and `force` is false.
        ArgumentError: An option does not fit this conversion.
        FileError: A file cannot be read or written, or breaks its format's rules.
    """
    target = _path(output)
    options = _Options(recipe, format, method, parameters, imatrix, sources, components, fallback)
    kind = target.suffix.lower()
    if kind != ".onnx":
        _refuse({"data": data, "opset": opset, "qdq": qdq or None}, "only fits a conversion to ONNX")
    if kind not in {".ninfer", ".gguf", ".onnx"} or str(output).endswith(("/", "\\")):
        with _opened(source):
            raise ArgumentError(
                "the output's name has no suffix of a file format",
                where=str(output),
                expected=".ninfer, .gguf or .onnx",
            )
    if kind == ".onnx":
        with _opened(source) as opened:
            options.refuse_all("a conversion to ONNX", max_file_bytes)
            if not isinstance(opened, GGUFSource):
                raise UnsupportedError(
                    f"no conversion from {opened.kind} to .onnx",
                    where=str(target),
                    hint="Only GGUF models have the packed weights that ONNX's operator decodes",
                )
            report: Report = onnx.import_gguf(
                opened, target, data=data, opset=opset, qdq=qdq, force=force, progress=progress
            )
            return report
    if kind == ".gguf":
        with _opened(source) as opened:
            options.refuse_all("a conversion back to GGUF", max_file_bytes)
            if not isinstance(opened, NinferSource):
                raise UnsupportedError(
                    f"no conversion from {opened.kind} to .gguf",
                    where=str(target),
                    hint="Only .ninfer converts back, to the GGUF that it was made from",
                )
            return restore_gguf(opened, target, force=force, progress=progress)
    with _prepared(source, options) as prepared:
        return write_artifact(
            prepared.plan,
            target,
            prepared.carried,
            others=prepared.others(),
            recipe=prepared.recipe_record(),
            threads=threads,
            max_file_bytes=max_file_bytes,
            force=force,
            progress=progress,
        )


def plan(
    source: Anything,
    *,
    recipe: Configure | str | os.PathLike[str] | None = None,
    format: str | None = None,
    method: str | Method | Callable[[Request], Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    imatrix: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    sources: Mapping[str, Anything] | None = None,
    components: Mapping[str, Anything] | None = None,
    fallback: str | None = None,
    output: str | os.PathLike[str] | None = None,
    max_file_bytes: int | None = None,
    force: bool = False,
) -> Plan:
    """What `convert` to `.ninfer` would do, from headers alone: no weight is read and nothing is written.

    Args and errors are those of `convert`, those of its output only where one is given; values and words that are not
    legal are found only there.

    Returns:
        Each parameter with its source form, method, format, layout and bytes, and the total.
    """
    options = _Options(recipe, format, method, parameters, imatrix, sources, components, fallback)
    with _prepared(source, options) as prepared:
        if output is not None:
            check_artifact(
                prepared.plan,
                _path(output),
                prepared.carried,
                others=prepared.others(),
                recipe=prepared.recipe_record(),
                max_file_bytes=max_file_bytes,
                force=force,
            )
        return prepared.plan


@dataclass(frozen=True, slots=True)
class _Options:
    """What decides a plan."""

    recipe: Configure | str | os.PathLike[str] | None
    format: str | None
    method: str | Method | Callable[[Request], Any] | None
    parameters: Mapping[str, Any] | None
    imatrix: str | os.PathLike[str] | Mapping[str, Any] | None
    sources: Mapping[str, Anything] | None
    components: Mapping[str, Anything] | None
    fallback: str | None

    def check(self) -> None:
        """Refuse options that mean nothing without another."""
        if self.method is not None and self.format is None:
            raise ArgumentError("a method needs a format", expected="format (--format)", hint="Name what it is to make")
        if self.parameters is not None and self.method is None:
            raise ArgumentError("parameters need a method", expected="method (--method)")
        if self.imatrix is not None and self.recipe is None and self.method != "grouped_search":
            raise ArgumentError(
                "an importance matrix is for grouped_search",
                expected="method='grouped_search' (--method grouped_search)",
            )

    def refuse_all(self, conversion: str, max_file_bytes: int | None) -> None:
        """Refuse every option: such a conversion decides nothing."""
        given = {name: getattr(self, name) for name in self.__slots__} | {"max_file_bytes": max_file_bytes}
        _refuse(given, f"does not fit {conversion}")


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"{name} {why}", found=repr(value))


@dataclass(slots=True)
class _Prepared:
    """A plan with everything that is open for it."""

    plan: Plan
    carried: list[Carried]
    recipe: LoadedRecipe | None
    sources: Sources
    planner: Planner

    def others(self) -> list[Origin]:
        """The further sources that were asked for, and importance files."""
        named: list[Origin] = [(name, {"kind": one.kind}, one.files) for name, one in self.sources.opened.items()]
        known = {name for name, _, _ in named}
        for importance in self.planner.importances.values():
            name = "imatrix" if "imatrix" not in known else f"imatrix {importance.path.name}"
            known.add(name)
            named.append((name, {"kind": "importance"}, importance.files))
        return named

    def recipe_record(self) -> dict[str, Any] | None:
        """What provenance says of the recipe."""
        if self.recipe is None:
            return None
        return {"name": self.recipe.name} | ({"sha256": self.recipe.sha256} if self.recipe.sha256 else {})


@contextmanager
def _prepared(source: Anything, options: _Options) -> Iterator[_Prepared]:
    options.check()
    with ExitStack() as stack:
        loaded = None if options.recipe is None else load_recipe(options.recipe)
        main = logical(stack.enter_context(_opened(source)))
        parts = {_main_name(main): main}
        for name, path in (options.components or {}).items():
            if name in parts or not name:
                raise ArgumentError("a component's name is taken or empty", found=repr(name))
            parts[name] = logical(stack.enter_context(_opened(path)))
        _check_names(parts.values())
        carried = [_carried(one, name, main=one is main) for name, one in parts.items()]
        model = Model(parts)
        recipe = Recipe(model)
        if isinstance(main, NinferSource):
            take_uses(recipe, main)
        left: dict[str, str] = {}
        if options.format is not None:
            left = assign_matrices(recipe, options.format, method=options.method, parameters=options.parameters)
        further = stack.enter_context(Sources(options.sources or {}))
        if loaded is not None:
            loaded.configure(model, recipe, further)
        planner = stack.enter_context(Planner(model, recipe, fallback=options.fallback, imatrix=options.imatrix))
        try:
            made = planner.plan()
        except QuantformError as error:
            if (
                loaded is not None
                and loaded.sha256 is not None
                and isinstance(error, (ArgumentError, UnknownNameError))
            ):
                raise as_recipe_error(error, loaded.name) from None  # what a file says, not an argument
            raise error.at(str(main.path)) from None
        made.source = str(main.path)
        made.recipe = loaded.name if loaded is not None else None
        made.resource_bytes = sum(resource.nbytes for one in carried for resource in one.resources.values())
        notes = [note for one in carried for note in one.notes]
        notes += _left_notes(options.format, left, recipe)
        made.notes = [*notes, *made.notes]
        yield _Prepared(made, carried, loaded, further, planner)


def _left_notes(format: str | None, left: Mapping[str, str], recipe: Recipe) -> Iterator[str]:
    """How many parameters are made as if there were no `format`, and why; but for those of which a recipe spoke."""
    names: dict[str, list[str]] = {}
    for name, reason in left.items():
        if all(selection.choice.is_default for selection in recipe.selections[name]):
            names.setdefault(reason, []).append(name)
    for reason, some in names.items():
        listed = ", ".join(some[:_LISTED]) + (", ..." if len(some) > _LISTED else "")
        yield f"{counted(len(some), 'tensor')} made as without {format} ({listed}): {reason}"


@contextmanager
def _opened(source: Anything) -> Iterator[Source[Any]]:
    with ArraySource(source) if isinstance(source, Mapping) else open_source(source) as opened:
        yield opened


def _path(output: str | os.PathLike[str]) -> Path:
    try:
        return Path(output)
    except TypeError:
        raise ArgumentError("the output is not a path", found=repr(output)) from None


def _check_names(parts: Iterable[Source[Any]]) -> None:
    for one in parts:
        if "" in one:
            raise UnsupportedError(
                "a tensor has an empty name, which no parameter may have",
                where=str(one.path),
                hint="Rename it with the program that made the file",
            )


def _main_name(source: Source[Any]) -> str:
    if isinstance(source, NinferSource) and MAIN not in source.components:
        return next(iter(source.components))
    return MAIN


def _carried(source: Source[Any], component: str, *, main: bool) -> Carried:
    if isinstance(source, NinferSource):
        if not main:
            raise UnsupportedError(
                "an artifact is no component of another",
                where=str(source.path),
                hint="Name the GGUF or safetensors model that the component was made from",
            )
        return ninfer_carried(source)
    if isinstance(source, GGUFSource):
        carried = gguf_carried(source, component)
    elif isinstance(source, Checkpoint):
        carried = checkpoint_carried(source, component)
    else:
        carried = Carried(components={component: Component(config={})}, origin={"kind": source.kind})
    if not main:
        record = carried.components[component]
        carried.components[component] = Component(config=record.config, target=MAIN, resources=record.resources)
    return carried
