"""The frameworks that students train in: Paddle and PyTorch, behind one interface.

Neither is imported before a job needs it. The rest of `student/` treats both alike, apart from
functions on single tensors (`losses/terms.py`) and export (`export.py`). These modules have all
other differences:

| module | content |
|---|---|
| `paddle.py`, `torch.py` | devices, kinds of objects, state, operations of the group of ranks |
| `groups.py` | the group of ranks; collectives |
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import ModelError, UsageError
from ...runtime.extras import install_command
from ..settings import Amp
from .groups import DistributedGroup, Group, SingleRankGroup

FrameworkName = Literal["paddle", "torch"]
#: Name of the variable of a job file that states its framework.
STATED: Final = "FRAMEWORK"


class LearningRate:
    """The learning rate of an optimizer: its schedule, times a factor.

    The schedule computes rates as if the number of ranks never changed. The factor is applied to
    these rates.

    Args:
        schedule: schedule of the optimizer; None: the rate is fixed.
        by_metric: the schedule advances after evaluations, not after steps.
        multiply: multiplies the optimizer's current rate.
        settings: names of the optimizer's settings that decide the rate; last, the schedule's.

    Attributes:
        factor: product of all changes so far; 1 leaves every rate unchanged, bit for bit.
    """

    def __init__(
        self, schedule: Any, by_metric: bool, multiply: Callable[[float], None], *settings: str
    ) -> None:
        self._schedule, self._by_metric, self._multiply = schedule, by_metric, multiply
        self._settings = settings
        self.factor = 1.0

    @property
    def has_schedule(self) -> bool:
        return self._schedule is not None

    def scale(self, by: float) -> None:
        """Multiply the current rate and all later ones."""
        self.factor *= by
        self._multiply(by)

    def step(self) -> None:
        """Advance the schedule after a step of the optimizer, unless it follows a metric."""
        if self._schedule is not None and not self._by_metric:
            self._advance()

    def is_kept(self, changed: Collection[str]) -> bool:
        """Whether a restore keeps the present rate, as the job has changed it or its schedule.

        The rate of a schedule that follows a metric does not depend on steps alone. So it and the
        schedule's state are restored, apart from what has changed.

        Args:
            changed: names of the changed settings of the optimizer, such as `schedule.gamma`.
        """
        names = {name.partition(".")[0] for name in changed}
        return not (self._by_metric or names.isdisjoint(self._settings))

    def state_to_load(self, saved: Mapping[str, Any], changed: Collection[str]) -> dict[str, Any]:
        """Return the saved state of the schedule, but with present values of what has changed."""
        state: dict[str, Any] = self._schedule.state_dict()
        if self.is_kept(changed):
            return state
        name = self._settings[-1]
        return {**saved, **{key: state[key] for key in state if f"{name}.{key}" in changed}}

    def advance(self, steps: int) -> None:
        """Advance the schedule as `steps` steps of the optimizer would."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch expects steps of the optimizer between
            for _ in range(steps):
                self.step()

    def evaluated(self, metric: float) -> None:
        """Advance a schedule that follows a metric, after an evaluation."""
        if self._by_metric:
            self._advance(metric)

    def _advance(self, *metric: float) -> None:
        """Advance the schedule without the factor: some schedules read the optimizer's rate."""
        self._multiply(1 / self.factor)
        self._schedule.step(*metric)
        self._multiply(self.factor)


