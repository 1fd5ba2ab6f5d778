"""The Open Inference Protocol over HTTP/REST, with the same answers as over gRPC.

Requests of web pages are refused: any page that a user opens can make the browser send requests. On
loopback without credentials, every program of this machine may send batches, browsers included. A
page can send requests to 127.0.0.1, or let its own domain name resolve to that address. The header
`Origin`, or the name in `Host`, reveals such requests: clients of the protocol send no `Origin`,
and name the loopback address.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from ...proto.arena import Array
from ...proto.clients import LabelResponse
from ...proto.json_tensors import (
    HEAD_LENGTH,
    decode_request,
    encode_response,
    is_binary,
    parse_object,
    split,
)
from ...proto.security.credentials import is_local_address
from ...proto.status import STATUS_HEADER, to_http_status, to_metadata, to_status
from ...proto.tensors import BufferReader, InferRequest, SlowToDecode
from ...runtime.addresses import join_address
from ...runtime.errors import EdlError, RateLimited, RequestRefused, WireError
from ..recorder import CallRecord, Recorder
from ..request import RequestTooLarge
from .admission import AdmittedCall
from .callers import CallCredentials
from .servicer import MAX_SMALL_REQUEST_BYTES, QUICK_BYTES, ServerContext

#: Key in the `state` of a request: the common name of the caller's certificate.
COMMON_NAME: Final = "common_name"
#: Key in the `state` of a request: a weak reference to `HttpConnection.call_when_sent`.
CALL_WHEN_SENT: Final = "call_when_sent"


def credentials_of(request: Request) -> CallCredentials:
    """Return the credentials of a request: a header, and the certificate of its connection."""
    name: str | None = getattr(request.state, COMMON_NAME, None)
    identities = {"x509_common_name": [name.encode()]} if name else {}
    metadata = [("authorization", request.headers.get("authorization", ""))]
    return CallCredentials(metadata, identities, "", client=request.client)


# Cached, because clients send the same name with each batch.
_is_loopback_name = lru_cache(maxsize=64)(is_local_address)


def refuse_browsers(app: ASGIApp, *, local: bool) -> ASGIApp:
    """Wrap an application to refuse requests of web pages.

    Args:
        app: the application.
        local: whether the server listens on loopback; then the name in `Host` must be a loopback
            name.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        headers, answer = Headers(scope=scope), app
        if "origin" in headers:
            answer = JSONResponse({"error": "requests of web pages are refused"}, 403)
        elif local and not _is_loopback_name(headers.get("host", "")):
            answer = JSONResponse({"error": "use the host 127.0.0.1 or localhost"}, 421)
        await answer(scope, receive, send)

    return wrapped


#: Key in the `state` of a request: the record of its call.
_ENTRY: Final = "entry"


def call_record_of(request: Request) -> CallRecord:
    """Return the record of a request's call."""
    entry: CallRecord = getattr(request.state, _ENTRY)
    return entry


