"""Which importance vector weighs which rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantform._sizes import counted, product
from quantform.convert.piece import Piece
from quantform.errors import ArgumentError
from quantform.recipes.tensor_names import ggml_name, huggingface_names

__all__ = ["weighted_rows"]


def weighted_rows(
    piece: Piece, importance: Mapping[str, Any]
) -> Iterator[tuple[str, int, int, npt.NDArray[Any] | None]]:
    """A piece's rows by their importance vector: place, first row, end, vector. A bank has one for each expert.

    Args:
        piece: The rows.
        importance: Vectors `[K]`, or `[experts, K]` of a bank, by the parameter's name, its tensor's, or what llama.cpp
            or a Hugging Face checkpoint call it. Rows without one have None.

    Raises:
        ArgumentError: There are not as many vectors as matrices; names the parameter.
    """
    first, end = piece.span
    names = (piece.name, piece.parameter.source.name, ggml_name(piece.name), *huggingface_names(piece.name))
    name = next((name for name in names if name is not None and name in importance), None)
    if name is None:
        yield piece.place, first, end, None
        return
    vector = np.asarray(importance[name])
    rows, columns = piece.tensor.matrix
    matrices = product(piece.parameter.shape[:-2])
    shape = list(piece.parameter.shape)
    vectors = 1 if vector.ndim == 1 else len(vector) if vector.ndim == 2 else 0
    if vectors != matrices:
        found = f"{counted(vectors, 'vector')}, {list(vector.shape)}" if vectors else f"shape {list(vector.shape)}"
        raise ArgumentError(
            "the importance vectors do not fit",
            where=piece.place,
            expected=f"{counted(matrices, 'vector')} of {columns}, one for each matrix of {shape}",
            found=found,
        )
    if vector.ndim == 1:
        yield piece.place, first, end, vector
        return
    share = rows // vectors
    for expert in range(first // share, end // share):
        yield f"parameter {piece.name!r}[{expert}]", expert * share, (expert + 1) * share, vector[expert]
