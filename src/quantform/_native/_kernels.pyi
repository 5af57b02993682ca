from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

version: str

def cpu_features() -> list[str]: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def decode_packed(
    ggml_type: int,
    blocks: npt.NDArray[np.uint8],
    output: int,
    out: npt.NDArray[Any],
    threads: int,
    stores: int = 0,
) -> None: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any], bytes: int) -> npt.NDArray[Any]: ...
def plain_decoder(
    profiles: dict[str, int], outputs: dict[str, np.dtype[Any]]
) -> Callable[[object, object, object, object, object, object], npt.NDArray[Any] | None]: ...
def encode_grouped(
    values: npt.NDArray[Any],
    number: int,
    planes: Sequence[npt.NDArray[np.uint8]],
    row: int,
    packed: bool,
    threads: int,
    code_bits: int,
    search: bool = False,
    importance: npt.NDArray[np.float64] | None = None,
    negative: bool = False,
) -> bool: ...
def encode_fp8_rows(
    values: npt.NDArray[Any],
    number: int,
    planes: Sequence[npt.NDArray[np.uint8]],
    row: int,
    packed: bool,
    threads: int,
    half_scales: bool,
) -> bool: ...
def encode_nvfp4(
    values: npt.NDArray[Any],
    number: int,
    planes: Sequence[npt.NDArray[np.uint8]],
    row: int,
    packed: bool,
    threads: int,
    divisor: float,
) -> bool: ...
def largest_magnitude(values: npt.NDArray[Any], number: int, threads: int) -> float: ...
