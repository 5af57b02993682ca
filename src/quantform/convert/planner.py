"""From a model and a recipe to a plan: which object each parameter becomes, and how its words are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any, Self

import numpy as np

from quantform._registry import near_matches
from quantform._scalars import SCALARS
from quantform._sizes import counted, product
from quantform.container import Binding, Part, TensorRecord
from quantform.convert.inputs import check_divisors, input_of
from quantform.convert.own_words import (
    FALLBACKS,
    TERNARY,
    cast_stream,
    held_by,
    home_of,
    is_integer,
    own_format,
    source_form,
)
from quantform.convert.piece import Piece
from quantform.convert.planned import Fragment, ObjectPlan, Plan
from quantform.convert.streams import Copy, Demand
from quantform.convert.uses import plan_uses
from quantform.convert.weighted import weighted_rows
from quantform.convert.work import Encoded, Kept, Segment, Streamed, Work
from quantform.errors import ArgumentError, QuantformError, UnsupportedError
from quantform.formats import FORMATS, DirectFormat, Format, GgufFormat
from quantform.layouts import LAYOUTS, Layout
from quantform.methods import METHODS, Method, Request, default_method
from quantform.recipes import Choice, Importance, Model, Parameter, Recipe, Selection
from quantform.sources import GGUFTensor, NinferSource, NinferTensor, Tensor
from quantform.sources.conventions import RowScaledWeight, UnsupportedWeight

__all__ = ["Planner"]

_CAST, _IMPORT, _SEARCH = METHODS["cast_direct"], METHODS["import_encoded"], METHODS["grouped_search"]
_IMATRIX = "imatrix"
# Types whose values may not all fit where they go: each is tried, unless a fallback rounds them.
_WIDE = {"fp64", "uint32", "int64", "uint64"}
_LISTED = 8


class Planner:
    """Makes one plan; a context manager, which keeps importance files open while the plan is carried out.

    Args:
        model: The model.
        recipe: What was chosen.
        fallback: The direct format of parameters that no registered format holds; None refuses them.
        imatrix: The importance vectors of every `grouped_search` that names none of its own.

    Raises:
        ArgumentError: `fallback` is not among `FALLBACKS`.
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        *,
        fallback: str | None = None,
        imatrix: Any = None,  # noqa: ANN401
    ) -> None:
        if fallback is not None and fallback not in FALLBACKS:
            raise ArgumentError(
                "fallback is not a direct format", expected=" or ".join(FALLBACKS), found=repr(fallback)
            )
        self.model = model
        self.recipe = recipe
        self.importances: dict[str, Importance] = {}
        self._fallback = fallback
        self._imatrix = imatrix
        self._stack = ExitStack()
        self._ids: set[str] = set()
        self._objects: list[ObjectPlan] = []
        self._parts: dict[str, list[tuple[ObjectPlan, tuple[int, int]]]] = {}
        self._homeless: list[Tensor] = []
        self._moved = 0
        self._unbound: set[str] = set()
        self._searched = False
        self._unweighted = 0
        self._weighted = 0

    def plan(self) -> Plan:
        """Decide everything.

        Raises:
            UnsupportedError: Parameters have words that no format holds, or a method does not make a format.
            ArgumentError: A shape, layout, group, parameter or auxiliary does not fit; names the parameter.
        """
        kept = self._kept()
        owners = {name: group for group in self.recipe.groups for name in group}
        same = self._same(kept)
        done: set[str] = set()
        for name in self.model.parameters:
            if name in done or name in same or self.recipe.target(name) != name or name in kept:
                continue
            members = owners.get(name, (name,))
            done.update(members)
            if len(members) > 1:
                self._group(members)
            else:
                for selection in self.recipe.selections[name]:
                    self._single(self._piece(name, selection))
        if self._homeless:
            raise _refusal(self._homeless)
        bindings = {name: binding for name, (binding, _) in kept.items()}
        self._keep(kept)
        bindings |= {name: _binding(self.model.parameters[name], parts) for name, parts in self._parts.items()}
        for name in self.model.parameters:
            target = self.recipe.target(same.get(name, name))
            bindings[name] = bindings[same.get(target, target)]
        bindings = {name: bindings[name] for name in self.model.parameters}
        uses, auxiliaries = plan_uses(self.recipe, self._objects, bindings, self._ids)
        return Plan(
            source="",
            recipe=None,
            objects=[*self._objects, *auxiliaries],
            bindings=bindings,
            uses=uses,
            shapes={
                name: list(self.model.parameters[name].shape)
                for name, binding in bindings.items()
                if binding.parts is not None
            },
            notes=self._notes(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # --- parameters of an artifact that stay as they are ---------------------------------------------------------

    def _kept(self) -> dict[str, tuple[Binding, NinferSource]]:
        """Parameters of an artifact of which nothing was said: their objects are copied, whatever they are."""
        kept = {}
        grouped = {name for group in self.recipe.groups for name in group}
        for name, parameter in self.model.parameters.items():
            source = self.model.components[parameter.component]
            choices = [selection.choice for selection in self.recipe.selections[name]]
            if (
                isinstance(source, NinferSource)
                and name not in grouped
                and name not in self.recipe.apart
                and self.recipe.target(name) == name
                and all(choice.is_default for choice in choices)
            ):
                kept[name] = (source.directory.bindings[parameter.source.name], source)
        for binding, _ in kept.values():
            self._ids.update(_objects_of(binding))
        return kept

    def _keep(self, kept: Mapping[str, tuple[Binding, NinferSource]]) -> None:
        extents = {extent for binding, _ in kept.values() for extent in _extents(binding)}
        ids = {id for id, _ in extents}
        for name, parameter in self.model.parameters.items():
            source = self.model.components[parameter.component]
            if isinstance(source, NinferSource) and name not in kept:
                left = set(_extents(source.directory.bindings[parameter.source.name])) - extents
                self._unbound |= {id for id, _ in left} & ids
        copied: set[str] = set()
        for name, (binding, source) in kept.items():
            for id in _objects_of(binding):
                record = source.artifact.record(id)
                if id in copied or not isinstance(record, TensorRecord):
                    continue
                copied.add(id)
                held = source.objects[id]
                fragment = Fragment(name, held.shape, None, source_form(held), (0, record.elements))
                self._objects.append(
                    ObjectPlan(
                        id=id,
                        shape=record.shape,
                        format=record.format,
                        layout=record.layout,
                        divisors=record.divisors,
                        nbytes=record.nbytes,
                        method=_CAST.name if isinstance(FORMATS.get(record.format), DirectFormat) else _IMPORT.name,
                        parameters={},
                        fragments=(fragment,),
                        work=Kept(held),
                    )
                )

    def _same(self, kept: Mapping[str, object]) -> dict[str, str]:
        """Parameters that an artifact binds as another one and for which the same was chosen: they share again."""
        first: dict[Any, str] = {}
        same = {}
        grouped = {name for group in self.recipe.groups for name in group}
        for name, parameter in self.model.parameters.items():
            source = self.model.components[parameter.component]
            if not isinstance(source, NinferSource) or name in kept or name in grouped or name in self.recipe.shared:
                continue
            binding = source.directory.bindings[parameter.source.name]
            key = (binding.object, binding.parts, parameter.shape)
            other = first.setdefault(key, name)
            if other != name and _same_choices(self.recipe.selections[name], self.recipe.selections[other]):
                same[name] = other
        return same

    # --- one object ---------------------------------------------------------------------------------------------

    def _piece(self, name: str, selection: Selection) -> Piece:
        parameter = self.model.parameters[name]
        piece = Piece(parameter, selection, selection.choice.source or parameter.source)
        if not piece.whole and piece.tensor.matrix[1] != parameter.shape[-1]:
            raise UnsupportedError(
                "the source's rows are not the parameter's, so that it cannot be split",
                where=piece.place,
                expected=f"rows of {parameter.shape[-1]}",
                found=f"rows of {piece.tensor.matrix[1]}",
            )
        return piece

    def _group(self, members: tuple[str, ...]) -> None:
        pieces = []
        for name in members:
            selections = self.recipe.selections[name]
            place = f"parameter {name!r}, in a group of {len(members)}"
            if len(selections) > 1:
                raise ArgumentError("a parameter whose rows were split cannot be stacked", where=place)
            if name in self.recipe.shared:
                raise ArgumentError("a parameter that shares another's objects cannot be stacked", where=place)
            pieces.append(self._piece(name, selections[0]))
        for piece in pieces[1:]:
            if not piece.selection.choice.same(pieces[0].selection.choice):
                raise ArgumentError(
                    "the parameters of a group are not made alike",
                    where=piece.place,
                    expected=f"format, layout, method and parameters of {pieces[0].name!r}",
                )
        self._guarded(pieces)

    def _single(self, piece: Piece) -> None:
        choice = piece.selection.choice
        if choice.format is None and choice.method is None and choice.layout is None and not choice.parameters:
            self._default(piece)
        else:
            self._guarded([piece])

    def _default(self, piece: Piece) -> None:
        """Own words where a format holds them, else values that lose nothing, else the fallback."""
        tensor = piece.tensor
        own = own_format(tensor)
        if own is not None:
            self._moved += own is TERNARY and tensor.format != TERNARY.name
            self._guarded([piece])
            return
        scalar = SCALARS.get(tensor.format)
        target: str | None = home_of(scalar) if scalar is not None else None
        demand: Demand = "exact"
        if self._fallback is not None and (target is None or tensor.format in _WIDE):
            target, demand = self._fallback, "finite"
        if target is None or not tensor.decodable:
            self._homeless.append(tensor)
            return
        record = FORMATS[target]
        assert isinstance(record, DirectFormat)  # noqa: S101 - homes and fallbacks are
        stream = cast_stream(tensor, record, demand) if piece.whole else None
        if stream is None and demand == "exact" and tensor.format in _WIDE:
            raise UnsupportedError(
                f"{tensor.format} may not fit {target}, and rows of it are not tried",
                where=piece.place,
                hint="Assign a format to all of its rows",
            )
        if stream is not None:
            self._add([piece], record, LAYOUTS[record.default_layout], _CAST, {}, 1, Streamed(stream))
        else:
            self._encode([piece], Choice(format=target))

    def _guarded(self, pieces: list[Piece]) -> None:
        try:
            self._encode(pieces, pieces[0].selection.choice)
        except QuantformError as error:
            if error.where is None or not error.where.startswith("parameter "):
                error.at(pieces[0].place)
            raise

    def _encode(self, pieces: list[Piece], choice: Choice) -> None:
        target = self._target(pieces, choice)
        layout = LAYOUTS[choice.layout or target.default_layout]
        method = choice.method or self._method(pieces, target)
        rows = sum(piece.matrix[0] for piece in pieces)
        shape = (rows, pieces[0].matrix[1])
        segments = self._segments(pieces, target, method, choice)
        for segment in segments:
            method.check(segment.request)
        divisors = _divisors(method, target, segments)
        if divisors > 1:
            check_divisors(segments[0].request.inputs, layout)
        layout.check(target, shape, divisors)
        work: Work | None = None
        if len(pieces) == 1 and pieces[0].whole:
            work = _shortcut(pieces[0].tensor, target, layout, method)
        if work is None:
            work = Encoded(method, segments, layout, shape, divisors)
        self._add(pieces, target, layout, method, _recorded(self._parameters(method, choice)), divisors, work)

    def _target(self, pieces: list[Piece], choice: Choice) -> Format:
        if choice.format is not None:
            return FORMATS[choice.format]
        if choice.method is not None and choice.method != _IMPORT:
            raise ArgumentError(f"nothing says which format {choice.method.name} is to make", hint="Name a format")
        own = [own_format(piece.tensor) for piece in pieces]
        first = own[0]
        if first is None or any(record is not first for record in own):
            stored = ", ".join(f"{piece.name!r} ({source_form(piece.tensor)})" for piece in pieces[:_LISTED])
            raise ArgumentError("no one format holds the words as they are", found=stored, hint="Name a format")
        return first

    def _method(self, pieces: list[Piece], target: Format) -> Method:
        if target.category == "direct":
            return _CAST
        if all(held_by(piece.tensor, target) for piece in pieces):
            return _IMPORT
        method = default_method(target)
        if method == _IMPORT:
            piece = next(piece for piece in pieces if not held_by(piece.tensor, target))
            raise UnsupportedError(
                f"no method makes {target} from values",
                where=piece.place,
                expected=f"words that {target} holds",
                found=source_form(piece.tensor),
                hint="Choose a format that values are encoded to, such as q4_g64_fp16",
            )
        return method

    def _add(
        self,
        pieces: list[Piece],
        target: Format,
        layout: Layout,
        method: Method,
        parameters: Mapping[str, Any],
        divisors: int,
        work: Work,
    ) -> None:
        rows = sum(piece.matrix[0] for piece in pieces)
        first = pieces[0]
        shape: tuple[int, ...] = (rows, first.matrix[1])
        if len(pieces) == 1 and target.category == "direct":
            shape = first.shape
        fragments, at = [], 0
        for piece in pieces:
            fragments.append(piece.fragment(at))
            at = fragments[-1].elements[1]
        planned = ObjectPlan(
            id=self._id(pieces),
            shape=shape,
            format=target.name,
            layout=layout.name,
            divisors=divisors,
            nbytes=layout.encoded_size(target, shape, divisors),
            method=method.name,
            parameters=parameters,
            fragments=tuple(fragments),
            work=work,
        )
        self._objects.append(planned)
        for fragment in fragments:
            self._parts.setdefault(fragment.parameter, []).append((planned, fragment.elements))

    def _id(self, pieces: list[Piece]) -> str:
        name = "+".join(
            piece.place.removeprefix("parameter ").replace(repr(piece.name), piece.name) for piece in pieces
        )
        id, number = f"weight/{name}", 1
        while id in self._ids:
            number += 1
            id = f"weight/{name}~{number}"
        self._ids.add(id)
        return id

    # --- what a method is asked ------------------------------------------------------------------------------------

    def _segments(self, pieces: list[Piece], target: Format, method: Method, choice: Choice) -> tuple[Segment, ...]:
        parameters = dict(choice.parameters or {})
        imatrix = None
        if method == _SEARCH or method.parameters is None:
            imatrix = self._parameters(method, choice).get(_IMATRIX)
        if method == _SEARCH:
            self._searched = True
            parameters.pop(_IMATRIX, None)
            _check_known(parameters)
        columns = pieces[0].matrix[1]
        if imatrix is None:
            inputs = tuple(input_of(piece.place, piece.tensor, *piece.span, piece.matrix) for piece in pieces)
            rows = sum(piece.matrix[0] for piece in pieces)
            request = Request(format=target, shape=(rows, columns), inputs=inputs, parameters=parameters)
            return (Segment(0, request),)
        if "importance" in parameters:
            raise ArgumentError("imatrix and importance exclude each other", hint="Give one of them")
        importance = self._importance(imatrix)
        segments, at = [], 0
        for piece in pieces:
            for place, first, end, vector in weighted_rows(piece, importance):
                weight = {} if vector is None else {"importance": vector}
                self._weighted += vector is not None
                self._unweighted += vector is None
                source = input_of(place, piece.tensor, first, end, (end - first, columns))
                request = Request(
                    format=target, shape=(end - first, columns), inputs=(source,), parameters=parameters | weight
                )
                segments.append(Segment(at, request))
                at += end - first
        return tuple(segments)

    def _parameters(self, method: Method, choice: Choice) -> Mapping[str, Any]:
        """The method's parameters, the importance file that holds for all among them."""
        parameters = dict(choice.parameters or {})
        if method == _SEARCH and self._imatrix is not None and "importance" not in parameters:
            parameters.setdefault(_IMATRIX, self._imatrix)
        return parameters

    def _importance(self, imatrix: Any) -> Mapping[str, Any]:  # noqa: ANN401 - whatever a recipe gave
        if isinstance(imatrix, (str, PathLike)):
            key = str(imatrix)
            if key not in self.importances:
                self.importances[key] = self._stack.enter_context(Importance(imatrix))
            return self.importances[key]
        if isinstance(imatrix, Mapping):
            return imatrix
        raise ArgumentError("imatrix is neither a file nor a mapping of names to vectors", found=type(imatrix).__name__)

    def _notes(self) -> list[str]:
        notes = []
        if self.model.empty:
            notes.append(f"{counted(len(self.model.empty), 'tensor')} without elements: not stored as tensors")
        rounded = sum(
            isinstance(parameter.source, RowScaledWeight) and parameter.source.rounds_scales
            for parameter in self.model.parameters.values()
        )
        if rounded:
            notes.append(f"{counted(rounded, 'tensor')} with binary32 row scales: rounded to BF16 where words are kept")
        if self._unbound:
            notes.append(
                f"{counted(len(self._unbound), 'object')} copied whole, though not every parameter in it is taken from "
                f"there any more: {', '.join(sorted(self._unbound)[:_LISTED])}"
            )
        if self._moved:
            notes.append(
                f"{counted(self._moved, 'tensor')} of ternary blocks: codes and scales kept in {TERNARY}, "
                "which does not convert back to GGUF"
            )
        if self._imatrix is not None and not self._searched:
            raise ArgumentError(
                "nothing uses the importance matrix",
                expected="a parameter that grouped_search makes",
                hint="Assign the method, or leave the matrix out",
            )
        if self._unweighted and not self._weighted:
            raise ArgumentError(
                "the importance matrix knows none of the parameters",
                expected=f"vectors for names such as {next(iter(self.model.parameters))!r}",
                found=", ".join(repr(name) for one in self.importances.values() for name in list(one)[:2]) or "others",
            )
        if self._unweighted:
            notes.append(
                f"{counted(self._unweighted, 'matrix', 'matrices')} not in the importance matrix: "
                "every channel weighs the same"
            )
        return notes


def _check_known(parameters: Mapping[str, Any]) -> None:
    """Refuse what `grouped_search` does not take; here it also takes an importance matrix."""
    known = [_IMATRIX, *(parameter.name for parameter in _SEARCH.parameters or ())]
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ArgumentError(
            f"unknown grouped_search parameters: {', '.join(unknown)}", hint=near_matches(unknown[0], known)
        )


def _divisors(method: Method, target: Format, segments: Iterable[Segment]) -> int:
    """How many divisors the object has; only stacked NVFP4 words have more than one."""
    (first, *_) = segments
    several = len(first.request.inputs) > 1 or any(
        source.divisors is not None and len(source.divisors) > 1 for source in first.request.inputs
    )
    if target.category == "block-scaled" and method == _IMPORT and several:
        return method.start(first.request).divisors
    return 1


def _shortcut(tensor: Tensor, target: Format, layout: Layout, method: Method) -> Work | None:
    """A stream straight from the tensor's bytes, where the method gives the same."""
    if method == _CAST and isinstance(target, DirectFormat) and not is_integer(tensor):
        stream = cast_stream(tensor, target, "finite")
        return Streamed(stream) if stream is not None else None
    if method == _CAST and tensor.format == target.name:
        return Streamed(Copy(tensor))
    if method == _IMPORT:
        if isinstance(tensor, GGUFTensor) and isinstance(target, GgufFormat):
            return Streamed(Copy(tensor))
        if isinstance(tensor, NinferTensor) and tensor.joined:
            return Kept(tensor) if (tensor.format, tensor.layout) == (target.name, layout.name) else None
    return None


def _binding(parameter: Parameter, parts: list[tuple[ObjectPlan, tuple[int, int]]]) -> Binding:
    planned, span = parts[0]
    if len(parts) == 1 and planned.shape == parameter.shape and span == (0, product(planned.shape)):
        return Binding(object=planned.id)
    return Binding(parts=tuple(Part(object=planned.id, range=span) for planned, span in parts))


def _extents(binding: Binding) -> list[tuple[str, tuple[int, int] | None]]:
    """Objects and the elements of them that a binding takes; None for a whole one."""
    if binding.object is not None:
        return [(binding.object, None)]
    return [(part.object, part.range) for part in binding.parts or ()]


def _objects_of(binding: Binding) -> list[str]:
    if binding.object is not None:
        return [binding.object]
    return [part.object for part in binding.parts or ()]


def _same_choices(one: list[Selection], other: list[Selection]) -> bool:
    return len(one) == len(other) and all(
        (a.first, a.end) == (b.first, b.end) and a.choice.source is b.choice.source and a.choice.same(b.choice)
        for a, b in zip(one, other, strict=True)
    )


def _recorded(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON values: files by name, arrays and objects by what they are."""
    recorded: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Importance):
            recorded[name] = value.path.name
        elif isinstance(value, PathLike) or (name == _IMATRIX and isinstance(value, str)):
            recorded[name] = str(value).replace("\\", "/").rsplit("/", 1)[-1]
        elif value is None or isinstance(value, (bool, int, float, str)):
            recorded[name] = value
        elif isinstance(value, np.ndarray):
            recorded[name] = f"{value.dtype} {list(value.shape)}"
        else:
            recorded[name] = type(value).__name__
    return recorded


def _refusal(tensors: list[Tensor]) -> UnsupportedError:
    names = ", ".join(f"{tensor.name!r} ({_type_name(tensor)})" for tensor in tensors[:_LISTED])
    more = f" and {len(tensors) - _LISTED} more" if len(tensors) > _LISTED else ""
    undecodable = [tensor for tensor in tensors if not tensor.decodable]
    unread = next((tensor for tensor in tensors if isinstance(tensor, UnsupportedWeight)), None)
    if unread is not None:
        hint = f"{unread.name!r}: {unread.reason}. {unread.hint}"
    elif undecodable:
        types = "types of current ggml" if isinstance(undecodable[0], GGUFTensor) else "it in floating point"
        hint = f"{undecodable[0].name!r} cannot even be decoded: export the model with {types}"
    else:
        hint = "Pass --fallback bf16 (or fp32) to decode these tensors"
        if any(len(tensor.shape) > 1 for tensor in tensors):
            hint += ", or --format to choose one format for every matrix"
    return UnsupportedError(f"no .ninfer format holds the words of {names}{more}", hint=hint)


def _type_name(tensor: Tensor) -> str:
    return tensor.type_name if isinstance(tensor, GGUFTensor) else source_form(tensor)
