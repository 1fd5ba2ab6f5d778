"""Launch plan: the processes of a mesh in start order, and their commands."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from ...coordinator.store.redis_url import masked
from ...runtime.errors import UsageError
from ...runtime.supervise import Command, python_command
from ..local import COORDINATOR_READY, TEACHER_READY
from .mesh_state import ProcessSpec
from .spec import URL, MeshFile, ServiceSpec, StudentSpec, program, search_path

#: Redis URL to show before the coordinator has reported the real URL.
_UNKNOWN_URL: Final = "redis://127.0.0.1:PORT"
COORDINATOR: Final = "coordinator"
#: Pattern of the line that a fleet prints when it runs; the fleet may have no teachers yet.
_FLEET_READY: Final = r"fleet ready: (\S+), (\d+ to \d+ teachers)"
#: Condition for the start of each role, for display.
_START_CONDITIONS: Final = {
    "coordinator": "coordinator: first",
    "teacher": "teachers: as soon as the coordinator is ready",
    "student": "students: as soon as each service has a teacher or a running fleet",
}
#: Seconds after the grace period of a teacher before it is killed. For a fleet they count twice:
#: the fleet kills its teachers after these seconds, `edl up` kills the fleet later.
_EXIT_MARGIN_S: Final = 5.0
_COORDINATOR_GRACE_S: Final = 10.0
#: Seconds that a student's `command` has to end after `edl up` has died.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All processes of a mesh.

    Attributes:
        processes: processes in start order, the coordinator first.
        folder: working directory.
        redis: URL of a running Redis; None: the coordinator starts one.
    """

    processes: tuple[ProcessSpec, ...]
    folder: Path
    redis: str | None = None

    def summary(self) -> str:
        """Return a summary of the processes in words."""
        fleets = [process.group for process in self.processes if process.ready == _FLEET_READY]
        counts = {
            role: sum(process.role == role for process in self.processes)
            for role in ("teacher", "student")
        }
        counts["teacher"] -= len(fleets)
        parts = [f"{count} {role}{'s' * (count != 1)}" for role, count in counts.items() if count]
        parts += [f"teachers of {name} as needed" for name in fleets]
        return ", ".join(["coordinator", *parts])

    def command(self, process: ProcessSpec, url: str | None, logs: Path) -> Command:
        """Return the command that starts a process.

        Args:
            process: a process of the plan.
            url: Redis URL of the mesh; None: unknown, only for the coordinator.
            logs: folder for the output of the process.
        """
        name, argv = process.name, self.argv(process, url)
        log = logs / f"{name}.log"
        env = {"EDL_COORDINATOR": url or "", "PYTHONUNBUFFERED": "1", **process.env}
        if process.is_edl:
            argv, secret_env = _hide_password(argv, url or "")
            env.update(secret_env)
            return python_command(name, "edl", *argv, env=env, cwd=self.folder, log=log)
        return Command(
            name, argv, env=env, cwd=self.folder, log=log, guard=True,
            orphan_grace_s=_ORPHAN_GRACE_S,
        )  # fmt: skip

    def argv(self, process: ProcessSpec, url: str | None) -> tuple[str, ...]:
        """Return the command line of a process; `url` None: the Redis URL is unknown."""
        argv = tuple(word.replace(URL, url or _UNKNOWN_URL) for word in process.argv)
        if process.role != "coordinator" or self.redis or "--redis-port" in _options(argv):
            return argv
        # A restarted coordinator keeps its port, which all other processes know.
        return (*argv, "--redis-port", url.rpartition(":")[2] if url else "0")


def plan_of(file: MeshFile, path: Path, checkpoints: Path) -> LaunchPlan:
    """Return the processes of a mesh.

    Args:
        file: content of the mesh's file.
        path: path of the file, for messages, and for unique names in a shared Redis.
        checkpoints: folder for checkpoints of trainings without --checkpoint.

    Raises:
        UsageError: two processes would share a name, or a program does not exist.
    """
    tag = "" if file.coordinator.redis is None else f".{_tag(path)}"
    processes = [_coordinator(file)]
    for name, service in file.services.items():
        processes += _teachers(name, service, tag, file.folder)
    for name, student in file.students.items():
        processes += _students(file, name, student, checkpoints, f"{path}: students.{name}")
    names = [process.name for process in processes]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path}: two processes would be called {duplicates[0]!r}: rename one")
    return LaunchPlan(tuple(processes), file.folder, file.coordinator.redis)


