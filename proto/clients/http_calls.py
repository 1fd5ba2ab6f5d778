"""Requests of HTTP over connections that are kept: as many as ask at once."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...errors import BadAnswer, DeadlineExceeded, TeacherLost, WireError
from ..json_objects import parse_object
from ..security.http_dial import HttpDial
from ..wire import MAX_MESSAGE_BYTES
from .http_timed import TimedResponse, left_s

_PIECE_BYTES: Final = 1 << 20
_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        status: the code.
        headers: by name in lower case.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: memoryview

    def words(self) -> str:
        """What an error says of itself, in one line; the text of its JSON where it is JSON."""
        text = bytes(self.body[: 4 * _WORDS]).decode("utf-8", "replace")
        with suppress(WireError):
            said = parse_object(self.body)
            text = str(said.get("error", said.get("detail", text)))
        return " ".join(text.split())[:_WORDS] or f"HTTP status {self.status} and nothing else"


class HttpCalls:
    """Asks one server. Any thread may; a connection carries one request after another.

    Args:
        dial: opens connections.
    """

    def __init__(self, dial: HttpDial) -> None:
        self._dial = dial
        self._lock = threading.Lock()
        self._open: dict[http.client.HTTPConnection, socket.socket] = {}
        self._idle: list[http.client.HTTPConnection] = []  # the last one used is the next one
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Ask, and wait for the answer.

        A connection that was kept may have been closed by the server meanwhile: then the request is
        sent once more, over a fresh one. To label a batch twice does no harm.

        Raises:
            DeadlineExceeded: it did not come in time.
            TeacherLost: nobody answers, the connection broke, or this was closed.
            BadAnswer: what came is no HTTP, or too much.
        """
        deadline = time.monotonic() + timeout_s
        said = {**self._dial.headers(), **(headers or {})}
        request = (method, self._dial.path + path, body, said)
        try:
            if (kept := self._kept()) is not None:
                with suppress(ConnectionError):
                    return self._once(kept, deadline, *request)
            return self._once(self._fresh(deadline), deadline, *request)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from None
        except (OSError, http.client.IncompleteRead) as error:
            why = "the connection is closed" if self._closed else str(error) or repr(error)
            raise TeacherLost(why) from None
        except http.client.BadStatusLine as error:
            raise BadAnswer(
                f"the server speaks no HTTP ({error!r:.80}); is it gRPC? Then write grpc://"
            ) from None
        except http.client.HTTPException as error:
            raise BadAnswer(f"the server speaks no HTTP: {error!r:.200}") from None

    def close(self) -> None:
        """End all connections; calls that wait end as TeacherLost. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = [sock for connection, sock in self._open.items() if connection not in idle]
            self._open.clear()
        for connection in idle:
            connection.close()
        for sock in busy:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes who waits for it, who then closes it

    def _kept(self) -> http.client.HTTPConnection | None:
        """An idle connection over which nothing has come since its last answer.

        What has come is a farewell, or an answer that nobody asked for: it must never be taken for
        that to the next request.
        """
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _has_come(connection.sock):
                return connection
            self._give_back(connection, keep=False)

    def _once(
        self,
        connection: http.client.HTTPConnection,
        deadline: float,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Reply:
        keep = sent = False
        sock = connection.sock
        try:
            sock.settimeout(left_s(deadline))
            with suppress(ConnectionError):  # one that refuses a body may not wait for its end
                connection.request(method, path, body or None, dict(headers))
                sent = True
            connection.response_class = partial(TimedResponse, deadline)  # type: ignore[assignment]
            response = connection.getresponse()
            reply = Reply(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                _body(response),
            )
            # Behind a status of 1xx the answer itself is still to come.
            keep = sent and response.status >= http.client.OK and not response.will_close
        finally:
            self._give_back(connection, keep)
        return reply

    def _fresh(self, deadline: float) -> http.client.HTTPConnection:
        if not self._closed:
            connection = self._dial.connect(left_s(deadline))
            with self._lock:
                if not self._closed:
                    self._open[connection] = connection.sock
                    return connection
            connection.close()
        raise ConnectionError("the connection is closed")

    def _give_back(self, connection: http.client.HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed:
                self._idle.append(connection)
                return
            self._open.pop(connection, None)
        connection.close()


def _has_come(sock: socket.socket) -> bool:
    """Whether there is something to be read, be it the end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0)) or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)


def _body(response: http.client.HTTPResponse) -> memoryview:
    """All of a body, in pieces, so that one without an end is refused before memory is."""
    announced = response.length
    if announced is not None and announced > MAX_MESSAGE_BYTES:
        raise BadAnswer(f"the answer has {announced} bytes, more than any message may")
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise BadAnswer(f"the answer has more than {MAX_MESSAGE_BYTES} bytes")
    response.close()  # it is read to its end, which lets the connection take the next request
    if announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(b"", announced - len(body))
    return memoryview(body).toreadonly()
