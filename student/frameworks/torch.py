"""PyTorch: kinds of objects, devices, and the state of trainings.

Parameters have their names in the network, also in the optimizer's state, where PyTorch numbers
them in the order in which the optimizer got them.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from ...distill_reader.structure import map_leaves
from ...proto.arena import Array, dtype_named
from ...runtime.errors import CheckpointMismatch
from ..settings import Amp
from . import (
    Framework,
    FrameworkName,
    LearningRate,
    Precision,
    check_amp,
    check_has_gpu,
    from_json,
    to_json,
)
from .groups import Group, join
from .torch_groups import TorchTensors

log = logging.getLogger(__name__)

#: Key of the parameters in a group of `state_dict`.
_PARAMETERS: Final = "params"


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


class TorchFramework:
    """See `Framework`."""

    name: FrameworkName = "torch"
    kinds: Mapping[str, str] = {
        "model": "a torch.nn.Module",
        "optimizer": "a torch.optim.Optimizer, or a pair of one and its schedule",
    }

    def is_model(self, value: Any) -> bool:
        import torch

        return isinstance(value, torch.nn.Module)

    def optimizer(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.optim.Optimizer):
            return TorchOptimizer(value)
        if isinstance(value, (tuple, list)) and len(value) == 2:
            optimizer, schedule = value
            of_it = getattr(schedule, "optimizer", None) is optimizer
            if (
                isinstance(optimizer, torch.optim.Optimizer)
                and self.is_schedule(schedule)
                and of_it
            ):
                return TorchOptimizer(optimizer, schedule)
        return None

    def scalar(self, loss: Any) -> Any:
        import torch

        if not (isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.is_floating_point()):
            return None
        return loss if loss.ndim == 0 else loss.reshape(())

    def set_device(self, local_rank: int) -> str:
        import torch

        if not torch.cuda.is_available():
            return "cpu"
        check_has_gpu(local_rank, torch.cuda.device_count())
        torch.cuda.set_device(local_rank)
        return f"cuda:{local_rank}"

    def to_device(self, model: Any) -> Any:
        return model.to(_device())

    def tensor(self, value: Any) -> Any:
        import torch

        if isinstance(value, np.ndarray):
            value = _tensor_of(value)
        if isinstance(value, torch.Tensor) and value.device != (device := _device()):
            return value.to(device, non_blocking=True)
        return value

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def no_grad(self) -> AbstractContextManager[Any]:
        import torch

        context: AbstractContextManager[Any] = torch.no_grad()
        return context

    def flatten(self, outputs: Any) -> list[Any]:
        found: list[Any] = []
        map_leaves(outputs, lambda leaf: found.append(leaf) if hasattr(leaf, "numpy") else None)
        return found

    def learning_rate(self, optimizer: TorchOptimizer) -> LearningRate:
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        def multiply(by: float) -> None:
            for group in optimizer.optimizer.param_groups:
                group["lr"] *= by

        by_metric = isinstance(optimizer.schedule, ReduceLROnPlateau)
        return LearningRate(optimizer.schedule, by_metric, multiply)

    def precision(self, amp: Amp, device: str) -> Precision:
        check_amp(amp, device)
        if amp == "off":
            return Precision()
        import torch

        kind = device.partition(":")[0]
        scaler = torch.amp.GradScaler(kind) if amp == "float16" else None
        forward = partial(torch.autocast, kind, dtype=getattr(torch, amp))
        return Precision(forward, scaler, lambda optimizer: optimizer.optimizer)

    def join(self, rank: int, endpoints: Sequence[str], device: str) -> Group:
        return join(rank, endpoints, TorchTensors(device))

    def tensors(self, model: Any) -> dict[str, Any]:
        import torch

        state = model.state_dict(keep_vars=True)
        return {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}

    def array(self, tensor: Any) -> Array:
        import torch

        detached = tensor.detach().cpu().contiguous()
        if detached.dtype is torch.bfloat16:  # numpy has no such dtype: take the bits as int16
            bits: Array = detached.view(torch.int16).numpy()
            return bits.view(dtype_named("bfloat16"))
        array: Array = detached.numpy()
        return array

    def set_value(self, tensor: Any, array: Array) -> None:
        with self.no_grad():
            tensor.copy_(_tensor_of(array))

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
            to_json({key: one for key, one in group.items() if key != _PARAMETERS})
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
    ) -> None:
        plain, schedule = optimizer.optimizer, optimizer.schedule
        kept, live = details["groups"], plain.state_dict()["param_groups"]
        if len(kept) != len(live):
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} has {len(kept)} groups of"
                f" parameters, the job's has {len(live)}"
            )
        if (schedule is not None) != ("schedule" in details):
            has, had = (
                "a schedule" if one else "no schedule" for one in (schedule, "schedule" in details)
            )
            raise CheckpointMismatch(
                f"the checkpoint of step {step} is of an optimizer with {had} of the learning rate,"
                f" the job's has {has}"
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
            one = _tensor_of(value.copy()) if isinstance(value, np.ndarray) else value
            state.setdefault(indices[name], {})[kind] = one
        groups = [
            {**now, **_like(now, from_json(then)), _PARAMETERS: now[_PARAMETERS]}
            for now, then in zip(live, kept, strict=True)
        ]
        try:
            plain.load_state_dict({"state": state, "param_groups": groups})
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
            ) from error
        if schedule is not None:
            now = schedule.state_dict()
            schedule.load_state_dict({**now, **_like(now, from_json(details["schedule"]))})

    def seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    def random_state(self) -> dict[str, Any]:
        import torch

        state = {"cpu": _text(torch.get_rng_state())}
        if torch.cuda.is_available():
            state["cuda"] = _text(torch.cuda.get_rng_state())
        return state

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        import torch

        torch.set_rng_state(_bytes(state["cpu"]))
        if "cuda" in state and not torch.cuda.is_available():
            log.warning("the checkpoint is of a GPU: its random generator has no meaning here")
        elif "cuda" in state:
            torch.cuda.set_rng_state(_bytes(state["cuda"]))

    def optimizer_settings(
        self, optimizer: TorchOptimizer
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        groups = [dict(group) for group in optimizer.optimizer.param_groups]
        given = {**optimizer.optimizer.defaults, "schedule": optimizer.schedule}
        return given, groups if len(groups) > 1 else []

    def is_schedule(self, value: Any) -> bool:
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        return isinstance(value, (LRScheduler, ReduceLROnPlateau))


def _device() -> Any:
    """Return the device of this process, as `set_device` chose it."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _tensor_of(array: Array) -> Any:
    """Return an array as a tensor on the CPU, without a copy if it is writable."""
    import torch

    if array.dtype.name == "bfloat16":
        return _tensor_of(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _names(model: Any, optimizer: Any) -> dict[int, str]:
    """Return the names in the network by the numbers in the optimizer's state."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    every = [one for group in optimizer.param_groups for one in group[_PARAMETERS]]
    return {index: names.get(id(one), f"parameter-{index}") for index, one in enumerate(every)}


def _like(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the types of those with the same keys: JSON has no tuples or counters."""
    kinds = (tuple, dict, Mapping)
    return {
        key: type(now[key])(value) if isinstance(now.get(key), kinds) else value
        for key, value in then.items()
    }


def _without_functions(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a schedule without functions, which the job makes again."""
    return {key: value for key, value in state.items() if not callable(value)}


def _text(tensor: Any) -> str:
    """Return the bytes of a tensor as text, for JSON."""
    return b64encode(tensor.numpy().tobytes()).decode("ascii")


def _bytes(text: str) -> Any:
    return _tensor_of(np.frombuffer(b64decode(text), np.uint8))


FRAMEWORK: Final[Framework] = TorchFramework()
