"""A line through the door of a teacher on this host."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import Final

from ...errors import DeadlineExceeded, TeacherLost
from ..doors import LENGTH, WELCOME, Invitation, user_behind
from .http_timed import left_s
from .lines import Ended

#: From knocking to being let in.
_WELCOME_S: Final = 5.0


class DoorLine:
    """A `Line` for one request at a time.

    Raises:
        OSError: nobody lets us in by that door, or it is not the teacher's.
    """

    def __init__(self, invitation: Invitation) -> None:
        self._lock = threading.Lock()
        self._asking = False
        self._ended = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(_WELCOME_S)
            self._socket.connect(invitation.address)
            # Anybody may take a name that is free. A teacher that can open our memory is of our
            # user, or root; whoever else is there learns no ticket.
            if user_behind(self._socket) not in (os.geteuid(), 0):
                raise PermissionError("another user is behind the teacher's door")
            self._socket.sendall(invitation.ticket.encode())
            if self._socket.recv(len(WELCOME), socket.MSG_WAITALL) != WELCOME:
                raise ConnectionRefusedError("the teacher lets nobody in by that ticket")
        except BaseException:
            self._socket.close()
            raise

    @property
    def is_open(self) -> bool:
        """Not if something has come that nobody asked for, be it the end."""
        with self._lock:
            if self._ended:
                return False
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)

    def ask(self, message: bytes, until_s: float) -> memoryview:
        with self._lock:
            if self._ended:
                raise Ended(TeacherLost("the connection within this host is closed"))
            self._asking = True
        try:
            return self._answer_to(message, until_s)
        except TimeoutError:
            raise DeadlineExceeded("no answer within the time that there was for one") from None
        except OSError as error:
            why = f"the connection within this host broke: {error}"
            raise Ended(TeacherLost(why)) from None
        finally:
            with self._lock:
                self._asking = False
                if self._ended:
                    self._socket.close()

    def end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            with contextlib.suppress(OSError):  # nobody is there
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for an answer
            if not self._asking:  # else its number may be another file's before that thread looks
                self._socket.close()

    def _answer_to(self, message: bytes, until_s: float) -> memoryview:
        self._socket.settimeout(left_s(until_s))
        with contextlib.suppress(ConnectionError):  # whoever lets nobody in may have said so
            self._socket.sendall(LENGTH.pack(len(message)) + message)
        (nbytes,) = LENGTH.unpack(self._received(LENGTH.size, until_s))
        return self._received(nbytes, until_s)

    def _received(self, nbytes: int, until_s: float) -> memoryview:
        answer = memoryview(bytearray(nbytes))
        missing = answer
        while missing:
            self._socket.settimeout(left_s(until_s))
            if not (count := self._socket.recv_into(missing)):
                raise ConnectionResetError("the teacher has closed it")
            missing = missing[count:]
        return answer.toreadonly()
