"""The door for callers on this host: who is let in, and what passes through it."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edl.errors import DeadlineExceeded, RateLimited, RequestRefused, TeacherLost, Unauthenticated
from edl.proto import stream_answers, tensors
from edl.proto.arena import Array
from edl.proto.clients import Request, door_line
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.datatypes import to_bytes
from edl.proto.doors import LENGTH, TICKET_BYTES, WELCOME, Invitation, user_behind
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place
from edl.proto.security import ClientSecurity, ServerSecurity
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")

X = array(300, 4)
Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
        benches.append(Bench(client, **config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


class Neighbour:
    """A client that shares memory with a bench, and has been invited."""

    def __init__(self, bench: Bench, security: ClientSecurity | None = None) -> None:
        self.client = OipGrpcClient(bench.address, "resnet", security)
        self.arena = LentArena.create(1 << 20)
        self.region = secrets.token_hex(8)
        self.client.register_memory(self.region, self.arena.key, self.arena.size_bytes, WAIT_S)

    def infer(self, x: Array = X, timeout_s: float = WAIT_S, **asked: Any) -> bytes:
        lying = self.arena.get(self.arena.put([x]).arrays[0])
        found = self.arena.lent(to_bytes(lying))
        assert found is not None
        place = Place(self.region, found[0], x.nbytes, found[1])
        answer = self.client.infer(Request({"x": lying}, **asked), timeout_s, {"x": place})
        return answer.outputs["double"].tobytes()

    def close(self) -> None:
        self.client.close()
        self.arena.close()


@pytest.fixture
def settle() -> Iterator[Callable[..., Neighbour]]:
    neighbours: list[Neighbour] = []

    def settle(bench: Bench, security: ClientSecurity | None = None) -> Neighbour:
        neighbours.append(Neighbour(bench, security))
        return neighbours[-1]

    yield settle
    for neighbour in neighbours:
        neighbour.close()


Settle = Callable[..., Neighbour]


def inside(bench: Bench) -> int:
    return len(bench.server._methods.door._inside)


def knock(bench: Bench, said: bytes) -> socket.socket:
    """A connection that has said something."""
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(WAIT_S)
    stranger.connect(f"\0{bench.server._methods.door._name}")
    with suppress(ConnectionError):  # it is closed at once
        stranger.sendall(said)
    return stranger


def enter(bench: Bench, said: bytes = b"") -> socket.socket:
    """A connection that was let in, and has said something."""
    caller = knock(bench, ticket_of(bench))
    assert caller.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME
    caller.sendall(said)
    return caller


def ticket_of(bench: Bench) -> bytes:
    (tickets,) = bench.server._methods.door._shown.values()
    return next(reversed(tickets)).encode()


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def heard(connection: socket.socket) -> bytes:
    """One answer; empty: the end."""
    try:
        head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
        return connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL) if head else b""
    except ConnectionError:
        return b""


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
        late = pool.submit(neighbour.infer, timeout_s=0.5)
        assert within.wait(WAIT_S)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
    wait_for(lambda: inside(bench) == 0 and bench.traffic.in_flight == 0)
    go.set()
    bench.labeller.before = lambda: None
    assert neighbour.infer() == (X * 2).tobytes()


def test_a_stop_answers_who_is_inside_and_waits_for_nobody_idle(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour, idle = settle(bench), settle(bench)
    idle.infer()
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(neighbour.infer)
        assert within.wait(WAIT_S)
        stopping = pool.submit(bench.server.stop, WAIT_S)
        wait_for(lambda: inside(bench) == 1)
        go.set()
        assert asked.result(WAIT_S) == (X * 2).tobytes()
        stopping.result(WAIT_S / 4)
    with pytest.raises(TeacherLost):
        idle.infer()


def test_a_door_that_is_shut_is_passed_by(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    door = neighbour.client._door
    assert door is not None
    door._open_line = _refuse
    assert neighbour.infer() == (X * 2).tobytes()
    assert neighbour.client._door is None
    assert inside(bench) == 0


def _refuse() -> Any:
    raise ConnectionRefusedError("nobody is there")


def test_a_token_that_is_withdrawn_opens_nothing(
    make: Make, settle: Settle, tmp_path: Path
) -> None:
    known = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    bench = make(security=ServerSecurity(tokens_file=known))
    neighbour = settle(bench, ClientSecurity(token_file=write_secret(tmp_path / "token", "s3cret")))
    assert neighbour.infer() == (X * 2).tobytes()
    assert inside(bench) == 1
    write_secret(known, "student:resnet an0ther\n")

    def refused() -> bool:
        try:
            neighbour.infer()
        except Unauthenticated:
            return True
        return False

    wait_for(refused)


def test_a_client_whose_token_was_changed_is_invited_anew(
    make: Make, settle: Settle, tmp_path: Path
) -> None:
    known = write_secret(tmp_path / "tokens", "student:resnet s3cret\nstudent:resnet an0ther\n")
    bench = make(security=ServerSecurity(tokens_file=known))
    own = write_secret(tmp_path / "token", "s3cret")
    neighbour = settle(bench, ClientSecurity(token_file=own))
    assert neighbour.infer() == (X * 2).tobytes()
    first = neighbour.client._door
    write_secret(own, "an0ther")
    write_secret(known, "student:resnet an0ther\n")

    def is_invited_anew() -> bool:
        assert neighbour.infer() == (X * 2).tobytes()
        return neighbour.client._door not in (None, first)

    wait_for(is_invited_anew)
    assert neighbour.infer() == (X * 2).tobytes()


def test_an_impostor_behind_the_name_of_the_door_learns_no_ticket(
    make: Make, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = settle(make())
    monkeypatch.setattr(door_line, "user_behind", lambda _: os.geteuid() + 1)
    monkeypatch.setattr(Invitation, "ticket", property(lambda _: pytest.fail("it was said")))
    assert neighbour.infer() == (X * 2).tobytes()  # by gRPC
    assert neighbour.client._door is None


def test_the_user_behind_a_socket_is_told() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert user_behind(near) == os.geteuid()


def test_who_shares_nothing_any_more_is_not_let_in(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    ticket = ticket_of(bench)
    neighbour.client.unregister_memory(neighbour.region, WAIT_S)
    with knock(bench, ticket) as stranger:
        assert heard(stranger) == b""
    assert bench.server._methods.door._shown == {}


def test_tickets_of_one_owner_make_room_for_each_other(make: Make, settle: Settle) -> None:
    bench = make()
    first = settle(bench)
    for _ in range(70):
        first.client._ask_for_door(WAIT_S)
    (tickets,) = bench.server._methods.door._shown.values()
    assert len(tickets) == 64


def test_a_door_that_shuts_lets_those_inside_finish(make: Make, settle: Settle) -> None:
    bench = make(slots=8)
    neighbour = settle(bench)
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(neighbour.infer)
        assert within.wait(WAIT_S)
        bench.labeller.before = lambda: None
        door = neighbour.client._door
        assert door is not None
        door._open_line = _refuse
        assert neighbour.infer() == (X * 2).tobytes()
        assert neighbour.client._door is None
        go.set()
        assert first.result(WAIT_S) == (X * 2).tobytes()


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
