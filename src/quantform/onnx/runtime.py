"""Models in onnxruntime: the compiled operator runs them as they are, and weights stay packed until they are used."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime

from quantform import _native
from quantform.errors import UnsupportedError

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["custom_op_library", "run", "session", "session_options"]

_LIBRARY = "quantform_ort.so"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_ERRORS_ONLY = 3
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_BFLOAT16_NUMBER = 16  # in ONNX


def custom_op_library() -> Path:
    """The shared library that gives onnxruntime the operator, in any program: it needs no Python.

    It exports `RegisterCustomOps`, works in onnxruntime 1.22 and newer, and holds the kernels of this package for every
    instruction set.

    Raises:
        UnsupportedError: This installation was made without a C++ compiler.
    """
    path = _library()
    if not path.is_file():
        raise UnsupportedError(
            "this installation has no compiled operator for onnxruntime",
            expected=path,
            hint="Install a C++20 compiler and reinstall quantform, or let quantform.onnx.lower write the model in "
            "standard operators",
        )
    return path


def _library() -> Path:
    return Path(_native.__file__).with_name(_LIBRARY)


def session_options(options: onnxruntime.SessionOptions | None = None) -> onnxruntime.SessionOptions:
    """Options for a session that knows the operator.

    Weights are not decoded when the model is loaded, whatever the level of optimization: the runtime folds constants
    through its own operators only. It warns of each that it does not fold, so new options show errors only
    (`log_severity_level` 3).

    Args:
        options: Options to which the operator is added; the runtime takes it once only. By default new ones.

    Returns:
        The options, `options` itself where it was given.

    Raises:
        UnsupportedError: This installation has no compiled operator, or the runtime is too old for it.
    """
    library = custom_op_library()
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
    try:
        options.register_custom_ops_library(os.fspath(library))
    except Exception as error:  # the runtime has classes of its own for what a library answers
        raise UnsupportedError("onnxruntime does not take the operator's library", found=error) from error
    return options


def session(
    model: str | os.PathLike[str] | bytes | ModelProto,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] | None = None,
) -> onnxruntime.InferenceSession:
    """A session for a model that has nodes of the operator, of opset 29 or of any other.

    Models of opset 29, which no runtime loads, are given a lower one first: see `for_runtime`. Where the compiled
    operator is not installed, its nodes are written in standard operators, as `lower` does, which takes longer; then
    the runtime decodes weights when it loads them, unless an option of its own keeps it from folding constants.

    Args:
        model: A file, whose external data lies beside it; or a model, serialized or not, whose external data lies in
            the current directory, as everywhere in onnxruntime.
        options: What `session_options` gives; by default new ones.
        providers: As for `onnxruntime.InferenceSession`.

    Raises:
        UnsupportedError: As `session_options`, `for_runtime` and `lower`.
        Exception: What the runtime itself raises, or `onnx` for a file that is no model. For wrong nodes the message
            names the node, what was expected and what was found.
    """
    import onnx  # noqa: PLC0415 - the other functions here need only the extra `ort`

    from quantform.onnx.lowering import lower  # noqa: PLC0415
    from quantform.onnx.opsets import for_runtime  # noqa: PLC0415

    compiled = _library().is_file()
    if options is None:
        options = session_options() if compiled else onnxruntime.SessionOptions()
    folder = None
    if isinstance(model, (str, os.PathLike)):
        folder = Path(model).parent
        given = onnx.load(model, load_external_data=False)
    else:
        given = onnx.load_from_string(model) if isinstance(model, bytes) else model
    loadable = for_runtime(given)
    if not compiled:
        loadable = lower(loadable)
    if folder is not None:
        if loadable is given:
            return onnxruntime.InferenceSession(os.fspath(model), options, providers)
        options.add_session_config_entry(_DATA_FOLDER, os.fspath(folder))
    return onnxruntime.InferenceSession(loadable.SerializeToString(), options, providers)


def run(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str] | None = None,
) -> list[Any]:
    """As `session.run(outputs, feeds)`, for models with bfloat16 inputs and outputs too.

    `session.run` itself refuses both. Here they are arrays of `ml_dtypes.bfloat16`.
    """
    kinds = {output.name: output.type for output in session.get_outputs()}
    names = list(kinds) if outputs is None else list(outputs)
    if _BFLOAT16 not in {value.dtype for value in feeds.values()} and "tensor(bfloat16)" not in map(kinds.get, names):
        return list(session.run(names, dict(feeds)))
    binding = session.io_binding()
    for name, value in feeds.items():
        array = np.ascontiguousarray(value)
        if array.dtype == _BFLOAT16:
            words = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_NUMBER)
            binding.bind_ortvalue_input(name, words)
        else:
            binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return [_array(value) for value in binding.get_outputs()]


def _array(value: onnxruntime.OrtValue) -> Any:  # noqa: ANN401 - whatever the runtime gives
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    array = np.empty(value.shape(), _BFLOAT16)
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
