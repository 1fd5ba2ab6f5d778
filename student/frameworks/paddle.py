"""Paddle: kinds of objects, devices, the state of trainings, and the group of ranks.

The saved state of the optimizer names parameters as the network does (`fc.weight`). Paddle's own
names (`linear_7.w_0`) depend on what the process has created before.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle.optimizer.lr import CosineAnnealingWarmRestarts, LRScheduler, ReduceOnPlateau

from ...proto.arena import Array, dtype_named
from ...runtime.errors import CheckpointMismatch
from ..settings import Amp
from . import Framework, FrameworkName, LearningRate, Precision, check_has_gpu, from_json, to_json
from .groups import DistributedGroup

log = logging.getLogger(__name__)

_MASTER: Final = "master"


class PaddleGroup(DistributedGroup):
    """See `DistributedGroup`."""

    module = paddle

    def _open_store(self, endpoints: Sequence[str]) -> Any:
        from paddle.base import core

        _set_environment(self.rank, endpoints, self._device)
        return core.create_or_get_global_tcp_store()

    def _form_group(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints the flags that it sets
            dist.init_parallel_env()

    def _gather(self, array: Array) -> Array:
        tensor = paddle.to_tensor(array)
        gathered = paddle.empty([self.world * tensor.shape[0]], tensor.dtype)
        dist.stream.all_gather(gathered, tensor)
        return np.asarray(gathered.numpy()).reshape(self.world, len(array))

    def _begin_sum(self, tensor: Any) -> Callable[[], object]:
        wait: Callable[[], object] = dist.all_reduce(tensor, sync_op=False).wait
        return wait

    def _set(self, tensor: Any, values: Any) -> None:
        tensor.set_value(values.astype(tensor.dtype))

    def _floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        return paddle.to_tensor(list(rows), dtype="float32")

    def _is_trainable(self, parameter: Any) -> bool:
        return not parameter.stop_gradient

    def _is_sparse(self, gradient: Any) -> bool:
        return bool(gradient.is_selected_rows())

    def _dense(self, parameter: Any) -> Any:
        gradient = parameter.grad
        if gradient.is_selected_rows():
            gradient = _with_all_rows(parameter, gradient)
        return gradient.astype(parameter.dtype)

    def _set_gradient(self, parameter: Any, summed: Any, sparse: bool) -> None:
        if sparse:
            _set_sparse(parameter, summed)
        else:
            parameter.grad = summed


class PaddleFramework(Framework):
    """See `Framework`."""

    name: FrameworkName = "paddle"
    module = paddle
    group = PaddleGroup
    kinds: Mapping[str, str] = {"model": "a paddle.nn.Layer", "optimizer": "a paddle.optimizer"}

    def is_model(self, value: Any) -> bool:
        return isinstance(value, paddle.nn.Layer)

    def optimizer(self, value: Any) -> Any:
        return value if isinstance(value, paddle.optimizer.Optimizer) else None

    def set_device(self, local_rank: int) -> str:
        from ...teacher.backends.paddle import import_paddle

        import_paddle()
        device = "cpu"
        if paddle.is_compiled_with_cuda() and (gpus := paddle.device.cuda.device_count()):
            check_has_gpu(local_rank, gpus)
            device = f"gpu:{local_rank}"
        paddle.set_device(device)
        return device

    def to_device(self, model: Any) -> Any:
        return model  # Paddle created it on the device

    def tensor(self, value: Any, model: Any = None) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.name == "bfloat16":  # Paddle does not know numpy's dtype of that name
            return paddle.to_tensor(value.astype(np.float32)).astype("bfloat16")
        return paddle.to_tensor(value)

    def synchronize(self) -> None:
        paddle.device.synchronize()

    def layers(self, model: Any) -> Any:
        return model.sublayers(include_self=True)

    def flatten(self, outputs: Any) -> list[Any]:
        return [one for one in paddle.utils.flatten(outputs) if hasattr(one, "numpy")]

    def learning_rate(self, optimizer: Any) -> LearningRate:
        rate = optimizer._learning_rate  # a number or a schedule; `get_lr` returns only numbers
        schedule = rate if isinstance(rate, LRScheduler) else None

        def multiply(by: float) -> None:
            if schedule is None:
                optimizer.set_lr(optimizer.get_lr() * by)
            else:
                schedule.last_lr *= by

        by_metric = isinstance(schedule, ReduceOnPlateau)
        return LearningRate(schedule, by_metric, multiply, "learning_rate")

    def mixed_precision(self, amp: Amp, device: str) -> Precision:
        scaler = paddle.amp.GradScaler() if amp == "float16" else None
        return Precision(partial(paddle.amp.auto_cast, dtype=amp, level="O1"), scaler)

    def tensors(self, model: Any) -> dict[str, Any]:
        return dict(model.state_dict())

    def array(self, tensor: Any) -> Array:
        if isinstance(tensor, np.ndarray):  # the optimizer was restored and has not stepped yet
            return tensor.view(dtype_named("bfloat16")) if tensor.dtype == np.uint16 else tensor
        detached = tensor.detach()
        is_bfloat16 = str(detached.dtype).endswith("bfloat16")
        if detached.place.is_cpu_place() and detached.is_contiguous():
            # DLPack has no bfloat16 for numpy: take the bits as int16.
            array: Array = np.from_dlpack(detached.view("int16") if is_bfloat16 else detached)
        else:
            array = detached.numpy()
        return array.view(dtype_named("bfloat16")) if is_bfloat16 else array

    def set_value(self, tensor: Any, array: Array) -> None:
        tensor.set_value(_to_paddle(array))

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
            parameter, kind = _split_key(key, names)
            arrays[f"{names.get(parameter, parameter)}:{kind}"] = self.array(tensor)
        return arrays, details

    def restore_optimizer(
        self,
        model: Any,
        optimizer: Any,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
        changed: Collection[str],
    ) -> None:
        rate, schedule = self.learning_rate(optimizer), optimizer._learning_rate
        state = _state_dict_for(model, optimizer, arrays)
        if rate.has_schedule:
            saved = from_json(details.get("schedule", {}))
            state["LR_Scheduler"] = rate.state_to_load(saved, changed)
        try:
            optimizer.set_state_dict(state)
        except (AssertionError, KeyError, RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
            ) from error
        if not (rate.has_schedule or rate.is_kept(changed)):
            optimizer.set_lr(details["rate"])
        if isinstance(schedule, CosineAnnealingWarmRestarts):
            _restore_period(schedule)

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def random_state(self) -> dict[str, Any]:
        kinds = ["cpu", *(["gpu"] if paddle.get_device().startswith("gpu") else [])]
        return {
            kind: [_json_state(one.__getstate__()) for one in paddle.get_rng_state(kind)]
            for kind in kinds
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        for kind, saved in state.items():
            if kind == "gpu" and not paddle.get_device().startswith("gpu"):
                log.warning("the random generator of a GPU is not restored: there is no GPU")
                continue
            current = paddle.get_rng_state(kind)
            if len(current) != len(saved):  # another number of GPUs is visible
                saved = [saved[0]] * len(current)
            paddle.set_rng_state([_generator(type(current[0]), each) for each in saved], kind)

    def optimizer_settings(self, optimizer: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        settings = {
            **getattr(optimizer, "_default_dict", {}),
            "learning_rate": getattr(optimizer, "_learning_rate", None),
            "regularization": getattr(optimizer, "regularization", None),
            "grad_clip": getattr(optimizer, "_grad_clip", None),
        }
        groups = getattr(optimizer, "_param_groups", None) or []
        return settings, [dict(group) for group in groups if isinstance(group, Mapping)]

    def is_schedule(self, value: Any) -> bool:
        return isinstance(value, LRScheduler)


def _names(model: Any) -> dict[str, str]:
    """Map Paddle's names of parameters to those in the network.

    If the network has a parameter under several names, the first name is used.
    """
    names: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        names.setdefault(tensor.name, name)
    return names


def _split_key(key: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Split `linear_7.w_0_velocity_0` into `linear_7.w_0` and `velocity`, without the number."""
    parameter = max((name for name in names if key.startswith(f"{name}_")), key=len, default="")
    kind = key.removeprefix(f"{parameter}_") if parameter else key
    name, _, number = kind.rpartition("_")
    return parameter or key, name if name and number.isdigit() else kind


