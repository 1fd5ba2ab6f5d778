"""Backend `onnx`: ONNX models in onnxruntime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import FREE, Buffer, TensorSpec, datatype_of
from ...proto.protobuf_fields import split_bytes_field
from ...runtime.errors import ModelError, WireError
from ...runtime.extras import install_command
from . import Finish, ModelSpec, Submit, blocking_submit
from .framework import first_line, gpu_of, numerics, translate_errors
from .model_source import BackendKind, ModelSettings, hash_of_files
from .tensor_specs import outputs_by_trial, refuse_outputs, with_declared_shapes

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH = 5, 6
_TENSOR_EXTERNAL_DATA = 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
#: Key of the entry of external data that names the file.
_LOCATION = b"location"


def files_of(model: Path) -> list[Path]:
    """Return the model's file and the files with its weights, each once, in a fixed order.

    Raises:
        ModelError: the file is no protobuf message, or a weight file is missing.
    """
    try:
        names = dict.fromkeys(
            name
            for graph in _split(model.read_bytes(), _MODEL_GRAPH)[1]
            for name in _external_files(graph)
        )
    except (OSError, WireError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {model}: {error}") from None
    weight_files = [model.parent / name for name in names]
    for file in weight_files:
        if not file.is_file():
            raise ModelError(f"{model} has its weights in {file}, which does not exist")
    return [model, *weight_files]


def _external_files(graph: Buffer) -> Iterator[str]:
    """Yield the names of the files with the weights of a graph and of graphs within its nodes."""
    rest, weights = _split(graph, _GRAPH_INITIALIZER)
    for weight in weights:
        yield from _file_of(weight)
    if _LOCATION not in rest:  # as in nearly all models; splitting every node takes seconds
        return
    for node in _split(rest, _GRAPH_NODE)[1]:  # such as If, which has a graph for each branch
        for attribute in _split(node, _NODE_ATTRIBUTE)[1]:
            rest, constants = _split(attribute, _ATTRIBUTE_TENSOR)
            for constant in constants:
                yield from _file_of(constant)
            for inner in _split(rest, _ATTRIBUTE_GRAPH)[1]:
                yield from _external_files(inner)


def _file_of(weight: Buffer) -> Iterator[str]:
    """Yield the name of the file that holds one weight; nothing if the model's file holds it."""
    for entry in _split(weight, _TENSOR_EXTERNAL_DATA)[1]:
        # Some writers leave out an empty value.
        key, value = (b"".join(_split(entry, n)[1]) for n in (_ENTRY_KEY, _ENTRY_VALUE))
        if key == _LOCATION:
            yield value.decode()


def _split(message: Buffer, number: int) -> tuple[bytes, list[memoryview]]:
    # Not limited: the file is the user's own, and a large graph has tens of thousands of nodes.
    return split_bytes_field(message, number, max_fields=len(message))


#: Types with different names in onnxruntime and numpy.
_DTYPE_NAMES = {"float": "float32", "double": "float64"}
#: Words in onnxruntime's errors about models that need a newer version.
_NEEDS_NEWER = ("IR version", "opset", "No Op registered")
#: The log level of onnxruntime for errors alone.
_ERRORS_ONLY = 3


class OnnxSession:
    """A model in a session of onnxruntime.

    Args:
        model: the .onnx file.
        settings: how to run it; `inputs` narrow shapes that the model leaves free.

    Raises:
        ModelError: onnxruntime or the device is missing, the file cannot be read, the declared
            inputs or outputs do not fit, or a tensor cannot be sent.
    """

    def __init__(self, model: Path, settings: ModelSettings) -> None:
        refuse_outputs(model, settings)
        runtime = import_onnxruntime()
        gpu = gpu_of(settings.device)
        providers = _providers(runtime, settings.device, gpu)
        try:
            self._session = runtime.InferenceSession(
                str(model), _options(runtime, settings.threads), providers=providers
            )
        except Exception as error:  # its classes come from C++ and have no common base
            raise ModelError(_load_error(runtime, model, error)) from error
        _check_provider(self._session, settings.device, gpu)
        model_inputs = [_spec_of(node, model) for node in self._session.get_inputs()]
        outputs = [_spec_of(node, model) for node in self._session.get_outputs()]
        self._outputs = [tensor.name for tensor in outputs]
        self._inputs = with_declared_shapes(model_inputs, settings.inputs)
        # An empty shape means that the model does not state the number of dimensions.
        if not all(tensor.shape for tensor in outputs):
            outputs = list(outputs_by_trial(self.run, self._inputs, (), str(model)))
        # On a GPU, a thread waits for the device while the caller prepares the next run. On a CPU,
        # the run itself needs the cores.
        self.submit: Submit | None = None
        if gpu is not None:
            self.submit = partial(self._submit, ThreadPoolExecutor(1, "onnxruntime"))
        self.spec = ModelSpec(
            platform="onnxruntime",
            inputs=self._inputs,
            outputs=tuple(outputs),
            content_id=hash_of_files(files_of(model)),
            numerics=numerics(
                f"onnxruntime-{runtime.__version__}",
                "fp32",
                settings.threads,
                None if gpu is None else ("cuda", _gpu_name(gpu)),
            ),
        )

    def _submit(self, pool: ThreadPoolExecutor, inputs: Mapping[str, Array]) -> Finish:
        return pool.submit(lambda: blocking_submit(self.run)(inputs)()).result

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        feeds = {
            tensor.name: np.require(inputs[tensor.name], requirements=["C", "A"])
            for tensor in self._inputs
        }
        with translate_errors("the model", line=_message):
            arrays = self._session.run(self._outputs, feeds)
        return dict(zip(self._outputs, arrays, strict=True))


