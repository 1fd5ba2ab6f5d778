"""Reads the answer to one HTTP request by a deadline, however slowly it comes."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from .lines import left_s


class TimedResponse(http.client.HTTPResponse):
    """As of `http.client`, but no read lasts beyond `deadline`, be it of a head without an end.

    A timeout of the socket alone bounds each of its reads, of which a line may take thousands.

    Args:
        deadline: on the monotonic clock, in seconds.
        came: what has been read of it.
        sock: of the connection, for the rest; its timeout is changed.
    """

    def __init__(self, deadline: float, came: bytes, sock: socket.socket) -> None:
        super().__init__(sock)
        file: Any = self.fp
        self.fp = io.BufferedReader(_Timed(came, sock, file.detach(), deadline))


class _Timed(io.RawIOBase):
    """Reads of a socket, behind what was read before, that know how much time is left."""

    def __init__(
        self, came: bytes, sock: socket.socket, file: io.RawIOBase, deadline: float
    ) -> None:
        self._came = came
        self._sock = sock
        self._file = file
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._came:
            count = min(len(self._came), len(buffer))
            buffer[:count], self._came = self._came[:count], self._came[count:]
            return count
        self._sock.settimeout(left_s(self._deadline))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
