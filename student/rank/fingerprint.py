"""The fingerprint of a job, from its settings, its file and the objects that the file creates.

It is computed in a process of its own, which then ends. So a node with a mistake in its job file
ends before any other node waits for it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from ..feeding.sources import ordered_of
from ..job.assembly import assemble
from ..job.distill import Distill
from ..job.spec import load_job
from ..settings import TrainSettings
from .learner import Precision
from .starting import seed_all, set_device

_DIGITS: Final = 16
_PACKAGE: Final = __name__.partition(".")[0]
#: Fields of `Distill` that have a field of their own, or decide how labels arrive, not what they
#: are.
_NOT_LOSS: Final = frozenset(
    {"service", "feeds", "no_teacher_grace_s", "wait_timeout_s", "store", "options"}
)


def fingerprint_of(settings: TrainSettings) -> dict[str, Any]:
    """Call the functions of the job file that start a training; return its fingerprint as JSON.

    Raises:
        JobError: a function of the job file fails.
        UsageError: its result, or a setting, cannot be used.
    """
    device = set_device(0)
    spec = load_job(settings.spec)
    feed = spec.feed("train")
    ordered = ordered_of(feed, settings)
    order = {} if ordered is None else ordered.identity()
    seed_all(settings.seed)
    assembly = assemble(spec, settings.steps)
    Precision(settings.amp, device)
    distill = assembly.distill
    own_batch = getattr(feed, "batch_size", None) if ordered is None else ordered.batch_size
    found = {
        "job_file": _digest(Path(spec.path)),
        "modules": _modules(Path(spec.path)),
        "seed": settings.seed,
        "rows": order.get("samples"),
        "sampler": order.get("sampler"),
        "total_batch": settings.total_batch or own_batch,
        "sharding": settings.deal,
        "precision": settings.amp,
        "optimizer": _optimizer(assembly.optimizer),
        "parameter_groups": _groups(assembly.optimizer),
        "lr_policy": settings.lr_policy,
        "loss": {} if distill is None else _loss(distill),
        "service": None if distill is None else _plain(distill.service),
        "feeds": None if distill is None else _plain(distill.feeds),
        "epochs": settings.epochs,
        "steps": settings.steps,
    }
    values: dict[str, Any] = json.loads(json.dumps(found))
    return values


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]


def _modules(job_file: Path) -> dict[str, str]:
    """Return digests by path of the imported modules in the job file's folder."""
    folder, environment = job_file.parent, Path(sys.prefix)
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] == _PACKAGE:
            continue
        path = Path(file).absolute()
        own = path.is_relative_to(folder) and path != job_file and path.is_file()
        # A virtual environment may be in the folder; or the folder may be below /usr.
        if own and not (environment.is_relative_to(folder) and path.is_relative_to(environment)):
            found[str(path.relative_to(folder))] = _digest(path)
    return dict(sorted(found.items()))


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """Return class and hyperparameters of an optimizer of Paddle, as constructed."""
    given = {
        **getattr(optimizer, "_default_dict", {}),
        "learning_rate": getattr(optimizer, "_learning_rate", None),
        "regularization": getattr(optimizer, "regularization", None),
        "grad_clip": getattr(optimizer, "_grad_clip", None),
    }
    return {"type": type(optimizer).__name__, **{name: _plain(one) for name, one in given.items()}}


def _groups(optimizer: Any) -> list[Any]:
    """Return the settings of each group of parameters; empty if there are no groups."""
    groups = getattr(optimizer, "_param_groups", None) or []
    return [
        _plain({name: one for name, one in group.items() if name != "params"})
        for group in groups
        if isinstance(group, Mapping)
    ]


def _loss(distill: Distill) -> dict[str, Any]:
    return {
        one.name: _plain(getattr(distill, one.name))
        for one in fields(distill)
        if one.name not in _NOT_LOSS
    }


def _plain(value: Any) -> Any:
    """Return a setting as JSON: an object as its class and settings, a function as its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):  # a scalar of numpy or Paddle
        return value.item()
    if is_dataclass(value):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
    else:  # a schedule, a clip or a regularizer of Paddle's
        given = {
            name: one for name, one in getattr(value, "__dict__", {}).items() if _is_setting(one)
        }
    return {"type": type(value).__name__, **{name: _plain(one) for name, one in given.items()}}


def _is_setting(value: Any) -> bool:
    from paddle.optimizer.lr import LRScheduler

    return value is None or isinstance(value, bool | int | float | str | list | tuple | LRScheduler)
