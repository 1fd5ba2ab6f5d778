"""The baseline transports: bytes over a plain socket, of TCP or of `ssl`.

The transports `COPIED` and `COPIED_LOCAL` are the least that a reader does: because another process
sends, the trainer has to copy each batch first. For a teacher on another host the copy is sent, for
a teacher on the same host only its location. The time in which a teacher reads the copy in shared
memory is left out.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...proto.arena import Array
from ...proto.security.certificates import client_context, reloading_context
from ...proto.security.credentials import ClientSecurity, TlsFiles
from . import HOST, IN_FLIGHT, SendRequest, Transport, read_pages
from . import reply as make_reply

#: As many bytes as a location in shared memory and its generation.
_LOCATION: Final = np.zeros((1, 3), np.uint64)


def _serve(batch: Array, tls: TlsFiles | None) -> int:
    listener = socket.create_server((HOST, 0))
    context = None if tls is None else reloading_context(tls)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            threading.Thread(target=_answer, args=(connection, batch), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _serve_locations(batch: Array, tls: TlsFiles | None) -> int:
    return _serve(_LOCATION, tls)


def _connect(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    return _connect_each(port, [batch] * IN_FLIGHT, tls)


def _connect_copying(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    copies = [np.empty_like(batch) for _ in range(IN_FLIGHT)]
    return _copying(batch, copies, _connect_each(port, copies, tls))


def _connect_copying_locally(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    copies = [np.empty_like(batch) for _ in range(IN_FLIGHT)]
    return _copying(batch, copies, _connect(port, _LOCATION, tls))


TCP: Final = Transport(_serve, _connect)
COPIED: Final = Transport(_serve, _connect_copying)
COPIED_LOCAL: Final = Transport(_serve_locations, _connect_copying_locally)


def _connect_each(port: int, batches: Sequence[Array], tls: TlsFiles | None) -> SendRequest:
    """Connect each thread to the server; return a function that sends the thread's batch."""
    connections = [socket.create_connection((HOST, port)) for _ in batches]
    if tls is not None:
        context = client_context(ClientSecurity(tls=TlsFiles(ca=tls.certificate)))
        connections = [context.wrap_socket(plain, server_hostname=HOST) for plain in connections]
    replies = [make_reply() for _ in connections]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send_request(number: int) -> None:
        connections[number].sendall(batches[number].data.cast("B"))
        _receive(connections[number], replies[number])

    return send_request


def _copying(batch: Array, copies: Sequence[Array], send: SendRequest) -> SendRequest:
    """Return a function that copies `batch` to the thread's copy, then calls `send`."""

    def send_request(number: int) -> None:
        np.copyto(copies[number], batch)
        send(number)

    return send_request


def _answer(connection: socket.socket, batch: Array) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request, reply = np.empty_like(batch), make_reply()
    while _receive(connection, request):
        read_pages(request)
        connection.sendall(reply.data.cast("B"))


def _receive(connection: socket.socket, array: Array) -> bool:
    """Fill `array`; return False if the connection ends before it is full."""
    view = array.data.cast("B")
    if not isinstance(connection, ssl.SSLSocket):
        return connection.recv_into(view, len(view), socket.MSG_WAITALL) == len(view)
    while view and (count := connection.recv_into(view)):
        view = view[count:]
    return not view
