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
from quantform.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["custom_op_library", "run", "session", "session_options"]

_LIBRARY = "quantform_ort.so"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
# The runtime copies a node's constant inputs before it learns that it cannot fold the node, unless its output is above
# this limit. A payload is smaller than its output, so this bounds each copy, and smaller constants are folded as ever.
_FOLDING_LIMIT = ("optimization.constant_folding_max_output_size_in_bytes", str(1 << 20))
# Functions that are calls while constants are folded stay calls then, whatever their size.
_NO_INLINING = ("session.disable_aot_function_inlining", "1")
_ERRORS_ONLY = 3
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_BFLOAT16_NUMBER = 16  # in ONNX
# What the runtime calls types otherwise than NumPy does.
_DTYPES: dict[str, npt.DTypeLike] = {"float": np.float32, "double": np.float64, "bfloat16": _BFLOAT16, "string": object}


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
    (`log_severity_level` 3); and it copies payloads to try, so new options fold no constants above 1 MiB
    (`optimization.constant_folding_max_output_size_in_bytes`).

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
        options.add_session_config_entry(*_FOLDING_LIMIT)
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

    Models of opset 29, which no runtime loads, are given a lower one first: see `for_runtime`. Functions of the model
    with nodes of the operator are inlined. Where the compiled operator is not installed, its nodes are written in
    standard operators, as `lower` does, which takes longer; new options then keep the runtime from decoding weights
    when it loads them (`session.disable_aot_function_inlining`).

    Args:
        model: A file, whose external data lies beside it; or a model, serialized or not, whose external data lies in
            the current directory, as everywhere in onnxruntime.
        options: What `session_options` gives; by default new ones. Where external data lies is written into them
            (`session.model_external_initializers_file_folder_path`), anew for each model: one set of options serves
            many models, one after another, but not two threads at once.
        providers: As for `onnxruntime.InferenceSession`.

    Raises:
        ArgumentError: `model` is none of the three.
        UnsupportedError: As `session_options`, `for_runtime` and `lower`.
        Exception: What the runtime itself raises, or `onnx` for a file that is no model. For wrong nodes the message
            names the node, what was expected and what was found.
    """
    import onnx  # noqa: PLC0415 - the other functions here need only the extra `ort`

    from quantform.onnx.graphs import inline_packed  # noqa: PLC0415
    from quantform.onnx.lowering import lower  # noqa: PLC0415
    from quantform.onnx.opsets import for_runtime  # noqa: PLC0415

    folder = Path()
    if isinstance(model, (str, os.PathLike)):
        folder = Path(model).parent
        given = onnx.load(model, load_external_data=False)
    elif isinstance(model, (bytes, onnx.ModelProto)):
        given = onnx.load_from_string(model) if isinstance(model, bytes) else model
    else:
        raise ArgumentError(
            "the model is of no known kind",
            expected="a path, the bytes of a model, or an onnx.ModelProto",
            found=type(model).__name__,
        )
    compiled = _library().is_file()
    if options is None:
        options = session_options() if compiled else _options_for_functions()
    loadable = inline_packed(for_runtime(given))
    if not compiled:
        loadable = lower(loadable)
    _set_entry(options, _DATA_FOLDER, os.fspath(folder.resolve()))
    source = os.fspath(model) if isinstance(model, (str, os.PathLike)) and loadable is given else None
    return onnxruntime.InferenceSession(source or loadable.SerializeToString(), options, providers)


def _options_for_functions() -> onnxruntime.SessionOptions:
    """New options for models in standard operators."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*_NO_INLINING)
    return options


def _set_entry(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Set an entry of options; the runtime warns of each that it writes again, even of the same value."""
    try:
        same = options.get_session_config_entry(key) == value
    except RuntimeError:  # there is no such entry yet
        same = False
    if not same:
        options.add_session_config_entry(key, value)


def run(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, npt.ArrayLike],
    outputs: Sequence[str] | None = None,
    run_options: onnxruntime.RunOptions | None = None,
) -> list[Any]:
    """As `session.run(outputs, feeds, run_options)`, for models with bfloat16 inputs and outputs too.

    `session.run` itself refuses both. Here they are arrays of `ml_dtypes.bfloat16`. As there, feeds may be lists.
    """
    kinds = {output.name: output.type for output in session.get_outputs()}
    names = list(kinds) if outputs is None else list(outputs)
    dtypes = {getattr(value, "dtype", None) for value in feeds.values()}
    if _BFLOAT16 not in dtypes and "tensor(bfloat16)" not in map(kinds.get, names):
        return list(session.run(names, dict(feeds), run_options))
    binding = session.io_binding()
    types = {value.name: value.type.removeprefix("tensor(").removesuffix(")") for value in session.get_inputs()}
    for name, value in feeds.items():
        dtype = None if isinstance(value, np.ndarray) else _DTYPES.get(types.get(name, ""), types.get(name))
        array = np.ascontiguousarray(value, dtype)
        if array.dtype == _BFLOAT16:
            words = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_NUMBER)
            binding.bind_ortvalue_input(name, words)
        else:
            binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding, run_options)
    return [_array(value) for value in binding.get_outputs()]


def _array(value: onnxruntime.OrtValue) -> Any:  # noqa: ANN401 - whatever the runtime gives
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    array = np.empty(value.shape(), _BFLOAT16)
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
