"""Conversion of a model, optimizer, schedule, scaler and random generators to `Contents`, and back.

Arrays of the model and of the optimizer's state are named after the parameters of the network
(`fc.weight`).
"""

from __future__ import annotations

import hashlib
import json
import random
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...runtime.errors import CheckpointMismatch
from ..frameworks import Framework, framework_of, from_json, to_json
from .contents import MODEL, OPTIMIZER, Array, Contents

#: Key of the state under which `capture` puts everything but arrays.
TRAINING: Final = "training"
_MAX_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class TrainingObjects:
    """Objects of a framework that a checkpoint captures and restores.

    Attributes:
        model: the student; everything that is trained, such as projectors, is part of it.
        optimizer: the optimizer of the model, a pair of optimizer and schedule (PyTorch), or the
            result of `JobSpec.optimizer`; None: no optimizer is captured or restored.
        scaler: a `GradScaler` of the framework, if there is one.
    """

    model: Any
    optimizer: Any = None
    scaler: Any = None

    def __post_init__(self) -> None:
        if self.optimizer is not None:
            converted = self.framework.optimizer(self.optimizer)
            object.__setattr__(self, "optimizer", converted or self.optimizer)

    def tensors(self) -> dict[str, Any]:
        """Return the live parameters and buffers, by their names in the network."""
        return self.framework.tensors(self.model)

    @property
    def framework(self) -> Framework:
        """The framework of the model."""
        return framework_of(self.model)


def capture(
    trained: TrainingObjects, *, step: int, world: int, state: Mapping[str, Any]
) -> Contents:
    """Return the contents of a checkpoint of the current state.

    On a CPU the arrays are views of live parameters, so that a save copies them only once. Write
    them, or call `copied()`, before the next step.

    Args:
        trained: the objects.
        step: optimizer steps taken.
        world: number of ranks.
        state: further JSON values; the key `TRAINING` is reserved.

    Raises:
        UsageError: a layer has an extra state (PyTorch) that JSON cannot express.
    """
    framework = trained.framework
    tensors = {f"{MODEL}/{name}": framework.array(live) for name, live in trained.tensors().items()}
    training: dict[str, Any] = {"random": random_state(framework)}
    if trained.optimizer is not None:
        arrays, training["optimizer"] = framework.optimizer_state(trained.model, trained.optimizer)
        tensors |= {f"{OPTIMIZER}/{name}": array for name, array in arrays.items()}
    if extra := framework.extra_state(trained.model):
        training["extra_state"] = extra
    if trained.scaler is not None:
        training["scaler"] = to_json(trained.scaler.state_dict())
    return Contents(step, world, tensors, {**state, TRAINING: training})


def restore(
    trained: TrainingObjects,
    contents: Contents,
    *,
    random: bool = True,
    rank: int = 0,
    changed: Collection[str] = (),
) -> None:
    """Load contents into the captured objects, or into new ones of the same kinds.

    Args:
        trained: the objects. Without an optimizer or a scaler, its state is not restored.
        contents: contents of a checkpoint.
        random: also set the random generators.
        rank: rank 0 continues the captured random sequences; each other rank gets its own.
        changed: settings of the optimizer that keep their present values, by name, such as `lr` or
            `schedule.gamma`. If the rate is kept (`LearningRate.is_kept`), advance it first.

    Raises:
        CheckpointMismatch: the model differs (the message names parameters), the optimizer differs,
            or the captured state of the random generators is invalid.
    """
    framework, live = trained.framework, trained.tensors()
    saved = contents.group(MODEL)
    _check_layers(contents.step, live, saved)
    training = contents.state.get(TRAINING, {})
    if trained.optimizer is not None:
        details = training.get("optimizer") or {}
        _check_optimizer(contents.step, framework.optimizer_class(trained.optimizer), details)
        if not changed:
            has_schedule = framework.learning_rate(trained.optimizer).has_schedule
            _check_schedule(contents.step, has_schedule, "schedule" in details)
        arrays = contents.group(OPTIMIZER)
        framework.restore_optimizer(
            trained.model, trained.optimizer, arrays, details, contents.step, changed
        )
    for name, array in saved.items():
        framework.set_value(live[name], array)
    framework.restore_extra_state(trained.model, training.get("extra_state", {}))
    if trained.scaler is not None and training.get("scaler"):
        trained.scaler.load_state_dict(from_json(training["scaler"]))
    if random and "random" in training:
        set_random_state(framework, training["random"], rank)


