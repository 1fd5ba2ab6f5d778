"""Paddle."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import UsageError
from ..settings import Amp
from . import (
    Framework,
    FrameworkName,
    LearningRate,
    Precision,
    check_amp,
    paddle_groups,
    paddle_state,
)
from .groups import Group


class PaddleFramework:
    """See `Framework`."""

    name: FrameworkName = "paddle"
    kinds: Mapping[str, str] = {"model": "a paddle.nn.Layer", "optimizer": "a paddle.optimizer"}

    def is_model(self, value: Any) -> bool:
        import paddle

        return isinstance(value, paddle.nn.Layer)

    def optimizer(self, value: Any) -> Any:
        import paddle

        return value if isinstance(value, paddle.optimizer.Optimizer) else None

    def scalar(self, loss: Any) -> Any:
        import paddle

        if not (isinstance(loss, paddle.Tensor) and loss.size == 1 and loss.is_floating_point()):
            return None
        return loss if loss.ndim == 0 else loss.reshape([])

    def set_device(self, local_rank: int) -> str:
        from ...teacher.backends.paddle import import_paddle

        paddle = import_paddle()
        device = _device_of(local_rank)
        paddle.set_device(device)
        return device

    def to_device(self, model: Any) -> Any:
        return model  # it was made there

    def tensor(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        import paddle

        if value.dtype.name == "bfloat16":  # Paddle does not know numpy's dtype of that name
            return paddle.to_tensor(value.astype(np.float32)).astype("bfloat16")
        return paddle.to_tensor(value)

    def synchronize(self) -> None:
        import paddle

        paddle.device.synchronize()

    def no_grad(self) -> AbstractContextManager[Any]:
        return paddle_groups.PaddleTensors().no_grad()

    def flatten(self, outputs: Any) -> list[Any]:
        import paddle

        return [one for one in paddle.utils.flatten(outputs) if hasattr(one, "numpy")]

    def learning_rate(self, optimizer: Any) -> LearningRate:
        return PaddleRate(optimizer)

    def precision(self, amp: Amp, device: str) -> Precision:
        return PaddlePrecision(amp, device)

    def join(self, rank: int, endpoints: Sequence[str], device: str) -> Group:
        return paddle_groups.join(rank, endpoints, device)

    def tensors(self, model: Any) -> dict[str, Any]:
        return dict(model.state_dict())

    def array(self, tensor: Any) -> Array:
        return paddle_state.array_of(tensor)

    def set_value(self, tensor: Any, array: Array) -> None:
        paddle_state.set_value(tensor, array)

    def optimizer_class(self, optimizer: Any) -> str:
        return type(optimizer).__name__

    def optimizer_state(
        self, model: Any, optimizer: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        return paddle_state.optimizer_state(model, optimizer)

    def restore_optimizer(
        self,
        model: Any,
        optimizer: Any,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
    ) -> None:
        paddle_state.restore_optimizer(model, optimizer, arrays, details, step)

    def seed(self, seed: int) -> None:
        import paddle

        paddle.seed(seed)

    def random_state(self) -> dict[str, Any]:
        return paddle_state.random_state()

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        paddle_state.set_random_state(state)

    def optimizer_settings(self, optimizer: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        given = {
            **getattr(optimizer, "_default_dict", {}),
            "learning_rate": getattr(optimizer, "_learning_rate", None),
            "regularization": getattr(optimizer, "regularization", None),
            "grad_clip": getattr(optimizer, "_grad_clip", None),
        }
        groups = getattr(optimizer, "_param_groups", None) or []
        return given, [dict(group) for group in groups if isinstance(group, Mapping)]

    def is_schedule(self, value: Any) -> bool:
        from paddle.optimizer.lr import LRScheduler

        return isinstance(value, LRScheduler)


def _device_of(local_rank: int) -> str:
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return "cpu"
    if local_rank >= paddle.device.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank} has no GPU: there are {paddle.device.cuda.device_count()};"
            " give --ranks-per-node no more than that"
        )
    return f"gpu:{local_rank}"


class PaddleRate:
    """See `LearningRate`."""

    def __init__(self, optimizer: Any) -> None:
        from paddle.optimizer.lr import LRScheduler

        self._optimizer = optimizer
        given = optimizer._learning_rate  # `get_lr` would return a number for both kinds
        self._schedule = given if isinstance(given, LRScheduler) else None
        self.factor = 1.0

    def restored(self, factor: float) -> None:
        self.factor = factor

    def scale(self, by: float) -> None:
        if by == 1.0:
            return
        self.factor *= by
        if self._schedule is None:
            self._optimizer.set_lr(self._optimizer.get_lr() * by)
        else:
            self._schedule.last_lr *= by

    def step(self) -> None:
        if self._schedule is None or self._by_metric():
            return
        self._bare(self._schedule.step)

    def evaluated(self, metric: float) -> None:
        if self._by_metric():
            schedule: Any = self._schedule
            self._bare(lambda: schedule.step(metric))

    def _by_metric(self) -> bool:
        from paddle.optimizer.lr import ReduceOnPlateau

        return isinstance(self._schedule, ReduceOnPlateau)

    def _bare(self, step: Any) -> None:
        """Advance the schedule without the factor, as some compute a rate from the last one."""
        if self.factor == 1.0:
            step()
            return
        schedule: Any = self._schedule
        schedule.last_lr /= self.factor
        step()
        schedule.last_lr *= self.factor


class PaddlePrecision:
    """See `Precision`; level O1 of Paddle."""

    def __init__(self, amp: Amp, device: str) -> None:
        check_amp(amp, device)
        self._amp = amp
        self.scaler: Any = None
        if amp == "float16":
            import paddle

            self.scaler = paddle.amp.GradScaler()

    def forward(self) -> AbstractContextManager[Any]:
        if self._amp == "off":
            return contextlib.nullcontext()
        import paddle

        managed: AbstractContextManager[Any] = paddle.amp.auto_cast(dtype=self._amp, level="O1")
        return managed

    def backward(self, loss: Any) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()


FRAMEWORK: Final[Framework] = PaddleFramework()
