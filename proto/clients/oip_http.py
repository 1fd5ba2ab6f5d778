"""A client of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import grpc

from ...errors import (
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
from ..datatypes import TensorSpec
from ..json_tensors import HEAD_LENGTH, split
from ..json_values import objects_in, parse_object, shape_of, text_in
from ..security import ClientSecurity
from ..security.dial import HttpDial
from ..status import STATUS_HEADER, from_status
from ..wire import Buffer
from .client import CONFIGURED, Answer, Found, Request
from .http_calls import HttpCalls, Reply

_READ: Final[dict[int, type[EdlError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    408: DeadlineExceeded,
    412: WrongInstance,
    429: RateLimited,
    500: RetryableError,
    501: RequestRefused,
    502: TeacherLost,  # of a proxy that does not reach its server
    503: RetryableError,
    504: DeadlineExceeded,
}
#: What a family of other codes is read as, by its first one.
_FAMILIES: Final[tuple[tuple[int, type[EdlError]], ...]] = (
    (500, RetryableError),
    (400, RequestRefused),
    (300, RequestRefused),  # the address is another one
    (0, BadAnswer),  # neither an answer nor an error
)
_MOST_SECONDS_DIGITS: Final = 9


def from_http(reply: Reply) -> EdlError:
    """The error that an answer with another status than 200 stands for.

    Our teachers name gRPC's status beside it, which says more.
    """
    code = grpc.StatusCode.__members__.get(reply.headers.get(STATUS_HEADER, ""), grpc.StatusCode.OK)
    if code is not grpc.StatusCode.OK:
        return from_status(code, reply.words(), reply.headers.items())
    kind = _READ.get(reply.status)
    if kind is None:
        kind = next(kind for first, kind in _FAMILIES if reply.status >= first)
    error = kind(f"HTTP {reply.status}: {reply.words()}")
    if isinstance(error, RateLimited):
        said = reply.headers.get("retry-after", "")
        if said.isascii() and said.isdigit() and len(said) <= _MOST_SECONDS_DIGITS:
            error.retry_after_s = float(said)
    return error


def path_of(model: str) -> str:
    """Where a server has `model`."""
    return f"/v2/models/{quote(model, safe='')}"


def body_of(request: Request, *, binary: bool) -> tuple[Mapping[str, str], Sequence[Buffer]]:
    """Headers and body of a request; where it is `binary`, its arrays' own memory.

    Raises:
        RequestRefused: it can be sent nowhere.
    """
    try:
        head, raws = json_tensors.encode_request(
            request.inputs,
            request.outputs,
            request_id=request.request_id,
            parameters=request.parameters,
            output_parameters=request.output_parameters,
            binary=binary,
        )
    except (WireError, ValueError) as error:  # what cannot be sent here can be sent nowhere
        raise RequestRefused(f"it cannot be sent: {error}") from None
    # Servers choose by the type how to read the body, so it is always said.
    if not raws:
        return {"Content-Type": "application/json"}, [head]
    headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    return headers, [head, *raws]


def answer_of(reply: Reply) -> Answer:
    """The labels in a reply.

    Raises:
        EdlError: that its status stands for.
        BadAnswer: it cannot be read.
    """
    if reply.status != 200:
        raise from_http(reply)
    try:
        head, raw = split(reply.body, reply.headers.get(HEAD_LENGTH.lower()))
        said = json_tensors.decode_response(head, raw)
    except WireError as error:
        raise BadAnswer(str(error)) from None
    return Answer(said.outputs, said.parameters, said.output_parameters)


#: How servers refuse a body that is no JSON: of those that know the extension, and those that fail.
_NO_BYTES: Final = (400, 406, 415, 422, 500, 501)
_NOT_READY: Final = (400, 503)


class OipHttpClient:
    """A `Client` of one model.

    Args:
        url: http://host:port or https://host:port, perhaps with the path that /v2 stands under.
        model: its name there.
        security: how to prove who calls; None: no token.

    Attributes:
        binary: whether the server takes tensors as bytes; None: it has not been asked yet.

    Raises:
        UsageError: the URL is none, or a file of `security` cannot be used.
    """

    def __init__(self, url: str, model: str, security: ClientSecurity | None = None) -> None:
        self.binary: bool | None = None
        self._model = model
        self._path = path_of(model)
        self._calls = HttpCalls(HttpDial(url, security))

    def probe(self, timeout_s: float) -> Found:
        until_s = time.monotonic() + timeout_s
        ready = self._calls.call("GET", f"{self._path}/ready", until_s)
        if ready.status in _NOT_READY or _told(ready, "ready") is False:
            raise RetryableError(f"model {self._model!r} is not ready there: {ready.words()}")
        if ready.status != 200:
            raise from_http(ready)
        described = self._calls.call("GET", self._path, until_s)
        if described.status == 200:
            return replace(_found(described), most_rows=self._most_rows(until_s))
        if isinstance(error := from_http(described), RequestRefused):
            return Found()  # it is ready, and does not describe itself
        raise error

    def infer(self, request: Request, timeout_s: float) -> Answer:
        until_s = time.monotonic() + timeout_s
        if self.binary is not None:
            return answer_of(self._ask(request, until_s, binary=self.binary))
        reply = self._ask(request, until_s, binary=True)
        if reply.status not in _NO_BYTES:
            answer = answer_of(reply)
            self.binary = True
            return answer
        answer = answer_of(self._ask(request, until_s, binary=False))
        self.binary = False
        return answer

    def close(self) -> None:
        self._calls.close()

    def _most_rows(self, until_s: float) -> int | None:
        """What the model takes at once; None where it is not said."""
        extensions = _told(self._calls.call("GET", "/v2", until_s), "extensions")
        if not isinstance(extensions, list) or CONFIGURED not in extensions:
            return None
        most = _told(self._calls.call("GET", f"{self._path}/config", until_s), "max_batch_size")
        return most if isinstance(most, int) and most > 0 else None

    def _ask(self, request: Request, until_s: float, *, binary: bool) -> Reply:
        headers, body = body_of(request, binary=binary)
        return self._calls.call(
            "POST", f"{self._path}/infer", until_s, body, headers, request.check
        )


def _told(reply: Reply, name: str) -> Any:
    """One thing that an object says; None where there is none, or it does not."""
    try:
        return parse_object(reply.body).get(name) if reply.status == 200 else None
    except WireError:
        return None


def _found(reply: Reply) -> Found:
    try:
        message = parse_object(reply.body)
        return Found(_specs(message, "inputs"), _specs(message, "outputs"))
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