@dataclass(frozen=True, slots=True)
class Precision:
    """Automatic mixed precision; the default, "off", changes nothing, bit for bit.

    Gradients in float16 can underflow. So a `GradScaler` multiplies the loss before the backward
    pass, divides the gradients afterwards, and adapts the factor to overflows. All ranks see the
    same summed gradients, so their factors stay equal.

    Attributes:
        forward: returns a context manager in which to run the forward pass and compute the loss.
        scaler: the framework's `GradScaler`, which checkpoints capture; None: there is none.
    """

    forward: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: Any = None

    def backward(self, loss: Any) -> None:
        """Add the gradients of `loss` to those of the parameters."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """Take a step of the optimizer.

        If float16 gradients overflowed, skip the step and lower the scaler's factor.
        """
        if self.scaler is None:
            optimizer.step()
            return
        # A `TorchOptimizer` wraps the optimizer that the scaler needs.
        self.scaler.step(getattr(optimizer, "optimizer", optimizer))
        self.scaler.update()


class Framework(Protocol):
    """The operations that a training needs from a framework. Stateless.

    Optimizers have Paddle's methods `step`, `clear_grad` and `get_lr`.

    Attributes:
        name: name of the framework.
        module: the imported module `paddle` or `torch`.
        kinds: what the functions `model` and `optimizer` of a job file must return, as text.
        group: class of the group of several ranks.
    """

    name: FrameworkName
    module: ModuleType
    kinds: Mapping[str, str]
    group: type[DistributedGroup]

    # --- kinds of objects

    def is_model(self, value: Any) -> bool: ...

    def optimizer(self, value: Any) -> Any:
        """Convert the result of a job's `optimizer()` to an optimizer; None: it is no optimizer."""

    def scalar(self, loss: Any) -> Any:
        """Return a loss as a float tensor without dimensions; None: it is no such tensor."""
        is_tensor = isinstance(loss, self.module.Tensor)
        if not (is_tensor and math.prod(loss.shape) == 1 and loss.is_floating_point()):
            return None
        return loss if loss.ndim == 0 else loss.reshape([])

    # --- devices

    def set_device(self, local_rank: int) -> str:
        """Use the rank's own GPU if there are GPUs, else the CPU; return the name of the device.

        Raises:
            UsageError: there are too few GPUs.
        """

    def to_device(self, model: Any) -> Any:
        """Return the model on the device of this process."""

    def tensor(self, value: Any, model: Any = None) -> Any:
        """Return an array as a tensor on the device, and other values unchanged.

        PyTorch also moves a tensor of another device there.

        Args:
            value: a leaf of a batch.
            model: in PyTorch, use the device of this model's first parameter.
        """

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work."""

    def no_grad(self) -> AbstractContextManager[Any]:
        """Return a context in which no gradients are recorded."""
        context: AbstractContextManager[Any] = self.module.no_grad()
        return context

    def layers(self, model: Any) -> Iterable[Any]:
        """Return the model and all layers in it."""

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """Put the model into inference mode, without gradients.

        Afterwards, its mode and that of each of its layers are restored.
        """
        modes = [(layer, layer.training) for layer in self.layers(model)]
        was_training = model.training
        model.eval()
        try:
            with self.no_grad():
                yield
        finally:
            if was_training:
                model.train()  # Paddle has a mode besides those of layers
            for layer, mode in modes:
                layer.training = mode

    def flatten(self, outputs: Any) -> list[Any]:
        """Return the tensors of a structure, in order."""

    # --- training

    def learning_rate(self, optimizer: Any) -> LearningRate: ...

    def precision(self, amp: Amp, device: str) -> Precision:
        """Return the precision that `amp` names.

        Raises:
            UsageError: float16 on a CPU.
        """
        if amp == "off":
            return Precision()
        if amp == "float16" and device == "cpu":
            raise UsageError("--amp float16 needs a GPU; on a CPU use bfloat16, or off")
        return self.mixed_precision(amp, device)

    def mixed_precision(self, amp: Amp, device: str) -> Precision:
        """Return the precision `amp`: "bfloat16", or on a GPU "float16"."""

    def join(self, rank: int, endpoints: Sequence[str], device: str) -> Group:
        """Join a world as `rank`, and wait for all others.

        Args:
            rank: number of this rank.
            endpoints: host:port of each rank.
            device: device of this rank.

        Raises:
            PeerLost: the group cannot be formed.
        """
        if len(endpoints) <= 1:
            return SingleRankGroup()
        return self.group(rank, endpoints, device)

    # --- state

    def tensors(self, model: Any) -> dict[str, Any]:
        """Return the live parameters and buffers, by their names in the network."""

    def array(self, tensor: Any) -> Array:
        """Return a tensor as an array: a view if it is contiguous and on a CPU, else a copy."""

    def set_value(self, tensor: Any, array: Array) -> None:
        """Replace the values of a parameter or buffer."""

    def extra_state(self, model: Any) -> dict[str, Any]:
        """Return the extra states of layers by name, as JSON; only PyTorch has any.

        Raises:
            UsageError: they are not of JSON values, arrays and tensors.
        """
        return {}

    def restore_extra_state(self, model: Any, saved: Mapping[str, Any]) -> None:
        """Load what `extra_state` returned."""
        return

    def optimizer_class(self, optimizer: Any) -> str: ...

    def optimizer_state(
        self, model: Any, optimizer: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return arrays by `PARAMETER:KIND`, and JSON: the class, and what else a restore needs."""

    def restore_optimizer(
        self,
        model: Any,
        optimizer: Any,
        arrays: Mapping[str, Array],
        details: Mapping[str, Any],
        step: int,
        changed: Collection[str],
    ) -> None:
        """Load what `optimizer_state` returned, except settings in `changed`; see `restore`.

        Raises:
            CheckpointMismatch: it does not fit the optimizer.
        """

    def seed(self, seed: int) -> None: ...

    def random_state(self) -> dict[str, Any]:
        """Return the state of the framework's random generators as JSON."""

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Set what `random_state` returned."""

    # --- settings, for the fingerprint of a job

    def optimizer_settings(self, optimizer: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return hyperparameters by name, and those of each group of parameters."""

    def is_schedule(self, value: Any) -> bool:
        """Whether `value` is a schedule of a learning rate."""


