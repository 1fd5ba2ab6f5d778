"""The whole mesh as one message: read from the registry, at most twice a second for all who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...proto import coordinator_pb2 as pb
from ..registry import Registry
from . import summary
from .messages import teacher_from
from .watch_cache import WatchCache

#: Seconds for which a reading serves everybody; longer by far than it takes, when it takes long.
_FRESH_S = 0.5
_SHARE = 8.0
#: How far back in the log a refusal is looked for.
_LOG = 1000


class Overview:
    """Answers how the mesh is. Safe to use from several threads.

    Facts of teachers are read as they change, and anew only for those that are shown: so ten
    thousand of them cost little.

    Args:
        registry: what is read.
        leader_of: service -> address of the manager that leads it, or an empty string.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        leader_of: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._leader_of = leader_of
        self._clock = clock
        self._lock = threading.Lock()
        self._mirrors: dict[str, WatchCache] = {}
        self._kept: dict[tuple[str, int], tuple[float, pb.MeshStatus]] = {}

    def status(self, service: str = "", max_members: int = 0) -> pb.MeshStatus:
        """Who is alive and who serves whom.

        Args:
            service: one service; empty for all.
            max_members: at most so many teachers and students of each, those that need a look
                first; 0: all.

        Raises:
            UnavailableError: the registry does not answer.
        """
        with self._lock:
            began_s = self._clock()
            until_s, status = self._kept.get((service, max_members), (0.0, None))
            if status is not None and began_s < until_s:
                return status
            status = self._read(service, max_members)
            took_s = self._clock() - began_s
            self._kept = {key: one for key, one in self._kept.items() if one[0] > began_s}
            fresh_until_s = self._clock() + max(_FRESH_S, _SHARE * took_s)
            self._kept[service, max_members] = fresh_until_s, status
            return status

    def _read(self, service: str, max_members: int) -> pb.MeshStatus:
        registry = self._registry
        status = pb.MeshStatus(
            managers=[member.member for member in registry.members("managers", "")],
            redis_time_ms=registry.time_ms(),
        )
        names = registry.services()
        for name in self._mirrors.keys() - set(names):
            del self._mirrors[name]
        for name in names:
            if service in ("", name):
                status.services.append(self._service(name, max_members))
        return status

    def _service(self, name: str, max_members: int) -> pb.ServiceStatus:
        found = self._reading(name)
        status = summary.summed_up(found)
        names = summary.teachers_first(found)[: max_members or None]
        for member in self._registry.read("teachers", name, names):
            teacher = teacher_from(member)
            teacher.admission = summary.admission_of(found, member)
            status.teachers.append(teacher)
        names = summary.students_first(found)[: max_members or None]
        status.students.extend(summary.student(found, student) for student in names)
        return status

    def _reading(self, name: str) -> summary.Reading:
        registry = self._registry
        mirror = self._mirrors.setdefault(name, WatchCache(0.0))
        now = self._clock()
        mirror.apply(registry.changes("teachers", name, mirror.cursor_at(now)), now)
        mirror.compare(registry.names("teachers", name), now)
        mirror.overdue(now)
        admitted = registry.admitted(name)
        waiting = any(
            admitted.get(member.member) not in (0, member.incarnation)
            for member in mirror.members.values()
        )
        return summary.Reading(
            name,
            dict(mirror.members),
            {member.member: member for member in registry.members("students", name)},
            registry.table(name, None),
            self._leader_of(name),
            registry.plan(name),
            admitted,
            summary.refusals(registry.events(name, last=_LOG)) if waiting else {},
            registry.desired(name),
        )
