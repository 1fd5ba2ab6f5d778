"""A line of HTTP: what is asked leaves from where it lies, what is answered stays where it came.

Head and body of a request are given to the system as they lie in memory. A reply with a plain head
is received into the memory that it stays in; any other is read by Python's own library.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import closing, suppress
from typing import Final

import numpy as np

from ...errors import BadAnswer, TeacherLost
from .http_messages import HttpRequest, PlainHead, Reply, check_size
from .http_timed import TimedResponse
from .lines import Ended, left_s
from .socket_line import SocketLine

#: Of a reply, read at first: its head, mostly all of its JSON, and little that has to be copied.
_FIRST_BYTES: Final = 4 << 10
_MOST_HEAD_BYTES: Final = 64 << 10
_HEAD_ENDS: Final = b"\r\n\r\n"
_PIECE_BYTES: Final = 1 << 20
#: Pieces of memory that the system takes at once; Linux takes no more than 1024.
_PIECES: Final = 512


class HttpLine(SocketLine[HttpRequest, Reply]):
    """A `Line` for one request at a time.

    Args:
        connection: that stands.
        host: as requests name it.
        wire: held while a request is sent. Those to one server leave one after the other: two at
            once would both be late.
    """

    def __init__(self, connection: socket.socket, host: str, wire: threading.Lock) -> None:
        super().__init__(connection)
        self._host = host
        self._wire = wire
        self._keeps = True

    @property
    def is_open(self) -> bool:
        return self._keeps and super().is_open

    def ask(self, message: HttpRequest, until_s: float) -> Reply:
        """As of `Line`; raises BadAnswer where what comes is no HTTP, or too much."""
        try:
            return super().ask(message, until_s)
        except http.client.IncompleteRead as error:
            raise Ended(TeacherLost(f"the answer ended too early: {error}")) from None
        except http.client.BadStatusLine as error:
            raise BadAnswer(
                f"the server speaks no HTTP ({error!r:.80}); is it gRPC? Then write grpc://"
            ) from None
        except http.client.HTTPException as error:
            raise BadAnswer(f"the server speaks no HTTP: {error!r:.200}") from None

    def _answer_to(self, request: HttpRequest, until_s: float) -> Reply:
        self._keeps = False  # unless all goes well
        sent = False
        with suppress(ConnectionError):  # one that refuses a body may not wait for its end
            self._send([request.head(self._host), *request.body], until_s)
            sent = True
            request.check()
        came = self._head(until_s)
        head, _, begun = came.partition(_HEAD_ENDS)
        if len(came) == len(head) or (plain := PlainHead.read(head)) is None:
            reply, keeps = self._by_library(came, until_s)
        else:
            reply = Reply(plain.status, plain.headers, self._body(plain.nbytes, begun, until_s))
            keeps = plain.keeps and len(begun) <= plain.nbytes
        self._keeps = keeps and sent
        return reply

    def _send(self, pieces: list[bytes | bytearray | memoryview], until_s: float) -> None:
        left = [memoryview(piece) for piece in reversed(pieces) if len(piece)]
        if not self._wire.acquire(timeout=left_s(until_s)):
            raise TimeoutError
        try:
            while left:
                self._socket.settimeout(left_s(until_s))
                _strike_out(left, self._send_some(left))
        finally:
            self._wire.release()

    def _send_some(self, left: list[memoryview]) -> int:
        if isinstance(self._socket, ssl.SSLSocket):  # which has no sendmsg
            return self._socket.send(left[-1])
        return self._socket.sendmsg(left[: -_PIECES - 1 : -1])

    def _head(self, until_s: float) -> bytes:
        """What comes first: a head and perhaps more, or all there is where that has none."""
        came = b""
        while _HEAD_ENDS not in came and len(came) < _MOST_HEAD_BYTES:
            self._socket.settimeout(left_s(until_s))
            if not (more := self._socket.recv(_FIRST_BYTES)):
                break
            came += more
        return came

    def _body(self, nbytes: int, begun: bytes, until_s: float) -> memoryview:
        body = np.empty(nbytes, np.uint8).data  # which takes no memory before it is filled
        here = min(len(begun), nbytes)
        body[:here] = begun[:here]
        self._receive_into(body[here:], until_s)
        return body.toreadonly()

    def _by_library(self, came: bytes, until_s: float) -> tuple[Reply, bool]:
        """A reply that begins with `came`, and whether the connection may be kept."""
        with closing(TimedResponse(until_s, came, self._socket)) as response:
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            reply = Reply(response.status, headers, _all_of(response))
            # Behind a status of 1xx the answer itself is still to come.
            return reply, response.status >= http.client.OK and not response.will_close


def _strike_out(left: list[memoryview], nbytes: int) -> None:
    """Of what is left, the last being the next, `nbytes` have gone."""
    while left and nbytes >= len(left[-1]):
        nbytes -= len(left.pop())
    if nbytes:
        left[-1] = left[-1][nbytes:]


def _all_of(response: http.client.HTTPResponse) -> memoryview:
    """All of a body, in pieces, so that one without an end is refused before memory is."""
    announced = response.length
    check_size(announced or 0)
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        check_size(len(body))
    if announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(b"", announced - len(body))
    return memoryview(body).toreadonly()
