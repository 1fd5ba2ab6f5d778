"""A line through the door of a teacher on this host."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Final

from ...errors import DeadlineExceeded, TeacherLost
from ..doors import LENGTH, Invitation
from .lines import Ended

#: A Unix socket is connected at once, or somebody is very busy.
_CONNECT_S: Final = 5.0


class DoorLine:
    """A `Line` for one request at a time.

    Raises:
        OSError: nobody is behind that door any more.
    """

    def __init__(self, invitation: Invitation) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(_CONNECT_S)
            self._socket.connect(invitation.address)
            self._socket.sendall(invitation.ticket.encode())
        except BaseException:
            self._socket.close()
            raise

    @property
    def is_open(self) -> bool:
        """Not if something has come that nobody asked for, be it the end."""
        if self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def ask(self, message: bytes, until_s: float) -> memoryview:
        try:
            self._socket.settimeout(_left_s(until_s))
            with contextlib.suppress(ConnectionError):  # whoever lets nobody in may have said so
                self._socket.sendall(LENGTH.pack(len(message)) + message)
            (nbytes,) = LENGTH.unpack(self._received(LENGTH.size, until_s))
            return self._received(nbytes, until_s)
        except TimeoutError:
            raise DeadlineExceeded("no answer within the time that there was for one") from None
        except OSError as error:
            why = f"the connection within this host broke: {error}"
            raise Ended(TeacherLost(why)) from None

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it is closed, or nobody is there
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for an answer
        self._socket.close()

    def _received(self, nbytes: int, until_s: float) -> memoryview:
        answer = memoryview(bytearray(nbytes))
        missing = answer
        while missing:
            self._socket.settimeout(_left_s(until_s))
            if not (count := self._socket.recv_into(missing)):
                raise ConnectionResetError("the teacher has closed it")
            missing = missing[count:]
        return answer.toreadonly()


def _left_s(until_s: float) -> float:
    if (left_s := until_s - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s
