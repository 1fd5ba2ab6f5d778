"""Reads the answer to one HTTP request by a deadline, however slowly it comes."""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any


class TimedResponse(http.client.HTTPResponse):
    """As of `http.client`, but no read lasts beyond `deadline`, be it of a head without an end.

    A timeout of the socket alone bounds each of its reads, of which a line may take thousands.

    Args:
        deadline: on the monotonic clock, in seconds.
        sock: of the connection; its timeout is changed.
        more: as of `http.client.HTTPResponse`.
    """

    def __init__(self, deadline: float, sock: socket.socket, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        file: Any = self.fp
        self.fp = io.BufferedReader(_Timed(sock, file.detach(), deadline))


class _Timed(io.RawIOBase):
    """Reads of a socket that know how much time is left."""

    def __init__(self, sock: socket.socket, file: io.RawIOBase, deadline: float) -> None:
        self._sock = sock
        self._file = file
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(left_s(self._deadline))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def left_s(deadline: float) -> float:
    """Seconds until `deadline`; raises TimeoutError where there is none left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