def _check_layers(step: int, live: Mapping[str, Any], saved: Mapping[str, Array]) -> None:
    faults = []
    for name in live.keys() & saved.keys():
        here, there = _dtype_and_shape(live[name]), _dtype_and_shape(saved[name])
        if here != there:
            faults.append(f"{name} is {there} in the checkpoint and {here} in the job")
    faults.sort()
    faults = [*faults[:_MAX_NAMES_SHOWN], *_more(faults)]
    faults += _names_text("not in the checkpoint", live.keys() - saved.keys())
    faults += _names_text("not in the job", saved.keys() - live.keys())
    if faults:
        raise CheckpointMismatch(
            f"the checkpoint of step {step} does not fit the job's model: "
            + "; ".join(faults)
            + ". Use another place for checkpoints, or the model of this checkpoint"
        )


def _names_text(what: str, names: set[str]) -> list[str]:
    if not names:
        return []
    shown = sorted(names)
    return [f"{what}: {', '.join([*shown[:_MAX_NAMES_SHOWN], *_more(shown)])}"]


def _more(names: list[str]) -> list[str]:
    return [f"and {len(names) - _MAX_NAMES_SHOWN} more"] if len(names) > _MAX_NAMES_SHOWN else []


def _dtype_and_shape(tensor: Any) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]}{list(tensor.shape)}"


def _check_optimizer(step: int, name: str, details: Mapping[str, Any]) -> None:
    if details.get("class") != name:
        known = "class" in details
        raise CheckpointMismatch(
            f"the checkpoint of step {step} has"
            f" {'the optimizer ' + details['class'] if known else 'no optimizer'}, the job has"
            f" {name}. Use another place for checkpoints"
            + (", or the checkpoint's optimizer" if known else "")
        )


def _check_schedule(step: int, has_schedule: bool, had_schedule: bool) -> None:
    if has_schedule != had_schedule:
        kinds = ("a fixed learning rate", "a schedule of the learning rate")
        raise CheckpointMismatch(
            f"the checkpoint of step {step} is of an optimizer with {kinds[had_schedule]}, the"
            f" job's has {kinds[has_schedule]}"
        )


def random_state(framework: Framework) -> dict[str, Any]:
    """Return the state of the random generators: the framework's, numpy's global one, Python's."""
    version, words, gauss = random.getstate()
    _, keys, position, *gaussian = np.random.get_state()
    return {
        "python": [version, _packed(np.array(words, np.uint32)), gauss],
        "numpy": [_packed(np.asarray(keys, np.uint32)), int(position), *map(float, gaussian)],
        framework.name: framework.random_state(),
    }


def set_random_state(framework: Framework, state: Mapping[str, Any], rank: int = 0) -> None:
    """Set the random generators: on rank 0 to `state`, on others by a seed from `state` and rank.

    So ranks draw different numbers, and equal arguments always lead to equal numbers.

    Raises:
        CheckpointMismatch: the state is invalid.
    """
    try:
        if rank:
            text = json.dumps([state, rank], sort_keys=True).encode()
            seed_all(framework, int.from_bytes(hashlib.sha256(text).digest()[:4]))
            return
        version, words, gauss = state["python"]
        random.setstate((version, tuple(map(int, _unpacked(words))), gauss))
        keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state(("MT19937", _unpacked(keys), position, int(has_gauss), cached))
        framework.set_random_state(state[framework.name])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: from PyTorch
        raise CheckpointMismatch(
            f"the checkpoint's random generators cannot be set ({error!r})"
        ) from error


def seed_all(framework: Framework, seed: int) -> None:
    """Seed the random generators of the framework, of numpy and of Python."""
    framework.seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _packed(words: np.ndarray[Any, np.dtype[np.uint32]]) -> str:
    return b64encode(words.astype("<u4").tobytes()).decode("ascii")


def _unpacked(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(b64decode(text), "<u4").astype(np.uint32)
