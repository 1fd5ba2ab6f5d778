"""Backend `torch`: TorchScript, `torch.export` and a factory's networks, on CPUs and CUDA.

On CUDA, arrays move between numpy and PyTorch through pinned memory without blocking.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import FREE, TensorSpec
from ...runtime.errors import ModelError
from ...runtime.extras import install_command
from . import Finish, ModelSpec, Submit, framework
from .framework import check_gpu, gpu_of, loading_errors, translate_errors
from .model_source import BackendKind, FactoryResult, ModelSettings, hash_of_code, hash_of_files
from .tensor_specs import (
    datatype_named,
    outputs_by_name,
    outputs_by_trial,
    parse_declared,
    with_declared_shapes,
)
from .torch_graphs import GraphedCalls

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def import_torch() -> Any:
    """Import `torch`; raises ModelError if it is not installed."""
    try:
        import torch
        import torch.export
    except ImportError as error:
        raise ModelError(
            f"torch cannot be imported ({error}): {install_command('torch')}"
        ) from None
    return torch


def open_device(torch: Any, device: str, threads: int) -> Any:
    """Return the `torch.device`; select full float32 precision and deterministic kernels.

    Raises:
        ModelError: there is no such device, or this torch cannot use it.
    """
    torch.set_num_threads(threads)
    if (index := gpu_of(device)) is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(
            f"device {device} was requested, but torch {torch.__version__} finds no CUDA: it was "
            "built without CUDA, or there is no driver; install a build for your CUDA"
        )
    check_gpu(device, index, torch.cuda.device_count())
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False  # True, the default, keeps 10 of 23 mantissa bits
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def numerics(torch: Any, device: Any, threads: int) -> tuple[str, ...]:
    """Return all that decides the bits of a PyTorch model's labels, except the micro-batch."""
    gpu = None
    if device.type != "cpu":
        name, cudnn = torch.cuda.get_device_name(device), torch.backends.cudnn.version()
        gpu = (name, f"cuda={torch.version.cuda}", f"cudnn={cudnn}")
    return framework.numerics(f"torch-{torch.__version__}", "fp32", threads, gpu)


def datatype(dtype: Any) -> str:
    """Return the protocol's name for a torch dtype; raise ModelError if it has none."""
    return datatype_named(str(dtype).removeprefix("torch."))


def as_array(torch: Any, tensor: Any) -> Array:
    """Return a tensor as an array that shares its memory.

    It is a copy if the tensor is on a GPU, or is in bfloat16 and not contiguous.
    """
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # torch cannot convert it to numpy
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(_BFLOAT16)
    array: Array = tensor.numpy()
    return array


def is_device_error(error: Exception) -> bool:
    """Whether an error is about the device or its memory: by its class, else by its text."""
    if type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return True
    return framework.is_device_error(error)


class DeviceCopies:
    """Copies arrays to and from one device.

    On CUDA, both directions use page-locked memory, which the device accesses itself: copies of the
    inputs, the run and copies of the outputs are queued, and the caller waits only for their end.
    PyTorch's allocator owns that memory and reuses a block only when copies from it have ended.

    Attributes:
        on_gpu: whether the device is a GPU.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self.on_gpu: bool = device.type == "cuda"

    def on_device(self) -> AbstractContextManager[Any]:
        """Select the device for the calling thread; every thread starts with the first GPU."""
        return self._torch.cuda.device(self._device) if self.on_gpu else nullcontext()

    def event(self) -> Any:
        """Queue an event that records when the device reaches it; return None on a CPU."""
        if not self.on_gpu:
            return None
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def staged(self, array: Array) -> Any:
        """Copy an array to a new tensor on the host, page-locked for a GPU, for `to_device`."""
        dtype = getattr(self._torch, array.dtype.newbyteorder("=").name)
        staged = self._torch.empty(array.shape, dtype=dtype, pin_memory=self.on_gpu)
        np.copyto(as_array(self._torch, staged), array)
        return staged

    def to_device(self, staged: Any) -> Any:
        """Return the tensor on the device; the network may overwrite it."""
        return staged.to(self._device, non_blocking=True) if self.on_gpu else staged

    def to_host(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Queue copies to new tensors on the host; wait for a later `event` before reading them."""
        return {name: self._fetched(tensor.detach()) for name, tensor in outputs.items()}

    def arrays(self, host: Mapping[str, Any]) -> dict[str, Array]:
        """Return the results of `to_host` as arrays, which later runs do not change."""
        return {name: as_array(self._torch, tensor) for name, tensor in host.items()}

    def _fetched(self, tensor: Any) -> Any:
        staged = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.on_gpu)
        return staged.copy_(tensor, non_blocking=self.on_gpu)


