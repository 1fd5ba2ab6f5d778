"""PyTorch: kinds of objects, devices, the state of trainings, and the group of ranks.

PyTorch's optimizers number the parameters in their state, in the order in which they got them. The
state that we save has the names of the network instead (`fc.weight`).
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ...distill_reader.structure import map_leaves
from ...proto.arena import Array, dtype_named
from ...runtime.errors import CheckpointMismatch, UsageError
from ..settings import Amp
from . import Framework, FrameworkName, LearningRate, Precision, check_has_gpu, from_json, to_json
from .groups import DistributedGroup

log = logging.getLogger(__name__)

#: Key of the parameters in a group of `state_dict`.
_PARAMETERS: Final = "params"
#: Longest wait in a collective; a rank that hangs is ended by its supervisor long before.
_TIMEOUT: Final = timedelta(hours=1)


class TorchGroup(DistributedGroup):
    """See `DistributedGroup`."""

    module = torch

    def _open_store(self, endpoints: Sequence[str]) -> Any:
        host, _, port = endpoints[0].rpartition(":")
        return dist.TCPStore(
            host.strip("[]"),
            int(port),
            self.world,
            self.rank == 0,
            _TIMEOUT,
            wait_for_workers=False,
        )

    def _form_group(self) -> None:
        dist.init_process_group(
            "gloo" if self._device == "cpu" else "nccl",
            store=self._store,
            rank=self.rank,
            world_size=self.world,
            timeout=_TIMEOUT,
        )

    def _gather(self, array: Array) -> Array:
        tensor = torch.from_numpy(array).to(self._device)
        rows = torch.empty((self.world, *tensor.shape), dtype=tensor.dtype, device=self._device)
        dist.all_gather(list(rows), tensor)
        gathered: Array = rows.cpu().numpy()
        return gathered

    def _begin_sum(self, tensor: Any) -> Callable[[], object]:
        wait: Callable[[], object] = dist.all_reduce(tensor, async_op=True).wait
        return wait

    def _unexpanded(self, tensor: Any) -> Any:
        return _unexpanded(tensor)

    def _set(self, tensor: Any, values: Any) -> None:
        tensor.copy_(values)

    def _floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        return torch.tensor(list(rows), dtype=torch.float32, device=self._device)

    def _is_trainable(self, parameter: Any) -> bool:
        return bool(parameter.requires_grad)

    def _is_sparse(self, gradient: Any) -> bool:
        return bool(gradient.is_sparse)

    def _dense(self, parameter: Any) -> Any:
        gradient = parameter.grad
        return (gradient.to_dense() if gradient.is_sparse else gradient).to(parameter.dtype)

    def _set_gradient(self, parameter: Any, summed: Any, sparse: bool) -> None:
        parameter.grad = _sparse(summed) if sparse else summed


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """An optimizer of PyTorch with its schedule, and the methods that trainings call.

    Attributes:
        optimizer: a `torch.optim.Optimizer`.
        schedule: a schedule of its learning rates, advanced after every step, or
            (`ReduceLROnPlateau`) after every evaluation; None: the rates are fixed.
    """

    optimizer: Any
    schedule: Any = None

    def step(self) -> None:
        self.optimizer.step()

    def clear_grad(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def get_lr(self) -> float:
        """Return the learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])


