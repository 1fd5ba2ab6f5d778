"""Client of the Open Inference Protocol over HTTP, with its pool of connections."""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import grpc

from ...runtime.errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    WireError,
    WrongInstance,
)
from .. import json_tensors
from ..datatypes import MAX_MESSAGE_BYTES, Buffer, TensorSpec
from ..json_tensors import HEAD_LENGTH, objects_in, parse_object, shape_of, split, text_in
from ..security.certificates import handshake_hint
from ..security.client_connections import HttpConnector
from ..security.credentials import ClientSecurity
from ..status import STATUS_HEADER, from_status
from . import MODEL_CONFIGURATION, LabelRequest, LabelResponse, ModelDescription

_MAX_ERROR_CHARS: Final = 300
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete answer; `headers` has names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview

    def error_text(self) -> str:
        """Return the error as one line: `error` or `detail` of a JSON body, else the body."""
        text = bytes(self.body[: 4 * _MAX_ERROR_CHARS]).decode("utf-8", "replace")
        with suppress(WireError):
            message = parse_object(self.body)
            text = str(message.get("error", message.get("detail", text)))
        return (
            " ".join(text.split())[:_MAX_ERROR_CHARS]
            or f"HTTP status {self.status} without a message"
        )


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    method: str
    target: str  # path of the URL
    headers: Mapping[str, str]
    body: Sequence[Buffer]
    check: Callable[[], None] | None  # see `HttpConnectionPool.call`


class HttpConnectionPool:
    """Connections to one server, kept open. Any thread may call; calls never share a connection.

    Args:
        connector: opens connections.
    """

    def __init__(self, connector: HttpConnector) -> None:
        self._connector = connector
        self._lock = threading.Lock()
        self._sockets: dict[http.client.HTTPConnection, socket.socket] = {}
        self._idle: list[http.client.HTTPConnection] = []  # the last one is reused first
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        until_s: float,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        check: Callable[[], None] | None = None,
    ) -> HttpReply:
        """Send a request and wait for the answer.

        The server may have closed an idle connection of the pool; then the request is sent again
        over a new connection. Labelling a batch twice does no harm.

        Args:
            method: HTTP method.
            path: appended to the path of the URL.
            until_s: deadline in seconds of the monotonic clock.
            body: buffers, in order.
            headers: additional headers.
            check: called after the body was sent; raises InputsOverwritten if the body changed
                meanwhile.

        Raises:
            DeadlineExceeded: the answer did not come in time.
            TeacherLost: the server does not answer, the connection broke, or the pool was closed.
            BadAnswer: the answer is not HTTP, or is too large.
        """
        fields = {"Host": self._connector.host, **self._connector.headers(), **(headers or {})}
        if body:
            fields["Content-Length"] = str(sum(map(len, body)))
        request = _HttpRequest(method, self._connector.path + path, fields, body, check)
        if (idle := self._take_idle()) is not None:
            try:
                return self._exchange_on(idle, request, until_s)
            except DeadlineExceeded:
                raise
            except TeacherLost:
                pass  # the server has closed the idle connection
        return self._exchange_on(self._open_connection(until_s), request, until_s)

    def close(self) -> None:
        """Close all connections; waiting calls raise TeacherLost. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = [sock for connection, sock in self._sockets.items() if connection not in idle]
        for connection in idle:
            self._drop(connection)
        for sock in busy:  # the waiting call closes it
            with suppress(OSError):  # the connection has ended already
                # `SSLSocket.shutdown` also removes the encryption: the waiting call would then take
                # ciphertext for its answer, or send the rest of its request in the clear.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # --- connections

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """Return an idle connection or None; drop those that the server closed or wrote to."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_readable(connection.sock):
                return connection
            self._drop(connection)

    def _open_connection(self, until_s: float) -> http.client.HTTPConnection:
        if self._closed:
            raise TeacherLost("the connection is closed")
        try:
            sock = self._connector.connect(_left_s(until_s))
        except TimeoutError:
            raise DeadlineExceeded("no connection before the deadline") from None
        except OSError as error:
            hint = handshake_hint(str(error))
            text = f"the server cannot be reached: {error}" + (f"; {hint}" if hint else "")
            raise TeacherLost(text) from None
        connection = http.client.HTTPConnection(self._connector.host)
        connection.sock = sock
        with self._lock:
            if not self._closed:
                self._sockets[connection] = sock
                return connection
        connection.close()
        raise TeacherLost("the connection is closed")

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            sock = self._sockets.pop(connection)
        connection.close()
        sock.close()

    def _exchange_on(
        self, connection: http.client.HTTPConnection, request: _HttpRequest, until_s: float
    ) -> HttpReply:
        is_reusable = False
        try:
            reply, is_reusable = _exchange(connection, request, until_s)
            return reply
        except (http.client.HTTPException, OSError) as error:
            raise self._error_from(error) from None
        finally:
            with self._lock:
                is_reusable = is_reusable and not self._closed
                if is_reusable:
                    self._idle.append(connection)
            if not is_reusable:
                self._drop(connection)

    def _error_from(self, error: http.client.HTTPException | OSError) -> EdlError:
        if self._closed:
            return TeacherLost("the connection is closed")
        match error:
            case TimeoutError():
                return DeadlineExceeded("no answer before the deadline")
            case OSError():
                return TeacherLost(f"the connection broke: {error}")
            case http.client.IncompleteRead():
                return TeacherLost(f"the answer ended too early: {error}")
            case http.client.BadStatusLine():
                return BadAnswer(
                    f"the server speaks no HTTP; if it speaks gRPC, write grpc:// ({error!r:.80})"
                )
        return BadAnswer(f"the server speaks no HTTP: {error!r:.200}")