@cache
def framework_named(name: FrameworkName) -> Framework:
    """Import and return the framework of this name.

    Raises:
        ModelError: it cannot be imported.
    """
    try:
        framework: Framework = import_module(f".{name}", __name__).FRAMEWORK
    except ImportError as error:
        hint = install_command(name)
        raise ModelError(f"{name} cannot be imported ({error}): {hint}") from None
    return framework


def framework_of(model: Any) -> Framework:
    """Return the framework of a model.

    Raises:
        UsageError: `model` is a model of neither framework.
    """
    for name in get_args(FrameworkName):
        if name in sys.modules and framework_named(name).is_model(model):
            return framework_named(name)
    raise UsageError(f"a model of Paddle or PyTorch is needed, not a {type(model).__name__}")


def framework_of_job(module: ModuleType) -> Framework:
    """Return the framework of a job file: the stated one, else the one that it imports.

    If no variable of the file comes from either framework, the one that this process has imported
    counts. If both are found, or none, the result is Paddle.

    Raises:
        UsageError: the file states an unknown framework.
        ModelError: the framework cannot be imported.
    """
    names: tuple[FrameworkName, ...] = get_args(FrameworkName)
    stated = getattr(module, STATED, None)
    if stated is not None:
        if stated not in names:
            raise UsageError(f"{STATED} is {' or '.join(map(repr, names))}, not {stated!r}")
        return framework_named(stated)
    imported = {_package_of(value) for value in vars(module).values()}
    candidates = [name for name in names if name in imported]
    if not candidates:  # the imports may be within functions, or in modules of the job
        candidates = [name for name in names if name in sys.modules]
    return framework_named(candidates[0] if len(candidates) == 1 else names[0])


def _package_of(value: Any) -> str:
    """Return the package of a module, class, function or object."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).partition(".")[0]


def check_has_gpu(local_rank: int, gpus: int) -> None:
    """Raise UsageError if a rank has no GPU of its own."""
    if local_rank >= gpus:
        raise UsageError(
            f"local rank {local_rank} has no GPU of its own: this node has {gpus}; give"
            f" --ranks-per-node {gpus} or less"
        )


def to_json(value: Any) -> Any:
    """Return a state dict as JSON; a mapping becomes a list of pairs if a key is no string."""
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return {"pairs": [[to_json(key), to_json(each)] for key, each in value.items()]}
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if hasattr(value, "numpy"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """Return the argument of `to_json`, but with lists for tuples and numpy arrays for tensors."""
    if isinstance(value, Mapping):
        if value.keys() == {"array", "dtype"}:
            return np.array(value["array"], value["dtype"])
        if value.keys() == {"pairs"}:
            return {from_json(key): from_json(each) for key, each in value["pairs"]}
        return {key: from_json(each) for key, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value
