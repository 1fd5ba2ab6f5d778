"""Who comes to a door in these tests: neighbours, and strangers."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edl.proto.arena import Array
from edl.proto.clients import Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.datatypes import to_bytes
from edl.proto.doors import LENGTH, WELCOME
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place
from edl.proto.security import ClientSecurity
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array

X = array(300, 4)
Make = Callable[..., Bench]


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
