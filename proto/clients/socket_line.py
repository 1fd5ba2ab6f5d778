"""What lines with a connection of their own share: one request at a time, ended by any thread."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ...errors import DeadlineExceeded, TeacherLost
from .lines import Ended, left_s

_Message = TypeVar("_Message")
_Answer = TypeVar("_Answer")


class SocketLine(ABC, Generic[_Message, _Answer]):
    """A `Line` for one request at a time.

    Args:
        connection: that stands; it is this line's to close.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._asking = False
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Not if something has come that nobody asked for, be it the end."""
        with self._lock:
            return not (self._ended or _has_come(self._socket))

    def ask(self, message: _Message, until_s: float) -> _Answer:
        with self._lock:
            if self._ended:
                raise Ended(TeacherLost("the connection is closed"))
            self._asking = True
        try:
            return self._answer_to(message, until_s)
        except TimeoutError:
            raise DeadlineExceeded("no answer within the time that there was for one") from None
        except OSError as error:
            raise Ended(TeacherLost(f"the connection broke: {error}")) from None
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

    @abstractmethod
    def _answer_to(self, message: _Message, until_s: float) -> _Answer:
        """The answer; raises OSError where there is none, TimeoutError where it is late."""

    def _receive_into(self, missing: memoryview, until_s: float) -> None:
        """Fill `missing`; raises OSError, TimeoutError as `_answer_to`."""
        while missing:
            self._socket.settimeout(left_s(until_s))
            if not (count := self._socket.recv_into(missing)):
                raise ConnectionResetError("the server has closed it")
            missing = missing[count:]


def _has_come(connection: socket.socket) -> bool:
    """Whether there is something to be read, be it the end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    pending = isinstance(connection, ssl.SSLSocket) and connection.pending()
    return bool(pending) or bool(poll.poll(0))