def import_onnxruntime() -> Any:
    """Import onnxruntime; raises ModelError if it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"onnxruntime cannot be imported ({error}): {install_command('onnx')}"
        ) from None
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
    return onnxruntime


def has_cuda() -> bool:
    """Whether the installed onnxruntime supports GPUs; raises ModelError without onnxruntime."""
    return "CUDAExecutionProvider" in import_onnxruntime().get_available_providers()


def _options(runtime: Any, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    options.use_deterministic_compute = True
    # Threads that spin between two runs would take cores from the threads that serve requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _providers(runtime: Any, device: str, gpu: int | None) -> list[Any]:
    if gpu is None:
        return ["CPUExecutionProvider"]
    if not has_cuda():
        raise ModelError(
            f"device {device} was requested, but this onnxruntime has no GPU support: "
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
        )
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # the dynamic loader does not find CUDA in Python packages
    # The defaults change bits: TF32 rounds factors to a mantissa of ten bits, and each start
    # chooses convolution algorithms by timing them.
    options = {"device_id": gpu, "use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def _check_provider(session: Any, device: str, gpu: int | None) -> None:
    """Raise ModelError if the session would run on the CPU because it cannot use the GPU."""
    if gpu is not None and session.get_providers()[0] != "CUDAExecutionProvider":
        raise ModelError(
            f"onnxruntime cannot use device {device}: CUDA or cuDNN is missing or has a version "
            "that it was not built for, or there is no such GPU; see its message above"
        )


def _spec_of(node: Any, model: Path) -> TensorSpec:
    type_name = node.type.removeprefix("tensor(").removesuffix(")")
    try:
        datatype = datatype_of(np.dtype(_DTYPE_NAMES.get(type_name, type_name)))
        # The Python interface of onnxruntime neither takes nor returns arrays of bfloat16.
        if datatype in ("BYTES", "BF16") or not node.type.startswith("tensor("):
            raise WireError
    except (TypeError, WireError):
        raise ModelError(
            f"{model}: {node.name!r} is a {node.type}, which cannot be sent: cast it in the model"
        ) from None
    return TensorSpec(node.name, datatype, tuple(_size(size) for size in node.shape or ()))


def _size(size: object) -> int:
    """Return a size; free dimensions, which are names or None, become FREE."""
    return size if isinstance(size, int) and size > 0 else FREE


def _gpu_name(gpu: int) -> str:
    """Return the name of a GPU; "unknown" if the CUDA driver does not report it.

    onnxruntime does not provide the name. CUDA's driver numbers GPUs as onnxruntime does: only
    visible ones, and not always in the order of their slots.
    """
    name, device = ctypes.create_string_buffer(256), ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "unknown"
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), gpu)
        or cuda.cuDeviceGetName(name, len(name), device)
    )
    return "unknown" if failed else name.value.decode()


def _load_error(runtime: Any, model: Path, error: Exception) -> str:
    text = f"onnxruntime {runtime.__version__} cannot load {model}: {_message(error)}"
    if any(word in str(error) for word in _NEEDS_NEWER):
        return f"{text}; a newer version may load it: pip install --upgrade onnxruntime"
    return text


def _message(error: BaseException) -> str:
    """Return the message without "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : "."""
    line = first_line(error)
    return line.split(" : ", 3)[-1] if line.startswith("[ONNXRuntimeError]") else line


KIND = BackendKind(
    name="onnx",
    package="onnxruntime",
    files="an .onnx file (ONNX)",
    suffixes=(".onnx",),
    open_file=OnnxSession,
    content_files=files_of,
)
