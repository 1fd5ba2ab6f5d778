"""State of Paddle's tensors, optimizers, schedules and random generators, for checkpoints.

Parameters have their names in the network (`fc.weight`), also in the optimizer's state: Paddle's
own names (`linear_7.w_0`) depend on what else a process has created before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...proto.arena import Array, dtype_named
from ...runtime.errors import CheckpointMismatch
from .json_state import from_json, to_json

log = logging.getLogger(__name__)

_MASTER: Final = "master"


def names_of(model: Any) -> dict[str, str]:
    """Return a mapping from Paddle's names to those in the network; the first of a shared one.

    A parameter is shared if the network has it under several names.
    """
    found: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        found.setdefault(tensor.name, name)
    return found


def optimizer_state(model: Any, optimizer: Any) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return arrays by `PARAMETER:KIND`, and JSON: the class, and the schedule or the rate."""
    names, arrays = names_of(model), {}
    state = dict(optimizer.state_dict())
    details: dict[str, Any] = {"class": type(optimizer).__name__}
    schedule = state.pop("LR_Scheduler", None)
    if schedule is None:
        details["rate"] = float(optimizer.get_lr())
    else:
        details["schedule"] = to_json(schedule)
    for paddle_name, tensor in state.pop("master_weights", {}).items():
        arrays[f"{names.get(paddle_name, paddle_name)}:{_MASTER}"] = array_of(tensor)
    for key, tensor in state.items():
        parameter, kind = _split(key, names)
        arrays[f"{names.get(parameter, parameter)}:{kind}"] = array_of(tensor)
    return arrays, details


def _split(key: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Split `linear_7.w_0_velocity_0` into `linear_7.w_0` and `velocity`, without the number."""
    parameter = max((name for name in names if key.startswith(f"{name}_")), key=len, default="")
    kind = key.removeprefix(f"{parameter}_") if parameter else key
    bare, _, number = kind.rpartition("_")
    return parameter or key, bare if bare and number.isdigit() else kind


def restore_optimizer(
    model: Any, optimizer: Any, arrays: Mapping[str, Array], details: Mapping[str, Any], step: int
) -> None:
    """See `Framework.restore_optimizer`."""
    try:
        optimizer.set_state_dict(_meant_for(model, optimizer, arrays, details, step))
    except (AssertionError, ValueError) as error:
        raise CheckpointMismatch(
            f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
        ) from error
    if "rate" in details:
        optimizer.set_lr(details["rate"])


def _meant_for(
    model: Any, optimizer: Any, arrays: Mapping[str, Array], details: Mapping[str, Any], step: int
) -> dict[str, Any]:
    """Return the argument for `set_state_dict` of this optimizer."""
    import paddle

    names = names_of(model)
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


def array_of(tensor: Any) -> Array:
    """Return a tensor as an array: a view on a CPU, a copy from another device."""
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


def set_value(tensor: Any, array: Array) -> None:
    """Replace the values of a parameter or buffer."""
    tensor.set_value(_as_paddle_takes_it(array))


def _as_paddle_takes_it(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def random_state() -> dict[str, Any]:
    import paddle

    kinds = ["cpu", *(["gpu"] if paddle.get_device().startswith("gpu") else [])]
    return {
        kind: [_json_state(one.__getstate__()) for one in paddle.get_rng_state(kind)]
        for kind in kinds
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    import paddle

    for kind, saved in state.items():
        if kind == "gpu" and not paddle.get_device().startswith("gpu"):
            log.warning("the checkpoint is of a GPU: its random generator has no meaning here")
            continue
        now = paddle.get_rng_state(kind)
        if len(now) != len(saved):  # another number of GPUs is visible
            saved = [saved[0]] * len(now)
        paddle.set_rng_state([_generator(type(now[0]), values) for values in saved], kind)


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
