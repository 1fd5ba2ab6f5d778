"""A service manager's gRPC side: what is taken, who may call, and how calls end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.coordinator.service import CoordinatorServer
from edl.coordinator.service.call_guard import ManagerLimits
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ServerSecurity, TlsFiles
from edl.runtime import errors
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.faults import FaultProxy
from edl.tests.proto.security.authority import write_secret
from edl.tests.stores import memory
from edl.tests.waiting import DEADLINE_S, wait_until

from .calls import ask, assert_refused, end_of, next_assignment, open_stream, report, subscribe


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


def test_a_first_report_of_one_student_is_answered_by_an_assignment(mesh: Served) -> None:
    with open_stream(mesh.address, report(want=3)) as (call, over):
        told = next_assignment(call)
        assert [t.teacher_id for t in told.teachers] == ["t1"]
        assert dict(call.initial_metadata())["edl-beat-s"] == "0.100"
        over.set()
        assert list(call) == []
    with open_stream(mesh.address, report(student_id="broken/0")) as (call, _):
        next_assignment(call)
    wait_until(lambda: len(mesh.manager.ended) == 2)
    assert mesh.manager.ended == [("j/0", True), ("broken/0", False)]
    assert mesh.manager.reports[0].want == 3
    assert not mesh.refused
    ended = subscribe(mesh.address, report(), report(student_id="k/0"))
    assert_refused(ended, "INVALID_ARGUMENT", "one student")
    with open_stream(mesh.address) as (call, over):
        over.set()
        assert_refused(end_of(call), "INVALID_ARGUMENT", "without a complete StudentReport")


def test_a_secret_is_handed_out_at_once_and_the_one_presented_is_kept(mesh: Served) -> None:
    with open_stream(mesh.address) as (call, _):
        assert dict(call.initial_metadata())["edl-secret"]
    assert not mesh.manager.owners
    given = []
    for metadata in ((), (), (("edl-secret", "mine"),)):
        with open_stream(mesh.address, report(), metadata=metadata) as (call, _):
            next_assignment(call)
            given.append(dict(call.initial_metadata())["edl-secret"])
    assert len(given[0]) >= 32
    assert given[0] != given[1]
    assert given[2] == "mine"
    assert [owner.secret for owner in mesh.manager.owners] == given


def test_a_machine_that_is_gone_without_a_word_loses_its_stream() -> None:
    with served(limits=ManagerLimits(ping_s=0.5)) as mesh, FaultProxy(mesh.address) as proxy:
        with open_stream(proxy.address, report()) as (call, _):
            next_assignment(call)
            proxy.stall()
            wait_until(lambda: bool(mesh.manager.ended))
        assert mesh.manager.ended == [("j/0", False)]


def test_a_server_that_stops_ends_its_streams_at_once(mesh: Served) -> None:
    with open_stream(mesh.address, report()) as (call, _):
        next_assignment(call)
        ends = threading.Thread(target=mesh.server.stop, args=(30.0,))
        ends.start()
        assert_refused(end_of(call), "UNAVAILABLE", "another")
        ends.join(DEADLINE_S)
        assert not ends.is_alive()


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"service": ""}, "name of a service"), ({"service": "a b"}, "name of a service"),
    ({"student_id": "{}"}, "id of a student"), ({"teachers": ["a b"]}, "id of a teacher"),
    ({"teachers": ["t"] * 5000}, "at most 4096"), ({"stragglers": ["t"] * 5000}, "at most 4096"),
    ({"stragglers": ["a\x1b[2J"]}, "id of a teacher"), ({"disputed": ["a b"]}, "id of"),
    ({"ejected": ["t"]}, "'failed', 'lied'"),
    ({"ejected": ["a b"], "ejected_for": ["lied"]}, "id of"),
    ({"ejected": ["t"], "ejected_for": ["fun"]}, "'silent'"),
    ({"term": 2**63}, "term"), ({"counter": 2**64 - 1}, "counter"),
    ({"incarnation": 2**64 - 1}, "incarnation"), ({"t_t_seconds": float("nan")}, "t_t_seconds"),
    ({"t_s_seconds": float("inf")}, "t_s_seconds"), ({"starved_seconds": -1.0}, "starved_seconds"),
    ({"state": "happy"}, "happy"), ({"host": "h" * 300}, "host has 300"),
    ({"content_id": "a\x00b"}, "content_id"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [*MALFORMED, ({"protocol_version": 0}, "protocol version"), ({"protocol_version": 99}, "99")],
)
def test_malformed_reports_are_refused(shared: Served, fields: dict[str, Any], said: str) -> None:
    shared.refused.clear()
    version = "protocol_version" in fields
    ended = subscribe(shared.address, report(**fields))
    assert_refused(ended, "OUT_OF_RANGE" if version else "INVALID_ARGUMENT", said)
    assert shared.refused == ["version" if version else "malformed"]
    assert not shared.manager.owners  # no manager has heard of it


@pytest.mark.parametrize("data", [b"\xff" * 50, b"\x0a", random.Random(7).randbytes(64) + b"\x07"])
def test_no_message_is_refused(
    shared: Served, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shared.refused.clear()
    assert subscribe(shared.address, data)[0] == "INVALID_ARGUMENT"
    assert ask(shared.address, "Status", data)[0] == "INVALID_ARGUMENT"
    assert shared.refused == ["malformed", "malformed"]
    assert not [record for record in caplog.records if record.exc_info]


def test_trouble_with_the_registry_is_not_the_callers_fault(mesh: Served) -> None:
    memory(mesh.registry).set_available(False)
    ended = ask(mesh.address, "Drain", pb.DrainRequest(teacher_id="t1"))
    assert_refused(ended, "UNAVAILABLE", "does not answer")
    mesh.manager.refuse = errors.Unauthenticated("WRONGPASS")
    assert_refused(ask(mesh.address, "Status"), "UNAVAILABLE", "Redis refuses this service manager")
    assert not mesh.refused
    mesh.manager.refuse = errors.Forbidden("belongs to another")
    assert subscribe(mesh.address, report()) == ("PERMISSION_DENIED", "belongs to another")
    assert ask(mesh.address, "Obey")[0] == "UNIMPLEMENTED"
    assert mesh.refused == ["forbidden", "malformed"]


def test_a_server_that_ends_by_itself_says_so(
    mesh: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ended_at_once(*_: object) -> bool:
        return True

    monkeypatch.setattr("grpc.aio._server.Server.wait_for_termination", ended_at_once)
    ended = threading.Event()
    server = CoordinatorServer(mesh.manager, mesh.registry, on_ended=ended.set)
    server.start("127.0.0.1", 0)
    assert ended.wait(DEADLINE_S)
    server.stop(0.0)
    assert "ended by itself" in caplog.text


def test_a_server_that_cannot_listen_says_why(mesh: Served, tmp_path: Path) -> None:
    nonsense = write_secret(tmp_path / "nonsense.pem", "nonsense")
    security = ServerSecurity(TlsFiles(nonsense, nonsense, None))
    with pytest.raises(errors.UsageError, match=r"nonsense\.pem"), served(security=security):
        raise AssertionError("it listens")
    unknown = "no.such.host.invalid"
    with pytest.raises(errors.UsageError, match=unknown), served(host=unknown):
        raise AssertionError("it listens")
    port = int(mesh.address.split(":")[1])
    with served() as other, pytest.raises(errors.AddressInUse, match=mesh.address):
        other.server.start("127.0.0.1", port)


TOKENS = """
# what each may do
student everyjob
student:j onejob
viewer:eye looking
admin:root ruling
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "tokens", TOKENS)


