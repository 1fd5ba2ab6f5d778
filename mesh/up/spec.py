"""A mesh's file: its coordinator, its services with their teachers, its students."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

from ...coordinator.store.redis_url import parse
from ...errors import UsageError
from ...scheduler.units import Number
from ..files import read
from ..files.programs import check_env, check_name, check_program, check_words

#: In a student's command: the Redis URL of the mesh.
URL: Final = "{coordinator}"
_FACTORY: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

HowMany = Annotated[int, Number(at_least=1, at_most=256)]
Grace = Annotated[float, Number("s", at_least=0, at_most=3600)]
Ready = Annotated[float, Number("s", above=0, at_most=3600)]


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """The service manager.

    Attributes:
        redis: URL of a running Redis; none: the coordinator brings its own.
        options: further ones of `edl coordinator serve`, as in a shell.
        env: variables of its process.
    """

    redis: str | None = None
    options: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = check_words("options", self.options, ("--redis",), "redis")
        _check_url("options", self.options)
        if "--redis-port=0" in words or ("--redis-port", "0") in pairwise(words):
            raise ValueError("options: without --redis-port it is any free port: leave it out")
        check_env(self.env)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service and its teachers.

    Attributes:
        model: what each teacher serves: a path, or `module:function`; relative to the folder.
        teachers: how many; auto: as many as the coordinator desires, as `edl fleet local` has it.
        min_teachers: of auto: fewest while any is desired.
        max_teachers: of auto: most. Default: one for each core.
        options: further ones of `edl teacher serve`, as in a shell.
        env: variables of its teachers.
        grace_s: for a teacher to finish what it has, seconds.
        ready_s: a teacher that does not serve so long after its start is started again.
    """

    model: str
    teachers: HowMany | Literal["auto"] = 1
    min_teachers: Annotated[int, Number(at_least=0, at_most=256)] | None = None
    max_teachers: HowMany | None = None
    options: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: Grace = 10.0
    ready_s: Ready = 120.0

    def __post_init__(self) -> None:
        ours = ("--model", "--service", "--coordinator", "--teacher-id", "--grace")
        check_words("options", self.options, ours, "model, the service's name, grace_s")
        _check_url("options", self.options)
        check_env(self.env)
        bounds = (self.min_teachers, self.max_teachers)
        if self.teachers != "auto" and bounds != (None, None):
            raise ValueError("min_teachers, max_teachers: are for `teachers: auto`")
        least, most = bounds
        if least is not None and most is not None and least > most:
            raise ValueError(f"max_teachers: expects min_teachers ({least}) or more, got {most}")

    @property
    def is_factory(self) -> bool:
        """Whether the model is a function of a module, which may lie in the folder."""
        return _FACTORY.fullmatch(self.model) is not None


@dataclass(frozen=True, slots=True)
class StudentSpec:
    """Something that trains.

    Attributes:
        train: arguments of `edl student train`: the job file and its options.
        command: any other program and its arguments instead; `{coordinator}` in it is the Redis
            URL. Neither goes through a shell.
        nodes: how many processes of it: nodes of one training, or as many of the command.
        retries: how often each may end badly before it has failed.
        env: variables of its processes.
        grace_s: one that is told to leave has so long, then it is killed, seconds.
    """

    train: str = ""
    command: str = ""
    nodes: Annotated[int, Number(at_least=1, at_most=64)] = 1
    retries: Annotated[int, Number(at_least=0, at_most=1000)] = 3
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: Grace = 30.0

    def __post_init__(self) -> None:
        ours = ("--coordinator", "--dry-run", "--teachers")
        check_program(self.train, self.command, ours, "the coordinator")
        _check_url("train", self.train)
        check_env(self.env)

    @property
    def trains(self) -> bool:
        """Whether its processes are `edl student train`."""
        return bool(self.train.strip())


@dataclass(frozen=True, slots=True)
class MeshFile:
    """A mesh; see `docs/up.md` for each key.

    Attributes:
        coordinator: the service manager.
        services: by name.
        students: by name.
        folder: in which all processes run; in the file relative to it. Default: the file's own.
    """

    coordinator: CoordinatorSpec = field(default_factory=CoordinatorSpec)
    services: Mapping[str, ServiceSpec] = field(default_factory=dict)
    students: Mapping[str, StudentSpec] = field(default_factory=dict)
    folder: Path = Path()

    def __post_init__(self) -> None:
        for kind, names in (("services", self.services), ("students", self.students)):
            for name in names:
                check_name(kind, name)
        if not self.services and not self.students:
            raise ValueError("expects `services:` or `students:`, or both: there is nothing to run")


def read_mesh(path: Path) -> MeshFile:
    """The mesh that a file describes, its folder absolute.

    Raises:
        UsageError: see `files.read`; or its folder, a model, or what a student runs is not there.
    """
    spec = read(path, MeshFile)
    folder = path.parent if spec.folder == Path() else spec.folder
    spec = replace(spec, folder=Path(os.path.abspath(folder)))
    if not spec.folder.is_dir():
        raise UsageError(f"{path}: folder: there is no folder {spec.folder}")
    if spec.coordinator.redis is not None:
        try:
            parse(spec.coordinator.redis)
        except UsageError as error:
            raise UsageError(f"{path}: coordinator.redis: {error}") from error
    for name, service in spec.services.items():
        if not service.is_factory and not _is_model(spec.folder / service.model):
            raise UsageError(
                f"{path}: services.{name}.model: there is no {spec.folder / service.model}, and"
                " it is no module:function"
            )
    for name, student in spec.students.items():
        place = f"{path}: students.{name}"
        if student.trains:
            job_file = spec.folder / shlex.split(student.train)[0]
            if not job_file.is_file():
                raise UsageError(f"{place}.train: there is no file {job_file}")
        else:
            program(spec, student, place)
    return spec


def program(spec: MeshFile, student: StudentSpec, place: str) -> tuple[str, ...]:
    """Program and arguments of a student's command; the program by its path.

    Raises:
        UsageError: there is no such program; the message begins with `place`.
    """
    first, *rest = shlex.split(student.command)
    search = student.env.get("PATH", search_path())
    named = str(spec.folder / first) if "/" in first else first
    found = shutil.which(named, path=search)
    if found is None:
        raise UsageError(f"{place}.command: there is no program {first!r}")
    return (found, *rest)


def search_path() -> str:
    """Where programs are looked for: first beside this interpreter, so `python` is ours."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join([own, os.environ.get("PATH", os.defpath)])


def _check_url(key: str, text: str) -> None:
    """Raises ValueError where `text` asks for the Redis URL."""
    if URL in text:
        raise ValueError(f"{key}: {URL} is for `command`; edl's own programs are told it anyway")


def _is_model(path: Path) -> bool:
    """Whether there is a folder, a file, or one of this name with a suffix."""
    return path.exists() or any(path.parent.glob(f"{path.name}.*"))
