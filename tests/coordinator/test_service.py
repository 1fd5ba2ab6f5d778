"""A service manager's gRPC side: who gets in, what is taken, and by which status others end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    ({"stragglers": ["a\x1b[2J"]}, "INVALID_ARGUMENT", "id of a teacher", "malformed"),
    ({"stragglers": ["t"] * 5000}, "INVALID_ARGUMENT", "at most 4096", "malformed"),
    ({"ejected": ["t"]}, "INVALID_ARGUMENT", "'failed', 'lied'", "malformed"),
    ({"ejected": ["a b"], "ejected_for": ["lied"]}, "INVALID_ARGUMENT", "id of", "malformed"),
    ({"disputed": ["a b"]}, "INVALID_ARGUMENT", "id of", "malformed"),
    ({"ejected": ["t"], "ejected_for": ["fun"]}, "INVALID_ARGUMENT", "'silent'", "malformed"),
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


# -- too much


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
