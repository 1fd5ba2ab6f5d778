"""The fingerprint of a job, from its settings, its file and the objects that the file creates.

A separate process computes it. So if `feed`, `model`, `distill`, `optimizer` or `metrics` fails on
a node, the node ends before any other node waits for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from ..checkpoint.capture import seed_all
from ..feeding import sample_order, steps_of
from ..frameworks import Framework
from ..job.assembly import assemble
from ..job.distill import Distill
from ..job.spec import load_job
from ..settings import TrainSettings

_DIGITS: Final = 16
_PACKAGE: Final = __name__.partition(".")[0]
#: Fields of `Distill` that "loss" leaves out. `service` and `feeds` are fields of the fingerprint
#: themselves. The others are not compared, although some can change the labels of a batch, such as
#: `ensemble` in `options`.
_NOT_LOSS: Final = frozenset(
    {"service", "feeds", "no_teacher_grace_s", "wait_timeout_s", "store", "options"}
)


def fingerprint_of(settings: TrainSettings) -> dict[str, Any]:
    """Return the fingerprint of a job as JSON values.

    This calls `feed("train")`, `model`, `distill`, `optimizer` and `metrics` of the job file.

    Raises:
        JobError: a function of the job file fails.
        UsageError: a result of these functions, or a setting, is invalid.
    """
    spec = load_job(settings.job_file)
    framework = spec.framework
    device = framework.set_device(0)
    feed = spec.feed("train")
    order = sample_order(feed, settings)
    identity = {} if order is None else order.identity()
    total_batch, steps = settings.total_batch or getattr(feed, "batch_size", None), settings.steps
    if order is not None:
        total_batch = order.total_batch
        steps = steps_of(settings, total_batch, order.total)
    seed_all(framework, settings.seed)
    assembly = assemble(spec, steps)
    framework.precision(settings.amp, device)  # raises if the device does not support it
    framework.extra_state(assembly.model)  # raises if a checkpoint cannot hold it
    optimizer, groups = framework.optimizer_settings(assembly.optimizer)

    def plain(value: Any) -> Any:
        return _plain(value, framework)

    distill = assembly.distill
    fingerprint = {
        "job_file": _digest(Path(spec.path)),
        "modules": _modules(Path(spec.path)),
        "seed": settings.seed,
        "rows": identity.get("samples"),
        "sampler": identity.get("sampler"),
        "total_batch": total_batch,
        "sharding": settings.deal,
        "shard_rows": settings.shard_rows if settings.deal == "dynamic" else None,
        "precision": settings.amp,
        "optimizer": {"type": framework.optimizer_class(assembly.optimizer), **plain(optimizer)},
        "parameter_groups": [
            plain({name: value for name, value in group.items() if name != "params"})
            for group in groups
        ],
        "lr_policy": settings.lr_policy,
        "loss": {} if distill is None else plain(_loss(distill)),
        "service": None if distill is None else plain(distill.service),
        "feeds": None if distill is None else plain(distill.feeds),
        "epochs": settings.epochs,
        "steps": settings.steps,
    }
    spec.metrics()  # last: modules that only `metrics` imports do not affect the training
    values: dict[str, Any] = json.loads(json.dumps(fingerprint))
    return values


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]


def _modules(job_file: Path) -> dict[str, str]:
    """Return digests by path of the imported modules in the job file's folder."""
    folder, environment = job_file.parent, Path(sys.prefix)
    digests = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] == _PACKAGE:
            continue
        path = Path(file).absolute()
        beside = path.is_relative_to(folder) and path != job_file and path.is_file()
        # Skip modules of a virtual environment in the folder. If instead the folder is below
        # `sys.prefix`, which is /usr without a virtual environment, its modules count.
        if beside and not (environment.is_relative_to(folder) and path.is_relative_to(environment)):
            digests[str(path.relative_to(folder))] = _digest(path)
    return dict(sorted(digests.items()))


def _loss(distill: Distill) -> dict[str, Any]:
    return {
        one.name: getattr(distill, one.name) for one in fields(distill) if one.name not in _NOT_LOSS
    }


def _plain(value: Any, framework: Framework) -> Any:
    """Return a setting as JSON: an object as its class and settings, a function as its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one, framework) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one, framework) for one in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    if hasattr(value, "item") and math.prod(value.shape) == 1:  # a scalar of numpy or a framework
        return value.item()
    if is_dataclass(value):
        settings = {one.name: getattr(value, one.name) for one in fields(value)}
    else:  # a schedule, a clip or a regularizer of a framework
        settings = {
            name: attribute
            for name, attribute in getattr(value, "__dict__", {}).items()
            if _is_setting(attribute, framework)
        }
    plain = {name: _plain(setting, framework) for name, setting in settings.items()}
    return {"type": type(value).__name__, **plain}


def _is_setting(value: Any, framework: Framework) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str | list | tuple)
    return plain or framework.is_schedule(value)
