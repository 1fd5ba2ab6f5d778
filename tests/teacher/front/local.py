"""Clients of the local listener of a server, whose batches lie in memory that both share."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

from edl.proto import inference_pb2 as pb
from edl.proto.arena import Array, Record
from edl.proto.clients import Answer, Request
from edl.proto.clients.http_way import Shut
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.datatypes import to_bytes
from edl.proto.doors import LENGTH, WELCOME, Invitation
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place
from edl.proto.security import ClientSecurity
from edl.proto.stacked import whole
from edl.tests.teacher.bench import WAIT_S, Bench


class Lender:
    """Memory that is lent to a server as a region."""

    def __init__(self) -> None:
        self.arena = LentArena.create(1 << 20)
        self.region = secrets.token_hex(8)

    def put(self, x: Array) -> tuple[Array, Place, Record]:
        """A copy of `x` in the memory, where it lies, and the record that frees it."""
        record = self.arena.put([x])
        lying = self.arena.get(record.arrays[0])
        return lying, self.place(lying), record

    def place(self, lying: Array) -> Place:
        found = self.arena.lent(to_bytes(lying))
        assert found is not None
        return Place(self.region, found.offset, lying.nbytes, *found[1:])

    def close(self) -> None:
        self.arena.close()


class LocalClient(Lender):
    """A client that puts each batch into its memory, and asks by the local listener, if it can."""

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        super().__init__()
        self.client = OipGrpcClient(address, "resnet", security)
        self.client.register_memory(self.region, self.arena.key, self.arena.size_bytes, WAIT_S)

    def infer(self, request: Request, timeout_s: float = WAIT_S) -> Answer:
        lying, place, record = self.put(whole(request.inputs["x"]))
        try:
            request = request._replace(inputs={"x": lying})
            try:
                return self.client.infer(request, timeout_s, {"x": place})
            except Shut:
                return self.client.infer(request, timeout_s)
        finally:
            self.arena.free(record.offset)

    def close(self) -> None:
        self.client.close()
        super().close()


class RawClient(Lender):
    """Connects to the local listener by hand, with the token of its registration."""

    def __init__(self, bench: Bench, token: str = "") -> None:
        super().__init__()
        self._bench = bench
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        self.offer = self._call(
            "Register", name=self.region, key=self.arena.key, byte_size=self.arena.size_bytes
        )

    def offered_again(self) -> Invitation:
        return self._call("Status")

    def unregister(self) -> None:
        request = pb.SystemSharedMemoryUnregisterRequest().SerializeToString()
        method = self._bench.method("SystemSharedMemoryUnregister")
        method(request, timeout=WAIT_S, metadata=self._metadata)

    def _call(self, action: str, **fields: object) -> Invitation:
        request = getattr(pb, f"SystemSharedMemory{action}Request")(**fields).SerializeToString()
        method = self._bench.method(f"SystemSharedMemory{action}")
        _, call = method.with_call(request, timeout=WAIT_S, metadata=self._metadata)
        offer = Invitation.among(call.trailing_metadata())
        assert offer is not None
        return offer

    def connect(self, data: bytes) -> socket.socket:
        """A connection that has sent `data`."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(WAIT_S)
        connection.connect(self.offer.address)
        with suppress(ConnectionError):  # it is closed at once
            connection.sendall(data)
        return connection

    def enter(self, data: bytes = b"", ticket: str = "") -> socket.socket:
        """A connection that was let in, and has sent `data`."""
        connection = self.connect((ticket or self.offer.ticket).encode())
        assert connection.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME
        connection.sendall(data)
        return connection

    def is_refused(self, data: bytes) -> bool:
        with self.connect(data) as connection:
            return received(connection) == b""


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def received(connection: socket.socket) -> bytes:
    """One answer; empty at the end of the connection."""
    try:
        head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
        return connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL) if head else b""
    except ConnectionError:
        return b""
