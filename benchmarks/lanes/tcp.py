"""Bytes over a socket, and nothing else: the baseline."""

from __future__ import annotations

import socket
import threading

import numpy as np

from ...proto.arena import Array
from . import IN_FLIGHT, Ask, look_at
from . import reply as make_reply


def serve(batch: Array) -> int:
    """See `Lane`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, batch), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def connect(port: int, batch: Array) -> Ask:
    """See `Lane`."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(IN_FLIGHT)]
    replies = [make_reply() for _ in connections]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(number: int) -> None:
        connections[number].sendall(batch.data.cast("B"))
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
    return connection.recv_into(view, len(view), socket.MSG_WAITALL) == len(view)
