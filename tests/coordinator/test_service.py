"""A service manager's gRPC side: who gets in, what is taken, and by which status others end."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.coordinator.limits import Limits
from edl.coordinator.service import CoordinatorServer
from edl.errors import (
    AddressInUse,
    Forbidden,
    LeaseSuperseded,
    Unauthenticated,
    UsageError,
)
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ServerSecurity, TlsFiles
from edl.scheduler.limits import Rate
from edl.tests.coordinator.calls import (
    ask,
    end_of,
    next_assignment,
    open_stream,
    report,
    subscribe,
)
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret


@pytest.fixture
def mesh() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


# -- a student's stream


def test_a_first_report_is_answered_by_an_assignment(mesh: Served) -> None:
    with open_stream(mesh.address, report(want=3)) as (call, _):
        told = next_assignment(call)
        assert [t.teacher_id for t in told.teachers] == ["t1"]
        assert dict(call.initial_metadata())["edl-beat-s"] == "0.100"
    assert mesh.manager.reports[0].want == 3
    assert not mesh.refused


def test_a_secret_is_handed_out_and_the_one_presented_is_kept(mesh: Served) -> None:
    given = []
    for metadata in ((), (), (("edl-secret", "mine"),)):
        with open_stream(mesh.address, report(), metadata=metadata) as (call, _):
            next_assignment(call)
            given.append(dict(call.initial_metadata())["edl-secret"])
    assert len(given[0]) >= 32
    assert given[0] != given[1]
    assert given[2] == "mine"
    assert [caller.secret for caller in mesh.manager.callers] == given


def test_the_secret_comes_before_anything_is_reported(mesh: Served) -> None:
    with open_stream(mesh.address) as (call, _):
        assert dict(call.initial_metadata())["edl-secret"]
    assert not mesh.manager.callers


def test_reports_reach_the_manager_and_its_pushes_the_student(mesh: Served) -> None:
    with open_stream(mesh.address, report(), report(want=2)) as (call, _):
        next_assignment(call)
        wait_for(lambda: [r.want for r in mesh.manager.reports] == [1, 2])
        mesh.manager.teachers = ["t1", "t2"]
        mesh.manager.push("j/0", (100, 2))
        assert next_assignment(call).counter == 2


def test_a_student_that_closes_its_side_is_done_and_one_that_breaks_is_not(mesh: Served) -> None:
    with open_stream(mesh.address, report(student_id="clean/0")) as (call, over):
        next_assignment(call)
        over.set()
        assert list(call) == []
    with open_stream(mesh.address, report(student_id="broken/0")) as (call, _):
        next_assignment(call)
    wait_for(lambda: len(mesh.manager.ended) == 2)
    assert [(e.student_id, e.clean) for e in mesh.manager.ended] == [
        ("clean/0", True),
        ("broken/0", False),
    ]
    assert not mesh.refused


def test_a_machine_that_is_gone_without_a_word_loses_its_stream() -> None:
    with served(limits=Limits(ping_s=0.5)) as mesh, FaultProxy(mesh.address) as proxy:
        with open_stream(proxy.address, report()) as (call, _):
            next_assignment(call)
            proxy.partition()
            wait_for(lambda: bool(mesh.manager.ended))
        assert not mesh.manager.ended[0].clean


def test_a_server_that_stops_ends_its_streams_at_once(mesh: Served) -> None:
    with open_stream(mesh.address, report()) as (call, _):
        next_assignment(call)
        ends = threading.Thread(target=mesh.server.stop, args=(30.0,))
        ends.start()
        code, said = end_of(call)
        ends.join(10.0)
        assert not ends.is_alive()
    assert code == "UNAVAILABLE"
    assert "another" in said


# -- reports that cannot be

BAD_REPORTS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"protocol_version": 0}, "OUT_OF_RANGE", "protocol version", "version"),
    ({"protocol_version": 99}, "OUT_OF_RANGE", "99", "version"),
    ({"service": ""}, "INVALID_ARGUMENT", "name of a service", "malformed"),
    ({"service": "a b"}, "INVALID_ARGUMENT", "name of a service", "malformed"),
    ({"student_id": "{}"}, "INVALID_ARGUMENT", "id of a student", "malformed"),
    ({"teachers": ["a b"]}, "INVALID_ARGUMENT", "id of a teacher", "malformed"),
    ({"teachers": ["t"] * 5000}, "INVALID_ARGUMENT", "at most 4096", "malformed"),
    ({"term": 2**63}, "INVALID_ARGUMENT", "term", "malformed"),
    ({"counter": 2**64 - 1}, "INVALID_ARGUMENT", "counter", "malformed"),
    ({"incarnation": 2**64 - 1}, "INVALID_ARGUMENT", "incarnation", "malformed"),
    ({"t_t_seconds": float("nan")}, "INVALID_ARGUMENT", "t_t_seconds", "malformed"),
    ({"t_s_seconds": float("inf")}, "INVALID_ARGUMENT", "t_s_seconds", "malformed"),
    ({"starved_seconds": -1.0}, "INVALID_ARGUMENT", "starved_seconds", "malformed"),
    ({"state": "happy"}, "INVALID_ARGUMENT", "happy", "malformed"),
    ({"host": "h" * 300}, "INVALID_ARGUMENT", "host has 300", "malformed"),
    ({"content_id": "a\x00b"}, "INVALID_ARGUMENT", "content_id", "malformed"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


@pytest.mark.parametrize(("fields", "code", "said", "reason"), BAD_REPORTS)
def test_a_report_that_cannot_be_is_refused(
    shared: Served, fields: dict[str, Any], code: str, said: str, reason: str
) -> None:
    shared.refused.clear()
    ended, details = subscribe(shared.address, report(**fields))
    assert ended == code
    assert said in details
    assert shared.refused == [reason]
    assert not shared.manager.callers  # no manager has heard of it


def test_a_stream_belongs_to_one_student(mesh: Served) -> None:
    code, said = subscribe(mesh.address, report(), report(student_id="k/0"))
    assert code == "INVALID_ARGUMENT"
    assert "one student" in said


@pytest.mark.parametrize("data", [b"\xff" * 50, b"\x0a", random.Random(7).randbytes(64) + b"\x07"])
def test_bytes_that_are_no_message_are_refused(
    shared: Served, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shared.refused.clear()
    assert subscribe(shared.address, data)[0] == "INVALID_ARGUMENT"
    assert ask(shared.address, "Status", data)[0] == "INVALID_ARGUMENT"
    assert shared.refused == ["malformed", "malformed"]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("method", ["Status", "Drain", "Upgrade", "Watch"])
def test_a_request_that_is_too_large_is_refused(shared: Served, method: str) -> None:
    shared.refused.clear()
    code, said = ask(shared.address, method, b"\x0a" * ((1 << 20) + 1))
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in said
    assert shared.refused == ["too_large"]


def test_a_report_that_is_too_large_is_refused(mesh: Served) -> None:
    large = report(teachers=["t" * 100] * 11_000)
    assert subscribe(mesh.address, large)[0] == "RESOURCE_EXHAUSTED"
    assert subscribe(mesh.address, report(), large)[0] == "RESOURCE_EXHAUSTED"
    assert mesh.refused == ["too_large", "too_large"]


def test_what_grpc_itself_refuses_is_counted_too(mesh: Served) -> None:
    code, said = ask(mesh.address, "Status", b"\x0a" * (9 << 20))
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in said
    wait_for(lambda: mesh.refused == ["malformed"])


def test_garbage_on_the_port_harms_nobody(mesh: Served, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = mesh.address.split(":")
    for garbage in (
        b"GET / HTTP/1.0\r\n\r\n",
        random.Random(7).randbytes(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage + os.urandom(512))
    assert ask(mesh.address, "Status") == ("OK", "")
    assert "Traceback" not in capfd.readouterr().err


# -- too much


def test_who_reports_too_often_is_refused() -> None:
    with served(limits=Limits(reports=Rate(0.1, 5.0))) as mesh:
        code, said = subscribe(mesh.address, *[report()] * 10)
        assert code == "RESOURCE_EXHAUSTED"
        assert "reports a second" in said
        assert len(mesh.manager.reports) == 6  # the first, and a burst
        assert mesh.refused == ["rate_limited"]


@pytest.mark.parametrize("method", ["Subscribe", "Status", "Watch"])
def test_a_call_that_never_says_what_it_is_about_is_ended(method: str) -> None:
    with served(limits=Limits(first_report_s=0.2)) as mesh:
        over = threading.Event()
        channel: Any
        with grpc.insecure_channel(mesh.address) as channel:
            call = channel.stream_stream(f"/edl.coordinator.v1.Coordinator/{method}")(
                iter(lambda: over.wait(20.0), True), timeout=20.0
            )
            code, said = end_of(call)
            over.set()
        assert code == "INVALID_ARGUMENT"
        assert "0.2 s" in said
        assert mesh.refused == ["malformed"]


def test_one_credential_may_hold_so_many_streams_and_the_manager_so_many() -> None:
    limits = Limits(streams=3, streams_per_principal=2)
    with served(limits=limits) as mesh:
        with open_stream(mesh.address, report(student_id="j/0")) as (first, _):
            next_assignment(first)
            with open_stream(mesh.address, report(student_id="j/1")) as (second, _):
                next_assignment(second)
                code, said = subscribe(mesh.address, report(student_id="j/2"))
                assert code == "RESOURCE_EXHAUSTED"
                assert "one credential" in said
            wait_for(lambda: len(mesh.manager.ended) == 1)
            with open_stream(mesh.address, report(student_id="j/2")) as (third, _):
                next_assignment(third)  # a place is free again
        assert mesh.refused == ["rate_limited"]
    with served(limits=Limits(streams=0)) as mesh:
        code, said = subscribe(mesh.address, report())
        assert code == "RESOURCE_EXHAUSTED"
        assert "this service manager" in said
        assert mesh.refused == ["overloaded"]


def test_calls_on_top_of_those_that_are_answered_are_turned_away() -> None:
    with served(limits=Limits(calls=1)) as mesh:
        mesh.manager.answering.clear()
        ended: list[tuple[str, str]] = []
        first = threading.Thread(target=lambda: ended.append(ask(mesh.address, "Status")))
        first.start()
        wait_for(lambda: len(mesh.manager.asked) == 1)
        assert ask(mesh.address, "Status")[0] == "RESOURCE_EXHAUSTED"
        mesh.manager.answering.set()
        first.join(20.0)
        assert ended == [("OK", "")]
        assert mesh.refused == ["overloaded"]


# -- who calls


@pytest.mark.parametrize(
    ("error", "code", "counted"),
    [
        (LeaseSuperseded("a newer one has come"), "ALREADY_EXISTS", []),
        (Forbidden("belongs to another"), "PERMISSION_DENIED", ["forbidden"]),
    ],
)
def test_a_manager_that_refuses_a_student_ends_its_stream(
    mesh: Served, error: Forbidden | LeaseSuperseded, code: str, counted: list[str]
) -> None:
    mesh.manager.refuse = error
    assert subscribe(mesh.address, report()) == (code, str(error))
    assert mesh.refused == counted


TOKENS = """
# what each may do
student everyjob
student:j onejob
viewer:eye looking
admin:root ruling
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tokens = write_secret(tmp_path_factory.mktemp("tokens") / "tokens", TOKENS)
    with served(security=ServerSecurity(None, tokens)) as mesh:
        mesh.registry.register("teachers", "s", "t1", {"incarnation": "1"}, 600.0)
        yield mesh