#: Operators that behave differently in training, and the position of their training argument.
_TRAINING = {"aten.dropout.default": 2, "aten.batch_norm.default": 5}


def is_exported(file: Path) -> bool:
    """Whether `file` is from `torch.export`, as opposed to TorchScript.

    Raises:
        ModelError: it is neither. Pickles are never opened, because they can execute code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = {PurePosixPath(name).name for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{file} cannot be read as a file of PyTorch ({error}): write one with "
            "torch.export.save or torch.jit.save"
        ) from None
    if {"archive_format", "serialized_exported_program.json"} & names:
        return True
    if "constants.pkl" in names:
        return False
    raise ModelError(
        f"{file} holds weights or pickled objects, not a network: name a function that builds the "
        "network and loads them (--model module:function), or save the network with "
        "torch.export.save or torch.jit.save (torch.save pickles even a whole network)"
    )


def load_exported(torch: Any, file: Path, device: Any) -> Any:
    """Load a program, with its weights on `device`; the caller converts torch's errors.

    Raises:
        ModelError: it was exported for training.
    """
    program = torch.export.load(str(file))
    for node in program.graph.nodes:
        position = _TRAINING.get(str(node.target))
        if position is not None and node.args[position : position + 1] == (True,):
            raise ModelError(
                f"{file} was exported for training: call eval() on the network before torch.export"
            )
    if device.type == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, str(device))


def inputs_of(program: Any, file: Path) -> Iterator[TensorSpec]:
    """Yield the spec of each input, in the order of the program's call.

    Raises:
        ModelError: an input is not a tensor.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if value is None or not hasattr(value, "dtype"):
            raise ModelError(f"{file}: input {name!r} is no tensor; a teacher takes only tensors")
        yield TensorSpec(name, datatype(value.dtype), tuple(map(_size, value.shape)))


