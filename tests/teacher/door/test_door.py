"""The door for callers on this host: who is let in, and what passes through it."""

from __future__ import annotations

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from edl.errors import DeadlineExceeded, RateLimited, RequestRefused
from edl.proto import stream_answers, tensors
from edl.proto.clients import Request
from edl.proto.doors import LENGTH, TICKET_BYTES, Invitation
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import WAIT_S
from edl.tests.teacher.door.callers import (
    Make,
    Settle,
    X,
    enter,
    frame,
    heard,
    inside,
    knock,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")


def test_labels_come_by_the_door_bit_for_bit(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    for scale in range(1, 6):
        assert neighbour.infer(X * scale) == (X * 2 * scale).tobytes()
    assert inside(bench) == 1
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 5


def test_many_come_at_once(make: Make, settle: Settle) -> None:
    bench = make(slots=8)
    neighbour = settle(bench)
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda n: neighbour.infer(X * n) == (X * 2 * n).tobytes(), range(99))
        )
    assert all(answers)
    assert 1 <= inside(bench) <= 4


def test_what_travels_goes_by_grpc(make: Make, settle: Settle) -> None:
    bench = make()
    answer = settle(bench).client.infer(Request({"x": X}), WAIT_S)
    assert answer.outputs["double"].tobytes() == (X * 2).tobytes()
    assert inside(bench) == 0


def test_who_has_no_ticket_is_sent_away(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    for said in (b"0" * TICKET_BYTES, bytes(TICKET_BYTES), b"\xff" * TICKET_BYTES):
        with knock(bench, said + frame(bench.request())) as stranger:
            assert heard(stranger) == b""
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 0


def test_who_says_nothing_is_not_waited_for(make: Make) -> None:
    bench = make(receive_s=0.1)
    with knock(bench, b"0") as stranger:
        assert heard(stranger) == b""
    wait_for(lambda: inside(bench) == 0)


def test_strangers_are_few(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    silent = [knock(bench, b"") for _ in range(64)]
    wait_for(lambda: inside(bench) == 64)
    with knock(bench, b"0") as one_more:
        assert heard(one_more) == b""
    for stranger in silent:
        stranger.close()
    wait_for(lambda: inside(bench) == 0)
    assert neighbour.infer() == (X * 2).tobytes()


def test_who_is_inside_talks_as_over_a_stream(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    with enter(bench) as caller:
        caller.sendall(frame(bench.request(3, request_id="a")) + frame(b"\xff"))
        answer = tensors.decode_response(stream_answers.read(heard(caller)))
        assert answer.request_id == "a"
        with pytest.raises(RequestRefused, match="truncated"):
            stream_answers.read(heard(caller))


@pytest.mark.parametrize("rest", [b"\x01", frame(b"12345")[:-1], b""])
def test_who_goes_in_the_middle_of_a_request_leaves_nothing(
    make: Make, settle: Settle, rest: bytes
) -> None:
    bench = make()
    settle(bench)
    enter(bench, rest).close()
    wait_for(lambda: inside(bench) == 0)
    assert len(bench.server._methods.infer_calls) == 0


def test_too_large_a_request_is_refused_unread(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    with enter(bench, LENGTH.pack((1 << 20) + 1)) as caller:
        with pytest.raises(RequestRefused, match="larger than max"):
            stream_answers.read(heard(caller))
        assert heard(caller) == b""
    assert bench.refused("too_large") == 1


def test_a_refusal_is_the_same_by_the_door(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    with pytest.raises(RequestRefused, match="unknown output 'no'"):
        neighbour.infer(outputs=("no",))
    assert neighbour.infer() == (X * 2).tobytes()


def test_where_there_is_no_room_it_is_said(make: Make, settle: Settle) -> None:
    bench = make(max_calls_per_peer=1, slots=8)
    neighbour = settle(bench)
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(neighbour.infer)
        assert within.wait(WAIT_S)
        with pytest.raises(RateLimited, match="calls of one client are open"):
            neighbour.infer()
        go.set()
        assert first.result(WAIT_S) == (X * 2).tobytes()
    assert neighbour.infer() == (X * 2).tobytes()


def test_a_line_that_had_to_make_room_is_not_noticed(make: Make, settle: Settle) -> None:
    bench = make(max_calls_per_peer=1)
    first, second = settle(bench), settle(bench)
    for _ in range(3):
        assert first.infer() == second.infer() == (X * 2).tobytes()
    wait_for(lambda: inside(bench) == 1)


def test_a_caller_that_is_gone_leaves_the_line(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(neighbour.infer, timeout_s=3.0)  # enough to get in
        assert within.wait(WAIT_S)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
    wait_for(lambda: inside(bench) == 0 and bench.traffic.in_flight == 0)
    go.set()
    bench.labeller.before = lambda: None
    assert neighbour.infer() == (X * 2).tobytes()


def test_a_caller_that_reads_nothing_is_sent_away(make: Make, settle: Settle) -> None:
    bench = make(receive_s=0.2)
    settle(bench)
    with enter(bench) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = frame(bench.request(20_000))
        asking = threading.Thread(target=lambda: _say(caller, request * 20))
        asking.start()
        wait_for(lambda: inside(bench) == 0)
        asking.join()


def _say(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)


def test_an_invitation_is_read_as_it_was_written() -> None:
    invitation = Invitation.to("edl-x")
    assert Invitation.among([("a", "b"), *invitation.metadata()]) == invitation
    assert len(invitation.ticket) == TICKET_BYTES
    assert Invitation.among([("a", b"b")]) is None
    assert invitation.address == "\0edl-x"
