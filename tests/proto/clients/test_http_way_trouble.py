"""Batches whose way by HTTP breaks, is slow, or answers with an error: by gRPC, or as it would."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    WrongInstance,
)
from edl.proto.clients import Request, detour, http_way
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.http_offer import STATUS
from edl.proto.status import PUSHBACK
from edl.tests.ground.programs import wait_for
from edl.tests.proto.clients.http_ways import ASKED, WAIT_S, ask
from edl.tests.proto.clients.scripted_http import Asked, ScriptedHttp, labelled, reply
from edl.tests.scripted_teacher import ScriptedTeacher


def breaks(asked: Asked, connection: socket.socket) -> bytes:
    connection.shutdown(socket.SHUT_RDWR)
    return b""


def breaks_within(asked: Asked, connection: socket.socket) -> bytes:
    connection.sendall(labelled(asked)[:-10])
    return breaks(asked, connection)


@pytest.mark.parametrize("behave", [breaks, breaks_within])
def test_a_batch_whose_connection_breaks_goes_by_grpc_at_once(
    teacher: ScriptedTeacher,
    server: ScriptedHttp,
    client: OipGrpcClient,
    behave: Callable[[Asked, socket.socket], bytes],
) -> None:
    server.behave = behave
    ask(client)
    assert teacher.requests == 1
    server.behave = labelled
    asked = len(server.asked)
    ask(client)  # it is left alone now
    client.probe(WAIT_S)
    ask(client)
    assert (teacher.requests, len(server.asked)) == (3, asked)


def test_those_whose_connections_break_at_once_are_one_failure(
    server: ScriptedHttp, client: OipGrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a teacher that is lost with a full window would be left alone for minutes."""
    both_failed = threading.Barrier(2)
    failures: list[str] = []

    def note(message: str, error: Exception) -> None:
        failures.append(message % error)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_failed.wait(0.2)  # as long as a log may take

    def break_together(asked: Asked, connection: socket.socket) -> bytes:
        wait_for(lambda: server.batches >= 2)
        return breaks(asked, connection)

    monkeypatch.setattr(http_way.log, "info", note)
    server.behave = break_together
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, [client, client]))
    assert len(failures) == 1


def test_a_way_that_was_left_alone_is_taken_again_without_delaying_a_batch(
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

    wait_for(by_http)


def test_one_that_the_server_has_closed_meanwhile_is_opened_anew(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    server.connections[0].shutdown(socket.SHUT_RDWR)
    ask(client)
    assert (server.batches, teacher.requests, len(server.connections)) == (2, 0, 2)


def test_a_connection_that_the_server_wants_closed_is_used_no_more(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    server.behave = lambda asked, _: labelled(asked).replace(
        b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n", 1
    )
    ask(client)
    ask(client)
    assert (server.batches, teacher.requests, len(server.connections)) == (2, 0, 2)


def test_a_teacher_with_another_life_at_the_same_ports_is_asked_by_grpc(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    server.offered(teacher)  # of which this client has not heard
    server.connections[0].shutdown(socket.SHUT_RDWR)
    ask(client)
    assert (server.batches, teacher.requests) == (1, 1)
    client.probe(WAIT_S)
    ask(client)
    assert (server.batches, teacher.requests) == (2, 1)


@pytest.mark.parametrize(
    ("status", "name", "error"),
    [
        ("400 Bad Request", "INVALID_ARGUMENT", RequestRefused),
        ("412 Other", "FAILED_PRECONDITION", WrongInstance),
        ("401 Who", "UNAUTHENTICATED", Unauthenticated),
        ("503 Later", "ABORTED", RetryableError),
        ("503 Later", "UNAVAILABLE", TeacherLost),
        ("504 Late", "DEADLINE_EXCEEDED", DeadlineExceeded),
        ("429 Much", "RESOURCE_EXHAUSTED", RateLimited),
    ],
)
def test_errors_are_those_of_grpc(
    teacher: ScriptedTeacher,
    server: ScriptedHttp,
    client: OipGrpcClient,
    status: str,
    name: str,
    error: type[EdlError],
) -> None:
    said = {STATUS: name, PUSHBACK: 120, "Retry-After": 1}
    server.behave = lambda _, __: reply(b'{"error": "so it is"}', status, said)
    with pytest.raises(error, match="so it is") as caught:
        client.infer(ASKED, WAIT_S)
    assert type(caught.value) is error
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after_s == 0.12
    assert teacher.requests == 0


def test_what_is_no_answer_is_not_believed(server: ScriptedHttp, client: OipGrpcClient) -> None:
    server.behave = lambda _, __: reply(b'{"outputs": 3}')
    with pytest.raises(BadAnswer):
        client.infer(ASKED, WAIT_S)


def test_who_is_late_is_late(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    held = threading.Event()

    def hold(asked: Asked, connection: socket.socket) -> bytes:
        held.wait(WAIT_S)
        return labelled(asked)

    server.behave = hold
    with pytest.raises(DeadlineExceeded):
        client.infer(ASKED, 0.2)
    server.behave = labelled
    ask(client)
    held.set()
    assert (server.batches, teacher.requests) == (2, 0)


def test_who_reads_nothing_holds_nobody_beyond_the_deadline(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    held = threading.Event()

    def hold(asked: Asked, connection: socket.socket) -> bytes:
        held.wait(WAIT_S)
        return b""

    server.behave = hold
    small, large = ASKED, Request({"x": np.zeros((32, 1 << 18), np.float32)})
    with ThreadPoolExecutor(3) as pool:
        began = time.monotonic()
        waiting = [pool.submit(client.infer, one, 0.5) for one in (small, large, large)]
        for one in waiting:
            with pytest.raises(DeadlineExceeded):
                one.result(WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
    held.set()
    assert teacher.requests == 0


def test_closing_ends_who_waits(server: ScriptedHttp, client: OipGrpcClient) -> None:
    waiting, held = threading.Event(), threading.Event()

    def hold(asked: Asked, connection: socket.socket) -> bytes:
        waiting.set()
        held.wait(WAIT_S)
        return b""

    server.behave = hold
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.infer, ASKED, WAIT_S)
        assert waiting.wait(WAIT_S)
        client.close()
        with pytest.raises(TeacherLost):
            asked.result(WAIT_S)
    held.set()
    with pytest.raises(TeacherLost):
        client.infer(ASKED, WAIT_S)
