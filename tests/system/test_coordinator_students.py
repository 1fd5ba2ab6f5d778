"""What students keep when they, their manager or its Redis die."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from edl.coordinator import fetch_status
from edl.errors import EdlError
from edl.proto import coordinator_pb2 as pb
from edl.supervise import start
from edl.tests.ground.programs import python, wait_for
from edl.tests.system.coordinator_process import (
    LEASES_ONLY,
    START_S,
    TTL_S,
    Coordinator,
    Members,
    ready,
    serve,
)


def test_redis_killed_and_back_empty_takes_no_teacher_away(
    coordinator: Coordinator, members: Members
) -> None:
    # Their beats tell the new Redis of them, soon.
    first = members.teacher("t1", ttl_s=TTL_S)
    members.teacher("t2", ttl_s=TTL_S)
    members.teacher("t3", ttl_s=TTL_S)
    student = members.student()
    wait_for(lambda: student.teachers == ["t1", "t2", "t3"])
    whole_set = len(student.told)
    for child in psutil.Process(coordinator.process.pid).children(recursive=True):
        if "valkey" in child.name() or "redis" in child.name():
            child.kill()

    def whole() -> bool:
        try:
            (service,) = fetch_status(coordinator.url).services
        except (EdlError, ValueError):
            return False
        return (len(service.teachers), len(service.students)) == (3, 1)

    wait_for(whole)
    # What was dead is found out after the grace: nobody was.
    grace_over = time.monotonic() + 2 * TTL_S
    wait_for(lambda: time.monotonic() > grace_over)
    assert all(len(told.teachers) == 3 and not told.lost for told in student.told[whole_set:])
    assert whole()
    members.teacher("t4")
    first.stop(leave=False)
    wait_for(lambda: student.teachers == ["t2", "t3", "t4"])
    assert list(student.told[-1].lost) == ["t1"]


def test_a_manager_that_hangs_is_left_for_another(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    student = members.student(want=1)
    wait_for(lambda: student.teachers == ["t1"])
    first = student.told[-1].term
    other = ready(serve("--redis", coordinator.url, *LEASES_ONLY))
    coordinator.process.send_signal(signal.SIGSTOP)
    # Its Redis is a process of its own, and goes on.
    stopped = time.monotonic()
    members.teacher("t2")
    student.subscription.report(pb.StudentReport(incarnation=1, want=2))
    wait_for(lambda: student.teachers == ["t1", "t2"], timeout_s=30.0)
    assert time.monotonic() - stopped < 12.0
    assert student.told[-1].term > first
    coordinator.process.send_signal(signal.SIGCONT)
    assert other.process.stop() == 0


def test_several_managers_over_one_redis_share_its_students(
    coordinator: Coordinator, members: Members
) -> None:
    other = ready(serve("--redis", coordinator.url, *LEASES_ONLY))
    addresses = {coordinator.address, other.address}
    wait_for(lambda: set(fetch_status(coordinator.url).managers) == addresses)
    members.teacher("t1")
    students = [members.student(f"j/{number}", want=1) for number in range(8)]
    wait_for(lambda: all(student.teachers == ["t1"] for student in students))

    def whole() -> bool:  # a manager reads for all who ask, so what it says is a little old
        services = fetch_status(coordinator.url).services
        return [(len(s.students), s.leader in addresses) for s in services] == [(8, True)]

    wait_for(whole)
    assert other.process.stop() == 0
    wait_for(lambda: list(fetch_status(coordinator.url).managers) == [coordinator.address])
    late = members.student("late/0", want=1)
    wait_for(lambda: late.teachers == ["t1"])


STUDENT = """
    import signal, sys, threading, time
    from edl.coordinator import Subscription
    from edl.proto import coordinator_pb2 as pb
    url, leave = sys.argv[1], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    subscription = Subscription(url, "s", "victim/0")
    subscription.start(lambda a: print("has", len(a.teachers)))
    subscription.report(pb.StudentReport(incarnation=1, want=1))
    while not leave.is_set():
        time.sleep(0.01)
    subscription.stop()
    print("left")
    time.sleep(60)
"""


@pytest.mark.serial
def test_a_killed_student_keeps_its_teacher_until_its_lease_runs_out(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    victim = start(python(STUDENT, coordinator.url))
    victim.expect("has 1", START_S)
    heir = members.student("heir/0", want=2)
    wait_for(lambda: heir.teachers is not None)
    assert heir.teachers == ["t2"]
    victim.kill()
    killed = time.monotonic()
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    assert 0.4 * TTL_S < time.monotonic() - killed < 3 * TTL_S


@pytest.mark.serial
def test_a_student_that_leaves_gives_its_teacher_back_at_once(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    heir = members.student("heir/0", want=2)
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    # A manager that has just begun to lead takes nothing from anybody.
    recovered = time.monotonic() + 2 * TTL_S
    wait_for(lambda: time.monotonic() > recovered)
    leaver = start(python(STUDENT, coordinator.url))
    leaver.expect("has 1", START_S)
    wait_for(lambda: len(heir.teachers or ()) == 1)
    leaver.send_signal(signal.SIGTERM)
    leaver.expect("left", START_S)
    left = time.monotonic()
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    assert time.monotonic() - left < 0.4 * TTL_S
    assert len(heir.told) >= 3  # two, one, two
    leaver.kill()
    leaver.wait(5.0)