@pytest.fixture
def guarded(tokens: Path) -> Iterator[Served]:
    with served(security=ServerSecurity(None, tokens)) as mesh:
        mesh.registry.register("teachers", "s", "t1", {"incarnation": "1"}, 600.0)
        yield mesh


CALLS = {
    "status": ("Status", pb.StatusRequest()),
    "own status": ("Status", pb.StatusRequest(own_only=True)),
    "watch": ("Watch", pb.WatchRequest()),
    "drain": ("Drain", pb.DrainRequest(teacher_id="t1")),
    "upgrade": ("Upgrade", pb.UpgradeRequest(service="s", content_id="c2" * 32, at="now")),
    "deploy": ("Deploy", pb.DeployRequest(service="s", model_url="s3://m", content_id="0" * 64)),
    "j/0": ("Subscribe", report(student_id="j/0")),
    "k/0": ("Subscribe", report(student_id="k/0")),
}


@pytest.mark.parametrize(
    ("token", "allowed"),
    [
        ("onejob", ["own status", "j/0"]),
        ("everyjob", ["own status", "j/0", "k/0"]),
        ("looking", ["status", "own status", "watch"]),
        ("ruling", list(CALLS)),
        *((unknown, []) for unknown in ("", "wrong", "ruling2")),
    ],
)
def test_a_token_allows_what_its_role_may_and_one_that_is_not_known_nothing(
    guarded: Served, token: str, allowed: list[str]
) -> None:
    bearer = _bearer(token) if token else []
    code = "PERMISSION_DENIED" if allowed else "UNAUTHENTICATED"
    ended = {name: ask(guarded.address, *call, metadata=bearer) for name, call in CALLS.items()}
    # As one message it may be that a log has none, or several.
    assert [name for name, (found, _) in ended.items() if found != code] == allowed
    reason = "forbidden" if allowed else "unauthenticated"
    assert guarded.refused == [reason] * (len(CALLS) - len(allowed))
    if not allowed:  # nothing is read, however large and wrong it is
        assert ask(guarded.address, "Status", b"\xff" * (4 << 20), metadata=bearer)[0] == code


