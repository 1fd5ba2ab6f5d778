"""Who is let in by a teacher's door, and for how long."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from edl.errors import Unauthenticated
from edl.proto.clients import door_line
from edl.proto.doors import Invitation, user_behind
from edl.proto.security import ClientSecurity, ServerSecurity
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S
from edl.tests.teacher.door.callers import (
    Make,
    Settle,
    X,
    heard,
    inside,
    knock,
    ticket_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")


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