@pytest.fixture(autouse=True)
def nothing_refused_yet(request: pytest.FixtureRequest) -> None:
    if "guarded" in request.fixturenames:
        request.getfixturevalue("guarded").refused.clear()


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")] if token else []


REQUESTS = {
    "Status": pb.StatusRequest(),
    "Watch": pb.WatchRequest(),
    "Drain": pb.DrainRequest(teacher_id="t1"),
    "Upgrade": pb.UpgradeRequest(service="s", content_id="c2", at="now"),
}


@pytest.mark.parametrize(
    ("token", "allowed"),
    [
        ("onejob", []),
        ("everyjob", []),
        ("looking", ["Status", "Watch"]),
        ("ruling", ["Status", "Watch", "Drain", "Upgrade"]),
    ],
)
def test_a_role_may_do_what_is_its_own(guarded: Served, token: str, allowed: list[str]) -> None:
    ended = {
        method: ask(guarded.address, method, request, metadata=bearer(token))[0]
        for method, request in REQUESTS.items()
    }
    # As one message it may be that a log has none, or several.
    assert [m for m, code in ended.items() if code != "PERMISSION_DENIED"] == allowed
    assert guarded.refused == ["forbidden"] * (len(REQUESTS) - len(allowed))


@pytest.mark.parametrize("token", ["", "wrong", "ruling2"])
def test_without_a_token_that_is_known_nothing_is_answered(guarded: Served, token: str) -> None:
    ended = [
        ask(guarded.address, method, request, metadata=bearer(token))[0]
        for method, request in REQUESTS.items()
    ]
    ended.append(subscribe(guarded.address, report(), metadata=bearer(token))[0])
    assert ended == ["UNAUTHENTICATED"] * 5
    assert guarded.refused == ["unauthenticated"] * 5


