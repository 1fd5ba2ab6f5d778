"""Priority, from a reader's argument to who has which teacher, over a real manager and Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from edl.coordinator import Subscription, fetch_status
from edl.distill_reader import DistilReader
from edl.proto import coordinator_pb2 as pb
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import Batches
from edl.tests.system.coordinator_process import LEASES_ONLY, Coordinator, Members, ready, serve

PROMISED_S = 15.0
LOW_MIN, HIGH_N = 2, 3


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    process = serve("--redis-port", 0, *LEASES_ONLY)
    yield ready(process)
    process.stop()


def students(url: str) -> dict[str, pb.StudentStatus]:
    """By id, as `edl status` has them."""
    found = fetch_status(url, "s").services
    return {student.report.student_id: student for student in found[0].students} if found else {}


def test_a_job_of_high_priority_joins_a_full_pool(coordinator: Coordinator) -> None:
    """It has its n within 15 s, and nobody falls below its `min`."""
    with ExitStack() as undo:
        members = Members(coordinator.url, undo)
        for number in range(12):
            members.teacher(f"t{number}")

        def subscribe(name: str, **fields: Any) -> list[int]:
            sizes: list[int] = []
            subscription = Subscription(coordinator.url, "s", name)
            undo.callback(subscription.stop)
            subscription.start(lambda told: sizes.append(len(told.teachers)))
            subscription.report(pb.StudentReport(incarnation=1, **fields))
            return sizes

        low = [subscribe(f"low{n}/0", want=8, min=LOW_MIN) for n in range(3)]
        wait_for(lambda: [sizes[-1:] for sizes in low] == [[4]] * 3)
        seen = [len(sizes) for sizes in low]
        began = time.monotonic()
        high = [
            subscribe(f"high/{rank}", want=HIGH_N, needed=HIGH_N, min=1, priority=5)
            for rank in range(2)
        ]
        wait_for(lambda: all(sizes[-1:] == [HIGH_N] for sizes in high))
        assert time.monotonic() - began < PROMISED_S
        wait_for(lambda: [sizes[-1] for sizes in low] == [LOW_MIN] * 3)
        for sizes, before in zip(low, seen, strict=True):
            assert min(sizes[before:]) >= LOW_MIN


def test_the_priority_of_a_reader_reaches_the_mesh(coordinator: Coordinator) -> None:
    with DistilReader(
        Batches(3),
        service="s",
        coordinator=coordinator.url,
        job="urgent",
        profiles=None,
        teachers_min=2,
        priority=7,
    ) as reader:
        iter(reader)
        wait_for(lambda: "urgent/0" in students(coordinator.url))
        report = students(coordinator.url)["urgent/0"].report
        assert (report.priority, report.min) == (7, 2)
