"""File of a job: the program and the number of its nodes, and their resources on a cluster.

On a cluster, `resources` may have the keys `cpu`, `memory`, `ephemeral-storage` and `gpu`
(nvidia.com/gpu), as in `{cpu: 2, memory: 4Gi, gpu: 1}`; other resources have their full names.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args, get_origin, get_type_hints

from ...runtime.errors import UsageError
from ...scheduler.units import Number
from ..files.program_checks import (
    check_env,
    check_job_file,
    check_name,
    check_program,
    checked_folder,
)
from ..kubernetes.resources import quantity

#: Resource names without a domain. A DistillJob has nvidia.com/gpu instead of `gpu`.
_SHORT_NAMES: Final = ("cpu", "memory", "ephemeral-storage", "gpu")
_FULL_NAME: Final = re.compile(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_CPU_AMOUNT: Final = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_BYTES_AMOUNT: Final = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")
_WHOLE_AMOUNT: Final = re.compile(r"[0-9]+")
#: Least amount of memory or storage; smaller amounts probably lack their unit.
_MIN_BYTES: Final = 1 << 20


def _check_resource(name: str, amount: str) -> None:
    """Raise ValueError if the name or the quantity of a resource is invalid."""
    key = f"resources.{name}"
    if name == "cpu":
        if not _CPU_AMOUNT.fullmatch(amount):
            raise ValueError(f"{key}: expects cores, `2`, `0.5` or `500m`, got {amount!r:.60}")
    elif name in ("memory", "ephemeral-storage"):
        if not _BYTES_AMOUNT.fullmatch(amount):
            raise ValueError(
                f"{key}: expects bytes in Kubernetes notation, `4Gi` or `512Mi`, got {amount!r:.60}"
            )
        if quantity(amount) < _MIN_BYTES:
            raise ValueError(f"{key}: {amount!r} is less than 1Mi: it needs a unit, as in `4Gi`")
    elif name != "gpu" and not _FULL_NAME.fullmatch(name):
        raise ValueError(
            f"{key}: expects {', '.join(_SHORT_NAMES)}, or a full name such as amd.com/gpu"
        )
    elif not _WHOLE_AMOUNT.fullmatch(amount):
        raise ValueError(f"{key}: expects a whole number, got {amount!r:.60}")


#: Options of `edl student train` that `train` must not have, because the runner sets them.
_RUNNER_OPTIONS: Final = ("--nodes", "--job", "--redis")
_CLUSTER_ONLY: Final = ("image", "resources", "checkpoint_claim", "coordinator")


@dataclass(frozen=True, slots=True)
class QueuedJobSpec:
    """Description of a job; either `train` or `command` is set. Raises ValueError if it is invalid.

    Attributes:
        name: name of the job in the queue, and of its training.
        train: arguments of `edl student train`: the job file and its options, without those that
            the runner sets (`--nodes`, `--job`, `--redis`). Not run by a shell.
        command: another program and its arguments. Not run by a shell.
        min_nodes: least number of nodes with which the job runs.
        max_nodes: greatest number of nodes.
        priority: jobs with higher priorities get nodes first.
        retries: number of failures of nodes that the job survives; nodes that fail together count
            once.
        grace_s: seconds that a node has to leave before it is killed.
        env: environment variables of the nodes.
        folder: working directory of the nodes; in a file, a path relative to the file's folder.
        image: container image of the nodes; only on a cluster.
        resources: quantities that each node needs, by name; only on a cluster.
        checkpoint_claim: volume claim for checkpoints; only on a cluster.
        coordinator: Redis URL for the nodes; empty: that of the operator; only on a cluster.
    """

    name: str
    train: str = ""
    command: str = ""
    min_nodes: Annotated[int, Number(at_least=1, at_most=4096)] = 1
    max_nodes: Annotated[int, Number(at_least=1, at_most=4096)] = 1
    priority: Annotated[int, Number(at_least=-1000, at_most=1000)] = 0
    retries: Annotated[int, Number(at_least=0, at_most=1000)] = 3
    grace_s: Annotated[float, Number("s", at_least=0, at_most=3600)] = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    image: str = ""
    resources: Mapping[str, int | float | str] = field(default_factory=dict)
    checkpoint_claim: str = ""
    coordinator: str = ""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_program(self.train, self.command, _RUNNER_OPTIONS, "min_nodes, max_nodes, name")
        check_env(self.env)
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"max_nodes: expects min_nodes ({self.min_nodes}) or more, got {self.max_nodes}"
            )
        resources = {name: str(amount) for name, amount in self.resources.items()}
        for name, amount in resources.items():
            _check_resource(name, amount)
        object.__setattr__(self, "resources", resources)

    @property
    def trains(self) -> bool:
        """Whether the nodes run `edl student train`."""
        return bool(self.train.strip())

    def fleet_note(self) -> str:
        """Return a note about keys that a fleet ignores; empty: none."""
        keys = ", ".join(name for name in _CLUSTER_ONLY if getattr(self, name))
        return f"a fleet ignores keys for Kubernetes only: {keys}" if keys else ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for a fleet, without the keys that only a cluster uses."""
        values = {**asdict(self), "folder": str(self.folder), "env": dict(self.env)}
        return {key: value for key, value in values.items() if key not in _CLUSTER_ONLY}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return a spec from the values of `to_json`.

        Raises:
            UsageError: the values are invalid in this version.
        """
        try:
            spec = cls(**{**value, "folder": Path(value["folder"])})
            _check_types(spec)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UsageError(
                f"this version cannot run the submitted job: {error}; submit it again"
            ) from None
        return spec

    def arguments(self, own_folder: Path) -> tuple[str, ...]:
        """Return program and arguments of a node.

        Args:
            own_folder: parent of the folder for checkpoints if `train` has no --checkpoint.
        """
        if not self.trains:
            return tuple(shlex.split(self.command))
        training = self.training_arguments(str(own_folder / "checkpoints"))
        return (sys.executable, "-P", "-u", "-m", "edl", *training)

    def training_arguments(self, checkpoints: str) -> list[str]:
        """Return the arguments of `edl` for one node of a training.

        Args:
            checkpoints: folder for checkpoints if `train` has no --checkpoint.
        """
        words = shlex.split(self.train)
        argv = ["student", "train", *words]
        argv += ["--job", self.name, "--nodes", f"{self.min_nodes}:{self.max_nodes}"]
        if not any(word.split("=")[0] == "--checkpoint" for word in words):
            argv += ["--checkpoint", checkpoints]
        return argv


def _check_types(spec: QueuedJobSpec) -> None:
    """Raise ValueError for numbers or variables that `files.read` would refuse in a file."""
    for name, hint in get_type_hints(QueuedJobSpec, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, rule = get_args(hint)
            value = getattr(spec, name)
            if type(value) not in (int, kind) or not rule.takes(value):
                raise ValueError(f"{name}: expects a number{rule.bounds()}, got {value!r:.60}")
    if invalid := [name for name, value in spec.env.items() if not isinstance(value, str)]:
        raise ValueError(f"env: expects text, got another value of {invalid[0]!r:.60}")


def checked_job(spec: QueuedJobSpec, path: Path, *, here: bool = True) -> QueuedJobSpec:
    """Check that the folder and a training's job file exist; make the folder absolute.

    Args:
        spec: spec from the file.
        path: path of the file.
        here: the nodes run on machines that have the files of this machine; False: they run in an
            image, so nothing is checked or changed.

    Raises:
        UsageError: the folder, or the job file of the training, is missing.
    """
    if not here:
        return spec
    spec = replace(spec, folder=checked_folder(path, spec.folder))
    if spec.trains:
        check_job_file(f"{path}: train", spec.folder, spec.train)
    return spec
