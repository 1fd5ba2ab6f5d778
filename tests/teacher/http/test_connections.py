"""Connections of HTTP, and clients that lie, wait or vanish."""

from __future__ import annotations

import errno
import gc
import json
import socket
import ssl
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import grpc
import numpy as np
import pytest

from edl.proto.security import servers
from edl.proto.security.credentials import ServerSecurity, TlsFiles
from edl.teacher.predictor_jobs import RequestLabels
from edl.teacher.request import BatchRequest
from edl.teacher.servers import admission
from edl.teacher.servers import http_server as http_server
from edl.teacher.servers.http_server import HttpConnection
from edl.tests.proto.security.authority import Authority
from edl.tests.teacher.bench import WAIT_S, Bench, GrpcStream, Make, half_open
from edl.tests.teacher.bench_http import (
    CHUNKED,
    GET,
    INFER,
    Talk,
    ask,
    batch,
    head,
    infer,
    numbers,
    refused,
    rows,
)
from edl.tests.waiting import wait_until

X = numbers(1000)
#: Of a body, unless a test says otherwise; in virtual time.
RECEIVE_S = 10.0
IDLE_S = 10.0


def served(talk: Talk) -> list[HttpConnection]:
    """The server's side of a connection, while it is in memory."""
    living = (one for one in gc.get_objects() if type(one) is HttpConnection)
    return [one for one in living if one.client == talk.name]


def test_a_body_may_wait_for_the_server_to_continue(bench: Bench) -> None:
    x, data = numbers(3), json.dumps(rows(3)).encode()
    with Talk(bench) as talk:
        for _ in range(2):
            np.testing.assert_array_equal(talk.ask(batch(x)).labels(), 2 * x)
            talk.say(head(len(data), Expect="100-continue"))
            assert talk.socket.recv(64).startswith(b"HTTP/1.1 100")
            assert talk.ask(data).status == 200


def test_a_body_over_the_limit_is_not_read(bench: Bench) -> None:
    chunks = (bytes(1 << 17) for _ in range(9))
    assert "larger than max" in refused(ask(bench, "POST", INFER, content=chunks), 413)
    assert bench.refused("too_large") == 1
    with Talk(bench) as talk:
        assert talk.ask(head(1 << 40, Connection="close")).status == 413
        assert talk.is_over()  # though nothing of the body has come
    assert infer(bench, rows()).status_code == 200


