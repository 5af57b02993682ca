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
