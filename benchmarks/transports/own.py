"""The lane of our own transport: frames over TCP, received where the predictor reads them."""

from __future__ import annotations

import itertools
import select

from ...proto.arena import Array
from ...proto.clients import LabelRequest
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.clients.transport import TransportConnection
from ...proto.security import TlsFiles
from ...proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer
from ...runtime.errors import EdlError, ProcessFailed
from . import IN_FLIGHT, Ask
from .codec import TIMEOUT_S, client_of, serve

__all__ = ["connect", "serve"]


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    return asking(client_of(port, tls), batch, None)


def asking(client: OipGrpcClient, batch: Array, arena: SharedBuffer | None) -> Ask:
    """Return a function that sends `batch`, over one connection for each thread.

    Args:
        client: client of the server.
        batch: the batch to send.
        arena: shared memory for the batch, so that only its location is sent; None: send bytes.

    Raises:
        ProcessFailed: the server does not offer our transport.
    """
    locations = {}
    if arena is not None:
        ref = arena.put([batch]).arrays[0]
        batch = arena.get(ref)
        generation, generation_at = arena.generation(ref.offset), ref.offset - GENERATION_BYTES
        locations = {"x": BufferLocation(ref.offset, generation, generation_at)}
    request = LabelRequest({"x": batch})
    connections = []
    for _ in range(IN_FLIGHT):
        if (connection := client.connect(arena)) is None:
            raise ProcessFailed("the teacher offers no connection")
        connections.append((connection, select.poll(), itertools.count()))

    def ask(number: int) -> None:
        connection, poll, requests = connections[number]
        connection.put(next(requests), request, TIMEOUT_S, locations)
        _wait(connection, poll)

    return ask


def _wait(connection: TransportConnection, poll: select.poll) -> None:
    while True:
        connection.send()
        wanted = select.POLLIN | (select.POLLOUT if connection.unsent else 0)
        poll.register(connection.fileno(), wanted)
        poll.poll()
        for heard in connection.receive():
            if isinstance(heard.outcome, EdlError):
                raise heard.outcome
            return