def command_lines(plan: LaunchPlan) -> list[str]:
    """Return the commands of a mesh as shell lines, with comments about the start order."""
    lines = [f"cd {shlex.quote(str(plan.folder))}"]
    role = ""
    for process in plan.processes:
        if process.role != role:
            role = process.role
            lines.append(f"# {_START_CONDITIONS[role]}")
        argv = plan.argv(process, plan.redis and masked(plan.redis))
        env = [f"{key}={shlex.quote(value)}" for key, value in process.env.items() if key != "PATH"]
        lines.append(" ".join([*env, shlex.join(("edl", *argv) if process.is_edl else argv)]))
    return lines


def _coordinator(file: MeshFile) -> ProcessSpec:
    spec = file.coordinator
    argv = ["coordinator", "serve", *shlex.split(spec.options)]
    env = dict(spec.env)
    if spec.redis is not None:
        argv += ["--redis", URL]
    else:  # variables of this process may name another Redis
        env = {"EDL_REDIS": "", "EDL_REDIS_PORT": "", **env}
    return ProcessSpec(
        COORDINATOR,
        "coordinator",
        COORDINATOR,
        grace_s=_COORDINATOR_GRACE_S,
        argv=tuple(argv),
        ready=COORDINATOR_READY,
        env=env,
    )


def _teachers(name: str, service: ServiceSpec, tag: str, folder: Path) -> list[ProcessSpec]:
    options = tuple(shlex.split(service.options))
    env = dict(service.env)
    if service.is_factory and "PYTHONPATH" not in env:  # the module may be in the folder
        former_path = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), former_path)))
    common = (
        *("--service", name, "--model", service.model),
        *("--redis", URL, "--grace", f"{service.grace_s:g}"),
    )
    grace_s = service.grace_s + _EXIT_MARGIN_S
    teacher = ProcessSpec(
        name, "teacher", name, grace_s, service.ready_s, ready=TEACHER_READY, env=env
    )
    if service.teachers == "auto":
        bounds_by_key = {"min": service.min_teachers, "max": service.max_teachers}
        bounds_text = ",".join(
            f"{key}={value}" for key, value in bounds_by_key.items() if value is not None
        )
        bounds = ("--teachers", bounds_text) if bounds_text else ()
        more = ("--teacher-options", service.options) if options else ()
        argv = ("agent", "--local", *common, *bounds, *more)
        grace_s += _EXIT_MARGIN_S
        fleet = f"{name}-fleet"
        return [replace(teacher, name=fleet, grace_s=grace_s, argv=argv, ready=_FLEET_READY)]
    teachers = []
    for member in (f"{name}-{number}" for number in range(1, service.teachers + 1)):
        argv = ("teacher", "serve", *common, "--teacher-id", f"{member}{tag}", *options)
        teachers.append(replace(teacher, name=member, argv=argv))
    return teachers


def _students(
    file: MeshFile, name: str, student: StudentSpec, checkpoints: Path, location: str
) -> list[ProcessSpec]:
    if student.trains:
        argv = ("student", "train", *_training(name, student, checkpoints))
    else:
        argv = program(file, student, location)
    env = {"PATH": search_path(), **student.env}
    students = []
    for number in range(1, student.nodes + 1):
        spec = ProcessSpec(
            name if student.nodes == 1 else f"{name}-{number}",
            "student",
            name,
            student.grace_s,
            retries=student.retries,
            argv=argv,
            is_edl=student.trains,
            env={"EDL_STUDENT": name, "EDL_STUDENT_NODE": str(number), **env},
        )
        students.append(spec)
    return students


def _training(name: str, student: StudentSpec, checkpoints: Path) -> list[str]:
    argv = shlex.split(student.train)
    options = _options(tuple(argv))
    argv += ["--redis", URL]
    if "--job" not in options:
        argv += ["--job", name]
    if "--nodes" not in options and student.nodes > 1:
        argv += ["--nodes", f"1:{student.nodes}"]
    if "--checkpoint" not in options:  # a restarted training needs checkpoints
        argv += ["--checkpoint", str(checkpoints / name)]
    return argv


def _hide_password(argv: tuple[str, ...], url: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Move a URL with a password to a variable, as all users can read command lines."""
    if masked(url) != url:
        variable = "EDL_REDIS" if argv[0] == COORDINATOR else "EDL_COORDINATOR"
        for index, pair in enumerate(pairwise(argv)):
            if pair == ("--redis", url):
                return (*argv[:index], *argv[index + 2 :]), {variable: url}
    return argv, {}


def _options(argv: tuple[str, ...]) -> set[str]:
    return {word.split("=")[0] for word in argv}


def _tag(path: Path) -> str:
    """Return a suffix for names of teachers that is unique to this file and machine."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:6]
    return f"{host}-{digest}"
