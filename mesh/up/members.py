"""What a mesh's file makes: its parts in order, and the command that starts each."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from ...coordinator.store.redis_url import masked
from ...errors import UsageError
from ...supervise import Command, python_command
from ..local import COORDINATOR_READY, TEACHER_READY
from .spec import URL, MeshFile, ServiceSpec, StudentSpec, program, search_path
from .startup import Part

#: Options of ours whose value is the Redis URL, and what says it instead.
_VARIABLES: Final = {"--coordinator": "EDL_COORDINATOR", "--redis": "EDL_REDIS"}
#: Until the coordinator has said where it serves.
UNKNOWN: Final = "redis://127.0.0.1:PORT"
COORDINATOR: Final = "coordinator"
#: What a fleet says when it runs: its teachers come when they are desired.
_FLEET_READY: Final = r"fleet ready: (\S+), (\d+ to \d+ teachers)"
#: What each role waits for, in words.
_ORDER: Final = {
    "coordinator": "coordinator: first",
    "teacher": "teachers: as soon as the coordinator is ready",
    "student": "students: as soon as each service has a teacher",
}
#: Seconds beyond its own grace period that a process has to end.
_MARGIN_S: Final = 5.0
_COORDINATOR_GRACE_S: Final = 10.0
#: A program that knows nothing of us has so long when `edl up` has died.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """A part and what starts it.

    Attributes:
        part: its name, role and patience.
        group: the service or student of the file that it belongs to.
        words: behind `edl`; or a program and its arguments. `{coordinator}` is the Redis URL.
        ours: it is a command of `edl`.
        ready: pattern of the line by which it says that it is ready; empty: it is at once.
        env: variables of its process.
    """

    part: Part
    group: str
    words: tuple[str, ...]
    ours: bool = True
    ready: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """All members, in the order in which they start.

    Attributes:
        members: the coordinator first.
        folder: in which they run.
        redis: URL of a running Redis; None: the coordinator brings its own.
    """

    members: tuple[Member, ...]
    folder: Path
    redis: str | None = None

    def of(self, name: str) -> Member:
        """The member of this name."""
        return next(one for one in self.members if one.part.name == name)

    def described(self) -> str:
        """What it consists of, in words."""
        fleets = [one.group for one in self.members if one.ready == _FLEET_READY]
        counts = {
            role: sum(one.part.role == role for one in self.members)
            for role in ("teacher", "student")
        }
        counts["teacher"] -= len(fleets)
        told = [f"{count} {role}{'s' * (count != 1)}" for role, count in counts.items() if count]
        told += [f"teachers of {name} as they are desired" for name in fleets]
        return ", ".join(["coordinator", *told])

    def command(self, name: str, url: str | None, logs: Path) -> Command:
        """What starts a member.

        Args:
            name: of the member.
            url: Redis URL of the mesh; None: not known yet, which the coordinator may be told.
            logs: folder for its output.
        """
        member = self.of(name)
        words = self.words(member, url)
        log = logs / f"{name}.log"
        env = {"EDL_COORDINATOR": url or "", "PYTHONUNBUFFERED": "1", **member.env}
        if member.ours:
            words, unseen = _unseen(words, url or "")
            env.update(unseen)
            return python_command(name, "edl", *words, env=env, cwd=self.folder, log=log)
        return Command(
            name, words, env=env, cwd=self.folder, log=log, guard=True,
            orphan_grace_s=_ORPHAN_GRACE_S,
        )  # fmt: skip

    def words(self, member: Member, url: str | None) -> tuple[str, ...]:
        """The words of a member when the mesh is at `url`."""
        words = tuple(word.replace(URL, url or UNKNOWN) for word in member.words)
        if member.part.role != "coordinator" or self.redis or "--redis-port" in _options(words):
            return words
        # The port stays when it is started again: everybody else was told this one.
        return (*words, "--redis-port", url.rpartition(":")[2] if url else "0")


def plan_of(spec: MeshFile, path: Path, checkpoints: Path) -> Plan:
    """The members of a mesh.

    Args:
        spec: as it was read.
        path: of the file, for messages, and for names in a Redis that others use too.
        checkpoints: folder of those that no training names a place for.

    Raises:
        UsageError: two processes would have one name; a program is not there.
    """
    tag = "" if spec.coordinator.redis is None else f".{_tag(path)}"
    members = [_coordinator(spec)]
    for name, service in spec.services.items():
        members += _teachers(name, service, tag, spec.folder)
    for name, student in spec.students.items():
        members += _students(spec, name, student, checkpoints, f"{path}: students.{name}")
    names = [member.part.name for member in members]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path}: two processes would be called {twice[0]!r}: rename one")
    return Plan(tuple(members), spec.folder, spec.coordinator.redis)


def lines(plan: Plan) -> list[str]:
    """The commands of a mesh, for a reader: in order, with what each kind waits for."""
    told = [f"cd {shlex.quote(str(plan.folder))}"]
    role = ""
    for member in plan.members:
        if member.part.role != role:
            role = member.part.role
            told.append(f"# {_ORDER[role]}")
        words = plan.words(member, plan.redis and masked(plan.redis))
        env = [f"{key}={shlex.quote(value)}" for key, value in member.env.items() if key != "PATH"]
        told.append(" ".join([*env, shlex.join(("edl", *words) if member.ours else words)]))
    return told


def _coordinator(spec: MeshFile) -> Member:
    given = spec.coordinator
    words = ["coordinator", "serve", *shlex.split(given.options)]
    env = dict(given.env)
    if given.redis is not None:
        words += ["--redis", URL]  # which is known from the start
    else:  # what its environment says of another one is not of this mesh
        env = {"EDL_REDIS": "", "EDL_REDIS_PORT": "", **env}
    part = Part(COORDINATOR, "coordinator", grace_s=_COORDINATOR_GRACE_S)
    return Member(part, COORDINATOR, tuple(words), ready=COORDINATOR_READY, env=env)


def _teachers(name: str, service: ServiceSpec, tag: str, folder: Path) -> list[Member]:
    options = tuple(shlex.split(service.options))
    env = dict(service.env)
    if service.is_factory and "PYTHONPATH" not in env:  # its module may lie beside the file
        before = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    place = ("--service", name, "--model", service.model, "--coordinator", URL)
    common = (*place, "--grace", f"{service.grace_s:g}")
    late_s = service.grace_s + _MARGIN_S
    if service.teachers == "auto":
        bounds: list[str] = []
        if service.min_teachers is not None:
            bounds += ["--min", str(service.min_teachers)]
        if service.max_teachers is not None:
            bounds += ["--max", str(service.max_teachers)]
        part = Part(f"{name}-fleet", "teacher", name, late_s + _MARGIN_S, service.ready_s)
        words = ("fleet", "local", *common, *bounds, *(("--", *options) if options else ()))
        return [Member(part, name, words, ready=_FLEET_READY, env=env)]
    found = []
    for number in range(1, service.teachers + 1):
        part = Part(f"{name}-{number}", "teacher", name, late_s, service.ready_s)
        own = ("--teacher-id", f"{part.name}{tag}")
        words = ("teacher", "serve", *common, *own, *options)
        found.append(Member(part, name, words, ready=TEACHER_READY, env=env))
    return found


def _students(
    spec: MeshFile, name: str, student: StudentSpec, checkpoints: Path, place: str
) -> list[Member]:
    if student.trains:
        words = ("student", "train", *_training(name, student, checkpoints))
    else:
        words = program(spec, student, place)
    env = {"PATH": search_path(), **student.env}
    found = []
    for number in range(1, student.nodes + 1):
        part = Part(
            name if student.nodes == 1 else f"{name}-{number}",
            "student",
            grace_s=student.grace_s,
            retries=student.retries,
            trains=student.trains,
        )
        own = {"EDL_STUDENT": name, "EDL_STUDENT_NODE": str(number), **env}
        found.append(Member(part, name, words, student.trains, env=own))
    return found


def _training(name: str, student: StudentSpec, checkpoints: Path) -> list[str]:
    words = shlex.split(student.train)
    given = _options(tuple(words))
    words += ["--coordinator", URL]
    if "--job" not in given:
        words += ["--job", name]
    if "--nodes" not in given and student.nodes > 1:
        words += ["--nodes", f"1:{student.nodes}"]
    if "--checkpoint" not in given:  # what starts again goes on from there
        words += ["--checkpoint", str(checkpoints / name)]
    return words


def _unseen(words: tuple[str, ...], url: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """A URL with a password as a variable: everybody on this machine may read a command line."""
    if masked(url) != url:
        for at, (option, value) in enumerate(pairwise(words)):
            if option in _VARIABLES and value == url:
                return (*words[:at], *words[at + 2 :]), {_VARIABLES[option]: url}
    return words, {}


def _options(words: tuple[str, ...]) -> set[str]:
    return {word.split("=")[0] for word in words}


def _tag(path: Path) -> str:
    """What tells teachers of this file on this machine from all others."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:6]
    return f"{host}-{digest}"
