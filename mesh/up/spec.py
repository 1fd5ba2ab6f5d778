"""File of a mesh: its coordinator, services with teachers, and students."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

from ...coordinator.store.redis_url import parse
from ...runtime.errors import UsageError
from ...scheduler.units import Number
from ..files import read
from ..files.program_checks import (
    check_env,
    check_job_file,
    check_name,
    check_program,
    check_words,
    checked_folder,
)

#: Placeholder for the Redis URL in the command of a student.
URL: Final = "{coordinator}"
_FACTORY: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

TeacherCount = Annotated[int, Number(at_least=1, at_most=256)]
Grace = Annotated[float, Number("s", at_least=0, at_most=3600)]
Ready = Annotated[float, Number("s", above=0, at_most=3600)]


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """The coordinator of a mesh.

    Attributes:
        redis: URL of a running Redis; None: the coordinator starts one.
        options: further options of `edl coordinator serve` in shell syntax.
        env: environment variables.
    """

    redis: str | None = None
    options: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = check_words("options", self.options, ("--redis",), "redis")
        _check_url("options", self.options)
        if "--redis-port=0" in words or ("--redis-port", "0") in pairwise(words):
            raise ValueError("options: the default of --redis-port is any free port: leave it out")
        check_env(self.env)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service and its teachers.

    Attributes:
        model: model of the teachers: a path relative to the folder, `module:function`, or the name
            of a library's model (timm/NAME).
        teachers: number of teachers; auto: as many as the coordinator wants (`edl agent --local`).
        min_teachers: least number with auto, unless no teacher is wanted.
        max_teachers: greatest number with auto; None: one per core.
        options: further options of `edl teacher serve` in shell syntax.
        env: environment variables of the teachers.
        grace_s: seconds that a teacher has to finish its requests.
        ready_s: seconds after its start within which a teacher must be ready; otherwise it is
            restarted. With auto, teachers have 15 minutes instead.
    """

    model: str
    teachers: TeacherCount | Literal["auto"] = 1
    min_teachers: Annotated[int, Number(at_least=0, at_most=256)] | None = None
    max_teachers: TeacherCount | None = None
    options: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: Grace = 10.0
    ready_s: Ready = 120.0

    def __post_init__(self) -> None:
        reserved_options = (
            "--model",
            "--service",
            "--redis",
            "--coordinator",
            "--teacher-id",
            "--grace",
        )
        check_words("options", self.options, reserved_options, "model, the service's name, grace_s")
        _check_url("options", self.options)
        check_env(self.env)
        bounds = (self.min_teachers, self.max_teachers)
        if self.teachers != "auto" and bounds != (None, None):
            raise ValueError("min_teachers, max_teachers: only for `teachers: auto`")
        least, most = bounds
        if least is not None and most is not None and least > most:
            raise ValueError(f"max_teachers: expects min_teachers ({least}) or more, got {most}")

    @property
    def is_factory(self) -> bool:
        """Whether the model is given as `module:function`."""
        return _FACTORY.fullmatch(self.model) is not None


@dataclass(frozen=True, slots=True)
class StudentSpec:
    """A student; either `train` or `command` is set.

    Attributes:
        train: arguments of `edl student train`: the job file and its options. Not run by a shell.
        command: another program and its arguments; `{coordinator}` is replaced by the Redis URL.
            Not run by a shell.
        nodes: number of processes: nodes of one training, or copies of the command.
        retries: number of failures that each process survives.
        env: environment variables.
        grace_s: seconds that a process has to leave before it is killed.
    """

    train: str = ""
    command: str = ""
    nodes: Annotated[int, Number(at_least=1, at_most=64)] = 1
    retries: Annotated[int, Number(at_least=0, at_most=1000)] = 3
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: Grace = 30.0

    def __post_init__(self) -> None:
        reserved_options = ("--redis", "--teachers")
        check_program(self.train, self.command, reserved_options, "coordinator")
        _check_url("train", self.train)
        check_env(self.env)

    @property
    def trains(self) -> bool:
        """Whether the processes run `edl student train`."""
        return bool(self.train.strip())


@dataclass(frozen=True, slots=True)
class MeshFile:
    """A mesh; docs/how-to/deploy.md describes all keys.

    Attributes:
        coordinator: the coordinator.
        services: services by name.
        students: students by name.
        folder: working directory, relative to the file; default: the file's folder.
        kind: kind of the document for `edl apply`.
    """

    coordinator: CoordinatorSpec = field(default_factory=CoordinatorSpec)
    services: Mapping[str, ServiceSpec] = field(default_factory=dict)
    students: Mapping[str, StudentSpec] = field(default_factory=dict)
    folder: Path = Path()
    kind: Literal["mesh"] = "mesh"

    def __post_init__(self) -> None:
        for kind, names in (("services", self.services), ("students", self.students)):
            for name in names:
                check_name(kind, name)
        if not self.services and not self.students:
            raise ValueError("expects `services:` or `students:`, or both: there is nothing to run")


def read_mesh(path: Path) -> MeshFile:
    """Read the file of a mesh; its folder becomes absolute.

    Raises:
        UsageError: as for `files.read`; or the folder, a model, a job file or a student's program
            is missing; or the Redis URL is invalid.
    """
    spec = read(path, MeshFile)
    spec = replace(spec, folder=checked_folder(path, spec.folder))
    if spec.coordinator.redis is not None:
        try:
            parse(spec.coordinator.redis)
        except UsageError as error:
            raise UsageError(f"{path}: coordinator.redis: {error}") from error
    for name, service in spec.services.items():
        if not (
            service.is_factory
            or _is_model(spec.folder / service.model)
            or _is_library_model(service.model)
        ):
            raise UsageError(
                f"{path}: services.{name}.model: there is no {spec.folder / service.model}, and"
                " it is neither module:function nor the name of a library's model (timm/NAME)"
            )
    for name, student in spec.students.items():
        location = f"{path}: students.{name}"
        if student.trains:
            check_job_file(f"{location}.train", spec.folder, student.train)
        else:
            program(spec, student, location)
    return spec


def program(spec: MeshFile, student: StudentSpec, location: str) -> tuple[str, ...]:
    """Return the path of a student's program, and its arguments.

    Args:
        spec: the mesh.
        student: the student, with a `command`.
        location: file and key, for errors.

    Raises:
        UsageError: there is no such program.
    """
    first, *rest = shlex.split(student.command)
    search = student.env.get("PATH", search_path())
    path = shutil.which(str(spec.folder / first) if "/" in first else first, path=search)
    if path is None:
        raise UsageError(f"{location}.command: there is no program {first!r}")
    return (path, *rest)


def search_path() -> str:
    """Return PATH with the folder of this interpreter first, so that `python` starts it."""
    interpreter_folder = str(Path(sys.executable).parent)
    return os.pathsep.join([interpreter_folder, os.environ.get("PATH", os.defpath)])


def _check_url(key: str, text: str) -> None:
    """Raise ValueError if `text` contains the placeholder of the Redis URL."""
    if URL in text:
        raise ValueError(f"{key}: {URL} is for `command`; edl's own programs get the URL anyway")


def _is_library_model(model: str) -> bool:
    from ...teacher.backends.model_source import is_named  # slow to import, and rarely needed

    return is_named(model)


def _is_model(path: Path) -> bool:
    """Whether the path exists, with or without a suffix."""
    return path.exists() or any(path.parent.glob(f"{escape(path.name)}.*"))
