"""What students and operators call: over several managers, their deaths, and wrong credentials."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator import MemoryRegistry, Subscription
from edl.coordinator.calling import client
from edl.errors import (
    CoordinatorUnavailable,
    EdlError,
    Forbidden,
    LeaseSuperseded,
    RateLimited,
    RequestRefused,
    Unauthenticated,
    VersionMismatch,
)
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.scheduler.rendezvous import ranked
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority, write_secret


@pytest.fixture
def mesh() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


class Student:
    """A subscription, and what it was told."""

    def __init__(
        self, url: str, student: str = "j/0", *, security: ClientSecurity | None = None
    ) -> None:
        self.told: list[pb.Assignment] = []
        self.failures: list[EdlError] = []
        self.subscription = Subscription(
            url, "s", student, security=security, on_failed=self.failures.append
        )

    def start(self, **fields: Any) -> Student:
        self.subscription.start(self.told.append)
        self.report(**fields)
        return self

    def report(self, **fields: Any) -> None:
        self.subscription.report(pb.StudentReport(**{"incarnation": 1, "want": 1, **fields}))

    @property
    def counters(self) -> list[tuple[int, int]]:
        return [(told.term, told.counter) for told in self.told]

    def __enter__(self) -> Student:
        return self

    def __exit__(self, *_: object) -> None:
        self.subscription.stop()


# -- one subscription


def test_a_student_hears_of_its_teachers_and_reports_again_each_beat(mesh: Served) -> None:
    with Student(mesh.url) as student:
        assert student.subscription.why == "no report was made yet"
        student.start(want=2)
        wait_for(lambda: bool(student.told))
        assert [t.address for t in student.told[0].teachers] == ["t1:1"]
        wait_for(lambda: student.subscription.why == "")
        wait_for(lambda: len(mesh.manager.reports) > 3)
        student.subscription.stop(timeout_s=40.0)  # by closing, however long that takes
    reports = mesh.manager.reports
    assert {(r.service, r.student_id, r.want) for r in reports} == {("s", "j/0", 2)}
    assert (reports[-1].term, reports[-1].counter) == (100, 1)
    assert mesh.manager.ended[0].clean
    assert not mesh.refused


def test_nothing_is_opened_before_there_is_something_to_report(mesh: Served) -> None:
    with Student(mesh.url) as student:
        student.subscription.start(student.told.append)
        student.subscription.stop()
        assert not student.subscription._thread.is_alive()
    assert not mesh.manager.callers


def test_a_callback_that_fails_does_not_end_the_subscription(
    mesh: Served, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def failing(assignment: pb.Assignment) -> None:
        calls.append(assignment)
        raise RuntimeError("reader's own mistake")

    subscription = Subscription(mesh.url, "s", "j/0")
    subscription.start(failing)
    subscription.report(pb.StudentReport(want=1))
    wait_for(lambda: len(calls) == 1)
    mesh.manager.push("j/0", (100, 2))
    wait_for(lambda: len(calls) == 2)
    subscription.stop()
    assert any("callback" in record.getMessage() for record in caplog.records)


def test_a_new_term_counts_at_once_and_an_older_counter_never(mesh: Served) -> None:
    with Student(mesh.url).start() as student:
        wait_for(lambda: bool(student.told))
        for epoch in ((100, 3), (100, 2), (99, 9), (101, 0), (100, 9), (101, 1)):
            mesh.manager.push("j/0", epoch)
            heard = max([*student.counters, epoch])
            wait_for(lambda heard=heard: student.counters[-1] == heard)  # type: ignore[misc]
    assert student.counters == [(100, 1), (100, 3), (101, 0), (101, 1)]


@pytest.mark.parametrize("error", [LeaseSuperseded("a newer one"), VersionMismatch("too new")])
def test_what_no_manager_would_answer_otherwise_ends_it(mesh: Served, error: EdlError) -> None:
    mesh.manager.refuse = error
    with Student(mesh.url).start() as student:
        wait_for(lambda: bool(student.failures))
        assert type(student.subscription.error) is type(error)
        assert student.subscription.why == str(error)


def test_a_reader_that_is_too_new_ends_with_the_reason(
    mesh: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.coordinator.calling.subscription.PROTOCOL_VERSION", 99)
    with Student(mesh.url).start() as student:
        wait_for(lambda: bool(student.failures))
        assert isinstance(student.subscription.error, VersionMismatch)


def test_a_reader_that_is_malformed_ends_with_the_reason(mesh: Served) -> None:
    with Student(mesh.url, "j 0").start() as student:
        wait_for(lambda: bool(student.failures))
        assert isinstance(student.subscription.error, RequestRefused)


def test_a_manager_that_is_busy_is_asked_again(mesh: Served) -> None:
    mesh.manager.refuse = RateLimited("too much at once")
    with Student(mesh.url).start() as student:
        wait_for(lambda: "too much at once" in student.subscription.why)
        mesh.manager.refuse = None
        wait_for(lambda: student.subscription.why == "")
        assert not student.failures


def test_without_managers_it_waits_and_says_so() -> None:
    url = "memory://nobody-yet"
    with Student(url).start() as student:
        wait_for(lambda: "no service manager is registered" in student.subscription.why)
        with served(url):
            wait_for(lambda: bool(student.told))


def test_while_the_registry_is_away_it_waits_and_says_so(mesh: Served) -> None:
    mesh.registry.set_available(False)
    with Student(mesh.url).start() as student:
        wait_for(lambda: "does not answer" in student.subscription.why)
        mesh.registry.set_available(True)
        wait_for(lambda: student.subscription.why == "")


# -- several managers


def test_students_spread_over_managers_each_by_its_own_order() -> None:
    url = "memory://spread"
    with served(url) as one, served(url) as two, ExitStack() as undo:
        both = {mesh.address: mesh for mesh in (one, two)}
        names = [f"j/{n}" for n in range(12)]
        students = [undo.enter_context(Student(url, name).start()) for name in names]
        wait_for(lambda: all(student.told for student in students))
        for name in names:
            first = ranked(f"s/{name}", both)[0]
            assert name in both[first].manager.streams
        assert one.manager.streams
        assert two.manager.streams


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_managers_die_in_any_order_and_the_student_finds_the_one_that_lives(
    order: tuple[int, ...],
) -> None:
    url = f"memory://deaths-{order}"
    with ExitStack() as undo:
        managers = [undo.enter_context(served(url)) for _ in range(3)]
        for number, mesh in enumerate(managers):
            mesh.manager.epoch = (100 + number, 1)
        student = undo.enter_context(Student(url).start())
        wait_for(lambda: bool(student.told))
        for dying in order[:-1]:
            # Their leases stand: that a manager is gone is found out by calling it.
            managers[dying].server.stop(grace_s=0.0)
        last = managers[order[-1]].manager
        wait_for(lambda: "j/0" in last.streams and student.subscription.why == "")
        secrets = {c.secret for mesh in managers for c in mesh.manager.callers}
        assert len(secrets) == 1  # handed out once, presented ever after
        assert student.counters == sorted(student.counters)
        assert not student.failures


def test_a_manager_that_is_registered_and_gone_is_not_waited_for(mesh: Served) -> None:
    for port in range(1, 6):
        mesh.registry.register("managers", "", f"127.0.0.1:{port}", {"incarnation": "1"}, 600.0)
    with Student(mesh.url).start() as student:
        wait_for(lambda: bool(student.told), timeout_s=10.0)


def test_a_manager_that_falls_silent_is_left_for_another() -> None:
    url = "memory://silent"
    with served("memory://behind") as hidden, FaultProxy(hidden.address) as proxy:
        registry = MemoryRegistry.shared(url)
        registry.register("managers", "", proxy.address, {"incarnation": "1"}, 600.0)
        with Student(url).start() as student:
            wait_for(lambda: bool(student.told))
            with served(url) as other:
                other.manager.epoch = (200, 1)
                proxy.partition()
                wait_for(lambda: student.counters[-1] == (200, 1), timeout_s=12.0)


def test_a_manager_that_takes_calls_and_answers_none_is_left_for_another() -> None:
    url = "memory://mute"
    with served("memory://behind-mute") as hidden, FaultProxy(hidden.address) as proxy:
        proxy.partition()  # the kernel accepts, as for a process that is stopped
        registry = MemoryRegistry.shared(url)
        registry.register("managers", "", proxy.address, {"incarnation": "1"}, 600.0)
        with Student(url).start() as student:
            wait_for(lambda: "does not answer them" in student.subscription.why)
            with served(url):
                wait_for(lambda: bool(student.told), timeout_s=12.0)


# -- credentials


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def client_files(authority: Authority, name: str, cn: str) -> ClientSecurity:
    return ClientSecurity(authority.issue(name, cn))


def test_certificates_say_who_calls(authority: Authority) -> None:
    security = ServerSecurity(authority.issue("manager"))
    with served(security=security) as mesh:
        job = client_files(authority, "job", "student:j")
        with Student(mesh.url, security=job).start() as student:
            wait_for(lambda: bool(student.told))
        assert mesh.manager.callers[0].principal == "student:j"
        with Student(mesh.url, "k/0", security=job).start() as other:
            wait_for(lambda: bool(other.failures))
            assert isinstance(other.subscription.error, Forbidden)
        eye = client_files(authority, "eye", "viewer:eye")
        client.fetch_status(mesh.url, security=eye)
        with pytest.raises(Forbidden):
            client.drain(mesh.url, teacher_id="t1", security=eye)
        with pytest.raises(Forbidden):
            client.fetch_status(mesh.url, security=job)


def test_without_tls_or_of_another_authority_nobody_is_let_in(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    theirs, ours = stranger.issue("c", "admin"), authority.issue("none", "admin")
    with served(security=ServerSecurity(authority.issue("m2"))) as mesh:
        for security in (
            None,
            ClientSecurity(TlsFiles(ca=ours.ca)),  # no certificate
            ClientSecurity(theirs),  # does not know our CA, nor we its
            ClientSecurity(TlsFiles(theirs.certificate, theirs.key, ours.ca)),
        ):
            with pytest.raises(CoordinatorUnavailable):
                client.fetch_status(mesh.url, security=security)
        client.fetch_status(mesh.url, security=ClientSecurity(ours))
        assert not mesh.manager.callers


def token_file(folder: Path, text: str, name: str = "token") -> ClientSecurity:
    return ClientSecurity(None, write_secret(folder / name, text))


def test_a_wrong_token_ends_it_and_one_that_is_replaced_later_does_not(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student old-token\n")
    with served(security=ServerSecurity(None, tokens)) as mesh:
        with Student(mesh.url, security=token_file(tmp_path, "wrong")).start() as stranger:
            wait_for(lambda: bool(stranger.failures))
            assert isinstance(stranger.subscription.error, Unauthenticated)
        security = token_file(tmp_path, "old-token")
        with Student(mesh.url, security=security).start() as student:
            wait_for(lambda: bool(student.told))
            write_secret(tokens, "student new-token\n")
            mesh.manager.streams["j/0"].close(RateLimited("go away"))
            wait_for(lambda: "not known" in student.subscription.why)
            write_secret(tmp_path / "token", "new-token")
            wait_for(lambda: student.subscription.why == "")
            assert not student.failures


# -- operators


# -- the log
