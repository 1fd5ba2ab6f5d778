"""Teachers that a coordinator advises: what is said when there are none."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.roster import AssignedTeachers
from edl.proto import coordinator_pb2 as pb
from edl.scheduler.reader_core.events import Assigned
from edl.tests.coordinator.scripted_manager import served
from edl.tests.waiting import wait_until


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ({"bert": 1, "resnet101": 2}, "bert, resnet101 (did you mean 'resnet101'?)"),
        ({"bert": 1, "resnet101": 0}, "bert"),
        ({}, "none"),
        ({f"s{n}": 1 for n in range(7)}, "s0, s1, s2, s3, s4, ..."),
    ],
)
def test_without_teachers_the_services_that_have_some_are_named(
    services: dict[str, int], said: str
) -> None:
    config = ReaderConfig("resnet110", coordinator="unused")
    with served() as mesh:
        mesh.manager.teachers = []
        mesh.manager.mesh = pb.MeshStatus(
            services=[pb.ServiceStatus(name=n, teacher_count=c) for n, c in services.items()]
        )
        roster = AssignedTeachers(config, mesh.url, lambda assigned: None, lambda error: None)
        roster.start()
        try:
            roster.report(pb.StudentReport(incarnation=1, want=1))
            wait_until(lambda: "services" in roster.missing_reason())
            none = "no teacher of service 'resnet110' is registered"
            assert roster.missing_reason() == f"{none}; services with teachers: {said}"
        finally:
            roster.stop()


def test_an_assignment_arrives_although_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, arrived = ReaderConfig("s", coordinator="unused"), list[Assigned]()
    with served() as mesh:
        roster = AssignedTeachers(config, mesh.url, arrived.append, lambda error: None)
        no_threads = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        monkeypatch.setattr(threading.Thread, "start", no_threads)
        roster._on_message(pb.Assignment(term=1, counter=2))  # noqa: SLF001  # in its thread
    assert [one.epoch for one in arrived] == [(1, 2)]