def _size(size: object) -> int:
    """Return a size; free dimensions, which are symbols, become FREE."""
    return size if isinstance(size, int) else FREE


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network on its device.

    Attributes:
        name: for errors.
        platform: the format, as "torch_script".
        call: takes the tensors of the inputs, in order.
        inputs: in the order of `call`.
        content_id: hash of the network.
        preprocessing: as in `ModelSpec`.
        libraries: name and version of each library that defines the network, for the numerics.
    """

    name: str
    platform: str
    call: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    content_id: str
    preprocessing: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


class TorchModel:
    """A network in PyTorch, in eval mode and without gradients.

    Args:
        load: loads the network onto a device.
        settings: how to run it.
        declared_outputs: outputs that the factory declares; empty if it declares none.

    Raises:
        ModelError: torch or the device is missing, or the network cannot be loaded or does not run.
    """

    def __init__(
        self,
        load: Callable[[Any, Any, ModelSettings], LoadedNetwork],
        settings: ModelSettings,
        declared_outputs: tuple[TensorSpec, ...] = (),
    ) -> None:
        self._torch = torch = import_torch()
        device = open_device(torch, settings.device, settings.threads)
        self._copies = DeviceCopies(torch, device)
        network = load(torch, device, settings)
        self._inputs = network.inputs
        self._call: Callable[..., dict[str, Any]] = lambda *tensors: outputs_by_name(
            network.call(*tensors)
        )
        if self._copies.on_gpu:
            self._call = GraphedCalls(torch, network.call)
        #: None on a CPU, where a call blocks.
        self.submit: Submit | None = self._submit if self._copies.on_gpu else None
        self._queue_lock = threading.Lock()  # so that the work of two runs does not mix
        self.spec = ModelSpec(
            platform=network.platform,
            inputs=network.inputs,
            outputs=outputs_by_trial(
                self.run, network.inputs, settings.outputs or declared_outputs, network.name
            ),
            content_id=network.content_id,
            numerics=(*numerics(torch, device, settings.threads), *network.libraries),
            preprocessing=network.preprocessing,
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs, _ = self._submit(inputs)()
        return outputs

    def _submit(self, inputs: Mapping[str, Array]) -> Finish:
        with _model_errors(), self._torch.inference_mode():
            staged = [self._copies.staged(inputs[tensor.name]) for tensor in self._inputs]
            with self._queue_lock, self._copies.on_device():
                began = self._copies.event()
                outputs = self._call(*map(self._copies.to_device, staged))
                host = self._copies.to_host(outputs)
                ended = self._copies.event()

        def finish() -> tuple[dict[str, Array], float]:
            device_s = 0.0
            with _model_errors():
                if ended is not None:
                    ended.synchronize()
                    device_s = began.elapsed_time(ended) / 1000
                return self._copies.arrays(host), device_s

        return finish


def _model_errors() -> AbstractContextManager[None]:
    return translate_errors("the model", is_device_error)


def open_file(file: Path, settings: ModelSettings) -> TorchModel:
    """Open a file of TorchScript or `torch.export`; its content shows which."""
    load = _load_export if is_exported(file) else _load_script
    return TorchModel(partial(load, file), settings)


def open_object(result: FactoryResult, settings: ModelSettings) -> TorchModel:
    """Open a `torch.nn.Module`, with inputs declared or given as example tensors."""
    return TorchModel(partial(_load_module, result), settings, parse_declared(result.outputs))


def _loading(torch: Any, file: Path) -> AbstractContextManager[None]:
    return loading_errors(f"torch {torch.__version__}", file, "torch")


def _load_script(file: Path, torch: Any, device: Any, settings: ModelSettings) -> LoadedNetwork:
    with _loading(torch, file):
        module = torch.jit.load(str(file), map_location=device).eval()
        # Kernels that are fused after some runs would change bits.
        torch.jit.set_fusion_strategy([("STATIC", 0)])
    arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
    inputs = _in_order(settings.inputs or settings.preprocessed_inputs(), arguments, str(file))
    return LoadedNetwork(str(file), "torch_script", module, inputs, hash_of_files([file]))


def _load_export(file: Path, torch: Any, device: Any, settings: ModelSettings) -> LoadedNetwork:
    with _loading(torch, file):
        program = load_exported(torch, file, device)
    module, structure = program.module(), program.call_spec.in_spec

    def call(*tensors: Any) -> Any:
        arguments, keywords = structure.unflatten(list(tensors))
        return module(*arguments, **keywords)

    inputs = with_declared_shapes(list(inputs_of(program, file)), settings.inputs)
    return LoadedNetwork(str(file), "torch_export", call, inputs, hash_of_files([file]))


def _load_module(
    result: FactoryResult, torch: Any, device: Any, settings: ModelSettings
) -> LoadedNetwork:
    module = result.model.to(device)
    with contextlib.suppress(NotImplementedError):  # exported modules cannot change their mode
        module.eval()
    arguments = list(inspect.signature(module.forward).parameters)
    inputs = (
        settings.inputs
        or parse_declared(result.inputs, arguments, _convert_example, "an example tensor")
        or settings.preprocessed_inputs()
    )
    if not inputs:
        raise ModelError(
            f"the inputs of {result.name} are not known: return (module, [example tensor, ...]) "
            "from it, or declare them with --input"
        )
    state = module.state_dict().items()
    arrays = ((key, as_array(torch, value)) for key, value in state)
    content_id = hash_of_code(result.name, module, arrays)
    return LoadedNetwork(result.name, "torch_module", module, inputs, content_id)


def _convert_example(tensor: Any, argument: str) -> TensorSpec:
    """Return the spec of an example tensor; its first dimension is the free batch."""
    shape = (FREE, *(int(size) for size in tensor.shape[1:]))
    return TensorSpec(argument, datatype(tensor.dtype), shape)


def _in_order(
    inputs: tuple[TensorSpec, ...], arguments: list[str], model: str
) -> tuple[TensorSpec, ...]:
    """Return the declared inputs in the order of a script's arguments, which have no specs."""
    by_name = {tensor.name: tensor for tensor in inputs}
    if set(by_name) != set(arguments):
        raise ModelError(
            f"TorchScript does not say shapes: declare each input of {model} "
            f"({', '.join(arguments)}) with --input NAME:DATATYPE:DIMS"
        )
    return tuple(by_name[name] for name in arguments)


KIND = BackendKind(
    name="torch",
    package="torch",
    files="a .pt2 file of torch.export, or a .pt, .pth or .ts file of TorchScript (PyTorch)",
    suffixes=(".pt2", ".pt", ".pth", ".ts"),
    open_file=open_file,
    factory_types="a torch.nn.Module",
    recognises=partial(framework.is_network, framework="torch", class_name="Module"),
    open_object=open_object,
)
