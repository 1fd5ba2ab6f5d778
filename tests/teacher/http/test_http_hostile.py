"""Plain requests for labels of callers that lie, wait, vanish, or are not known."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.errors import RateLimited
from edl.proto.security import ServerSecurity
from edl.teacher.http import connections
from edl.teacher.http.bodies import Body
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.bench_http import LENGTH, infer, rows
from edl.tests.teacher.http.talk import Talk, batch, head
from edl.tests.teacher.http.test_http_plain import numbers

X = numbers(1000)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of bodies that there was memory for."""
    sizes: list[int] = []
    keep = Body.keep

    def known(body: Body, aligned_at: int) -> None:
        sizes.append(body.left)
        keep(body, aligned_at)

    monkeypatch.setattr(Body, "keep", known)
    return sizes


def has_answered(bench: Bench, count: int) -> bool:
    return bench.count("edl_teacher_requests_total", outcome="answered") == count


def calls(bench: Bench) -> int:
    return len(bench.server._methods.infer_calls)


def test_no_memory_is_taken_for_strangers_and_what_is_too_large(
    make: Callable[..., Bench], tmp_path: Path, taken: list[int]
) -> None:
    tokens = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    bench = make(security=ServerSecurity(tokens_file=tokens), max_message_bytes=1 << 16)
    known = {"Authorization": "Bearer s3cret"}
    with Talk(bench) as talk:
        for said in ({}, {"Authorization": "Bearer guessed"}):
            reply = talk.ask(batch(X, **said))
            assert (reply.status, reply.headers["edl-status"]) == (401, "UNAUTHENTICATED")
            assert reply.headers["www-authenticate"] == "Bearer"
        assert talk.ask(batch(X, Origin="http://page", **known)).status == 403
        reply = talk.ask(batch(numbers(5000), **known))
        assert (reply.status, reply.headers["edl-status"]) == (413, "RESOURCE_EXHAUSTED")
        assert "larger than max (80" in reply.words()
        assert not taken
        assert bench.refused("unauthenticated") == 2
        assert bench.refused("too_large") == 1
        assert talk.ask(batch(X, **known)).status == 200  # what was refused is out of the way
    assert len(taken) == 1
    assert calls(bench) == 0


def test_a_refusal_comes_before_the_body_and_the_end_behind_it(bench: Bench) -> None:
    with Talk(bench) as talk:
        reply = talk.ask(head(1 << 40, Connection="close"))
        assert reply.status == 413
        assert talk.is_over()  # though nothing of it has come


def test_where_there_is_no_memory_it_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Body, __: int) -> None:
        raise MemoryError

    with monkeypatch.context() as scarce, Talk(bench) as talk:
        scarce.setattr(Body, "keep", none)
        reply = talk.ask(batch(X))
        assert (reply.status, reply.headers["edl-status"]) == (429, "RESOURCE_EXHAUSTED")
        assert int(reply.headers["retry-after"]) >= 1
    assert infer(bench, rows()).status_code == 200


@pytest.mark.parametrize("said", [10**9, -1, "x", ""])
def test_lengths_that_lie(bench: Bench, said: object) -> None:
    with Talk(bench) as talk:
        reply = talk.ask(head(48, **{LENGTH: said}) + bytes(48))
        assert (reply.status, reply.headers["edl-status"]) == (400, "INVALID_ARGUMENT")
        assert LENGTH in reply.words()
        assert talk.ask(batch(X)).status == 200


def test_a_body_that_is_shorter_than_it_says_is_awaited_in_vain(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=0.3)
    request = batch(X)
    with Talk(bench) as talk:
        reply = talk.ask(request[:-1])
        assert (reply.status, reply.headers["edl-status"]) == (503, "ABORTED")
        assert "did not come within 0.3 s" in reply.words()
        assert calls(bench) == 0
        # The byte that was missing belongs to that body still.
        assert talk.ask(request[-1:] + batch(X)).status == 200


def test_a_slow_body_has_no_longer_than_any(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=0.3)
    request, answered = batch(X), threading.Event()

    def drip(talk: Talk) -> None:
        for byte in request[:-1]:
            talk.say(bytes([byte]))
            if answered.wait(0.01):
                return

    with Talk(bench) as talk:
        dripping = threading.Thread(target=drip, args=(talk,))
        dripping.start()
        reply = talk.hear()
        answered.set()
        dripping.join()
        assert reply.status == 503


def test_what_a_stranger_left_half_said_goes_with_its_connection(bench: Bench) -> None:
    """Not when its connection would have been idle for too long."""
    http = bench.server._http
    assert http is not None
    known: set[Any] = http._server.server_state.connections
    gc.disable()
    try:
        with Talk(bench) as talk:
            talk.say(head(9)[:-2])
            wait_for(lambda: [one._held for one in list(known)] == [head(9)[:-2]])
            left = weakref.ref(next(iter(known)))
        wait_for(lambda: left() is None, connections._IDLE_S / 2)
    finally:
        gc.enable()


