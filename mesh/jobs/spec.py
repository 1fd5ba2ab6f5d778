"""A job's file: what a node of it runs, how many there may be, what it may use up."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from ...errors import UsageError
from ...scheduler.units import Number
from ..files import read
from ..files.programs import check_env, check_name, check_program
from .quantities import checked

#: What of `edl student train` the runner says itself.
_OURS: Final = ("--nodes", "--job", "--coordinator", "--dry-run")
_OF_A_CLUSTER: Final = ("image", "resources", "checkpoint_claim")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job.

    Attributes:
        name: its name in the queue, and of a training on the job board.
        train: arguments of `edl student train`: the job file and its options, without those that
            the runner sets (`--nodes`, `--job`, `--coordinator`).
        command: any other program and its arguments instead. Neither goes through a shell.
        min_nodes: with fewer it does not run.
        max_nodes: more are of no use to it.
        priority: higher goes first.
        retries: nodes that may end badly before the job has failed.
        grace_s: a node that is told to leave has so long, then it is killed, seconds.
        env: variables of its nodes.
        folder: in which its nodes run; in the file relative to that. Default: the file's own.
        image: on a cluster, the container image that its nodes run in.
        resources: on a cluster, what each node needs, as `quantities.checked` has it.
        checkpoint_claim: on a cluster, the volume claim for a training's checkpoints.
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

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_program(self.train, self.command, _OURS, "min_nodes, max_nodes, name")
        check_env(self.env)
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"max_nodes: expects min_nodes ({self.min_nodes}) or more, got {self.max_nodes}"
            )
        object.__setattr__(self, "resources", checked(self.resources))

    @property
    def trains(self) -> bool:
        """Whether its nodes are `edl student train`."""
        return bool(self.train.strip())

    @property
    def of_a_cluster(self) -> list[str]:
        """The keys of it that only a cluster heeds."""
        return [name for name in _OF_A_CLUSTER if getattr(self, name)]

    def for_a_fleet(self) -> Self:
        """The same without what only a cluster heeds."""
        return replace(self, image="", resources={}, checkpoint_claim="")

    def fleet_note(self) -> str:
        """What a fleet leaves out of it, in words; empty: nothing."""
        left = self.of_a_cluster
        is_, it = ("is", "it") if len(left) == 1 else ("are", "them")
        return f"{', '.join(left)} {is_} of a cluster: a fleet leaves {it} out" if left else ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, which `from_json` makes the same of."""
        told = {**asdict(self), "folder": str(self.folder), "env": dict(self.env)}
        # What is not said is not told, so that fleets of versions without these keys take it.
        return {key: one for key, one in told.items() if one or key not in _OF_A_CLUSTER}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` told.

        Raises:
            UsageError: it is none, as of another version.
        """
        try:
            return cls(**{**value, "folder": Path(value["folder"])})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UsageError(
                f"what was submitted cannot be run by this version: {error}; submit it anew"
            ) from None

    def arguments(self, own_folder: Path) -> tuple[str, ...]:
        """Program and arguments of a node; where the mesh is, it reads in its environment.

        Args:
            own_folder: where a training that names no place has its checkpoints.
        """
        if not self.trains:
            return tuple(shlex.split(self.command))
        words = shlex.split(self.train)
        argv = [sys.executable, "-P", "-u", "-m", "edl", "student", "train", *words]
        argv += ["--job", self.name, "--nodes", f"{self.min_nodes}:{self.max_nodes}"]
        if not any(word.split("=")[0] == "--checkpoint" for word in words):
            argv += ["--checkpoint", str(own_folder / "checkpoints")]
        return tuple(argv)


def read_job(path: Path, *, here: bool = True) -> JobSpec:
    """The job that a file describes, its folder absolute.

    Args:
        path: of the file.
        here: its nodes will find on their machines what lies here; False: what their image holds,
            so that nothing is looked for, and the folder stays as the file says it.

    Raises:
        UsageError: see `files.read`; or its folder, or the file that it trains, is not there.
    """
    spec = read(path, JobSpec)
    if not here:
        return spec
    folder = path.parent if spec.folder == Path() else spec.folder
    spec = replace(spec, folder=Path(os.path.abspath(folder)))
    if not spec.folder.is_dir():
        raise UsageError(f"{path}: folder: there is no folder {spec.folder}")
    if spec.trains:
        job_file = spec.folder / shlex.split(spec.train)[0]
        if not job_file.is_file():
            raise UsageError(f"{path}: train: there is no file {job_file}")
    return spec
