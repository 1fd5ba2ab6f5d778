"""Batches by HTTP where a teacher offers it, and by gRPC where that way breaks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl import errors
from edl.proto.clients import Request, detour, http_way
from edl.proto.clients.detour import FIRST_S, MOST_S, Detour
from edl.proto.clients.http_messages import Reply
from edl.proto.clients.http_statuses import from_http
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.http_offer import STATUS, HttpOffer, new_mark
from edl.proto.stacked import Stacked
from edl.proto.status import PUSHBACK
from edl.tests.proto.clients.scripted_http import (
    ASKED,
    ReceivedRequest,
    ScriptedHttp,
    X,
    ask,
    labelled,
    reply,
)
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def server(teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHttp]:
    monkeypatch.setattr(http_way, "_OPEN_S", DEADLINE_S)  # a busy machine must not shut the way
    server = ScriptedHttp()
    server.offered(teacher)
    yield server
    server.stop()


@pytest.fixture
def client(teacher: ScriptedTeacher, server: ScriptedHttp) -> Iterator[OipGrpcClient]:
    client = OipGrpcClient(teacher.address, "m")
    client.probe(DEADLINE_S)
    yield client
    client.close()


def test_batches_by_http(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    for _ in range(3):
        ask(client)
    assert (server.batches, teacher.requests) == (3, 0)
    assert len(server.connections) == 1
    # The mark of the server is checked before it gets a batch.
    assert [one.path for one in server.asked] == ["/v2/health/live", *["/v2/models/m/infer"] * 3]
    assert not server.asked[0].body
    asked = server.asked[-1]
    request = asked.request()
    assert request.request_id == "7"
    assert request.parameters["teacher_id"] == "t"
    assert 0 < request.parameters["timeout"] <= DEADLINE_S * 1e6  # type: ignore[operator]


def test_pieces_of_a_batch_arrive_as_one(server: ScriptedHttp, client: OipGrpcClient) -> None:
    stacked = Stacked((X[:1], X[2:], X[1:2]))
    labels = client.infer(Request({"x": stacked}), DEADLINE_S).outputs["logits"]
    np.testing.assert_array_equal(labels, logits_of(X[[0, 2, 3, 1]]))
    assert server.batches == 1


@pytest.mark.parametrize("why", ["other grpc port", "address for grpc", "no mark", "other mark"])
def test_other_server_gets_no_batch(
    teacher: ScriptedTeacher, server: ScriptedHttp, why: str
) -> None:
    address = teacher.address
    match why:
        case "other grpc port":
            server.offered(teacher, grpc_port=1)
        case "address for grpc":
            address = f"ipv4:{address}"
        case "no mark":
            server.mark = ""
        case "other mark":
            server.mark = "0123456789abcdef"
    with closing(OipGrpcClient(address, "m")) as client:
        client.probe(DEADLINE_S)
        ask(client)
    assert (server.batches, teacher.requests) == (0, 1)
    assert "mark" in why or not server.asked


def test_a_withdrawn_offer_is_not_used(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    teacher.offer = None
    client.probe(DEADLINE_S)
    ask(client)
    assert (server.batches, teacher.requests) == (1, 1)
    wait_until(lambda: server.connections[0].fileno() < 0)  # it was closed


def test_closed_http_port_costs_no_batch(teacher: ScriptedTeacher) -> None:
    with socket.socket() as silent:  # it does not listen, and keeps the port from all others
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        teacher.offer = HttpOffer(int(teacher.address.rpartition(":")[2]), port, new_mark())
        with closing(OipGrpcClient(teacher.address, "m")) as client:
            client.probe(DEADLINE_S)
            for _ in range(3):
                ask(client)
    assert teacher.requests == 3


def test_a_silent_port_delays_the_probe_alone(teacher: ScriptedTeacher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        teacher.offer = HttpOffer(int(teacher.address.rpartition(":")[2]), port, new_mark())
        with closing(OipGrpcClient(teacher.address, "m")) as client:
            client.probe(DEADLINE_S)
            mute.settimeout(0.0)
            with mute.accept()[0]:
                ask(client)
                client.probe(DEADLINE_S)
                ask(client)
            with pytest.raises(BlockingIOError):  # nobody has tried again
                mute.accept()
    assert teacher.requests == 2


def breaks(asked: ReceivedRequest, connection: socket.socket) -> bytes:
    connection.shutdown(socket.SHUT_RDWR)
    return b""


def breaks_within(asked: ReceivedRequest, connection: socket.socket) -> bytes:
    connection.sendall(labelled(asked)[:-10])
    return breaks(asked, connection)


@pytest.mark.parametrize("behave", [breaks, breaks_within])
def test_a_batch_whose_connection_breaks_goes_by_grpc_at_once(
    teacher: ScriptedTeacher,
    server: ScriptedHttp,
    client: OipGrpcClient,
    behave: Callable[[ReceivedRequest, socket.socket], bytes],
) -> None:
    server.behave = behave
    ask(client)
    assert teacher.requests == 1
    server.behave = labelled
    asked = len(server.asked)
    ask(client)  # it is left alone now
    client.probe(DEADLINE_S)
    ask(client)
    assert (teacher.requests, len(server.asked)) == (3, asked)


def test_connections_that_break_together_are_one_failure(
    server: ScriptedHttp, client: OipGrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a teacher that is lost with a full window would be left alone for minutes."""
    both_failed = threading.Barrier(2)
    failures: list[str] = []

    def note(message: str, error: Exception) -> None:
        failures.append(message % error)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_failed.wait(0.2)  # as long as a log may take

    def break_together(asked: ReceivedRequest, connection: socket.socket) -> bytes:
        wait_until(lambda: server.batches >= 2)
        return breaks(asked, connection)

    monkeypatch.setattr(http_way.log, "info", note)
    server.behave = break_together
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, [client, client]))
    assert len(failures) == 1


