"""Managers die and teachers are cut off: readers lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator import connect, fetch_status
from edl.coordinator.embedded import free_port, start_embedded
from edl.distill_reader import DistilReader
from edl.mesh.local import COORDINATOR_READY, LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import EdlError
from edl.runtime.supervise import Process, python_command, start, stop_all
from edl.tests.faults import FaultProxy
from edl.tests.system.conftest import SPEC, TTL_S, Batches, taken_until
from edl.tests.waiting import DEADLINE_S

PACE_S = 0.02 / 8
OPTIONS = ("--ttl", f"{TTL_S},leader=1.0")
BOTH = {"a", "b"}


class Mesh(LocalMesh):
    """Managers over a Redis of its own, and one service of teachers."""

    server: Process
    front: FaultProxy
    managers: dict[str, Process]
    addresses: dict[str, str]

    def start(self) -> None:
        super().start()
        self.managers, self.addresses = {}, {}
        self._add("first", self.coordinator)

    def add_manager(self, name: str) -> None:
        words = ("coordinator", "serve", *OPTIONS)
        self._add(name, start(python_command(name, "edl", *words, env={"EDL_REDIS": self.url})))

    def _add(self, name: str, manager: Process) -> None:
        self.managers[name] = manager
        self.addresses[name] = manager.expect(COORDINATOR_READY, DEADLINE_S)[2]

    def stop(self, grace_s: float = 5.0) -> None:
        stop_all([one for one in self.managers.values() if one.alive], grace_s)
        super().stop(grace_s)

    def reader(self, source: Batches) -> DistilReader:
        return DistilReader(source, service="slow", coordinator=self.url, teachers_min=2)

    @property
    def service(self) -> pb.ServiceStatus:
        """What a manager says of the one service; empty while none answers."""
        try:
            services = fetch_status(self.url, "slow").services
        except EdlError:
            return pb.ServiceStatus()
        return services[0] if services else pb.ServiceStatus()

    @property
    def leader(self) -> str:
        """Name of the manager that leads; empty while none does, or none answers."""
        found = self.service.leader
        return next((name for name, address in self.addresses.items() if address == found), "")

    def is_whole(self) -> bool:
        """Whether both teachers are there, and the student has them."""
        teachers = {teacher.teacher_id for teacher in self.service.teachers}
        return teachers == BOTH and [{*one.assigned} for one in self.service.students] == [BOTH]

    def recoveries(self) -> int:
        """How many terms of leaders have come so far that they may take teachers away."""
        try:
            with closing(connect(self.url, timeout_s=DEADLINE_S)) as registry:
                log = registry.events("slow")
        except EdlError:
            return 0
        return sum(one.kind == "recovery" and "is over" in one.text for one in log)


def until_recovered(mesh: Mesh, reader: DistilReader, stream: Iterator[Any], done: int) -> Any:
    """Take batches until one more recovery than `done` is over; nothing was taken from anybody."""

    def recovered() -> bool:
        assert set(reader.stats.teachers) == BOTH
        return mesh.recoveries() > done and mesh.is_whole()

    batches = taken_until(stream, recovered)
    assert reader.stats.resends == 0
    return batches


@pytest.fixture
def mesh(set_pace: Callable[[float], None], tmp_path: Path, stack: ExitStack) -> Mesh:
    """Two managers over a Redis behind a proxy; either may lead."""
    set_pace(PACE_S)
    redis, url = start_embedded()
    stack.callback(redis.stop)
    front = stack.enter_context(FaultProxy(url.removeprefix("redis://")))
    mesh = Mesh(log_dir=tmp_path, redis=f"redis://{front.address}", coordinator_options=OPTIONS)
    mesh.server, mesh.front = redis, front
    stack.enter_context(mesh).add_manager("second")
    return mesh


def test_managers_and_redis_are_killed_and_no_teacher_is_taken_away(
    mesh: Mesh, stack: ExitStack
) -> None:
    mesh.add_teacher("a", SPEC)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        # The leader is killed while a teacher joins.
        batches = taken_until(iterator, lambda: mesh.leader)
        victim, done = mesh.managers[mesh.leader], mesh.recoveries()
        mesh.start_teacher("b", SPEC).expect("registering with", DEADLINE_S)
        victim.kill()
        batches += taken_until(iterator, lambda: set(reader.stats.teachers) == BOTH)
        batches += until_recovered(mesh, reader, iterator, done)
        # No manager is left for a while.
        done = mesh.recoveries()
        for manager in mesh.managers.values():
            manager.kill()
            manager.wait()
        batches += [next(iterator) for _ in range(50)]
        mesh.add_manager("third")
        batches += until_recovered(mesh, reader, iterator, done)
        # Redis comes back empty.
        mesh.server.kill()
        mesh.server.wait()
        fresh, url = start_embedded()
        stack.callback(fresh.stop)
        mesh.front.redirect(url.removeprefix("redis://"))
        batches += until_recovered(mesh, reader, iterator, 0)
        batches += source.rest(iterator)
    source.check(batches)


def test_a_partitioned_teacher_is_out_after_its_ttl_and_back_when_the_network_heals(
    mesh: Mesh, stack: ExitStack
) -> None:
    mesh.add_teacher("near", SPEC)
    port = free_port()
    data = stack.enter_context(FaultProxy(f"127.0.0.1:{port}"))
    leases = stack.enter_context(FaultProxy(mesh.url.removeprefix("redis://")))
    address = ("--listen", str(port), "--advertise", data.address)
    far = replace(SPEC, options=(*address, "--redis", f"redis://{leases.address}"))
    mesh.add_teacher("far", far)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
        data.partition()
        leases.partition()
        batches += taken_until(iterator, lambda: "far" not in reader.stats.teachers)
        with closing(connect(mesh.url, timeout_s=DEADLINE_S)) as registry:
            assert ("lost", "far") in [(one.kind, one.subject) for one in registry.events("slow")]
        data.heal()
        leases.heal()
        batches += taken_until(iterator, lambda: "far" in reader.stats.teachers)
        batches += source.rest(iterator)
        assert reader.stats.resends <= reader.config.limits.window_max  # all that it had
    source.check(batches)
