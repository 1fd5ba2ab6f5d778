"""Several managers, real processes: whoever dies, hangs or wakes late, readers notice nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis as raw

from edl.coordinator import Subscription, fetch_status
from edl.coordinator.embedded import free_port, start_embedded
from edl.coordinator.heartbeat import BEATS_PER_TTL
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.coordinator.registry.redis_session import script
from edl.distill_reader import DistilReader
from edl.errors import EdlError, LeaseSuperseded
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.supervise import Process
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import GRACE_S, SPEC, TTL_S, Batches, add_teachers

Answer = TypeVar("Answer")

PACE_S = 0.02 / 8
LEADER_TTL_S = 1.0
OPTIONS = ("--ttl", str(TTL_S), "--leader-ttl", str(LEADER_TTL_S))


@pytest.fixture
def redis() -> Iterator[str]:
    """A Redis of its own: no manager takes it along."""
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture
def mesh(redis: str, set_pace: Callable[[float], None], tmp_path: Path) -> Iterator[LocalMesh]:
    """Two managers; which of them leads is not said."""
    set_pace(PACE_S)
    with LocalMesh(log_dir=tmp_path, redis=redis, coordinator_options=OPTIONS) as mesh:
        mesh.add_manager("second")
        yield mesh


def reader_over(mesh: LocalMesh, source: Batches, **options: Any) -> DistilReader:
    return DistilReader(source, service="slow", coordinator=mesh.url, **options)


def taken_until(iterator: Iterator[Any], reached: Callable[[], bool]) -> list[Any]:
    """Batches that the student takes until something has come true; it must before they end."""
    batches = []
    while not reached():
        batches.append(next(iterator))
    return batches


def service(mesh: LocalMesh) -> pb.ServiceStatus | None:
    """What a manager says of the one service; None while none answers."""
    try:
        status = fetch_status(mesh.url, "slow", timeout_s=1.0)
    except EdlError:
        return None
    return status.services[0] if status.services else None


def is_whole(seen: pb.ServiceStatus) -> bool:
    """Whether both teachers are there, and the student has them."""
    both = {"a", "b"}
    return {teacher.teacher_id for teacher in seen.teachers} == both and [
        set(student.assigned) for student in seen.students
    ] == [both]


def leader_now(mesh: LocalMesh) -> str:
    """Name of the manager that leads; empty while none does, or none answers."""
    seen = service(mesh)
    leading = seen.leader if seen is not None else ""
    return next((name for name, address in mesh.addresses.items() if address == leading), "")


def answered(ask: Callable[[], Answer | None], timeout_s: float = 10.0) -> Answer:
    """What is answered, as soon as that is something."""
    answers: list[Answer] = []

    def has_answered() -> bool:
        answers.extend(filter(None, [ask()]))
        return bool(answers)

    wait_for(has_answered, timeout_s)
    return answers[0]


def leader(mesh: LocalMesh) -> str:
    """Name of the manager that leads, as soon as one does."""
    return answered(lambda: leader_now(mesh))


@pytest.mark.serial
def test_the_leader_is_killed_as_a_teacher_joins(mesh: LocalMesh) -> None:
    add_teachers(mesh, "a")
    source = Batches()
    with reader_over(mesh, source, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(20)]
        victim = mesh.managers[leader(mesh)]
        mesh.start_teacher("b", SPEC)
        mesh.teachers["b"].expect("registering with", 60)
        victim.kill()
        killed_at = time.monotonic()
        batches += taken_until(iterator, lambda: "b" in reader.stats.teachers)
        assert time.monotonic() - killed_at < LEADER_TTL_S + 1.0
        batches += source.rest(iterator, GRACE_S + 0.5)
        assert reader.stats.resends == 0
    source.check(batches)


def test_a_leader_that_was_stopped_before_its_write_cannot_write_after_its_successor(
    redis: str, set_pace: Callable[[float], None], tmp_path: Path
) -> None:
    """The write is computed and on its way when the manager stops; it arrives much later."""
    set_pace(PACE_S)
    late = LateWrite()
    with (
        FaultProxy(redis.removeprefix("redis://"), on_request=late.inspect) as proxy,
        LocalMesh(log_dir=tmp_path, redis=redis, coordinator_options=OPTIONS) as mesh,
    ):
        mesh.add_manager("slow", redis=f"redis://{proxy.address}")
        mesh.managers["coordinator"].send_signal(signal.SIGSTOP)  # so that "slow" leads
        add_teachers(mesh, "a")
        wait_for(lambda: leader_now(mesh) == "slow", timeout_s=10)
        mesh.managers["coordinator"].send_signal(signal.SIGCONT)
        source = Batches()
        with reader_over(mesh, source, teachers_min=2) as reader:
            iterator = iter(reader)
            batches = [next(iterator) for _ in range(20)]
            late.stop_at_next_write(mesh.managers["slow"])
            mesh.start_teacher("b", SPEC)
            assert late.caught.wait(60)
            batches += taken_until(iterator, lambda: "b" in reader.stats.teachers)
            table = RedisRegistry(redis)
            standing = table.table("slow", None)
            table.close()
            assert set(standing.rows["job/0"].teachers) == {"a", "b"}
            late.release.set()
            # Behind the late write, by the same way: when this is answered, that was.
            through = RedisRegistry(f"redis://{proxy.address}")
            through.time_ms()
            after = through.table("slow", None)
            through.close()
            assert after.epoch[0] == standing.epoch[0], "the term is still that of the successor"
            assert after.epoch >= standing.epoch
            assert set(after.rows["job/0"].teachers) == {"a", "b"}
            mesh.managers["slow"].send_signal(signal.SIGCONT)
            mesh.managers["coordinator"].kill()
            batches += taken_until(iterator, lambda: leader_now(mesh) == "slow")
            assert set(reader.stats.teachers) == {"a", "b"}
            batches += source.rest(iterator, GRACE_S + 0.5)
            assert reader.stats.resends == 0
        source.check(batches)


@pytest.mark.serial
def test_a_fail_over_to_a_stale_replica_takes_no_teacher_from_a_reader(
    set_pace: Callable[[float], None], tmp_path: Path
) -> None:
    """The replica has missed a teacher and the student when it becomes the master."""
    set_pace(PACE_S)
    with ExitStack() as ending:
        master, master_url = start_embedded()
        ending.callback(master.stop)
        replica, replica_url = start_embedded()
        ending.callback(replica.stop)
        link = ending.enter_context(FaultProxy(master_url.removeprefix("redis://")))
        front = ending.enter_context(FaultProxy(master_url.removeprefix("redis://")))
        copy = ending.enter_context(raw.Redis.from_url(replica_url))
        copy.config_set("repl-diskless-load", "swapdb")  # it leaves no file
        with raw.Redis.from_url(master_url) as original:
            original.config_set("repl-diskless-sync-delay", 0)
        copy.replicaof("127.0.0.1", link.port)
        wait_for(lambda: replication(copy) == "up")
        url = f"redis://{front.address}"
        mesh = ending.enter_context(
            LocalMesh(log_dir=tmp_path, redis=url, coordinator_options=OPTIONS)
        )
        mesh.add_manager("second")
        add_teachers(mesh, "a")
        link.partition()
        add_teachers(mesh, "b")
        source = Batches()
        with reader_over(mesh, source, teachers_min=2) as reader:
            iterator = iter(reader)
            batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
            before = answered(lambda: service(mesh))
            copy.replicaof("NO", "ONE")
            master.kill()
            front.redirect(replica_url.removeprefix("redis://"))
            failed_over_at = time.monotonic()

            def whole_again() -> bool:
                assert set(reader.stats.teachers) == {"a", "b"}
                seen = service(mesh)
                return seen is not None and seen.term > before.term and is_whole(seen)

            batches += taken_until(iterator, whole_again)
            assert time.monotonic() - failed_over_at < GRACE_S + 1.0
            batches += source.rest(iterator, GRACE_S + 0.5)
            assert reader.stats.resends == 0
        source.check(batches)


@pytest.mark.serial
def test_a_partitioned_teacher_is_out_after_its_ttl_and_back_when_the_network_heals(
    mesh: LocalMesh,
) -> None:
    add_teachers(mesh, "near")
    with ExitStack() as ending:
        port = free_port()
        data = ending.enter_context(FaultProxy(f"127.0.0.1:{port}"))
        leases = ending.enter_context(FaultProxy(mesh.url.removeprefix("redis://")))
        far = replace(
            SPEC,
            options=(
                *("--port", str(port), "--advertise", data.address),
                *("--coordinator", f"redis://{leases.address}"),
            ),
        )
        mesh.add_teacher("far", far)
        source = Batches()
        with reader_over(mesh, source, teachers_min=2) as reader:
            iterator = iter(reader)
            batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
            batches += [next(iterator) for _ in range(20)]
            data.partition()
            leases.partition()
            cut_at = time.monotonic()
            batches += taken_until(iterator, lambda: "far" not in reader.stats.teachers)
            out_s = time.monotonic() - cut_at
            assert TTL_S - TTL_S / BEATS_PER_TTL - 0.2 < out_s < TTL_S + 1.0
            data.heal()
            leases.heal()
            batches += taken_until(iterator, lambda: "far" in reader.stats.teachers)
            batches += source.rest(iterator, GRACE_S + 0.5)
            assert reader.stats.resends <= reader.config.window
        source.check(batches)


@pytest.mark.serial
def test_a_rank_started_anew_supersedes_its_ghost_at_another_manager(mesh: LocalMesh) -> None:
    add_teachers(mesh, "a")
    heard: dict[str, list[Any]] = {"ghost": [], "new": []}
    ended = threading.Event()

    def ghost_failed(error: EdlError) -> None:
        assert isinstance(error, LeaseSuperseded)
        ended.set()

    ghost = Subscription(mesh.url, "slow", "job/0", on_failed=ghost_failed)
    new = Subscription(mesh.url, "slow", "job/0")
    try:
        ghost.start(heard["ghost"].append)
        ghost.report(pb.StudentReport(incarnation=1, want=1))
        wait_for(lambda: any(assignment.teachers for assignment in heard["ghost"]))
        began = time.monotonic()
        new.start(heard["new"].append)
        new.report(pb.StudentReport(incarnation=2, want=1))
        wait_for(lambda: any(assignment.teachers for assignment in heard["new"]))
        assert ended.wait(5)
        assert time.monotonic() - began < 1.0
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
