"""Paddle: kinds of objects, devices, and the state of trainings.

Parameters have their names in the network (`fc.weight`), also in the optimizer's state: Paddle's
own names (`linear_7.w_0`) depend on what else a process has created before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import numpy as np

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
from .paddle_groups import PaddleTensors

log = logging.getLogger(__name__)

_MASTER: Final = "master"


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
        device = "cpu"
        if paddle.is_compiled_with_cuda() and (gpus := paddle.device.cuda.device_count()):
            check_has_gpu(local_rank, gpus)
            device = f"gpu:{local_rank}"
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
        import paddle

        context: AbstractContextManager[Any] = paddle.no_grad()
        return context

    def flatten(self, outputs: Any) -> list[Any]:
        import paddle

        return [one for one in paddle.utils.flatten(outputs) if hasattr(one, "numpy")]

    def learning_rate(self, optimizer: Any) -> LearningRate:
        from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

        given = optimizer._learning_rate  # `get_lr` would return a number for both kinds
        schedule = given if isinstance(given, LRScheduler) else None

        def multiply(by: float) -> None:
            if schedule is None:
                optimizer.set_lr(optimizer.get_lr() * by)
            else:
                schedule.last_lr *= by

        return LearningRate(schedule, isinstance(schedule, ReduceOnPlateau), multiply)

    def precision(self, amp: Amp, device: str) -> Precision:
        check_amp(amp, device)
        if amp == "off":
            return Precision()
        import paddle

        scaler = paddle.amp.GradScaler() if amp == "float16" else None
        return Precision(partial(paddle.amp.auto_cast, dtype=amp, level="O1"), scaler)

    def join(self, rank: int, endpoints: Sequence[str], device: str) -> Group:
        return join(rank, endpoints, PaddleTensors(device))

    def tensors(self, model: Any) -> dict[str, Any]:
        return dict(model.state_dict())

    def array(self, tensor: Any) -> Array:
        if isinstance(tensor, np.ndarray):  # the optimizer was restored and has not stepped yet
            return tensor.view(dtype_named("bfloat16")) if tensor.dtype == np.uint16 else tensor
        detached = tensor.detach()
        brain = str(detached.dtype).endswith("bfloat16")
        if not detached.place.is_cpu_place() or not detached.is_contiguous():
            copied: Array = detached.numpy()
            return copied.view(dtype_named("bfloat16")) if brain else copied
        if brain:  # numpy has no such dtype: take the bits as int16
            bits: Array = np.from_dlpack(detached.view("int16"))
            return bits.view(dtype_named("bfloat16"))
        array: Array = np.from_dlpack(detached)
        return array

    def set_value(self, tensor: Any, array: Array) -> None:
        tensor.set_value(_as_paddle_takes_it(array))

    def optimizer_class(self, optimizer: Any) -> str:
        return type(optimizer).__name__

    def optimizer_state(
        self, model: Any, optimizer: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        names, arrays = _names(model), {}
        state = dict(optimizer.state_dict())
        details: dict[str, Any] = {"class": type(optimizer).__name__}
        schedule = state.pop("LR_Scheduler", None)
        if schedule is None:
            details["rate"] = float(optimizer.get_lr())
        else:
            details["schedule"] = to_json(schedule)
        for paddle_name, tensor in state.pop("master_weights", {}).items():
            arrays[f"{names.get(paddle_name, paddle_name)}:{_MASTER}"] = self.array(tensor)
        for key, tensor in state.items():
            parameter, kind = _split(key, names)
            arrays[f"{names.get(parameter, parameter)}:{kind}"] = self.array(tensor)
        return arrays, details

    def restore_optimizer(
        self,
        model: Any,
        optimizer: Any,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
    ) -> None:
        try:
            optimizer.set_state_dict(_meant_for(model, optimizer, arrays, details, step))
        except (AssertionError, ValueError) as error:
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
            ) from error
        if "rate" in details:
            optimizer.set_lr(details["rate"])

    def seed(self, seed: int) -> None:
        import paddle

        paddle.seed(seed)

    def random_state(self) -> dict[str, Any]:
        import paddle

        kinds = ["cpu", *(["gpu"] if paddle.get_device().startswith("gpu") else [])]
        return {
            kind: [_json_state(one.__getstate__()) for one in paddle.get_rng_state(kind)]
            for kind in kinds
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        import paddle

        for kind, saved in state.items():
            if kind == "gpu" and not paddle.get_device().startswith("gpu"):
                log.warning("the checkpoint is of a GPU: its random generator has no meaning here")
                continue
            now = paddle.get_rng_state(kind)
            if len(now) != len(saved):  # another number of GPUs is visible
                saved = [saved[0]] * len(now)
            paddle.set_rng_state([_generator(type(now[0]), values) for values in saved], kind)

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


def _names(model: Any) -> dict[str, str]:
    """Return a mapping from Paddle's names to those in the network; the first of a shared one.

    A parameter is shared if the network has it under several names.
    """
    found: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        found.setdefault(tensor.name, name)
    return found


def _split(key: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Split `linear_7.w_0_velocity_0` into `linear_7.w_0` and `velocity`, without the number."""
    parameter = max((name for name in names if key.startswith(f"{name}_")), key=len, default="")
    kind = key.removeprefix(f"{parameter}_") if parameter else key
    bare, _, number = kind.rpartition("_")
    return parameter or key, bare if bare and number.isdigit() else kind


def _meant_for(
    model: Any, optimizer: Any, arrays: Mapping[str, Array], details: Mapping[str, Any], step: int
) -> dict[str, Any]:
    """Return the argument for `set_state_dict` of this optimizer."""
    import paddle

    names = _names(model)
    paddle_names = {ours: theirs for theirs, ours in names.items()}
    live = {_split(key, names): key for key in optimizer.state_dict()}
    state: dict[str, Any] = {}
    masters: dict[str, Any] = {}
    for key, array in arrays.items():
        ours, _, kind = key.rpartition(":")
        parameter = paddle_names.get(ours, ours)
        if kind == _MASTER:
            masters[parameter] = paddle.to_tensor(array)
        else:
            here = live.get((parameter, kind), f"{parameter}_{kind}_0")
            state[here] = _as_paddle_takes_it(array)
    if masters:
        state["master_weights"] = masters
    has_schedule = isinstance(optimizer._learning_rate, paddle.optimizer.lr.LRScheduler)
    if has_schedule != ("schedule" in details):
        kinds = ("a fixed learning rate", "a schedule of the learning rate")
        raise CheckpointMismatch(
            f"the checkpoint of step {step} is of an optimizer with"
            f" {kinds[not has_schedule]}, the job's has {kinds[has_schedule]}"
        )
    if has_schedule:
        state["LR_Scheduler"] = from_json(details["schedule"])
    return state


def _as_paddle_takes_it(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _generator(kind: Any, values: list[Any]) -> Any:
    """Create a generator state: setting the state of an existing one has no effect in Paddle."""
    made = kind.__new__(kind)
    made.__setstate__(_state_of_json(values))
    return made


def _json_state(values: tuple[Any, ...]) -> list[Any]:
    """Return Paddle's tuple of numbers and one list of characters as JSON, the list as a string."""
    return [bytes(each).decode("ascii") if isinstance(each, list) else each for each in values]


def _state_of_json(values: list[Any]) -> tuple[Any, ...]:
    return tuple(
        list(value.encode("ascii")) if isinstance(value, str) else value for value in values
    )


FRAMEWORK: Final[Framework] = PaddleFramework()