def test_who_vanishes_in_mid_body_leaves_nothing(bench: Bench, taken: list[int]) -> None:
    request = batch(X)
    for at in (len(request) // 2, len(request) - 1):
        with Talk(bench) as talk:
            talk.say(request[:at])
            wait_for(lambda: calls(bench) == 1)
        wait_for(lambda: calls(bench) == 0)
    assert len(taken) == 2
    assert bench.labeller.backend.runs == []
    assert infer(bench, rows()).status_code == 200


def test_who_vanishes_with_the_head_leaves_nothing(bench: Bench) -> None:
    """Its answer is given up before it has begun to be made."""
    http = bench.server._http
    assert http is not None
    with Talk(bench) as talk:
        talk.ask(batch(X))
        (connection,) = http._server.server_state.connections

        async def vanish() -> int:
            connection.data_received(batch(X)[:-1])
            began = calls(bench)
            connection.connection_lost(None)
            return began

        assert bench.server._do(vanish()) == 1
        wait_for(lambda: calls(bench) == 0)


def test_who_vanishes_while_its_batch_is_labelled_is_abandoned(bench: Bench) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with Talk(bench) as talk:
        talk.say(batch(X))
        assert inside.wait(WAIT_S)
    wait_for(lambda: calls(bench) == 0)
    assert bench.count("edl_teacher_requests_total", outcome="abandoned") == 1
    go.set()
    wait_for(lambda: bench.labeller.released == 1)


def test_the_oldest_that_owes_its_body_makes_room(make: Callable[..., Bench]) -> None:
    bench = make(max_calls_per_peer=1)
    request = batch(X)
    with Talk(bench) as slow, Talk(bench) as quick:
        slow.say(request[:-1])
        wait_for(lambda: calls(bench) == 1)
        np.testing.assert_array_equal(quick.ask(request).labels(), 2 * X)
        assert slow.hear().status == 429
        assert slow.ask(request[-1:], request).status == 200


def test_who_does_not_read_its_answer_is_cut_off(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=WAIT_S, max_message_bytes=64 << 20)
    http = bench.server._http
    assert http is not None
    known: set[Any] = http._server.server_state.connections
    x = numbers(1_000_000)  # more than sockets hold

    def hurry() -> None:  # once the batch is there, which had its time
        (connection,) = known
        desk = connection._desk
        connection._desk = replace(desk, config=replace(desk.config, receive_s=0.3))

    bench.labeller.before = hurry
    with Talk(bench) as talk:
        talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        talk.say(batch(x))
        wait_for(partial(has_answered, bench, 1))
        wait_for(lambda: not known)


def test_who_does_not_read_the_last_of_its_answers_is_cut_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are too little for writing to be paused, and keep a connection from being closed."""
    http = bench.server._http
    assert http is not None
    known: set[Any] = http._server.server_state.connections
    with Talk(bench) as talk:
        wait_for(lambda: len(known) == 1)
        (connection,) = known
        transport = connection.transport
        for end in (talk.socket, transport.get_extra_info("socket")):
            for size in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                end.setsockopt(socket.SOL_SOCKET, size, 4096)
        answered = 0
        while not transport.get_write_buffer_size():
            talk.say(batch(numbers(2000)))
            answered += 1
            wait_for(partial(has_answered, bench, answered))

        async def look_now() -> None:
            connection._watching.cancel()
            connection._watch()

        monkeypatch.setattr(connections, "_IDLE_S", 0.3)  # not before: a pause would end it
        bench.server._do(look_now())
        wait_for(lambda: not known, bench.server._config.receive_s / 2)


def test_a_thousand_that_owe_their_bodies_keep_nobody_out(bench: Bench) -> None:
    large = head(1 << 20) + b"{"
    with ExitStack() as opened:
        for _ in range(1000):
            opened.enter_context(Talk(bench)).say(large)
        with Talk(bench) as talk:
            assert talk.ask(batch(X)).status == 200
        assert bench.infer().outputs["double"].shape == (3, 4)
        assert calls(bench) <= 64
    wait_for(lambda: calls(bench) == 0)


def test_a_stop_waits_for_a_body_that_comes(make: Callable[..., Bench]) -> None:
    bench, request = make(), batch(X)
    with Talk(bench) as talk, Talk(bench) as idle:
        idle.ask(request)
        talk.say(request[:-1])
        wait_for(lambda: calls(bench) == 1)
        stopping = threading.Thread(target=bench.server.stop, args=(WAIT_S,))
        stopping.start()
        assert idle.is_over()
        reply = talk.ask(request[-1:])
        stopping.join()
        np.testing.assert_array_equal(reply.labels(), 2 * X)
        assert reply.headers["connection"] == "close"
        assert talk.is_over()


def test_a_stop_does_not_wait_for_what_was_refused(make: Callable[..., Bench]) -> None:
    bench = make()
    with Talk(bench) as talk:
        assert talk.ask(head(1 << 40)).status == 413
        stopping = threading.Thread(target=bench.server.stop, args=(WAIT_S,))
        stopping.start()
        assert talk.is_over()
        stopping.join(WAIT_S / 2)
        assert not stopping.is_alive()


def test_an_error_says_what_grpc_would(bench: Bench) -> None:
    def full() -> None:
        raise RateLimited("all slots are taken", retry_after_s=0.12)

    bench.labeller.before = full
    with Talk(bench) as talk:
        reply = talk.ask(batch(X))
    assert (reply.status, reply.headers["edl-status"]) == (429, "RESOURCE_EXHAUSTED")
    assert (reply.headers["retry-after"], reply.headers["grpc-retry-pushback-ms"]) == ("1", "120")
