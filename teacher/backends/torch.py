"""Backend `torch`: TorchScript, `torch.export` and networks of a factory, on CPUs and CUDA."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import ModelError
from ...proto.arena import Array
from ..model import FREE, ModelSpec, TensorSpec
from . import Finish, Submit, content, torch_runtime
from .declared import by_name, declared, narrowed, outputs_by_trial
from .framework import loading, translated
from .kind import BackendKind, Made, Settings
from .torch_graphs import GraphedCalls
from .torch_runtime import Copies

#: Operators that do something else in training, and which argument says so.
_TRAINING = {"aten.dropout.default": 2, "aten.batch_norm.default": 5}


def is_exported(file: Path) -> bool:
    """Whether `file` is of `torch.export`; False when it is TorchScript.

    Raises:
        ModelError: it is neither. Pickles are not opened: they can run anything.
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
        "torch.export.save or torch.jit.save (torch.save writes a pickle, of a whole network too)"
    )


def load_exported(torch: Any, file: Path, device: Any) -> Any:
    """The program, its weights on `device`; torch's errors are the caller's to translate.

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


def inputs_of(program: Any, file: Path) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Name, dtype and shape of each input, in the order of the program's call.

    Raises:
        ModelError: an input is no tensor.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if value is None or not hasattr(value, "dtype"):
            raise ModelError(f"{file}: input {name!r} is no tensor; a teacher takes tensors alone")
        yield name, value.dtype, tuple(_size(size) for size in value.shape)


def _size(size: object) -> int:
    """Symbols stand for free sizes."""
    return size if isinstance(size, int) else FREE


@dataclass(frozen=True, slots=True)
class Network:
    """A network that is on its device.

    Attributes:
        name: for errors.
        platform: format, as "torch_script".
        call: takes the tensors of the inputs, in order.
        inputs: in the order of `call`.
        content_id: hash of what it is.
    """

    name: str
    platform: str
    call: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    content_id: str


class TorchModel:
    """A network under PyTorch, in eval mode and without anything that gradients need.

    Args:
        load: puts the network on the device that it is given.
        settings: how to run it.
        declares: outputs as the factory declares them.

    Raises:
        ModelError: torch or the device is not there, the network cannot be loaded or does not run.
    """

    def __init__(
        self,
        load: Callable[[Any, Any, Settings], Network],
        settings: Settings,
        declares: tuple[TensorSpec, ...] = (),
    ) -> None:
        self._torch = torch = torch_runtime.import_torch()
        device = torch_runtime.open_device(torch, settings.device, settings.threads)
        self._copies = Copies(torch, device)
        network = load(torch, device, settings)
        self._inputs = network.inputs
        self._call: Callable[..., dict[str, Any]] = lambda *tensors: by_name(network.call(*tensors))
        if self._copies.on_gpu:
            self._call = GraphedCalls(torch, network.call)
        #: None on a CPU, where a call returns at its end.
        self.submit: Submit | None = self._submit if self._copies.on_gpu else None
        self._queueing = threading.Lock()
        self.spec = ModelSpec(
            platform=network.platform,
            inputs=network.inputs,
            outputs=outputs_by_trial(
                self.run, network.inputs, settings.outputs or declares, network.name
            ),
            content_id=network.content_id,
            numerics=torch_runtime.numerics(torch, device, settings.threads),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs, _ = self._submit(inputs)()
        return outputs

    def _submit(self, inputs: Mapping[str, Array]) -> Finish:
        with _model_errors(), self._torch.inference_mode():
            staged = [self._copies.staged(inputs[tensor.name]) for tensor in self._inputs]
            with self._queueing, self._copies.on_device():
                timer = torch_runtime.Timer(self._torch, on_gpu=self._copies.on_gpu)
                outputs = self._call(*map(self._copies.to_device, staged))
                host = self._copies.to_host(outputs)
                timer.stop()

        def finish() -> tuple[dict[str, Array], float]:
            with _model_errors():
                device_s = timer.wait()
                return self._copies.arrays(host), device_s

        return finish


def _model_errors() -> AbstractContextManager[None]:
    return translated("the model", torch_runtime.lacks_resources)


def open_file(file: Path, settings: Settings) -> TorchModel:
    """A TorchScript or `torch.export` file, whichever its content says that it is."""
    if is_exported(file):
        return TorchModel(lambda *where: _exported(file, *where), settings)
    return TorchModel(lambda *where: _script(file, *where), settings)


def open_made(made: Made, settings: Settings) -> TorchModel:
    """A `torch.nn.Module`, with inputs declared or given as example tensors."""
    return TorchModel(lambda *where: _module(made, *where), settings, declared(made.outputs))


def is_module(thing: object) -> bool:
    """Whether `thing` is a `torch.nn.Module`; torch is there when it is."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def _loading(torch: Any, file: Path) -> AbstractContextManager[None]:
    return loading(f"torch {torch.__version__}", file, "torch")