@pytest.mark.parametrize(
    ("token", "student", "code"),
    [("onejob", "j/0", ""), ("onejob", "k/0", "PERMISSION_DENIED"), ("everyjob", "k/0", "")],
)
def test_a_credential_for_one_job_is_for_no_other(
    guarded: Served, token: str, student: str, code: str
) -> None:
    sent = report(student_id=student)
    with open_stream(guarded.address, sent, metadata=bearer(token)) as (call, _):
        if code:
            assert end_of(call)[0] == code
            assert guarded.refused == ["forbidden"]
        else:
            next_assignment(call)
            assert not guarded.refused


def test_one_that_may_not_call_is_refused_before_it_is_read(guarded: Served) -> None:
    code, _ = ask(guarded.address, "Status", b"\xff" * (4 << 20), metadata=bearer("wrong"))
    assert code == "UNAUTHENTICATED"
    assert guarded.refused == ["unauthenticated"]


# -- a registry in trouble is not the caller's fault


def test_a_registry_that_is_away_makes_it_unavailable(mesh: Served) -> None:
    mesh.registry.set_available(False)
    code, said = ask(mesh.address, "Drain", pb.DrainRequest(teacher_id="t1"))
    assert code == "UNAVAILABLE"
    assert "does not answer" in said
    assert not mesh.refused


