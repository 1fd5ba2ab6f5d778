"""A line through the door of a teacher on this host."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

from ..doors import LENGTH, WELCOME, Invitation, user_behind
from .lines import left_s
from .socket_line import SocketLine

#: From knocking to being let in.
_WELCOME_S: Final = 5.0


def enter(invitation: Invitation) -> socket.socket:
    """Go in by a door: a connection over which requests may be sent.

    Raises:
        OSError: nobody lets us in by that door, or it is not the teacher's.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_WELCOME_S)
        connection.connect(invitation.address)
        # Anybody may take a name that is free. A teacher that can open our memory is of our user,
        # or root; whoever else is there learns no ticket.
        if user_behind(connection) not in (os.geteuid(), 0):
            raise PermissionError("another user is behind the teacher's door")
        connection.sendall(invitation.ticket.encode())
        if connection.recv(len(WELCOME), socket.MSG_WAITALL) != WELCOME:
            raise ConnectionRefusedError("the teacher lets nobody in by that ticket")
    except BaseException:
        connection.close()
        raise
    return connection


class DoorLine(SocketLine[bytes, memoryview]):
    """A `Line` for one request at a time.

    Raises:
        OSError: nobody lets us in by that door, or it is not the teacher's.
    """

    def __init__(self, invitation: Invitation) -> None:
        super().__init__(enter(invitation))

    def _answer_to(self, message: bytes, until_s: float) -> memoryview:
        self._socket.settimeout(left_s(until_s))
        with contextlib.suppress(ConnectionError):  # whoever lets nobody in may have said so
            self._socket.sendall(LENGTH.pack(len(message)) + message)
        (nbytes,) = LENGTH.unpack(self._received(LENGTH.size, until_s))
        return self._received(nbytes, until_s)

    def _received(self, nbytes: int, until_s: float) -> memoryview:
        answer = memoryview(bytearray(nbytes))
        self._receive_into(answer, until_s)
        return answer.toreadonly()
