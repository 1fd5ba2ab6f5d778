"""The baseline lanes: bytes over a plain socket, of TCP or of `ssl`."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence

import numpy as np

from ...proto.arena import Array
from ...proto.security import ClientSecurity, TlsFiles
from ...proto.security.certificates import client_context, reloading_context
from . import HOST, IN_FLIGHT, Ask, look_at
from . import reply as make_reply


def serve(batch: Array, tls: TlsFiles | None = None) -> int:
    """See `Lane`."""
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


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    return connect_each(port, [batch] * IN_FLIGHT, tls)


def connect_each(port: int, batches: Sequence[Array], tls: TlsFiles | None = None) -> Ask:
    """Connect each thread to the server; return a function that sends the thread's batch."""
    connections = [socket.create_connection((HOST, port)) for _ in batches]
    if tls is not None:
        context = client_context(ClientSecurity(tls=TlsFiles(ca=tls.certificate)))
        connections = [context.wrap_socket(one, server_hostname=HOST) for one in connections]
    replies = [make_reply() for _ in connections]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(number: int) -> None:
        connections[number].sendall(batches[number].data.cast("B"))
        _receive(connections[number], replies[number])

    return ask


def _answer(connection: socket.socket, batch: Array) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request, reply = np.empty_like(batch), make_reply()
    while _receive(connection, request):
        look_at(request)
        connection.sendall(reply.data.cast("B"))


def _receive(connection: socket.socket, array: Array) -> bool:
    """Fill `array`; False at the end of the connection."""
    view = array.data.cast("B")
    if not isinstance(connection, ssl.SSLSocket):
        return connection.recv_into(view, len(view), socket.MSG_WAITALL) == len(view)
    while view and (count := connection.recv_into(view)):
        view = view[count:]
    return not view