def test_what_is_no_http_is_refused_in_json(bench: Bench) -> None:
    with Talk(bench) as talk:
        talk.say(b"\x16\x03\x01 what?\r\n\r\n")
        answer = b"".join(iter(lambda: talk.socket.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    wait_until(lambda: bench.refused("malformed") == 1)


def test_a_body_that_does_not_come_ends_its_request(bench: Bench) -> None:
    request = batch(X)
    with Talk(bench) as talk:
        talk.say(request[:-1])
        wait_until(lambda: bench.open_calls == 1)
        bench.advance(RECEIVE_S)
        reply = talk.hear()
        assert (reply.status, reply.headers["edl-status"]) == (503, "ABORTED")
        assert "did not arrive within 10 s" in reply.words()
        assert bench.open_calls == 0
        # The byte that was missing belongs to that body still.
        assert talk.ask(request[-1:] + batch(X)).status == 200
    with Talk(bench) as talk:
        talk.say(CHUNKED)
        wait_until(lambda: bench.open_calls == 1)
        bench.advance(RECEIVE_S)
        assert talk.hear().status == 503


def test_a_slow_body_has_no_longer_than_any(bench: Bench) -> None:
    bench.hold_time()
    with Talk(bench) as talk, Talk(bench) as beside:
        talk.say(batch(X)[:-50])
        for _ in range(20):
            wait_until(lambda: bench.open_calls == 1)
            talk.say(b"x")
            assert beside.ask(GET).status == 200  # the byte has been read by now
            bench.advance(RECEIVE_S / 20)
        bench.advance(RECEIVE_S / 20)
        assert talk.hear().status == 503


def test_the_oldest_call_that_owes_its_body_makes_room(make: Make) -> None:
    bench, request = make(max_calls_per_peer=1), batch(X)
    with Talk(bench) as slow, Talk(bench) as quick:
        slow.say(request[:-1])
        wait_until(lambda: bench.open_calls == 1)
        np.testing.assert_array_equal(quick.ask(request).labels(), 2 * X)
        assert slow.hear().status == 429
        assert slow.ask(request[-1:], request).status == 200
    with Talk(bench) as half:
        half.say(head(100, Expect="100-continue"))  # by ASGI
        wait_until(lambda: bench.open_calls == 1)
        assert infer(bench, rows()).status_code == 200
        answer = b""
        while b"HTTP/1.1 429" not in answer:
            more = half.socket.recv(4096)
            assert more
            answer += more


def test_bodies_have_a_budget(make: Make) -> None:
    bench = make(slots=4, max_message_bytes=40_000, request_bytes=40_000)
    held, request = bench.hold(), batch(X)
    with ExitStack() as opened:
        first, second, third = (opened.enter_context(Talk(bench)) for _ in range(3))
        for talk in (first, second):
            talk.say(request)
            held.wait()
        reply = third.ask(request)
        assert (reply.status, "memory for requests is full" in reply.words()) == (429, True)
        held.release()
        assert first.hear().status == second.hear().status == 200
        assert third.ask(request).status == 200


@pytest.fixture
def no_call_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that owes its request makes no room, however slow this machine is."""
    monkeypatch.setattr(admission, "REQUEST_WITHIN_S", WAIT_S)


def test_a_length_beside_chunks_reserves_no_less(make: Make, no_call_is_late: None) -> None:
    """The chunks count, not the length."""
    bench = make(request_bytes=1 << 20)
    chunked = head(0, **{"Transfer-Encoding": "chunked"})
    with Talk(bench) as first, Talk(bench) as second:
        first.say(chunked)
        wait_until(lambda: bench.open_calls == 1)
        second.say(chunked)
        reply = second.hear()
        assert (reply.status, "memory for requests is full" in reply.words()) == (429, True)
        assert bench.open_calls == 1, "the first one waits for its chunks still"


def test_a_call_of_grpc_counts_with_the_largest_request(make: Make, no_call_is_late: None) -> None:
    """Until its request is there; an idle stream does not keep others from asking."""
    bench = make(request_bytes=1 << 20)
    with half_open(bench, 1):
        wait_until(lambda: bench.open_calls == 1)
        assert "memory for requests is full" in refused(infer(bench, rows()), 429)
    wait_until(lambda: bench.open_calls == 0)
    with closing(GrpcStream(bench)) as stream:
        stream.put(bench.request())
        stream.next()
        wait_until(lambda: bench.idle_calls == 1)
        assert infer(bench, rows()).status_code == 200
        with pytest.raises(grpc.RpcError):
            stream.next()


def test_an_idle_connection_is_closed(bench: Bench) -> None:
    with Talk(bench) as talk:
        talk.say(GET[:-20])  # and no more
        wait_until(lambda: served(talk))
        bench.advance(IDLE_S + 1)
        assert talk.is_over()


@pytest.fixture
def certificates(authority: Authority) -> TlsFiles:
    """Of a server that asks its clients for none."""
    return replace(authority.issue("server"), ca=None)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


@pytest.mark.parametrize(("handshakes", "most"), [(2, 8), (8, 2)])
def test_the_oldest_handshake_makes_room_and_each_has_a_deadline(
    make: Make,
    authority: Authority,
    certificates: TlsFiles,
    monkeypatch: pytest.MonkeyPatch,
    handshakes: int,
    most: int,
) -> None:
    monkeypatch.setattr(servers, "HANDSHAKES", handshakes)
    monkeypatch.setattr(http_server, "_MAX_TLS_CONNECTIONS", most)
    monkeypatch.setattr(servers, "HANDSHAKE_S", 10 * WAIT_S)
    bench = make(security=ServerSecurity(certificates))
    with Talk(bench) as oldest, Talk(bench):
        answer = ask(bench, "GET", "/v2/health/live", verify=trusting(authority))
        assert answer.status_code == 200
        assert oldest.is_over()
    monkeypatch.setattr(servers, "HANDSHAKE_S", 0.05)
    with Talk(bench) as silent:
        assert silent.is_over()


def test_a_connection_of_tls_is_freed_when_it_ends(
    make: Make,
    authority: Authority,
    certificates: TlsFiles,
    tokens: ServerSecurity,
    no_garbage_collector: None,
) -> None:
    """Its memory is 256 KiB."""
    bench = make(security=replace(tokens, tls=certificates))
    context = trusting(authority)
    for token, status in (("s3cret", 200), ("guessed", 401)):
        with (
            Talk(bench) as talk,
            context.wrap_socket(talk.socket, server_hostname="localhost") as tls,
        ):
            talk.socket = tls
            assert talk.ask(batch(X, Authorization=f"Bearer {token}")).status == status
        wait_until(partial(lambda one: not served(one), talk))


def test_the_longest_idle_makes_room_and_those_at_work_do_not(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", 3)
    bench = make(slots=4)
    with ExitStack() as opened:
        idle = [opened.enter_context(Talk(bench)) for _ in range(3)]
        for talk in idle:
            assert talk.ask(batch(X)).status == 200
        burst = [opened.enter_context(Talk(bench)) for _ in range(2)]
        for talk in (*burst, idle[2]):
            assert talk.ask(batch(X)).status == 200
        assert idle[0].is_over()
        held = bench.hold()
        for talk in (*burst, idle[2]):
            talk.say(batch(X))
            held.wait()
        one_more = opened.enter_context(Talk(bench))
        one_more.say(batch(X))
        assert one_more.is_over()


def test_no_descriptors_left_is_said_once_and_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, iter(range(2))

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    for _ in range(2):
        assert infer(bench, rows()).status_code == 200
    assert caplog.messages == ["no connection can be accepted now: [Errno 24] too many open files"]


def fill_buffers(bench: Bench, talk: Talk, request: bytes) -> None:
    """Ask, and read no answers, until the server cannot send one."""
    (connection,) = served(talk)
    talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours = connection.transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    unread = connection.transport.get_write_buffer_size
    while not unread():
        before = bench.requests("answered")
        talk.say(request)
        wait_until(partial(lambda before: unread() or bench.requests("answered") > before, before))


@pytest.mark.parametrize("count", [2000, 20_000], ids=["buffered", "paused"])
def test_a_client_that_does_not_read_its_answer_is_cut_off(bench: Bench, count: int) -> None:
    """Also where it is too little for writing to be paused, which keeps a connection open."""
    with Talk(bench) as talk:
        talk.ask(batch(X))
        fill_buffers(bench, talk, batch(numbers(count)))
        wait_until(lambda: (bench.open_calls > 0) == (count > 2000))
        bench.advance_until(lambda: not served(talk) and not bench.open_calls, IDLE_S + 1)


@pytest.mark.system  # takes some seconds
def test_a_client_that_reads_its_answer_slowly_is_not_cut_off(bench: Bench) -> None:
    with Talk(bench) as talk:
        talk.ask(batch(X))
        fill_buffers(bench, talk, batch(numbers(50_000)))
        (connection,) = served(talk)
        unread = connection.transport.get_write_buffer_size
        talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        for _ in range(6):
            left = unread()
            while unread() == left:
                assert talk.socket.recv(1 << 16)
            bench.advance(IDLE_S / 2)
        assert unread() > 0


def test_a_client_that_vanishes_within_a_request_leaves_nothing(
    bench: Bench, no_garbage_collector: None
) -> None:
    request = batch(X)
    for part, calls in ((head(9)[:-2], 0), (request[: len(request) // 2], 1), (request[:-1], 1)):
        with Talk(bench) as talk:
            talk.say(part)
            wait_until(partial(lambda t, c: served(t) and bench.open_calls == c, talk, calls))
        wait_until(partial(lambda t: not served(t) and bench.open_calls == 0, talk))
    assert bench.labeller.backend.runs == []
    assert infer(bench, rows()).status_code == 200


def test_a_batch_whose_client_has_gone_is_not_labelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Future[RequestLabels]] = []  # for a device that never has time

    def submit(_: BatchRequest) -> Future[RequestLabels]:
        waiting.append(Future())
        return waiting[-1]

    monkeypatch.setattr(bench.labeller, "submit", submit)
    with Talk(bench) as talk:
        talk.say(batch(X))
        wait_until(lambda: waiting)
    wait_until(waiting[0].cancelled)
    wait_until(lambda: bench.open_calls == bench.recorder.in_flight == 0)
    assert bench.requests("abandoned") == 1


def test_a_client_that_vanishes_with_its_head_leaves_nothing(bench: Bench) -> None:
    """Its answer is cancelled before it has begun to be made."""
    with Talk(bench) as talk:
        talk.ask(batch(X))
        (connection,) = served(talk)
        is_over = threading.Event()

        def vanish() -> None:
            connection.data_received(batch(X)[:-1])
            connection.connection_lost(None)
            connection.loop.call_soon(is_over.set)

        connection.loop.call_soon_threadsafe(vanish)
        assert is_over.wait(WAIT_S)
        wait_until(lambda: bench.open_calls == 0)


def test_a_stop_waits_for_a_body_that_comes(bench: Bench) -> None:
    request = batch(X)
    with Talk(bench) as talk, Talk(bench) as idle, ThreadPoolExecutor(1) as pool:
        idle.ask(request)
        talk.say(request[:-1])
        wait_until(lambda: bench.open_calls == 1)
        stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
        assert idle.is_over()
        reply = talk.ask(request[-1:])
        stopping.result(WAIT_S)
        np.testing.assert_array_equal(reply.labels(), 2 * X)
        assert talk.is_over()


def test_a_stop_does_not_wait_for_what_was_refused(bench: Bench) -> None:
    with Talk(bench) as talk, ThreadPoolExecutor(1) as pool:
        assert talk.ask(head(1 << 40)).status == 413
        stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
        assert talk.is_over()
        stopping.result(WAIT_S)