def _exchange(
    connection: http.client.HTTPConnection, request: _HttpRequest, until_s: float
) -> tuple[HttpReply, bool]:
    """Send a request; return the reply, and whether the connection can be used again."""
    sock = connection.sock

    def pieces() -> Iterator[Buffer]:
        for piece in request.body:
            sock.settimeout(_left_s(until_s))
            yield piece

    connection.response_class = partial(_DeadlineResponse, until_s)  # type: ignore[assignment]
    sock.settimeout(_left_s(until_s))
    sent = False
    with suppress(ConnectionError):  # the server may have answered without reading the whole body
        body = pieces() if request.body else None
        connection.request(request.method, request.target, body, request.headers)
        sent = True
        if request.check is not None:
            request.check()
    with connection.getresponse() as response:
        headers = {name.lower(): value for name, value in response.getheaders()}
        reply = HttpReply(response.status, headers, _read_body(response))
        # After a status of 1xx the server will send another response.
        return reply, sent and response.status >= http.client.OK and not response.will_close


def _read_body(response: http.client.HTTPResponse) -> memoryview:
    """Read a body in pieces, so that an endless body is refused before it fills the memory."""
    announced = response.length
    _check_size(announced or 0)
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        _check_size(len(body))
    if announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(b"", announced - len(body))
    return memoryview(body).toreadonly()


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_MESSAGE_BYTES:
        raise BadAnswer(f"the answer is larger than the limit of {MAX_MESSAGE_BYTES} bytes")


class _DeadlineResponse(http.client.HTTPResponse):
    """A response whose reads all respect one deadline.

    The timeout of a socket limits a single read, and one line of a header may take many reads.
    """

    def __init__(self, until_s: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        file: Any = self.fp
        self.fp = io.BufferedReader(_DeadlineFile(sock, file.detach(), until_s))


class _DeadlineFile(io.RawIOBase):
    """A socket's file whose reads raise TimeoutError after a deadline."""

    def __init__(self, sock: socket.socket, file: io.RawIOBase, until_s: float) -> None:
        self._sock, self._file, self._until_s = sock, file, until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left_s(self._until_s))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_readable(connection: socket.socket) -> bool:
    """Return whether there is data to read, or the peer has closed the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    pending = isinstance(connection, ssl.SSLSocket) and connection.pending()
    return bool(pending) or bool(poll.poll(0))


def _left_s(until_s: float) -> float:
    """Return the seconds until `until_s` on the monotonic clock; raises TimeoutError after it."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


