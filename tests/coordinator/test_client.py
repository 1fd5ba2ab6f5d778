"""Subscriptions of students: over several managers and their deaths, and with credentials."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.coordinator import Registry, Subscription
from edl.coordinator.calling.discovery import call_error
from edl.coordinator.registry import connect
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.proto.status import from_status
from edl.runtime import errors
from edl.scheduler.leadership import rank_servers
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.faults import FaultProxy
from edl.tests.proto.security.authority import write_secret
from edl.tests.stores import FaultyStore, memory
from edl.tests.waiting import DEADLINE_S, wait_until


class Student(AbstractContextManager["Student"]):
    def __init__(
        self, url: str, student: str = "j/0", *, security: ClientSecurity | None = None
    ) -> None:
        self.told: list[pb.Assignment] = []
        self.failures: list[errors.EdlError] = []
        self.subscription = Subscription(
            url, "s", student, security=security, on_failed=self.failures.append
        )

    def start(self, **fields: Any) -> Student:
        self.subscription.start(self.hear)
        self.report(**fields)
        return self

    def hear(self, assignment: pb.Assignment) -> None:
        self.told.append(assignment)
        raise RuntimeError("the reader's own mistake, which ends nothing")

    def report(self, **fields: Any) -> None:
        self.subscription.report(pb.StudentReport(**{"incarnation": 1, "want": 1, **fields}))

    @property
    def counters(self) -> list[tuple[int, int]]:
        return [(told.term, told.counter) for told in self.told]

    def __exit__(self, *_: object) -> None:
        self.subscription.stop()


def test_a_student_hears_of_its_teachers_and_reports_again_each_beat(mesh: Served) -> None:
    with Student(mesh.url) as silent:
        silent.subscription.start(silent.hear)
    assert not mesh.manager.owners, "nothing is opened before there is something to report"
    with Student(mesh.url) as student:
        assert student.subscription.why == "no report was made yet"
        student.start(want=2)
        wait_until(lambda: student.told)
        assert [t.address for t in student.told[0].teachers] == ["t1:1"]
        wait_until(lambda: student.subscription.why == "")
        wait_until(lambda: len(mesh.manager.reports) > 3)
        student.subscription.stop(timeout_s=DEADLINE_S)  # by closing, however long that takes
    wait_until(lambda: mesh.manager.ended)
    reports = mesh.manager.reports
    assert {(r.service, r.student_id, r.want) for r in reports} == {("s", "j/0", 2)}
    assert (reports[-1].term, reports[-1].counter) == (100, 1)
    assert mesh.manager.ended == [("j/0", True)]
    assert not mesh.refused


def test_incarnations_are_of_the_registrys_clock(
    mesh: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host on which the student starts has a clock that is an hour fast."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)
    with closing(connect(mesh.url)) as registry:
        began_ms = registry.time_ms()
        for _ in range(2):
            with Student(mesh.url) as student:
                student.start(incarnation=0)
                wait_until(lambda: student.told)
        ended_ms = registry.time_ms()
    found = list(dict.fromkeys(report.incarnation for report in mesh.manager.reports))
    assert len(found) == 2
    assert began_ms * 1000 <= found[0] < found[1] < (ended_ms + 1) * 1000


def test_older_assignments_are_ignored(mesh: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edl.coordinator.calling.subscription")
    with Student(mesh.url).start() as student:
        wait_until(lambda: student.told)
        for version in ((100, 3), (100, 2), (99, 9), (101, 0), (100, 9), (101, 1)):
            ignored = f"assignment {version} is older"
            mesh.manager.push("j/0", version)
            wait_until(lambda e=version, i=ignored: student.counters[-1] == e or i in caplog.text)  # type: ignore[misc]
    assert student.counters == [(100, 1), (100, 3), (101, 0), (101, 1)]
    wait_until(lambda: sum("callback" in text for text in caplog.messages) == 4)


@pytest.mark.parametrize(
    ("student_id", "error"),
    [
        ("j/0", errors.LeaseSuperseded),
        ("j/0", errors.VersionMismatch),
        ("j 0", errors.RequestRefused),  # by every manager: it is malformed
    ],
)
def test_a_lasting_refusal_ends_the_subscription(
    mesh: Served, student_id: str, error: type[errors.EdlError]
) -> None:
    mesh.manager.refuse = error("no")
    with Student(mesh.url, student_id).start() as student:
        wait_until(lambda: student.failures)
        assert type(student.subscription.error) is error
        assert student.subscription.why == str(student.subscription.error)


def test_without_a_manager_that_answers_it_waits_and_says_so() -> None:
    url = "memory://nobody-yet"
    registry = Registry(FaultyStore.shared(url))
    with Student(url).start() as student:
        wait_until(lambda: "no service manager is registered" in student.subscription.why)
        memory(registry).set_available(False)
        wait_until(lambda: "does not answer" in student.subscription.why)
        memory(registry).set_available(True)
        with served(url) as mesh:
            mesh.manager.refuse = errors.RateLimited("too much at once")
            wait_until(lambda: "too much at once" in student.subscription.why)
            mesh.manager.refuse = None
            wait_until(lambda: student.told and student.subscription.why == "")
            assert not student.failures


def test_students_spread_over_managers_each_by_its_own_order() -> None:
    url = "memory://spread"
    with served(url) as one, served(url) as two, ExitStack() as undo:
        both = {mesh.address: mesh for mesh in (one, two)}
        names = [f"j/{n}" for n in range(12)]
        students = [undo.enter_context(Student(url, name).start()) for name in names]
        wait_until(lambda: all(student.told for student in students))
        for name in names:
            first = rank_servers(f"s/{name}", both)[0]
            assert name in both[first].manager.streams
        assert one.manager.streams
        assert two.manager.streams


@pytest.mark.system  # it takes seconds: only time tells that a manager is silent
@pytest.mark.parametrize("told_before", [True, False])
def test_a_silent_manager_is_left_for_another(told_before: bool) -> None:
    url = f"memory://silent-{told_before}"
    with served(f"{url}-hidden") as hidden, FaultProxy(hidden.address) as proxy:
        if not told_before:
            proxy.stall()  # the kernel accepts, as for a process that is stopped
        registry = Registry(FaultyStore.shared(url))
        registry.register("managers", "", proxy.address, {"incarnation": "1"}, 600.0)
        with Student(url).start() as student:
            if told_before:
                wait_until(lambda: student.told)
            else:
                wait_until(lambda: "does not answer them" in student.subscription.why)
            with served(url) as other:
                other.manager.version = (200, 1)
                proxy.stall()
                wait_until(lambda: student.counters[-1:] == [(200, 1)])
            owners = [*hidden.manager.owners, *other.manager.owners]
            assert len({owner.secret for owner in owners}) == 1, "presented ever after"


def test_a_wrong_token_ends_it_and_one_that_is_replaced_later_does_not(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student old-token\n")
    token = write_secret(tmp_path / "token", "wrong")
    security = ClientSecurity(None, token)
    with served(security=ServerSecurity(None, tokens)) as mesh:
        with Student(mesh.url, security=security).start() as stranger:
            wait_until(lambda: stranger.failures)
            assert isinstance(stranger.subscription.error, errors.Unauthenticated)
        write_secret(token, "old-token")
        with Student(mesh.url, security=security).start() as student:
            wait_until(lambda: student.told)
            write_secret(tokens, "student new-token\n")
            mesh.manager.streams["j/0"].close(errors.RateLimited("go away"))
            wait_until(lambda: "not known" in student.subscription.why)
            write_secret(token, "new-token")
            wait_until(lambda: student.subscription.why == "")
            assert not student.failures


def test_no_thread_waits_for_reports_to_a_call_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_report, waiting = vars(Subscription)["_next_report"], list[str]()

    def counted(*args: Any) -> Any:
        waiting.append("one")
        try:
            return next_report(*args)
        finally:
            waiting.pop()

    monkeypatch.setattr(Subscription, "_next_report", counted)
    tokens = write_secret(tmp_path / "tokens", "student token\n")
    security = ClientSecurity(None, write_secret(tmp_path / "token", "wrong"))
    with (
        served(security=ServerSecurity(None, tokens)) as mesh,
        Student(mesh.url, security=security).start() as student,
    ):
        wait_until(lambda: student.failures)
        wait_until(lambda: not waiting)


class Failed(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


LASTING = {
    "ALREADY_EXISTS", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED",
    "UNAUTHENTICATED", "UNIMPLEMENTED",
}  # fmt: skip


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_an_error_is_lasting_or_this_managers_own(code: grpc.StatusCode) -> None:
    meaning = call_error("h:1", Failed(code, "because"))
    lasting = type(from_status(code, "because"))
    assert type(meaning) is (lasting if code.name in LASTING else errors.CoordinatorUnavailable)
    assert "because" in str(meaning)
    assert code.name in LASTING or "h:1" in str(meaning)
    too_large = Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max (2 vs. 1)")
    assert isinstance(call_error("h:1", too_large), errors.RequestRefused)
    assert isinstance(call_error("h:1", grpc.RpcError()), errors.CoordinatorUnavailable)
