"""Managers and Redis die, hang, wake late or are cut off: readers notice nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as raw

from edl.coordinator import Subscription, connect, fetch_status
from edl.coordinator.embedded import free_port, start_embedded
from edl.coordinator.registry.redis_session import script
from edl.distill_reader import DistilReader
from edl.errors import EdlError, LeaseSuperseded
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.supervise import Process
from edl.tests.faults import FaultProxy
from edl.tests.system.conftest import SPEC, TTL_S, Batches, start_teachers, taken_until
from edl.tests.waiting import wait_until

PACE_S = 0.02 / 8
OPTIONS = ("--ttl", str(TTL_S), "--leader-ttl", "1.0")
BOTH = {"a", "b"}


class Mesh(LocalMesh):
    """Managers over a Redis that none of them takes along, and one service of teachers."""

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
        found = self.service
        return {teacher.teacher_id for teacher in found.teachers} == BOTH and [
            set(student.assigned) for student in found.students
        ] == [BOTH]

    def recoveries(self) -> int:
        """How many terms of leaders have come so far that they may take teachers away."""
        try:
            with closing(connect(self.url)) as registry:
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
    """Two managers; which of them leads is not said."""
    set_pace(PACE_S)
    redis, url = start_embedded()
    stack.callback(redis.stop)
    mesh = Mesh(log_dir=tmp_path, redis=url, coordinator_options=OPTIONS)
    stack.enter_context(mesh).add_manager("second")
    return mesh


def test_the_leader_is_killed_as_a_teacher_joins(mesh: Mesh) -> None:
    start_teachers(mesh, "a")
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: mesh.leader)
        victim, done = mesh.managers[mesh.leader], mesh.recoveries()
        mesh.start_teacher("b", SPEC).expect("registering with", 60)
        victim.kill()
        batches += taken_until(iterator, lambda: set(reader.stats.teachers) == BOTH)
        batches += until_recovered(mesh, reader, iterator, done)
        batches += source.rest(iterator)
    source.check(batches)


def test_the_manager_is_killed_and_another_takes_over(mesh: Mesh) -> None:
    mesh.managers["second"].stop()
    start_teachers(mesh, *BOTH)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: set(reader.stats.teachers) == BOTH)
        done = mesh.recoveries()
        mesh.coordinator.kill()
        mesh.coordinator.wait()
        batches += [next(iterator) for _ in range(50)]
        mesh.add_manager("third")
        batches += until_recovered(mesh, reader, iterator, done)
        batches += source.rest(iterator)
    source.check(batches)


def test_redis_is_killed_and_comes_back_empty(
    set_pace: Callable[[float], None], tmp_path: Path, stack: ExitStack
) -> None:
    set_pace(PACE_S)
    redis, url = start_embedded()
    stack.callback(redis.stop)
    proxy = stack.enter_context(FaultProxy(url.removeprefix("redis://")))
    mesh = stack.enter_context(
        Mesh(log_dir=tmp_path, redis=f"redis://{proxy.address}", coordinator_options=OPTIONS)
    )
    start_teachers(mesh, *BOTH)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: set(reader.stats.teachers) == BOTH)
        redis.kill()
        redis.wait()
        fresh, url = start_embedded()
        stack.callback(fresh.stop)
        proxy.redirect(url.removeprefix("redis://"))
        batches += until_recovered(mesh, reader, iterator, 0)
        batches += source.rest(iterator)
    source.check(batches)


def test_a_leader_that_was_stopped_before_its_write_cannot_write_after_its_successor(
    set_pace: Callable[[float], None], tmp_path: Path, stack: ExitStack
) -> None:
    """The write is computed and on its way when the manager stops; it arrives much later."""
    set_pace(PACE_S)
    redis, url = start_embedded()
    stack.callback(redis.stop)
    late = LateWrite()
    proxy = stack.enter_context(FaultProxy(url.removeprefix("redis://"), on_request=late.inspect))
    mesh = stack.enter_context(Mesh(log_dir=tmp_path, redis=url, coordinator_options=OPTIONS))
    mesh.add_manager("slow", redis=f"redis://{proxy.address}")
    mesh.coordinator.send_signal(signal.SIGSTOP)  # so that "slow" leads
    start_teachers(mesh, "a")
    wait_until(lambda: mesh.leader == "slow")
    mesh.coordinator.send_signal(signal.SIGCONT)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(20)]
        late.stop_at_next_write(mesh.managers["slow"])
        mesh.start_teacher("b", SPEC)
        assert late.caught.wait(60)
        batches += taken_until(iterator, lambda: "b" in reader.stats.teachers)
        with closing(connect(url)) as table:
            standing = table.table("slow", None)
        assert set(standing.rows["job/0"].teachers) == BOTH
        late.release.set()
        # Behind the late write, by the same way: when this is answered, that was.
        with closing(connect(f"redis://{proxy.address}")) as through:
            through.time_ms()
            after = through.table("slow", None)
        assert after.epoch[0] == standing.epoch[0], "the term is still that of the successor"
        assert after.epoch >= standing.epoch
        assert set(after.rows["job/0"].teachers) == BOTH
        mesh.managers["slow"].send_signal(signal.SIGCONT)
        done = mesh.recoveries()
        mesh.coordinator.kill()
        batches += taken_until(iterator, lambda: mesh.leader == "slow")
        batches += until_recovered(mesh, reader, iterator, done)
        batches += source.rest(iterator)
    source.check(batches)


def test_a_fail_over_to_a_stale_replica_takes_no_teacher_from_a_reader(
    set_pace: Callable[[float], None], tmp_path: Path, stack: ExitStack
) -> None:
    """The replica has missed a teacher and the student when it becomes the master."""
    set_pace(PACE_S)
    master, master_url = start_embedded()
    stack.callback(master.stop)
    replica, replica_url = start_embedded()
    stack.callback(replica.stop)
    link = stack.enter_context(FaultProxy(master_url.removeprefix("redis://")))
    front = stack.enter_context(FaultProxy(master_url.removeprefix("redis://")))
    copy = stack.enter_context(raw.Redis.from_url(replica_url))
    copy.config_set("repl-diskless-load", "swapdb")  # it leaves no file
    with raw.Redis.from_url(master_url) as original:
        original.config_set("repl-diskless-sync-delay", 0)
    copy.replicaof("127.0.0.1", link.port)
    wait_until(lambda: replication(copy) == "up")
    url = f"redis://{front.address}"
    mesh = stack.enter_context(Mesh(log_dir=tmp_path, redis=url, coordinator_options=OPTIONS))
    mesh.add_manager("second")
    start_teachers(mesh, "a")
    link.partition()
    start_teachers(mesh, "b")
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: set(reader.stats.teachers) == BOTH)
        batches += taken_until(iterator, lambda: mesh.service.term)
        before, done = mesh.service.term, mesh.recoveries()
        copy.replicaof("NO", "ONE")
        master.kill()
        front.redirect(replica_url.removeprefix("redis://"))
        batches += until_recovered(mesh, reader, iterator, done)
        assert mesh.service.term > before
        batches += source.rest(iterator)
    source.check(batches)


def test_a_partitioned_teacher_is_out_after_its_ttl_and_back_when_the_network_heals(
    mesh: Mesh, stack: ExitStack
) -> None:
    start_teachers(mesh, "near")
    port = free_port()
    data = stack.enter_context(FaultProxy(f"127.0.0.1:{port}"))
    leases = stack.enter_context(FaultProxy(mesh.url.removeprefix("redis://")))
    address = ("--port", str(port), "--advertise", data.address)
    far = replace(SPEC, options=(*address, "--coordinator", f"redis://{leases.address}"))
    mesh.add_teacher("far", far)
    source = Batches()
    with mesh.reader(source) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
        data.partition()
        leases.partition()
        batches += taken_until(iterator, lambda: "far" not in reader.stats.teachers)
        with closing(connect(mesh.url)) as registry:
            assert ("lost", "far") in [(one.kind, one.subject) for one in registry.events("slow")]
        data.heal()
        leases.heal()
        batches += taken_until(iterator, lambda: "far" in reader.stats.teachers)
        batches += source.rest(iterator)
        assert reader.stats.resends <= reader.config.window
    source.check(batches)


def test_a_rank_started_anew_supersedes_its_ghost_at_another_manager(mesh: Mesh) -> None:
    start_teachers(mesh, "a")
    heard: dict[str, list[Any]] = {"ghost": [], "new": []}
    ended: list[EdlError] = []
    ghost = Subscription(mesh.url, "slow", "job/0", on_failed=ended.append)
    new = Subscription(mesh.url, "slow", "job/0")
    try:
        ghost.start(heard["ghost"].append)
        ghost.report(pb.StudentReport(incarnation=1, want=1))
        wait_until(lambda: any(assignment.teachers for assignment in heard["ghost"]))
        new.start(heard["new"].append)
        new.report(pb.StudentReport(incarnation=2, want=1))
        wait_until(lambda: any(assignment.teachers for assignment in heard["new"]))
        wait_until(lambda: ended)
        assert isinstance(ended[0], LeaseSuperseded)
    finally:
        new.stop()
        ghost.stop()


def replication(copy: raw.Redis) -> str:
    info: Any = copy.info("replication")
    return str(info["master_link_status"])


class LateWrite:
    """Stops a manager when its next write of the table has left it, and holds the write back."""

    def __init__(self) -> None:
        self.caught, self.release = threading.Event(), threading.Event()
        self._victim: Process | None = None
        self._script = script("write")[1].encode()

    def stop_at_next_write(self, victim: Process) -> None:
        self._victim = victim

    def inspect(self, data: bytes) -> None:
        """For a `FaultProxy`."""
        if self._victim is not None and self._script in data:
            self._victim.send_signal(signal.SIGSTOP)
            self._victim = None
            self.caught.set()
            self.release.wait(60)