def record_calls(app: ASGIApp, recorder: Recorder) -> ASGIApp:
    """Wrap an application to record each call."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        # Without the query, which may contain secrets.
        method = f"{scope['method']} {scope['path']}"
        with recorder.call("http", method, lambda: _peer(scope)) as entry:
            scope["state"][_ENTRY] = entry

            async def send_and_record(message: AsgiMessage) -> None:
                if message["type"] == "http.response.start":
                    entry.status = message["status"]
                else:
                    entry.sent_bytes = len(message.get("body", b""))
                await send(message)

            await app(scope, receive, send_and_record)

    return wrapped


def _peer(scope: Scope) -> str:
    """Return the address of the caller; "unknown" if it reset the connection very early."""
    client: tuple[str, int] | None = scope.get("client")
    return "unknown" if client is None else join_address(*client)


#: Logged status of a request after its caller has hung up, as in nginx.
CLIENT_GONE: Final = 499
#: The largest JSON. Parsing it needs many times its size in memory, and holds the GIL.
_MAX_JSON_BYTES: Final = 16 << 20
#: Larger JSON is parsed one request at a time.
_PARALLEL_JSON_BYTES: Final = 64 << 10
#: JSON up to this size is parsed and encoded in the event loop.
_INLINE_JSON_BYTES: Final = 4 << 10


class PathNotFound(RequestRefused):
    """There is nothing at this path."""


class UnsupportedEncoding(RequestRefused):
    """The body has an encoding that is not supported."""


#: Statuses without a gRPC code.
_HTTP_ONLY_STATUSES: Final = {PathNotFound: 404, UnsupportedEncoding: 415, RequestTooLarge: 413}


def to_http(error: EdlError) -> tuple[int, dict[str, str], str]:
    """Return the answer to a failed request: status, headers, message."""
    code, text = to_status(error)
    status = _HTTP_ONLY_STATUSES.get(type(error), to_http_status(code))
    headers = {STATUS_HEADER: code.name, **dict(to_metadata(error))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RateLimited) and status == 429:
        # In whole seconds, rounded up.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 0)))
    return status, headers, text


def message_to_json(message: Message) -> dict[str, Any]:
    """Return the fields of a message, without its maps; large integers stay numbers.

    Unset optional fields are left out.
    """
    return {
        field.name: _value(getattr(message, field.name), field.is_repeated)
        for field in message.DESCRIPTOR.fields
        if not (field.message_type and field.message_type.GetOptions().map_entry)
        if field.message_type or not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, repeated: bool) -> Any:
    if repeated:
        return [_value(item, False) for item in value]
    return message_to_json(value) if isinstance(value, Message) else value


async def read_body(
    request: Request, call: AdmittedCall, most_bytes: int, within_s: float
) -> memoryview:
    """Receive a body, after the caller has been checked.

    Args:
        request: the request.
        call: the call of this request.
        most_bytes: largest body.
        within_s: seconds from now within which the body must arrive.

    Raises:
        RequestTooLarge: the body, or its announced length, is larger than `most_bytes`.
        RetryableError: the body did not arrive in time.
        RateLimited: there is no memory for the body, or the call was evicted.
        UnsupportedEncoding: the body is compressed.
        starlette's ClientDisconnect: the caller has hung up.
    """
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise UnsupportedEncoding(
            f"Content-Encoding {coding:.40} is not supported: send the body without it"
        )
    length = request.headers.get("content-length", "")
    is_chunked = "transfer-encoding" in request.headers  # then a length does not count
    announced = int(length[:20]) if length.isdigit() and not is_chunked else most_bytes
    if announced > most_bytes:
        raise _too_large(str(announced), most_bytes)
    call.reserve(announced)
    entry, body = call_record_of(request), bytearray()
    async with call.request_timeout(within_s):
        async for piece in request.stream():
            if len(body) + len(piece) > most_bytes:
                raise _too_large("more", most_bytes)
            body += piece
            entry.received_bytes = len(body)
    call.request_received(len(body))
    return memoryview(body).toreadonly()


def _too_large(size: str, most_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than max ({size} vs. {most_bytes} bytes)")


class _JsonCodec:
    """Decodes a request in JSON, possibly followed by bytes of tensors, and encodes its answer.

    Args:
        request: the HTTP request.
        body: its body.
        json_executor: parses large JSON, one request at a time.

    Raises:
        WireError: the length of the JSON is invalid.
        RequestTooLarge: the JSON is too large.
    """

    def __init__(self, request: Request, body: memoryview, json_executor: Executor) -> None:
        self._head, self._raw = split(body, request.headers.get(HEAD_LENGTH))
        if len(self._head) > _MAX_JSON_BYTES:
            raise RequestTooLarge(
                f"the JSON of a request is larger than max ({len(self._head)} vs. "
                f"{_MAX_JSON_BYTES} bytes): send tensors as bytes, by the binary extension or gRPC"
            )
        self._model: str = request.path_params["name"]
        self._version: str = request.path_params.get("version", "")
        self.executor = None if len(self._head) <= _PARALLEL_JSON_BYTES else json_executor

    def decode(self, read: BufferReader, *, refuse_slow: bool = False) -> InferRequest:
        if refuse_slow and len(self._head) > _INLINE_JSON_BYTES:
            raise SlowToDecode
        return decode_request(
            self._head,
            self._raw,
            read,
            model_name=self._model,
            model_version=self._version,
            refuse_slow=refuse_slow,
        )

    def is_quick_to_encode(self, request: InferRequest, name: str, array: Array) -> bool:
        is_bytes = is_binary(request, name) and not array.dtype.hasobject
        return array.nbytes <= (QUICK_BYTES if is_bytes else _INLINE_JSON_BYTES)

    def encode(
        self, request: InferRequest, response: LabelResponse, in_shared_memory: Collection[str]
    ) -> tuple[Response, int]:
        head, raws = encode_response(request, response, in_shared_memory)
        if not raws:
            return Response(head, media_type="application/json"), len(head)
        headers = {"content-type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
        body = b"".join((head, *raws))
        return Response(body, headers=headers), len(body)


class HttpApi:
    """The routes of the protocol. Used only in one event loop.

    Args:
        context: shared objects of the server.
    """

    def __init__(self, context: ServerContext) -> None:
        self._config, self._servicer, self._admission, self._recorder = context
        # A single thread for large JSON, so that small requests do not wait for it.
        self._json_executor = ThreadPoolExecutor(1, "json")

    def app(self) -> Starlette:
        """Return the application with all routes."""
        routes = [
            self._get("/v2", "ServerMetadata"),
            self._get("/v2/health/live", "ServerLive", lambda body: _status_response(body.live)),
            self._get("/v2/health/ready", "ServerReady", lambda body: _status_response(body.ready)),
            self._get("/v2/models/stats", "ModelStatistics"),
            _post("/v2/repository/index", self._index),
            _post("/v2/systemsharedmemory/region/{name}/register", self._register),
        ]
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                self._get(model, "ModelMetadata"),
                self._get(
                    f"{model}/ready", "ModelReady", lambda body: _status_response(body.ready)
                ),
                self._get(f"{model}/stats", "ModelStatistics"),
                _post(f"{model}/infer", self._infer),
            ]
        for memory in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{name}"):
            routes += [
                self._get(f"{memory}/status", "SystemSharedMemoryStatus", _regions),
                _post(f"{memory}/unregister", self._unregister),
            ]
        handlers: dict[Any, Any] = {
            EdlError: self._refuse,
            HTTPException: self._unknown_path,
            ClientDisconnect: _client_gone,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    def close(self) -> None:
        """Release the thread without waiting."""
        self._json_executor.shutdown(wait=False)

    def _get(
        self, path: str, name: str, answer: Callable[[Any], Response] = lambda body: _json(body)
    ) -> Route:
        """Return the route of a method that takes its request from the path."""

        async def serve(request: Request) -> Response:
            return answer(self._call(name, request))

        return Route(path, serve, methods=["GET"])

    def _call(self, name: str, request: Request, **fields: Any) -> Any:
        """Check the caller and call a method; the path and `fields` make up its request."""
        method = self._servicer.methods[name]
        is_model_method = "version" in method.request.DESCRIPTOR.fields_by_name
        if is_model_method:
            call_record_of(request).model = request.path_params.get("name")
        caller = self._admission.admit(credentials_of(request), method.access)
        try:
            message = method.request(**request.path_params, **fields)
        except ValueError as error:  # JSON allows lone surrogates, protobuf does not
            raise WireError(f"the request has a value that cannot be used: {error}") from None
        try:
            return method.answer(message, caller)
        except RequestRefused as error:
            if is_model_method:
                raise PathNotFound(str(error)) from None
            raise

    async def _index(self, request: Request) -> Response:
        ready = (await self._body("RepositoryIndex", request)).get("ready", False)
        index = self._call("RepositoryIndex", request, ready=ready is True)
        return JSONResponse([message_to_json(model) for model in index.models])

    async def _register(self, request: Request) -> Response:
        region = _region_in(await self._body("SystemSharedMemoryRegister", request))
        self._call("SystemSharedMemoryRegister", request, **region)
        return Response()

    async def _unregister(self, request: Request) -> Response:
        self._call("SystemSharedMemoryUnregister", request)
        return Response()

    async def _body(self, name: str, request: Request) -> dict[str, Any]:
        """Read the JSON object in the body of a request; an empty body is an empty object."""
        access = self._servicer.methods[name].access
        caller = self._admission.admit(credentials_of(request), access)
        with self._admission.small_calls.begin(caller.owner) as call:
            body = await read_body(request, call, MAX_SMALL_REQUEST_BYTES, self._config.receive_s)
        return parse_object(body) if len(body) else {}

    async def _infer(self, request: Request) -> Response:
        """Label a batch, given as JSON, as bytes or in shared memory."""
        caller = self._admission.admit(credentials_of(request), "student")
        with ExitStack() as ending:
            call = ending.enter_context(self._admission.infer_calls.begin(caller.owner))
            most_bytes = self._config.max_message_bytes
            body = await read_body(request, call, most_bytes, self._config.receive_s)
            answer = self._servicer.infer(
                _JsonCodec(request, body, self._json_executor),
                caller,
                deadline_s=None,
                entry=call_record_of(request),
                nbytes=len(body),
            )
            response = await _unless_gone(request, answer)
            call.answer_ready(len(body), len(response.body))
            if call_when_sent := getattr(request.state, CALL_WHEN_SENT)():
                call_when_sent(ending.pop_all().close)
            return response

    async def _refuse(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, EdlError)
        self._recorder.refused(error)
        status, headers, text = to_http(error)
        return JSONResponse({"error": text}, status, headers)

    async def _unknown_path(self, request: Request, error: Exception) -> Response:
        """Answer requests for unknown paths and methods."""
        assert isinstance(error, HTTPException)
        self._recorder.count_refusal("malformed")
        # Not `request.url`: older versions of Starlette cannot parse it if `Host` is no host name.
        what = f"{request.method} {request.scope['path']:.80}"
        return JSONResponse({"error": f"{what}: {error.detail}"}, error.status_code, error.headers)


def _post(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """Await and return `answer`; cancel it if the caller hangs up. The body must be read already.

    Raises:
        starlette's ClientDisconnect: the caller has hung up.
    """
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(_wait_for_hang_up(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        leaving.cancel()
        answering.cancel()
        await asyncio.wait((answering,))  # a thread may still read the request
        del answering  # breaks a reference cycle: its exception refers to this frame


async def _wait_for_hang_up(request: Request) -> None:
    """Wait until the caller has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _client_gone(_: Request, __: Exception) -> Response:
    """Log status 499, as the caller has hung up; nothing is sent."""
    return Response(status_code=CLIENT_GONE)


def _status_response(yes: bool) -> Response:
    return Response(status_code=200 if yes else 503)


def _json(message: Message) -> Response:
    return JSONResponse(message_to_json(message))


def _regions(status: Any) -> Response:
    return JSONResponse([message_to_json(region) for region in status.regions.values()])


def _region_in(body: dict[str, Any]) -> dict[str, Any]:
    """Return the shared memory that a body describes; raise WireError if it describes none."""
    key, size, offset = body.get("key"), body.get("byte_size"), body.get("offset", 0)
    # `type`, as true and false are instances of int.
    are_valid = all(type(number) is int and 0 <= number < 1 << 63 for number in (size, offset))
    if isinstance(key, str) and are_valid:
        return {"key": key, "offset": offset, "byte_size": size}
    raise WireError('say which memory: {"key": NAME, "offset": BYTES, "byte_size": BYTES}')