class TorchFramework(Framework):
    """See `Framework`."""

    name: FrameworkName = "torch"
    module = torch
    group = TorchGroup
    kinds: Mapping[str, str] = {
        "model": "a torch.nn.Module",
        "optimizer": "a torch.optim.Optimizer, or a pair of one and its schedule",
    }

    def is_model(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Module)

    def optimizer(self, value: Any) -> Any:
        if isinstance(value, torch.optim.Optimizer):
            return TorchOptimizer(value)
        if isinstance(value, (tuple, list)) and len(value) == 2:
            optimizer, schedule = value
            if (
                isinstance(optimizer, torch.optim.Optimizer)
                and self.is_schedule(schedule)
                and getattr(schedule, "optimizer", None) is optimizer
            ):
                return TorchOptimizer(optimizer, schedule)
        return None

    def set_device(self, local_rank: int) -> str:
        if not torch.cuda.is_available():
            return "cpu"
        check_has_gpu(local_rank, torch.cuda.device_count())
        torch.cuda.set_device(local_rank)
        return f"cuda:{local_rank}"

    def to_device(self, model: Any) -> Any:
        return model.to(_device())

    def tensor(self, value: Any, model: Any = None) -> Any:
        if isinstance(value, np.ndarray):
            value = _tensor_of(value)
        if isinstance(value, torch.Tensor) and value.device != (device := _device(model)):
            # A copy to the CPU must be complete before its values are used.
            return value.to(device, non_blocking=device.type != "cpu")
        return value

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def layers(self, model: Any) -> Any:
        return model.modules()

    def flatten(self, outputs: Any) -> list[Any]:
        tensors: list[Any] = []
        map_leaves(outputs, lambda leaf: tensors.append(leaf) if hasattr(leaf, "numpy") else None)
        return tensors

    def learning_rate(self, optimizer: TorchOptimizer) -> LearningRate:
        def multiply(by: float) -> None:
            for group in optimizer.optimizer.param_groups:
                group["lr"] = group["lr"] * by  # not in place: groups may share a tensor

        by_metric = isinstance(optimizer.schedule, ReduceLROnPlateau)
        return LearningRate(optimizer.schedule, by_metric, multiply, "lr", "schedule")

    def mixed_precision(self, amp: Amp, device: str) -> Precision:
        kind = device.partition(":")[0]
        scaler = torch.amp.GradScaler(kind) if amp == "float16" else None
        if scaler is not None:  # initialize it: a rank may take its first step without rows
            scaler.scale(torch.zeros((), device=device))
        forward = partial(torch.autocast, kind, dtype=getattr(torch, amp))
        return Precision(forward, scaler)

    def tensors(self, model: Any) -> dict[str, Any]:
        state = model.state_dict(keep_vars=True)
        return {
            name: value
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and not _is_extra_state(name)
        }

    def array(self, tensor: Any) -> Array:
        detached = tensor.detach().cpu().contiguous()
        is_bfloat16 = detached.dtype is torch.bfloat16  # `Tensor.numpy` refuses this dtype
        array: Array = (detached.view(torch.int16) if is_bfloat16 else detached).numpy()
        return array.view(dtype_named("bfloat16")) if is_bfloat16 else array

    def set_value(self, tensor: Any, array: Array) -> None:
        with self.no_grad():
            part = _unexpanded(tensor)
            part.copy_(_tensor_of(array)[tuple(map(slice, part.shape))])

    def extra_state(self, model: Any) -> dict[str, Any]:
        state = {name: one for name, one in model.state_dict().items() if _is_extra_state(name)}
        try:
            saved: dict[str, Any] = json.loads(json.dumps(to_json(state)))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a checkpoint cannot hold {', '.join(state)}: get_extra_state() must return values"
                f" of JSON, arrays or tensors ({error})"
            ) from error
        return saved

    def restore_extra_state(self, model: Any, saved: Mapping[str, Any]) -> None:
        for name, live in model.state_dict().items():
            if name in saved:
                layer = model.get_submodule(name.rpartition(".")[0])
                layer.set_extra_state(_with_type_of(live, from_json(saved[name])))

    def optimizer_class(self, optimizer: TorchOptimizer) -> str:
        return type(optimizer.optimizer).__name__

    def optimizer_state(
        self, model: Any, optimizer: TorchOptimizer
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        plain, schedule = optimizer.optimizer, optimizer.schedule
        state, names = plain.state_dict(), _names(model, plain)
        arrays: dict[str, Array] = {}
        numbers: dict[str, Any] = {}
        for index, kinds in state["state"].items():
            for kind, value in kinds.items():
                key = f"{names[index]}:{kind}"
                if hasattr(value, "numpy"):
                    arrays[key] = self.array(value)
                elif value is not None:
                    numbers[key] = value
        groups = [
            to_json({key: value for key, value in group.items() if key != _PARAMETERS})
            for group in state["param_groups"]
        ]
        details: dict[str, Any] = {"class": type(plain).__name__, "groups": groups}
        if numbers:
            details["numbers"] = numbers
        if schedule is not None:
            details["schedule"] = to_json(_without_functions(schedule.state_dict()))
        return arrays, details

    def restore_optimizer(
        self,
        model: Any,
        optimizer: TorchOptimizer,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
        changed: Collection[str],
    ) -> None:
        plain, schedule = optimizer.optimizer, optimizer.schedule
        rate, live = self.learning_rate(optimizer), plain.state_dict()["param_groups"]
        keeps_all = rate.is_kept(changed)  # schedules also set others, such as the momentum
        saved = [
            {key: group[key] for key in group if not (keeps_all or key in changed)}
            for group in details["groups"]
        ]
        if len(saved) != len(live):
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} has {len(saved)} groups of"
                f" parameters, the job's has {len(live)}"
            )
        indices = {name: index for index, name in _names(model, plain).items()}
        state: dict[int, dict[str, Any]] = {}
        for key, value in {**arrays, **details.get("numbers", {})}.items():
            name, _, kind = key.rpartition(":")
            if name not in indices:
                raise CheckpointMismatch(
                    f"the checkpoint of step {step} has a state of the parameter {name!r}, which"
                    " the job's optimizer does not train"
                )
            tensor = _tensor_of(value.copy()) if isinstance(value, np.ndarray) else value
            state.setdefault(indices[name], {})[kind] = tensor
        groups = [
            {**group, **_with_types_of(group, from_json(before)), _PARAMETERS: group[_PARAMETERS]}
            for group, before in zip(live, saved, strict=True)
        ]
        try:
            plain.load_state_dict({"state": state, "param_groups": groups})
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
            ) from error
        if schedule is not None:
            current = schedule.state_dict()
            before = rate.state_to_load(from_json(details.get("schedule", {})), changed)
            schedule.load_state_dict({**current, **_with_types_of(current, before)})

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def random_state(self) -> dict[str, Any]:
        state = {"cpu": _to_base64(torch.get_rng_state())}
        if torch.cuda.is_available():
            state["cuda"] = _to_base64(torch.cuda.get_rng_state())
        return state

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(_from_base64(state["cpu"]))
        if "cuda" in state and not torch.cuda.is_available():
            log.warning("the random generator of a GPU is not restored: there is no GPU")
        elif "cuda" in state:
            torch.cuda.set_rng_state(_from_base64(state["cuda"]))

    def optimizer_settings(
        self, optimizer: TorchOptimizer
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        groups = [dict(group) for group in optimizer.optimizer.param_groups]
        settings = {**optimizer.optimizer.defaults, "schedule": optimizer.schedule}
        return settings, groups if len(groups) > 1 else []

    def is_schedule(self, value: Any) -> bool:
        return isinstance(value, (LRScheduler, ReduceLROnPlateau))


def _device(model: Any = None) -> Any:
    """Return the device of the model's first parameter.

    If it has none, return that of this process, as `set_device` chose it.
    """
    parameter = next(model.parameters(), None) if model is not None else None
    if parameter is not None:
        return parameter.device
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _unexpanded(tensor: Any) -> Any:
    """Return the tensor, or of an expanded one a view that has each element of its memory once."""
    if 0 not in tensor.stride():
        return tensor
    axes = list(zip(tensor.shape, tensor.stride(), strict=True))
    shape = [size if stride else min(size, 1) for size, stride in axes]
    return tensor.as_strided(shape, [stride or 1 for _, stride in axes])


def _tensor_of(array: Array) -> Any:
    """Return an array as a tensor on the CPU.

    It is copied only if it is read-only or has negative strides.
    """
    if array.dtype.name == "bfloat16":
        return _tensor_of(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _is_extra_state(name: str) -> bool:
    """Whether this name in a `state_dict` is of what a layer's `get_extra_state` returned."""
    return name.rpartition(".")[2] == "_extra_state"


def _names(model: Any, optimizer: Any) -> dict[int, str]:
    """Map the numbers of parameters in the optimizer's state to their names in the network."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    parameters = [one for group in optimizer.param_groups for one in group[_PARAMETERS]]
    return {
        index: names.get(id(parameter), f"parameter-{index}")
        for index, parameter in enumerate(parameters)
    }


def _with_types_of(live: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to the types in `live`: JSON has no tuples, tensors or `Counter`.

    Lists are converted item by item, because the state of a schedule that combines others, such as
    `SequentialLR`, has a list of their states.
    """
    return {key: _with_type_of(live.get(key), value) for key, value in saved.items()}


def _with_type_of(live: Any, saved: Any) -> Any:
    if isinstance(live, list) and isinstance(saved, list) and len(live) == len(saved):
        return [_with_type_of(*pair) for pair in zip(live, saved, strict=True)]
    if isinstance(live, torch.Tensor):
        return torch.as_tensor(saved, dtype=live.dtype, device=live.device)
    if type(live) is dict and isinstance(saved, Mapping):
        return _with_types_of(live, saved)
    kind: Any = type(live)
    return kind(saved) if isinstance(live, (tuple, Mapping)) else saved


def _without_functions(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a schedule without functions, which the job creates again."""
    return {key: value for key, value in state.items() if not callable(value)}


def _to_base64(tensor: Any) -> str:
    """Return the bytes of a tensor as text for JSON."""
    return b64encode(tensor.numpy().tobytes()).decode("ascii")


def _from_base64(text: str) -> Any:
    return _tensor_of(np.frombuffer(b64decode(text), np.uint8))


def _sparse(summed: Any) -> Any:
    """Return a sparse tensor of the rows that are not all zeros."""
    rows = (summed != 0).flatten(1).any(dim=1).nonzero().flatten()
    return torch.sparse_coo_tensor(
        rows[None], summed[rows], summed.shape, check_invariants=True, is_coalesced=True
    )


FRAMEWORK: Final[Framework] = TorchFramework()