def _state_dict_for(model: Any, optimizer: Any, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the argument of `set_state_dict` for this optimizer, without its schedule."""
    names = _names(model)
    paddle_names = {name: paddle_name for paddle_name, name in names.items()}
    live = {_split_key(key, names): key for key in optimizer.state_dict()}
    state: dict[str, Any] = {}
    masters: dict[str, Any] = {}
    for key, array in arrays.items():
        name, _, kind = key.rpartition(":")
        parameter = paddle_names.get(name, name)
        if kind == _MASTER:
            masters[parameter] = paddle.to_tensor(array)
        else:
            live_key = live.get((parameter, kind), f"{parameter}_{kind}_0")
            state[live_key] = _to_paddle(array)
    if masters:
        state["master_weights"] = masters
    return state


def _restore_period(schedule: CosineAnnealingWarmRestarts) -> None:
    """Derive the current period, which Paddle's `state_dict` lacks, from the number of steps."""
    position, period = schedule.last_epoch, schedule.T_0
    while position >= period:
        position, period = position - period, period * schedule.T_mult
    schedule.T_cur, schedule.T_i = position, period


def _to_paddle(array: Array) -> Array:
    """Return bfloat16 as uint16, as Paddle expects it; other arrays unchanged."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _generator(kind: Any, values: list[Any]) -> Any:
    """Create a generator state from what `_json_state` returned.

    In Paddle, setting the state of an existing object has no effect.
    """
    generator = kind.__new__(kind)
    generator.__setstate__(
        tuple(list(value.encode("ascii")) if isinstance(value, str) else value for value in values)
    )
    return generator


def _json_state(values: tuple[Any, ...]) -> list[Any]:
    """Return Paddle's tuple of numbers and one list of characters as JSON, the list as a string."""
    return [bytes(each).decode("ascii") if isinstance(each, list) else each for each in values]


def _set_environment(rank: int, endpoints: Sequence[str], device: str) -> None:
    """Describe the world in environment variables: Paddle has no other way to get it."""
    kind, _, number = device.partition(":")
    os.environ.update(
        PADDLE_DISTRI_BACKEND="gloo" if kind == "cpu" else "nccl",
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(len(endpoints)),
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_MASTER=endpoints[0],
        FLAGS_selected_gpus=number or "0",
    )
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # from a launcher, for another world
        os.environ.pop(name, None)


def _with_all_rows(parameter: Any, gradient: Any) -> Any:
    """Return a sparse gradient as a dense one; repeated rows are summed."""
    selected = gradient.get_selected_rows()
    rows, values = list(selected.rows()), paddle.to_tensor(selected.get_tensor())
    zeros = paddle.zeros([parameter.shape[0], parameter.size // parameter.shape[0]], values.dtype)
    if not rows:
        return zeros.reshape(parameter.shape)
    indices = paddle.to_tensor(rows, dtype="int64")
    values = values.reshape([len(rows), -1])
    return paddle.index_add(zeros, indices, 0, values).reshape(parameter.shape)


def _set_sparse(parameter: Any, summed: Any) -> None:
    """Set the sparse gradient to a dense sum; Paddle cannot replace it by a dense gradient."""
    if parameter.grad is None:  # a rank without rows; only a backward pass creates one
        F.embedding(paddle.zeros([1], "int64"), parameter, sparse=True).sum().backward()
    rows = paddle.nonzero((summed != 0).any(axis=1)).flatten()
    if rows.size == 0:
        rows = paddle.zeros([1], "int64")
    selected = parameter.grad.get_selected_rows()
    selected.get_tensor().set(summed[rows].numpy(), paddle.framework._current_expected_place())
    selected.set_rows(rows.tolist())


FRAMEWORK: Final[Framework] = PaddleFramework()
