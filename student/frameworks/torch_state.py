"""State of PyTorch's tensors, optimizers, schedules and random generators, for checkpoints.

Parameters have their names in the network, also in the optimizer's state, where PyTorch numbers
them in the order in which the optimizer got them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...proto.arena import Array, dtype_named
from ...runtime.errors import CheckpointMismatch
from .json_state import bytes_to_text, from_json, text_to_bytes, to_json

log = logging.getLogger(__name__)

#: Key of the parameters in a group of `state_dict`.
_PARAMETERS: Final = "params"


def array_of(tensor: Any) -> Array:
    """See `Framework.array`."""
    import torch

    detached = tensor.detach().cpu().contiguous()
    if detached.dtype is torch.bfloat16:  # numpy has no such dtype: take the bits as int16
        bits: Array = detached.view(torch.int16).numpy()
        return bits.view(dtype_named("bfloat16"))
    array: Array = detached.numpy()
    return array


def tensor_of(array: Array) -> Any:
    """Return an array as a tensor on the CPU, without a copy if it is writable."""
    import torch

    if array.dtype.name == "bfloat16":
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def optimizer_state(
    model: Any, optimizer: Any, schedule: Any
) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `Framework.optimizer_state`."""
    state, names = optimizer.state_dict(), _names(model, optimizer)
    arrays: dict[str, Array] = {}
    numbers: dict[str, Any] = {}
    for index, kinds in state["state"].items():
        for kind, value in kinds.items():
            key = f"{names[index]}:{kind}"
            if hasattr(value, "numpy"):
                arrays[key] = array_of(value)
            elif value is not None:
                numbers[key] = value
    groups = [
        to_json({key: one for key, one in group.items() if key != _PARAMETERS})
        for group in state["param_groups"]
    ]
    details: dict[str, Any] = {"class": type(optimizer).__name__, "groups": groups}
    if numbers:
        details["numbers"] = numbers
    if schedule is not None:
        details["schedule"] = to_json(_without_functions(schedule.state_dict()))
    return arrays, details


def restore_optimizer(
    model: Any,
    optimizer: Any,
    schedule: Any,
    arrays: Mapping[str, Array],
    details: Mapping[str, Any],
    step: int,
) -> None:
    """See `Framework.restore_optimizer`."""
    kept, live = details["groups"], optimizer.state_dict()["param_groups"]
    if len(kept) != len(live):
        raise CheckpointMismatch(
            f"the optimizer of the checkpoint of step {step} has {len(kept)} groups of parameters,"
            f" the job's has {len(live)}"
        )
    if (schedule is not None) != ("schedule" in details):
        has, had = (
            "a schedule" if one else "no schedule" for one in (schedule, "schedule" in details)
        )
        raise CheckpointMismatch(
            f"the checkpoint of step {step} is of an optimizer with {had} of the learning rate, the"
            f" job's has {has}"
        )
    indices = {name: index for index, name in _names(model, optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**arrays, **details.get("numbers", {})}.items():
        name, _, kind = key.rpartition(":")
        if name not in indices:
            raise CheckpointMismatch(
                f"the checkpoint of step {step} has a state of the parameter {name!r}, which the"
                " job's optimizer does not train"
            )
        one = tensor_of(value.copy()) if isinstance(value, np.ndarray) else value
        state.setdefault(indices[name], {})[kind] = one
    groups = [
        {**now, **_like(now, from_json(then)), _PARAMETERS: now[_PARAMETERS]}
        for now, then in zip(live, kept, strict=True)
    ]
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointMismatch(
            f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
        ) from error
    if schedule is not None:
        now = schedule.state_dict()
        schedule.load_state_dict({**now, **_like(now, from_json(details["schedule"]))})


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


def random_state() -> dict[str, Any]:
    """See `Framework.random_state`."""
    import torch

    state = {"cpu": bytes_to_text(torch.get_rng_state().numpy().tobytes())}
    if torch.cuda.is_available():
        state["cuda"] = bytes_to_text(torch.cuda.get_rng_state().numpy().tobytes())
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """See `Framework.set_random_state`."""
    import torch

    torch.set_rng_state(_bytes(state["cpu"]))
    if "cuda" in state and not torch.cuda.is_available():
        log.warning("the checkpoint is of a GPU: its random generator has no meaning here")
    elif "cuda" in state:
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _bytes(text: str) -> Any:
    return tensor_of(np.frombuffer(text_to_bytes(text), np.uint8))
