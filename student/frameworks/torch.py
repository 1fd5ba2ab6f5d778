"""PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...distill_reader.structure import map_leaves
from ...proto.arena import Array
from ...runtime.errors import UsageError
from ..settings import Amp
from . import (
    Framework,
    FrameworkName,
    LearningRate,
    Precision,
    check_amp,
    torch_groups,
    torch_state,
)
from .groups import Group


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
        if local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"local rank {local_rank} has no GPU: there are {torch.cuda.device_count()}; give"
                " --ranks-per-node no more than that"
            )
        torch.cuda.set_device(local_rank)
        return f"cuda:{local_rank}"

    def to_device(self, model: Any) -> Any:
        return model.to(_device())

    def tensor(self, value: Any) -> Any:
        import torch

        if isinstance(value, np.ndarray):
            value = torch_state.tensor_of(value)
        if isinstance(value, torch.Tensor) and value.device != (device := _device()):
            return value.to(device, non_blocking=True)
        return value

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def no_grad(self) -> AbstractContextManager[Any]:
        return torch_groups.TorchTensors("cpu").no_grad()

    def flatten(self, outputs: Any) -> list[Any]:
        found: list[Any] = []
        map_leaves(outputs, lambda leaf: found.append(leaf) if hasattr(leaf, "numpy") else None)
        return found

    def learning_rate(self, optimizer: Any) -> LearningRate:
        return TorchRate(optimizer)

    def precision(self, amp: Amp, device: str) -> Precision:
        return TorchPrecision(amp, device)

    def join(self, rank: int, endpoints: Sequence[str], device: str) -> Group:
        return torch_groups.join(rank, endpoints, device)

    def tensors(self, model: Any) -> dict[str, Any]:
        import torch

        state = model.state_dict(keep_vars=True)
        return {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}

    def array(self, tensor: Any) -> Array:
        return torch_state.array_of(tensor)

    def set_value(self, tensor: Any, array: Array) -> None:
        with self.no_grad():
            tensor.copy_(torch_state.tensor_of(array))

    def optimizer_class(self, optimizer: TorchOptimizer) -> str:
        return type(optimizer.optimizer).__name__

    def optimizer_state(
        self, model: Any, optimizer: TorchOptimizer
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        return torch_state.optimizer_state(model, optimizer.optimizer, optimizer.schedule)

    def restore_optimizer(
        self,
        model: Any,
        optimizer: TorchOptimizer,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
    ) -> None:
        torch_state.restore_optimizer(
            model, optimizer.optimizer, optimizer.schedule, arrays, details, step
        )

    def seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    def random_state(self) -> dict[str, Any]:
        return torch_state.random_state()

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        torch_state.set_random_state(state)

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


class TorchRate:
    """See `LearningRate`."""

    def __init__(self, optimizer: TorchOptimizer) -> None:
        self._groups = optimizer.optimizer
        self._schedule = optimizer.schedule
        self.factor = 1.0

    def restored(self, factor: float) -> None:
        self.factor = factor

    def scale(self, by: float) -> None:
        if by != 1.0:
            self.factor *= by
            self._multiply(by)

    def step(self) -> None:
        if self._schedule is not None and not self._by_metric():
            self._bare(self._schedule.step)

    def evaluated(self, metric: float) -> None:
        if self._by_metric():
            schedule = self._schedule
            self._bare(lambda: schedule.step(metric))

    def _by_metric(self) -> bool:
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        return isinstance(self._schedule, ReduceLROnPlateau)

    def _bare(self, step: Any) -> None:
        """Advance the schedule without the factor, as some compute a rate from the last one."""
        if self.factor == 1.0:
            step()
            return
        self._multiply(1 / self.factor)
        step()
        self._multiply(self.factor)

    def _multiply(self, by: float) -> None:
        for group in self._groups.param_groups:
            group["lr"] *= by


class TorchPrecision:
    """See `Precision`."""

    def __init__(self, amp: Amp, device: str) -> None:
        check_amp(amp, device)
        self._amp = amp
        self._device_type = device.partition(":")[0]
        self.scaler: Any = None
        if amp == "float16":
            import torch

            self.scaler = torch.amp.GradScaler(self._device_type)

    def forward(self) -> AbstractContextManager[Any]:
        if self._amp == "off":
            return contextlib.nullcontext()
        import torch

        managed: AbstractContextManager[Any] = torch.autocast(
            self._device_type, dtype=getattr(torch, self._amp)
        )
        return managed

    def backward(self, loss: Any) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: TorchOptimizer) -> None:
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer.optimizer)
        self.scaler.update()


FRAMEWORK: Final[Framework] = TorchFramework()