_ERROR_OF_STATUS: Final[dict[int, type[EdlError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    408: DeadlineExceeded,
    412: WrongInstance,
    429: RateLimited,
    501: RequestRefused,
    502: TeacherLost,  # from a proxy that cannot reach its server
    504: DeadlineExceeded,
}
#: Errors of all other statuses, by the lowest status of each range.
_ERROR_OF_RANGE: Final[tuple[tuple[int, type[EdlError]], ...]] = (
    (500, RetryableError),
    (300, RequestRefused),  # a redirect is refused, too
    (0, BadAnswer),  # 1xx, and 2xx other than 200: neither labels nor an error
)
_MAX_RETRY_AFTER_DIGITS: Final = 9


def error_from_http(reply: HttpReply) -> EdlError:
    """Return the error for an answer with a status other than 200.

    Our teachers also send gRPC's status in a header, which is more precise.
    """
    code = grpc.StatusCode.__members__.get(reply.headers.get(STATUS_HEADER, ""), grpc.StatusCode.OK)
    if code is not grpc.StatusCode.OK:
        return from_status(code, reply.error_text(), reply.headers.items())
    kind = _ERROR_OF_STATUS.get(reply.status)
    if kind is None:
        kind = next(kind for lowest, kind in _ERROR_OF_RANGE if reply.status >= lowest)
    error = kind(f"HTTP {reply.status}: {reply.error_text()}")
    if isinstance(error, RateLimited):
        seconds = reply.headers.get("retry-after", "")
        if seconds.isascii() and seconds.isdigit() and len(seconds) <= _MAX_RETRY_AFTER_DIGITS:
            error.retry_after_s = float(seconds)
    return error


def decode_labels(reply: HttpReply) -> LabelResponse:
    """Decode the labels in a reply.

    Raises:
        EdlError: the error for a status other than 200; see `error_from_http`.
        BadAnswer: the reply cannot be decoded.
    """
    if reply.status != 200:
        raise error_from_http(reply)
    try:
        head, raw = split(reply.body, reply.headers.get(HEAD_LENGTH.lower()))
        return json_tensors.decode_response(head, raw)
    except WireError as error:
        raise BadAnswer(str(error)) from None


#: Statuses with which servers refuse a binary body, because they reject it or fail to parse it.
_BINARY_REFUSED_STATUSES: Final = (400, 406, 415, 422, 500, 501)
#: The one of these statuses that may have another cause than the binary body. With this status, a
#: server counts as refusing binary bodies only if an earlier binary body has failed, too. Each time
#: the same request as JSON must have succeeded.
_AMBIGUOUS_STATUS: Final = 500
_NOT_READY: Final = (400, 503)
#: The JSON object of a request, and the buffers that follow it.
_Message = tuple[bytes, list[memoryview]]


class OipHttpClient:
    """A `TeacherClient` of one model.

    Args:
        url: http://host:port or https://host:port, with the path that precedes /v2 if there is one.
        model: name of the model at the server.
        security: credentials for the server; None for no token.

    Attributes:
        binary: whether the server accepts tensors as bytes; None until that is known.

    Raises:
        UsageError: the URL is invalid, or a file of `security` cannot be used.
    """

    def __init__(self, url: str, model: str, security: ClientSecurity | None = None) -> None:
        self.binary: bool | None = None
        self._has_failed = False  # a binary body failed, and the same request as JSON succeeded
        self._model = model
        self._path = f"/v2/models/{quote(model, safe='')}"
        self._pool = HttpConnectionPool(HttpConnector(url, security))

    def probe(self, timeout_s: float) -> ModelDescription:
        until_s = time.monotonic() + timeout_s
        ready = self._pool.call("GET", f"{self._path}/ready", until_s)
        if ready.status in _NOT_READY or _json_member(ready, "ready") is False:
            raise RetryableError(f"model {self._model!r} is not ready there: {ready.error_text()}")
        if ready.status != 200:
            raise error_from_http(ready)
        described = self._pool.call("GET", self._path, until_s)
        if described.status == 200:
            return replace(_description_of(described), most_rows=self._most_rows(until_s))
        if isinstance(error := error_from_http(described), RequestRefused):
            return ModelDescription()  # the model is ready, but the server does not describe it
        raise error

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        until_s = time.monotonic() + timeout_s
        if self.binary is not None:
            message = _encoded(request, binary=self.binary)
            return decode_labels(self._post(message, request, until_s))
        had_failed = self._has_failed  # read first: concurrent requests may share a cause
        reply = self._post(_encoded(request, binary=True), request, until_s)
        if reply.status not in _BINARY_REFUSED_STATUSES:
            answer = decode_labels(reply)
            self.binary = True
            return answer
        try:
            message = _encoded(request, binary=False)
        except RequestRefused:  # JSON cannot carry the request: report the error of the binary one
            raise error_from_http(reply) from None
        answer = decode_labels(self._post(message, request, until_s))
        if reply.status != _AMBIGUOUS_STATUS or had_failed:
            self.binary = False
        self._has_failed = True
        return answer

    def close(self) -> None:
        self._pool.close()

    def _most_rows(self, until_s: float) -> int | None:
        """Return the rows of the largest batch that the model accepts; None if unknown."""
        extensions = _json_member(self._pool.call("GET", "/v2", until_s), "extensions")
        if not isinstance(extensions, list) or MODEL_CONFIGURATION not in extensions:
            return None
        rows = _json_member(
            self._pool.call("GET", f"{self._path}/config", until_s), "max_batch_size"
        )
        return rows if isinstance(rows, int) and rows > 0 else None

    def _post(self, message: _Message, request: LabelRequest, until_s: float) -> HttpReply:
        head, raws = message
        # Servers choose a decoder by the content type.
        headers = {"Content-Type": "application/json"}
        if raws:
            headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
        path = f"{self._path}/infer"
        return self._pool.call("POST", path, until_s, [head, *raws], headers, request.check)


def _encoded(request: LabelRequest, *, binary: bool) -> _Message:
    try:
        return json_tensors.encode_request(request, binary=binary)
    except (WireError, ValueError) as error:  # the protocol cannot carry this request
        raise RequestRefused(f"the request cannot be sent: {error}") from None


def _json_member(reply: HttpReply, name: str) -> Any:
    """Return a member of the JSON object in a reply; None if there is none."""
    try:
        return parse_object(reply.body).get(name) if reply.status == 200 else None
    except WireError:
        return None


def _description_of(reply: HttpReply) -> ModelDescription:
    try:
        message = parse_object(reply.body)
        return ModelDescription(_specs(message, "inputs"), _specs(message, "outputs"))
    except WireError as error:
        raise BadAnswer(f"the model's description cannot be read: {error}") from None


def _specs(message: dict[str, Any], key: str) -> tuple[TensorSpec, ...]:
    if message.get(key) is None:
        return ()
    return tuple(
        TensorSpec(
            text_in(tensor, "name"),
            text_in(tensor, "datatype"),
            tuple(shape_of(tensor)),
            text_in(tensor, "output_kind") if "output_kind" in tensor else "",
        )
        for tensor in objects_in(message, key)
    )