def _bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def test_the_log_is_not_told_on_to_a_token_that_is_withdrawn(guarded: Served, tokens: Path) -> None:
    request = pb.WatchRequest(follow=True).SerializeToString()
    channel: Any
    with grpc.insecure_channel(guarded.address) as channel:
        watch = channel.unary_stream("/edl.coordinator.v1.Coordinator/Watch")
        call = watch(request, timeout=DEADLINE_S, metadata=_bearer("looking"))
        assert dict(call.initial_metadata())  # it was let in
        write_secret(tokens, "admin:root ruling\n")
        assert end_of(call)[0] == "UNAUTHENTICATED"
    assert guarded.refused == ["unauthenticated"]


def test_a_standing_stream_ends_when_its_credential_is_withdrawn(
    guarded: Served, tokens: Path
) -> None:
    other = report(student_id="k/0")
    with (
        open_stream(guarded.address, other, metadata=_bearer("everyjob")) as (staying, _),
        open_stream(guarded.address, report(), metadata=_bearer("onejob")) as (withdrawn, _),
        open_stream(guarded.address, metadata=_bearer("ruling")) as (silent, _),
    ):
        next_assignment(staying)
        next_assignment(withdrawn)
        dict(silent.initial_metadata())
        write_secret(tokens, "student everyjob\nstudent:other onejob\nviewer:root ruling\n")
        assert end_of(withdrawn)[0] == "PERMISSION_DENIED"
        assert end_of(silent)[0] == "PERMISSION_DENIED"
        write_secret(tokens, "student everyjob\n")
        guarded.manager.push("k/0", (200, 1))
        assert next_assignment(staying).term == 200
        write_secret(tokens, "admin:root ruling\n")
        assert end_of(staying)[0] == "UNAUTHENTICATED"
        assert guarded.refused == ["forbidden", "forbidden", "unauthenticated"]


def test_a_credential_that_changes_before_the_first_report_is_held_against_it(
    guarded: Served, tokens: Path
) -> None:
    once = threading.Event()
    with (
        open_stream(guarded.address, report(), metadata=_bearer("everyjob"), once=once) as (
            late,
            _,
        ),
        open_stream(guarded.address, metadata=_bearer("onejob")) as (witness, _),
    ):
        dict(late.initial_metadata())
        dict(witness.initial_metadata())
        write_secret(tokens, "student:other everyjob\n")
        assert end_of(witness)[0] == "UNAUTHENTICATED"  # so it has been looked at
        once.set()
        assert end_of(late)[0] == "PERMISSION_DENIED"