def test_a_registry_that_refuses_the_manager_does_not_refuse_the_caller(mesh: Served) -> None:
    mesh.manager.refuse = Unauthenticated("WRONGPASS")
    code, said = ask(mesh.address, "Status")
    assert code == "UNAVAILABLE"
    assert "Redis refuses this service manager" in said
    assert not mesh.refused


def test_a_method_that_is_none_of_ours_is_refused(mesh: Served) -> None:
    assert ask(mesh.address, "Obey")[0] == "UNIMPLEMENTED"
    assert mesh.refused == ["malformed"]


# -- a server's beginning and end


def test_a_server_that_ends_by_itself_says_so(
    mesh: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ended_at_once(*_: object) -> bool:
        return True

    monkeypatch.setattr("grpc.aio._server.Server.wait_for_termination", ended_at_once)
    ended = threading.Event()
    server = CoordinatorServer(mesh.manager, mesh.registry, on_ended=ended.set)
    server.start("127.0.0.1", 0)
    assert ended.wait(20.0)
    server.stop(0.0)
    assert "ended by itself" in caplog.text


def test_a_port_in_use_is_said_in_one_line(mesh: Served) -> None:
    port = int(mesh.address.split(":")[1])
    with served() as other, pytest.raises(AddressInUse, match=mesh.address) as error:
        other.server.start("127.0.0.1", port)
    assert "\n" not in str(error.value)


def test_a_certificate_that_is_none_is_said_at_the_start(tmp_path: Path) -> None:
    nonsense = write_secret(tmp_path / "nonsense.pem", "nonsense")
    security = ServerSecurity(TlsFiles(nonsense, nonsense, None))
    with pytest.raises(UsageError, match=r"nonsense\.pem"), served(security=security):
        raise AssertionError("it listens")


def test_an_address_of_no_machine_is_said_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.host"), served(host="no.such.host.invalid"):
        raise AssertionError("it listens")
