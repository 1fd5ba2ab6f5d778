"""Conversion of Paddle's model, optimizer, schedule, scaler and generators to `Contents`, and back.

Parameters have their names in the network (`fc.weight`), also in the optimizer's state: Paddle's
own names (`linear_7.w_0`) depend on what else a process has created before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...proto.arena import dtype_named
from ...runtime.errors import CheckpointMismatch
from .contents import MODEL, OPTIMIZER, Array, Contents

#: Key of the state under which `capture` puts everything but arrays.
TRAINING: Final = "training"
_MASTER: Final = "master"
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TrainingObjects:
    """Paddle's objects that a checkpoint captures and restores.

    Attributes:
        model: a `paddle.nn.Layer`; everything that is trained, such as projectors, is part of it.
        optimizer: a `paddle.optimizer.Optimizer`; None: it is neither captured nor restored.
        scaler: a `paddle.amp.GradScaler`, if there is one.
    """

    model: Any
    optimizer: Any = None
    scaler: Any = None

    def tensors(self) -> dict[str, Any]:
        """Return the live parameters and buffers, by their names in the network."""
        return dict(self.model.state_dict())

    def names(self) -> dict[str, str]:
        """Return a mapping from Paddle's names to those in the network; the first of a shared one.

        A parameter is shared if the network has it under several names.
        """
        found: dict[str, str] = {}
        for name, tensor in self.tensors().items():
            found.setdefault(tensor.name, name)
        return found


def capture(
    trained: TrainingObjects, *, step: int, world: int, state: Mapping[str, Any]
) -> Contents:
    """Return the contents of a checkpoint of the present state.

    On a CPU the arrays are views of live parameters, so that a save copies them only once. Write
    them, or call `copied()`, before the next step.

    Args:
        trained: the objects.
        step: optimizer steps taken.
        world: number of ranks.
        state: further JSON values; the key `TRAINING` is reserved.
    """
    tensors = {f"{MODEL}/{name}": _array(each) for name, each in trained.tensors().items()}
    training: dict[str, Any] = {"random": random_state()}
    if trained.optimizer is not None:
        arrays, training["optimizer"] = _optimizer_state(trained)
        tensors |= {f"{OPTIMIZER}/{name}": array for name, array in arrays.items()}
    if trained.scaler is not None:
        training["scaler"] = _json(trained.scaler.state_dict())
    return Contents(step, world, tensors, {**state, TRAINING: training})


def restore(
    trained: TrainingObjects, contents: Contents, *, random: bool = True, rank: int = 0
) -> None:
    """Load contents into the captured objects, or into new ones of the same kinds.

    Args:
        trained: the objects. Without an optimizer only the model is restored.
        contents: contents of a checkpoint.
        random: also set the random generators.
        rank: rank 0 continues the captured random sequences; each other rank gets its own.

    Raises:
        CheckpointMismatch: the model or the optimizer differs; the message names parameters.
    """
    live = trained.tensors()
    kept = contents.group(MODEL)
    _check_layers(contents.step, live, kept)
    training = contents.state.get(TRAINING, {})
    if trained.optimizer is not None:
        state = _meant_for(trained, contents, training.get("optimizer") or {})
        _set_optimizer(trained.optimizer, state, contents.step)
        if "rate" in training["optimizer"]:
            trained.optimizer.set_lr(training["optimizer"]["rate"])
    for name, array in kept.items():
        live[name].set_value(_as_paddle_takes_it(array))
    if trained.scaler is not None and training.get("scaler"):
        trained.scaler.load_state_dict(_arrays_again(training["scaler"]))
    if random and "random" in training:
        set_random_state(training["random"], rank)


def _check_layers(step: int, live: Mapping[str, Any], kept: Mapping[str, Array]) -> None:
    wrong = []
    for name in live.keys() & kept.keys():
        here, there = _shape(live[name]), _shape_of(kept[name])
        if here != there:
            wrong.append(f"{name} is {there} there and {here} in the job")
    wrong.sort()
    faults = [*wrong[:_MOST_NAMED], *_more(wrong)]
    faults += _listed("not in the checkpoint", live.keys() - kept.keys())
    faults += _listed("not in the job", kept.keys() - live.keys())
    if faults:
        raise CheckpointMismatch(
            f"the checkpoint of step {step} is of another model than the job's: "
            + "; ".join(faults)
            + ". Train into another place, or with the model that it was made with"
        )


def _listed(what: str, names: set[str]) -> list[str]:
    if not names:
        return []
    shown = sorted(names)
    return [f"{what}: {', '.join([*shown[:_MOST_NAMED], *_more(shown)])}"]


def _more(names: list[str]) -> list[str]:
    return [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []


def _shape(tensor: Any) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]}{list(tensor.shape)}"


def _shape_of(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _optimizer_state(trained: TrainingObjects) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return arrays by `PARAMETER:KIND`, and JSON: the class, and the schedule or the rate."""
    names, arrays = trained.names(), {}
    state = dict(trained.optimizer.state_dict())
    details: dict[str, Any] = {"class": type(trained.optimizer).__name__}
    schedule = state.pop("LR_Scheduler", None)
    if schedule is None:
        details["rate"] = float(trained.optimizer.get_lr())
    else:
        details["schedule"] = _json(schedule)
    for paddle_name, tensor in state.pop("master_weights", {}).items():
        arrays[f"{names.get(paddle_name, paddle_name)}:{_MASTER}"] = _array(tensor)
    for key, tensor in state.items():
        parameter, kind = _split(key, names)
        arrays[f"{names.get(parameter, parameter)}:{kind}"] = _array(tensor)
    return arrays, details


