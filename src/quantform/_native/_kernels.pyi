from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

version: str

def cpu_features() -> list[str]: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def exit_on_lost_pages(text: str) -> None: ...
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
def row_kernels() -> list[str]: ...
def decode_rows(
    kernel: str,
    columns: int,
    codes: npt.NDArray[np.uint8],
    high: npt.NDArray[np.uint8] | None,
    scales: npt.NDArray[np.uint8],
    tiled: bool,
    divisors: npt.NDArray[np.float32] | None,
    rows: npt.NDArray[np.int64] | None,
    first: int,
    count: int,
    output: int,
    out: npt.NDArray[Any],
    threads: int,
    stores: int = 0,
) -> None: ...
def legal_rows(
    kernel: str,
    columns: int,
    codes: npt.NDArray[np.uint8],
    high: npt.NDArray[np.uint8] | None,
    scales: npt.NDArray[np.uint8],
    tiled: bool,
    divisors: npt.NDArray[np.float32] | None,
    threads: int,
) -> bool: ...
def decode_block_rows(
    ggml_type: int,
    blocks: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64] | None,
    first: int,
    count: int,
    output: int,
    out: npt.NDArray[Any],
    threads: int,
    stores: int = 0,
) -> None: ...
def bytes_at_most(data: npt.NDArray[np.uint8], most: int) -> bool: ...
def rows_match(plane: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint8]) -> bool: ...
def count_set(blocks: npt.NDArray[np.uint8], block_bytes: int, offset: int, width: int, mask: int) -> int: ...