def _script(file: Path, torch: Any, device: Any, settings: Settings) -> Network:
    with _loading(torch, file):
        module = torch.jit.load(str(file), map_location=device).eval()
        # Kernels that are fused after some runs would change bits on the way.
        torch.jit.set_fusion_strategy([("STATIC", 0)])
    arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
    inputs = _ordered(settings.inputs or settings.behind(), arguments, str(file))
    return Network(str(file), "torch_script", module, inputs, content.of_files([file]))


def _exported(file: Path, torch: Any, device: Any, settings: Settings) -> Network:
    with _loading(torch, file):
        program = load_exported(torch, file, device)
    own = tuple(
        TensorSpec(name, torch_runtime.datatype(dtype), shape)
        for name, dtype, shape in inputs_of(program, file)
    )
    module, structure = program.module(), program.call_spec.in_spec

    def call(*tensors: Any) -> Any:
        arguments, keywords = structure.unflatten(list(tensors))
        return module(*arguments, **keywords)

    inputs = narrowed(own, settings.inputs)
    return Network(str(file), "torch_export", call, inputs, content.of_files([file]))


def _module(made: Made, torch: Any, device: Any, settings: Settings) -> Network:
    module = made.thing.to(device)
    with contextlib.suppress(NotImplementedError):  # an exported one is what it was exported as
        module.eval()
    arguments = list(inspect.signature(module.forward).parameters)
    inputs = settings.inputs or declared(made.inputs, arguments, _of_example) or settings.behind()
    if not inputs:
        raise ModelError(
            f"the inputs of {made.name} are not known: return (module, [example tensor, ...]) from "
            "it, or declare them with --input"
        )
    state = module.state_dict().items()
    arrays = ((key, torch_runtime.as_array(torch, value)) for key, value in state)
    content_id = content.of_code(made.name, module, arrays)
    return Network(made.name, "torch_module", module, inputs, content_id)


def _of_example(tensor: Any, argument: str) -> TensorSpec:
    """What an example tensor declares: its first dimension is the batch, and free."""
    try:
        shape = (FREE, *(int(size) for size in tensor.shape[1:]))
        return TensorSpec(argument, torch_runtime.datatype(tensor.dtype), shape)
    except AttributeError:
        raise ModelError(f"{tensor!r} declares no input: expected an example tensor") from None


def _ordered(
    inputs: tuple[TensorSpec, ...], arguments: list[str], model: str
) -> tuple[TensorSpec, ...]:
    """The declared inputs in the order of a script's arguments, which have names alone."""
    given = {tensor.name: tensor for tensor in inputs}
    if set(given) != set(arguments):
        raise ModelError(
            f"TorchScript does not say shapes: declare each input of {model} "
            f"({', '.join(arguments)}) with --input NAME:DATATYPE:DIMS"
        )
    return tuple(given[name] for name in arguments)


KIND = BackendKind(
    name="torch",
    package="torch",
    files="a .pt2 file of torch.export, or a .pt, .pth or .ts file of TorchScript (PyTorch)",
    suffixes=(".pt2", ".pt", ".pth", ".ts"),
    open_file=open_file,
    things="a torch.nn.Module",
    recognises=is_module,
    open_made=open_made,
)