def _split(key: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Split `linear_7.w_0_velocity_0` into `linear_7.w_0` and `velocity`, without the number."""
    parameter = max((name for name in names if key.startswith(f"{name}_")), key=len, default="")
    kind = key.removeprefix(f"{parameter}_") if parameter else key
    bare, _, number = kind.rpartition("_")
    return parameter or key, bare if bare and number.isdigit() else kind


def _meant_for(
    trained: TrainingObjects, contents: Contents, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the argument for `set_state_dict` of this optimizer."""
    import paddle

    optimizer = trained.optimizer
    name = type(optimizer).__name__
    if details.get("class") != name:
        raise CheckpointMismatch(
            f"the checkpoint of step {contents.step} is of"
            f" {'the optimizer ' + details['class'] if 'class' in details else 'no optimizer'}, the"
            f" job's is {name}. Train into another place, or with the one that it was made with"
        )
    names = trained.names()
    paddle_names = {ours: theirs for theirs, ours in names.items()}
    live = {_split(key, names): key for key in optimizer.state_dict()}
    state: dict[str, Any] = {}
    masters: dict[str, Any] = {}
    for key, array in contents.group(OPTIMIZER).items():
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
            f"the checkpoint of step {contents.step} is of an optimizer with"
            f" {kinds[not has_schedule]}, the job's has {kinds[has_schedule]}"
        )
    if has_schedule:
        state["LR_Scheduler"] = _arrays_again(details["schedule"])
    return state


def _set_optimizer(optimizer: Any, state: dict[str, Any], step: int) -> None:
    try:
        optimizer.set_state_dict(state)
    except (AssertionError, ValueError) as error:
        raise CheckpointMismatch(
            f"the optimizer of the checkpoint of step {step} does not fit the job's: {error}"
        ) from error


def _array(tensor: Any) -> Array:
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


def _as_paddle_takes_it(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _json(value: Any) -> Any:
    """Return a state dict of Paddle as JSON: numbers, strings, and small arrays."""
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    return value.item() if isinstance(value, np.generic) else value


def _arrays_again(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"array", "dtype"}:
            return np.array(value["array"], value["dtype"])
        return {key: _arrays_again(each) for key, each in value.items()}
    return [_arrays_again(each) for each in value] if isinstance(value, list) else value


log = logging.getLogger(__name__)


def random_state() -> dict[str, Any]:
    """Return the state of the random generators: Paddle's, numpy's global one, Python's."""
    version, words, gauss = random.getstate()
    _, keys, position, *gaussian = np.random.get_state()
    return {
        "python": [version, _packed(np.array(words, np.uint32)), gauss],
        "numpy": [_packed(np.asarray(keys, np.uint32)), int(position), *map(float, gaussian)],
        "paddle": _paddle_state(),
    }


def set_random_state(state: Mapping[str, Any], rank: int = 0) -> None:
    """Set the random generators: on rank 0 to `state`, on others to a seed from it and the rank.

    So all ranks draw different numbers, and each draws the same when this is repeated.

    Raises:
        CheckpointMismatch: the state is invalid.
    """
    try:
        if rank:
            _seed(state, rank)
            return
        version, words, gauss = state["python"]
        random.setstate((version, tuple(map(int, _unpacked(words))), gauss))
        keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state(("MT19937", _unpacked(keys), position, int(has_gauss), cached))
        _set_paddle_state(state["paddle"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointMismatch(
            f"the checkpoint's random generators cannot be set ({error!r})"
        ) from error


def _seed(state: Mapping[str, Any], rank: int) -> None:
    text = json.dumps([state, rank], sort_keys=True).encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:4])
    random.seed(seed)
    np.random.seed(seed)
    import paddle

    paddle.seed(seed)


def _paddle_state() -> dict[str, Any]:
    import paddle

    kinds = ["cpu", *(["gpu"] if paddle.get_device().startswith("gpu") else [])]
    return {
        kind: [_json_state(one.__getstate__()) for one in paddle.get_rng_state(kind)]
        for kind in kinds
    }


def _set_paddle_state(state: Mapping[str, Any]) -> None:
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


def _packed(words: np.ndarray[Any, np.dtype[np.uint32]]) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode("ascii")


def _unpacked(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)