def test_http_is_tried_again_without_delaying_a_batch(
    teacher: ScriptedTeacher,
    server: ScriptedHttp,
    client: OipGrpcClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detour, "FIRST_S", 0.0)
    server.behave = breaks
    ask(client)
    server.behave = labelled
    ask(client)  # by gRPC, while it is opened beside
    assert teacher.requests == 2

    def by_http() -> bool:
        before = server.batches
        ask(client)
        return server.batches > before

    wait_until(by_http)


def test_a_restarted_teacher_at_the_same_ports_is_asked_by_grpc(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    server.offered(teacher)  # of which this client has not heard
    server.connections[0].shutdown(socket.SHUT_RDWR)
    ask(client)
    assert (server.batches, teacher.requests) == (1, 1)
    client.probe(DEADLINE_S)
    ask(client)
    assert (server.batches, teacher.requests) == (2, 1)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("INVALID_ARGUMENT", errors.RequestRefused),
        ("UNAVAILABLE", errors.TeacherLost),
        ("RESOURCE_EXHAUSTED", errors.RateLimited),
    ],
)
def test_errors_are_those_of_grpc(name: str, error: type[errors.EdlError]) -> None:
    headers = {STATUS: name, PUSHBACK: "120", "retry-after": "1"}
    found = from_http(Reply(503, headers, memoryview(b'{"error": "so it is"}')))
    assert (type(found), str(found)) == (error, "so it is")
    if isinstance(found, errors.RateLimited):
        assert found.retry_after_s == 0.12


def test_an_error_of_the_teacher_is_not_asked_again_by_grpc(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    server.behave = lambda _, __: reply(b"{}", "503 Later", {STATUS: "UNAVAILABLE"})
    with pytest.raises(errors.TeacherLost):
        client.infer(ASKED, DEADLINE_S)
    assert teacher.requests == 0


def test_a_late_request_exceeds_the_deadline_and_keeps_http(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    held = threading.Event()

    def hold(asked: ReceivedRequest, connection: socket.socket) -> bytes:
        held.wait(DEADLINE_S)
        return labelled(asked)

    server.behave = hold
    with pytest.raises(errors.DeadlineExceeded):
        client.infer(ASKED, 0.2)
    server.behave = labelled
    ask(client)
    held.set()
    assert (server.batches, teacher.requests) == (2, 0)


TIMES = st.floats(0, 1e9)


@given(TIMES, st.integers(0, 2000))
def test_each_failure_makes_it_longer_up_to_the_most(now: float, failures: int) -> None:
    pause_s = 0.0
    after = Detour()
    for _ in range(min(failures, 12)):
        after = after.failed(now)
        assert min(2 * pause_s, MOST_S) <= after.until_s - now + 1e-3
        pause_s = after.until_s - now
        assert FIRST_S - 1e-3 <= pause_s <= MOST_S + 1e-3
        assert not after.is_over(now)
        assert after.is_over(now + MOST_S + 1e-3)
    assert Detour(failures, now).failed(now).until_s <= now + MOST_S
    assert after.worked() == Detour()
